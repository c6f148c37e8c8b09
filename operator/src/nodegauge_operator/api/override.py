"""What a person says about one node, as its report shows it."""

from __future__ import annotations

from msgspec import Struct

LEAVE_ALONE, HEALTHY = "leave-alone", "healthy"


class Override(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The override of a node: `kind`, who (`by`), why (`reason`) and `until` when (RFC 3339, UTC).

    `problem`: why it is not in force, and the way out; empty while it is.
    """

    kind: str = ""
    until: str = ""
    by: str = ""
    reason: str = ""
    problem: str = ""

    @property
    def leaves_alone(self) -> bool:
        """No run starts on the node, and nothing is written to it."""
        return not self.problem and self.kind == LEAVE_ALONE

    @property
    def healthy(self) -> bool:
        """Faults of the node are warnings: none of them sets a taint."""
        return not self.problem and self.kind == HEALTHY
