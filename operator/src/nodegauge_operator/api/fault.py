"""One thing that is wrong with a node, as everything that speaks to people has it.

`core.faults` makes it of a report; a NodeHistory records it, and may do without every field but the code.
"""

from __future__ import annotations

import re

from msgspec import Struct

from nodegauge_judge import GpuIdentity, Severity
from nodegauge_judge.identity import with_address
from nodegauge_operator.api.times import unstamp

NOWHERE = ("", "node", "all GPUs")
"""Subjects that name no place on the node."""
MANY_GPUS = 2
"""GPUs whose serial numbers a sentence names: a pair.  The report has those of all."""
_MORE = re.compile(r" and (\d+) more$")


class Fault(Struct, frozen=True, rename="camel", kw_only=True):
    """One thing that is wrong with a node."""

    code: str
    """The finding's code."""
    title: str = ""
    """What is wrong, in a few words."""
    severity: Severity = Severity.FAIL
    """`fail`, or `warn` for a finding that never sets a taint or is not confirmed by a gate."""
    probe: str = ""
    """The kind of reading that found it."""
    cause: str = ""
    """The taint's value that it stands for, such as corruption; empty if it never sets one."""
    taint: str = ""
    """`unhealthy=corruption`: the taint that it sets or would set; empty if it never sets one."""
    state: str = ""
    """`GateState`; empty for a finding without a gate."""
    tainted: bool = False
    """Whether the taint that the node should carry has this fault as its evidence."""
    since: str = ""
    """The first run that showed it.  RFC 3339, UTC, as the times below; empty if unknown."""
    confirmed: str = ""
    """When enough runs had shown it, the last time; empty if they have not, and without a gate."""
    last_seen: str = ""
    """The last run that showed it; empty if unknown."""
    subject: str = ""
    """The worst location, and how many more there are."""
    scope: str = ""
    """How much of the node has it: `1 of 8 GPUs`, `all 28 pairs of GPUs`; empty for other places."""
    gpus: list[GpuIdentity] = []
    """The GPUs of the worst location, with all that is known of each, also of lost ones."""
    measured: str = ""
    """What the last bad run measured, with its numbers; empty after a repair."""
    also: str = ""
    """Further locations."""
    next_step: str = ""
    """The first thing to do."""
    steps: list[str] = []
    """Everything to do, in order, with the values of this fault."""
    no_taint: str = ""
    """Why it sets no taint now; empty if it does."""
    lifts: str = ""
    """What ends the taint, the trial or the suspicion; empty for a finding without a gate."""

    @property
    def since_epoch(self) -> float:
        """`since` in epoch seconds; 0.0 if it is unknown."""
        return unstamp(self.since)

    @property
    def worst(self) -> str:
        """The worst location alone; empty for the node as a whole."""
        return "" if self.subject in NOWHERE else _MORE.sub("", self.subject)

    @property
    def locations(self) -> int:
        """Locations that have it."""
        more = _MORE.search(self.subject)
        return 1 + int(more[1]) if more else 1

    @property
    def where(self) -> str:
        """The place with all that names it: `GPU 3 (0000:3b:00.0), serial 1654922001234`, or for several
        `3 of 8 GPUs, such as` and the worst of them; empty for the node as a whole."""
        location = self.worst
        if len(self.gpus) == 1:
            location = with_address(location, self.gpus[0])
        serials = ", ".join(gpu.serial or "unknown" for gpu in self.gpus[:MANY_GPUS])
        if any(gpu.serial for gpu in self.gpus):
            location += f" (serials {serials})" if len(self.gpus) > 1 else f", serial {serials}"
        if self.locations == 1:
            return location
        return (
            f"{self.scope}, such as {location}" if self.scope else f"{location} and {self.locations - 1} more"
        )
