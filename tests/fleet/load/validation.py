"""What a validation by NCCL costs beside NCCL: the real NCCL probe with a simulated engine.

The overhead is measured: with a simulated NCCL that takes no time, all that is left is ours (Python, NVML,
processes, logs, the document).  Nodes per hour are arithmetic on that, on the times the simulated NCCL has
for NCCL, and on what is assumed of a pod; nothing of it says how fast any GPU is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.load.figures import percentile
from nodegauge_contract.nccl import ArmOutcome
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.core.budget import concurrent_probes
from testbed.errors import TestbedError
from testbed.hardware import Hardware, plug
from testbed.simulated_nccl.run import run
from testbed.table import table

PROFILE = "h100-sxm-8"
RUNS = 5
OVERHEAD_BUDGET = 5.0
FLEETS = (100, 1_000, 5_000)
POD_SECONDS = 5.0
"""Assumed, not measured: from a free node to the NCCL probe's first line, and from its last to the next pod's
turn (scheduler, kubelet, container runtime, deletion, the operator's own look)."""
MOST = 50
"""The chart's default of operator.maxConcurrentNcclProbes."""
REAL_SECONDS = 38.0
"""The longer end of what a run on eight H100 is estimated to take; nobody has measured it here."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Seconds of wall time: of each run in which NCCL takes none, and of one in which it takes its own."""

    overhead: Sequence[float]
    whole: float

    @property
    def of_nccl(self) -> float:
        """What of the whole the simulated NCCL slept."""
        return self.whole - statistics.median(self.overhead)


def measure(directory: Path) -> Validation:
    """Plug the machine in and validate it; TestbedError when a run is not whole, and so not to be timed."""
    hardware = plug(PROFILE, directory / "hardware")
    hardware.fault("nccl-in-real-time", percent=0)
    overhead = [_timed(hardware, name=str(number)) for number in range(RUNS)]
    hardware.heal()
    hardware.fault("nccl-in-real-time")
    return Validation(overhead=overhead, whole=_timed(hardware, name="whole"))


def _timed(hardware: Hardware, *, name: str) -> float:
    ran = run(hardware, name=name)
    nccl = ran.result.nccl
    if nccl is None or nccl.cut or {arm.outcome for arm in nccl.arms} != {ArmOutcome.DONE}:
        raise TestbedError(f"the validation of {PROFILE} is not whole: {nccl}")
    return ran.seconds


def nodes_per_hour(seconds: float, *, fleet: int) -> float:
    """How many nodes are validated in an hour, each held so many seconds, at the default budget."""
    return _slots(fleet) * 3600 / (seconds + POD_SECONDS)


def summary(match: Validation) -> str:
    """The section of `make loadtest`."""
    median, worst = statistics.median(match.overhead), percentile(match.overhead, 1)
    runs = f"{len(match.overhead)} runs: median {median:.2f} s, worst {worst:.2f} s"
    head = ["Nodes validated per hour by one operator", *(f"{fleet:,} nodes" for fleet in FLEETS)]
    rows = [
        ["  at a time, by the default budget", *(str(_slots(fleet)) for fleet in FLEETS)],
        [f"  {match.whole:.0f} s each, as simulated", *_hours(match.whole)],
        [f"  {REAL_SECONDS:.0f} s each, as estimated of real GPUs", *_hours(REAL_SECONDS)],
    ]
    return "\n".join(
        [
            f"nccl: a whole validation of {PROFILE} by the real program, with a simulated NCCL",
            f"  everything but NCCL, of {runs} (budget < {OVERHEAD_BUDGET:g} s)",
            f"  with NCCL's times as simulated: {match.whole:.1f} s, of which NCCL has {match.of_nccl:.1f} s",
            "",
            table([head, *rows]),
            f"  Reckoned: places x 3,600 / (seconds + {POD_SECONDS:g} s, assumed, for a pod to come and go).",
        ]
    )


def _slots(fleet: int) -> int:
    return concurrent_probes(Budget().concurrent_nccl_probes, fleet, most=MOST)


def _hours(seconds: float) -> list[str]:
    return [f"{nodes_per_hour(seconds, fleet=fleet):,.0f}" for fleet in FLEETS]
