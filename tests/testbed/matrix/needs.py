"""What a fault needs to be seen, besides a health reading: by what it changes on a machine, and by how the
matrix's table watches it."""

from __future__ import annotations

from collections.abc import Iterator

from testbed import profiles
from testbed.hardware import FAULTS, HardwareError
from testbed.hardware.case import Case
from testbed.hardware.fault import find
from testbed.hardware.machine import Machine
from testbed.matrix.expected import Scenario, scenarios
from testbed.profiles import Profile

CUDA = "cuda."
"""Prefix of what the simulated CUDA alone looks at, so that only a load run meets it."""


def able(fault: str, profile: str) -> bool:
    """Whether such a machine can have the fault."""
    return _with(fault, profiles.load(profile)) is not None


def needs() -> dict[str, list[str]]:
    machines = [profiles.load(name) for name in profiles.names()]
    table = [one for one in scenarios() if one.findings]
    return {
        name: [*_of_machine(name, machines), *_of_table([s for s in table if s.fault_name == name])]
        for name in FAULTS
    }


def _with(fault: str, profile: Profile) -> Machine | None:
    machine = Machine.healthy(profile)
    try:
        find(fault).on(machine, {})
    except HardwareError:
        return None
    return machine


def _of_machine(fault: str, machines: list[Profile]) -> Iterator[str]:
    seen = [machine for profile in machines if (machine := _with(fault, profile)) is not None]
    if any(machine.nccl for machine in seen):
        yield "an NCCL run"
    if any(key.startswith(CUDA) for machine in seen for _, key in machine.values):
        yield "a load run"
    cases = [machine.case for machine in seen]
    if any((one.supplies, one.fans, one.leaks, one.warmer) != _NOTHING for one in cases):
        yield "a BMC"
    if any(one.blocked for one in cases):
        yield "GPU load"


_NOTHING = (Case().supplies, Case().fans, Case().leaks, Case().warmer)


def _of_table(watched: list[Scenario]) -> Iterator[str]:
    if watched and all(one.load for one in watched):
        yield "GPU load"
    if runs := min((one.runs for one in watched), default=0):
        yield f"{runs} runs" if runs > 1 else "a run"
