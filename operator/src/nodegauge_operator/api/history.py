"""What has changed on a node: its last transitions, the last event, and conditions for `kubectl wait`."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Change(Struct, frozen=True, rename="camel", kw_only=True):
    """The last change worth an event: written under a name made from it, so that it is written once."""

    run: str = ""
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    at: str = ""


class Transition(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """`what` of a node changed `from` one value `to` another (empty: there was none, or is none now).

    `probe` and `run`: the run whose end it came with; empty and 0 if time, a policy or a person did it.
    """

    at: str
    what: str
    before: str = msgspec.field(default="", name="from")
    to: str = ""
    why: str = ""
    probe: str = ""
    run: int = 0


class Condition(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A condition in the form of metav1.Condition; without `observedGeneration`, because a report's spec only
    asks for runs."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str = ""
