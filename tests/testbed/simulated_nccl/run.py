"""Runs the real NCCL probe on simulated hardware with the simulated NCCL as its engine.

For tests and measurements; the simulated NCCL does not use it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nodegauge_contract import Result, decode
from testbed import forkserver
from testbed.errors import TestbedError
from testbed.hardware import Hardware
from testbed.kubelet.images import simulated_nccl_environment
from testbed.processes import with_variable
from testbed.simulated_nccl.machine import MACHINE_VARIABLE

CHECKOUT = Path(__file__).resolve().parents[3]
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR")
TERMINATION_LOG = "termination-log"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """`message`: what a kubelet would keep of its termination log; `left`: processes that are still there."""

    result: Result
    message: str
    left: list[int]


def run(hardware: Hardware, *arguments: str, name: str = "1", more: Mapping[str, str] | None = None) -> Ran:
    """One run called `name`; TestbedError when the program ends with anything but a result."""
    log = hardware.directory / TERMINATION_LOG
    log.write_bytes(b"")
    environment = {key: os.environ[key] for key in KEPT if key in os.environ}
    environment |= simulated_nccl_environment(CHECKOUT) | hardware.env()
    environment |= {"NODEGAUGE_RUN": name, "NODEGAUGE_TERMINATION_LOG": str(log), **(more or {})}
    done = forkserver.run(
        [sys.executable, "-m", "nodegauge_probes", "nccl", *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise TestbedError(f"the benchmark ended with {done.returncode}: {done.stderr}")
    return Ran(result=decode(done.stdout), message=log.read_text(), left=survivors(hardware))


def at_work(hardware: Hardware) -> bool:
    """Whether NCCL is at work on this machine: a child of a benchmark that has begun to say something."""
    for pid in survivors(hardware):
        try:
            if b"--order" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def survivors(hardware: Hardware) -> list[int]:
    """Processes that were started for this machine's benchmarks and still run."""
    return [*with_variable(f"{MACHINE_VARIABLE}={hardware.env()[MACHINE_VARIABLE]}")]
