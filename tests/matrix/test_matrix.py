"""Every machine with every fault: what follows is what the rules demand, and the table is whole."""

from __future__ import annotations

import pytest

from testbed.hardware.fault import FAULTS
from testbed.matrix.board import Cell, play
from testbed.matrix.expected import exists, expected, healthy, machines, scenarios
from testbed.profiles import names as profile_names

ELSEWHERE = {
    "clock-step": "moves NVML's timestamps alone: tests/unit/test_driver_time.py",
    "memory-unrepairable": "no recorded machine has a driver that tells: tests/unit/test_faults.py",
}
"""Faults that are no row of the table, and where they are tried."""

OF_NCCL = {name for name, fault in FAULTS.items() if fault.module == "faults_nccl"}
"""The table is of health runs, which these must not touch: tests/unit/test_faults_nccl.py."""

MACHINES, SCENARIOS = machines(), scenarios()
CELLS: dict[str, list[Cell]] = {}


@pytest.fixture(scope="module")
def cells() -> dict[str, list[Cell]]:
    """All cells by profile; the machines are read side by side, once."""
    if not CELLS:
        for cell in play(MACHINES, SCENARIOS, told=lambda _: None):
            CELLS.setdefault(cell.machine.profile, []).append(cell)
    return CELLS


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("profile", [machine.profile for machine in MACHINES])
def test_every_fault_leads_to_what_the_rules_demand(cells: dict[str, list[Cell]], profile: str) -> None:
    """Findings, verdict, taint and labels of the healthy machine and of each fault that can exist on it; a
    fault that cannot is refused."""
    wrong = [
        f"{cell.name}\n  must be {cell.must}\n  is      {cell.seen}"
        for cell in cells[profile]
        if not cell.good
    ]
    assert len(cells[profile]) == len(SCENARIOS) + 2
    assert not wrong, "\n".join(wrong)


def test_every_profile_and_every_fault_is_in_the_table() -> None:
    """A new machine or fault without an expectation is an error."""
    assert {machine.profile for machine in MACHINES} == set(profile_names())
    assert {scenario.fault_name for scenario in SCENARIOS} == FAULTS.keys() - ELSEWHERE.keys() - OF_NCCL


def test_no_word_is_misspelt() -> None:
    """A scenario asks only for words that some machine has, and is tried on one machine at least."""
    words = {word for machine in MACHINES for word in machine.has}
    for scenario in SCENARIOS:
        assert {*scenario.where, *(other.has for other in scenario.otherwise)} <= words, scenario.name
        assert any(exists(machine, scenario) for machine in MACHINES), scenario.name


def test_no_healthy_machine_has_a_finding_above_info() -> None:
    """But for the one whose runtime hides GPUs, which is unknown for it."""
    above = {machine.profile: machine.findings for machine in MACHINES if machine.findings}
    assert above == {"h100-runtime-hides-8": {"gpus-not-visible": "warn"}}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_only_a_failure_taints(scenario: object) -> None:
    """The table itself keeps the promise that no data and mere warnings put no taint on a node."""
    assert isinstance(scenario, type(SCENARIOS[0]))
    for machine in MACHINES:
        row = expected(machine, scenario)
        assert not row.taint or row.verdict == "fail"
        assert row.verdict != "unknown" or row.interconnect == healthy(machine, load=0).interconnect
