"""Every machine while healthy, each rule about faults on two of the machines to which it applies, and what
differs from the merge base with $NODEGAUGE_CHANGED_SINCE (`make matrix` tries all)."""

from __future__ import annotations

import os

import msgspec
import pytest

from testbed.hardware.fault import FAULTS
from testbed.matrix.board import Cell, play
from testbed.matrix.expected import (
    PROFILES,
    RULES,
    affected,
    changed_since,
    exists,
    machines,
    representative,
    scenarios,
)

ELSEWHERE = {
    "clock-step": "moves NVML's timestamps alone",
    **dict.fromkeys(
        ("supply-failed", "supply-input-lost", "supply-removed", "chassis-fan-stopped", "inlet-hot", "leak"),
        "a BMC sees it: tests/matrix/test_texts.py and tests/corpus/bmc",
    ),
    "hung-call": "its watchdog waits: tests/probes/test_health.py",
    "airflow-blocked": "heat takes its time: tests/testbed/demo/heat.py",
    "memory-unrepairable": "no recorded machine has a driver that reports it: tests/probes/test_condition.py",
}
"""Faults that are not in the table, and where they are tested."""

OF_RUNS = {name for name, fault in FAULTS.items() if fault.module == "faults_runs"}
"""The table is about health runs, which these must not touch: tests/unit/test_simulated_nccl_probe.py and
tests/probes/test_load.py."""

MACHINES, SCENARIOS = machines(), scenarios()
SINCE = os.environ.get("NODEGAUGE_CHANGED_SINCE")
CHOSEN = representative(MACHINES, SCENARIOS) | (changed_since(SINCE, MACHINES, SCENARIOS) if SINCE else set())


@pytest.fixture(scope="module")
def cells() -> dict[str, list[Cell]]:
    """The cells by profile."""
    wanted = {
        machine.profile: [one for one in SCENARIOS if (machine.profile, one.name) in CHOSEN]
        for machine in MACHINES
    }
    result: dict[str, list[Cell]] = {}
    for cell in play(MACHINES, wanted):
        result.setdefault(cell.machine.profile, []).append(cell)
    return result


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("profile", [machine.profile for machine in MACHINES])
def test_every_fault_leads_to_what_the_rules_demand(cells: dict[str, list[Cell]], profile: str) -> None:
    """Findings, verdict, taint and labels, healthy and with each fault; an impossible fault is refused."""
    wrong = [
        f"{cell.name}\n  must be {cell.must}\n  is      {cell.seen}"
        for cell in cells[profile]
        if not cell.good
    ]
    assert len(cells[profile]) == 2 + sum(name == profile for name, _ in CHOSEN)
    assert not wrong, "\n".join(wrong)


def test_a_change_has_all_its_cells_tried() -> None:
    """A profile: all scenarios; an entry of the table: all machines; a rules file: those of its codes."""

    def cells(changed: dict[str, str], before: object = None) -> set[tuple[str, str]]:
        return affected(changed, before, machines=MACHINES, scenarios=SCENARIOS)

    assert cells({"README.md": '"xid"'}) == set()
    assert cells({f"{PROFILES}t4-1.yaml": ""}) == {("t4-1", one.name) for one in SCENARIOS}
    table = [msgspec.to_builtins(one) for one in SCENARIOS]
    assert cells({}, table[1:]) == {(machine.profile, SCENARIOS[0].name) for machine in MACHINES}
    assert {name for _, name in cells({f"{RULES}driver_errors.py": 'code="xid"'})} == {
        one.name for one in SCENARIOS if one.fault_name == "xid"
    }


def test_every_fault_is_in_the_table() -> None:
    """A new fault without an expectation is an error."""
    assert {scenario.fault_name for scenario in SCENARIOS} == FAULTS.keys() - ELSEWHERE.keys() - OF_RUNS


def test_no_word_is_misspelt() -> None:
    """A scenario asks only for words that some machine has, and is tried on one machine at least."""
    message = {word for machine in MACHINES for word in machine.has}
    for scenario in SCENARIOS:
        assert {*scenario.where, *(other.has for other in scenario.otherwise)} <= message, scenario.name
        assert any(exists(machine, scenario) for machine in MACHINES), scenario.name


def test_no_healthy_machine_has_a_finding_above_info() -> None:
    """Except where nothing can be judged: a runtime that hides GPUs."""
    assert {machine.verdict for machine in MACHINES if machine.findings} == {"unknown"}
