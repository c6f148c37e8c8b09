"""What a load run, an NCCL run or the BMC read of a machine with a fault that a health run does not see.

The documents of load and NCCL runs are made as the probes write them: the machine's clock stands still here.
The BMC is read by the real reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nodegauge_bmc.connection import Access
from nodegauge_bmc.redfish import read
from nodegauge_contract import ArmName, Result
from nodegauge_contract.chassis import ChassisReading, LeakDetector
from nodegauge_operator import names
from support import load_results, nccl_results
from testbed.hardware import Hardware
from testbed.hardware.bmc import PASSWORD, USER
from testbed.hardware.bmcs import CA, bmcs

ARMS = (ArmName.DEFAULT, ArmName.P2P_OFF)
LEAK = "leak"
BMC = (
    "supply-failed",
    "supply-input-lost",
    "weak-supply",
    "chassis-fan-stopped",
    "inlet-hot",
)
"""Faults that only a BMC sees; `LEAK` is made, because the machine with eight GPUs is cooled by air."""


def load(last: Result, of_first: dict[str, Any] | None = None, **of_all: Any) -> Result:
    """A load run on the machine of the last health run; what differs on all GPUs, and on the first."""
    known = [of_all | (of_first or {}) if index == 0 else of_all for index in range(len(last.gpus))]
    run = load_results.loaded(*(load_results.gpu(index, **values) for index, values in enumerate(known)))
    return replace(last, probe=names.PROBE_LOAD, load=run.load)


def nccl(
    last: Result,
    *,
    share: float = 1.0,
    pairs: dict[tuple[int, int], float] | None = None,
    **of_arms: Any,
) -> Result:
    """An NCCL run; `share` of the usual bandwidth, slow pairs in GB/s, and how its arms differ."""
    count = len(last.gpus)
    usual = [
        nccl_results.default_arm(462.0 * share, gather=355.0 * share, ranks=count, algorithm="NVLS"),
        nccl_results.p2p_off_arm(28.0, ranks=count),
    ]
    run = nccl_results.with_pairs(nccl_results.node(last, *usual), 380.0, slow=pairs)
    for arm in ARMS if of_arms else ():
        run = nccl_results.swapped(run, arm, **of_arms)
    return run


def wrong(last: Result) -> Result:
    run = nccl(last)
    for arm in ARMS:
        cells = [replace(cell, wrong=3) for cell in nccl_results.arm_of(run, arm).cells]
        run = nccl_results.with_cells(run, arm, *cells)
    return run


RUNS: dict[str, Callable[[Result], Result]] = {
    "airflow-blocked": partial(
        load,
        of_first={"max_c": 87, "steady_c": 86, "margin_c": 0, "tflops": 400.0}
        | {"reasons": load_results.reason(0x20, samples=100)},
    ),
    "bit-flips": partial(load, of_first={"mismatches": 1}),
    "slow-gpu": partial(load, of_first={"tflops": 366.0}),
    "nccl-hang": partial(nccl, outcome="hung", phase="measure"),
    "nccl-wrong-data": wrong,
    "nccl-slow": partial(nccl, share=0.7),
    "nvlink-down-in-fact": partial(nccl, share=28 / 462),
    "slow-link": partial(nccl, share=0.3, pairs={(0, 1): 114.0, (1, 0): 114.0}),
}
"""By name of a fault what a run reads that meets it (`testbed/hardware/faults_runs.py`)."""


def of_bmc(hardware: Hardware, folder: Path) -> dict[str, ChassisReading]:
    """By name of a fault what the BMC says; by an empty name, what it says while all is well."""
    readings = {}
    with bmcs({"node-1": hardware}, folder) as urls:
        access = Access(url=urls["node-1"], user=USER, password=PASSWORD, ca=str(folder / CA))
        for name in ("", *BMC):
            hardware.load(100)
            if name:
                hardware.fault(name)
            readings[name] = asyncio.run(read(access, deadline=60.0))
            hardware.heal()
    wet = [LeakDetector(name="Leak 1", state="Critical", enabled=True)]
    return readings | {LEAK: replace(readings[""], leaks=wet)}
