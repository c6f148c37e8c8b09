"""What a person says about one node, as its report shows it."""

from __future__ import annotations

from msgspec import Struct

LEAVE_ALONE, HEALTHY = "leave-alone", "healthy"


class Override(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What a person says about a node, in its annotations nodegauge.dev/override, -until, -by and -reason."""

    kind: str = ""
    """`leave-alone` or `healthy`."""
    until: str = ""
    """When it ends (RFC 3339, UTC)."""
    by: str = ""
    """Who takes the decision, by their own account."""
    reason: str = ""
    """Why."""
    in_force: str = ""
    """The same while it is in force; empty while it is not."""
    problem: str = ""
    """Why it is not in force, and what to write; empty while it is in force."""

    @property
    def leaves_alone(self) -> bool:
        """No run starts on the node, and nothing is written to it."""
        return not self.problem and self.kind == LEAVE_ALONE

    @property
    def healthy(self) -> bool:
        """Faults of the node are warnings: none of them sets a taint."""
        return not self.problem and self.kind == HEALTHY
