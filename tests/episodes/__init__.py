"""`make episodes`: how often `nodegauge_judge.feed` names the right cause, on episodes whose cause is known.

`recorded` has episodes that really happened on a machine, and invented ones that it could not make; `score`
counts.
"""

from enum import StrEnum

from msgspec import Struct

from nodegauge_contract import Result
from nodegauge_judge.feed.case import FeedPod
from nodegauge_judge.feed.causes import FeedCause

SOUND = "sound"
CAUSES = tuple(cause.value for cause in FeedCause if cause is not FeedCause.UNKNOWN)
TRUTHS = (*CAUSES, SOUND)
EACH, SOUND_ONES = 30, 60
"""Episodes by cause, and sound ones."""


class Origin(StrEnum):
    PRODUCED = "produced"
    GENERATED = "generated"


class Episode(Struct, frozen=True, kw_only=True):
    """One window of which the truth is known."""

    truth: str
    """A cause, or `SOUND`."""
    kind: str
    """How it was made, in a few words."""
    origin: Origin
    result: Result
    """What the feed probe wrote."""
    pods: tuple[FeedPod, ...] | None = None
    """Who held the GPUs; None for nobody knows."""
