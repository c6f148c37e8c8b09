"""What has changed on a node: its last transitions, the last event, and conditions for `kubectl wait`."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from nodegauge_operator.api.times import unstamp


class Change(Struct, frozen=True, rename="camel", kw_only=True):
    """The last change worth an event.  The event's name is made of it, so that it is written once."""

    run: str = ""
    """What caused it: UID of the run's pod, or another text that tells this change from the last."""
    type: str = "Normal"
    """Type of the event: Normal or Warning."""
    reason: str = ""
    """Reason of the event (`names.Reason`)."""
    message: str = ""
    """Text of the event."""
    at: str = ""
    """When it was decided (RFC 3339, UTC)."""

    @property
    def at_epoch(self) -> float:
        """`at` in epoch seconds; 0.0 if it is unknown."""
        return unstamp(self.at)


class Transition(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One change of one thing on a node."""

    at: str
    """When it changed (RFC 3339, UTC)."""
    what: str
    """What changed: verdict, taint throttled, interconnect, label health, ..."""
    before: str = msgspec.field(default="", name="from")
    """The value before; empty if there was none."""
    to: str = ""
    """The value since; empty if there is none."""
    why: str = ""
    """Why it changed, in brief."""
    probe: str = ""
    """The probe whose run changed it; empty if time, a policy or a person did."""
    run: int = 0
    """Number of that run; 0 for none."""


class Condition(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A condition in the form of metav1.Condition.  It has no `observedGeneration`, because a report's spec
    only asks for runs."""

    type: str
    """Validated or Tainted."""
    status: str
    """True, False or Unknown, as text."""
    reason: str
    """Reason of the status, in one word."""
    message: str = ""
    """Causes of a taint; empty for Validated, which the status' summary explains."""
    last_transition_time: str = ""
    """When the status last changed (RFC 3339, UTC)."""
