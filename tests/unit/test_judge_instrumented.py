"""A node of which everything was read: nothing is found while it is well, and every gate can be left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Ecc, Pcie, Repair, Result, Xids
from nodegauge_judge import CATALOGUE, Answer, Psu, Severity, Verdict, judge_health

MACHINES = [
    made.instrumented(machine)
    for machine in (
        made.h100(),
        made.dgx1(),
        made.titan(),
        made.phb(),
        made.a100_bridged_pairs(),
        made.ncv4(),
    )
]


def test_nothing_is_found_on_a_node_that_is_well() -> None:
    """First run and later ones, and the supply is ok."""
    for machine in MACHINES:
        first = judge_health(machine)
        second = judge_health(made.later(machine), history=first.history)
        for judgement in (first, second):
            assert judgement.findings == []
            assert judgement.psu is Psu.OK


def test_every_row_of_hardware_that_can_be_bad_can_be_good_again() -> None:
    """A gate whose row never answers good would never be left."""
    answers = judge_health(made.instrumented(made.hgx_a100_4())).answers
    rows = ("gpu-lost", "reset-required", "insufficient-power", "gpu-fault", "p2p-refused", "nvlink-degraded")
    rows += ("recovery-action", "ecc", "row-remap", "xid", "pcie-narrow", "psu-fault", "rail")
    assert {row: answers[row] for row in rows} == dict.fromkeys(rows, Answer.GOOD)


FAULTS = {
    "ecc": {"ecc": Ecc(mode=1, volatile_corrected=0, volatile_uncorrected=7, sram_threshold=0)},
    "row-remap": {"repair": Repair(rows_pending=0, rows_failed=1, unrepairable=0, action=0)},
    "recovery-action": {"repair": Repair(rows_pending=0, rows_failed=0, unrepairable=0, action=2)},
    "xid": {"xids": Xids(registered=True, seen=[79])},
    "pcie-narrow": {
        "pcie": Pcie(generation=4, width=4, max_generation=4, max_width=16, utilization=97, replays=3)
    },
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(MACHINES), st.sampled_from(sorted(FAULTS)), st.integers(0, 63))
def test_a_fault_on_any_gpu_is_found_there_and_nowhere_else(
    machine: Result, fault: str, gpu_index: int
) -> None:
    """One finding that names the GPU, a bad answer for its row, and the same class and labels as before."""
    gpu_index %= len(machine.gpus)
    history = judge_health(machine).history
    judgement = judge_health(made.with_gpu(made.later(machine), gpu_index, **FAULTS[fault]), history=history)
    failed = [finding for finding in judgement.findings if finding.severity is Severity.FAIL]
    assert [finding.code for finding in failed] == [fault]
    assert failed[0].subject == f"GPU {gpu_index} ({made.pci(gpu_index)})"
    assert [row for row, answer in judgement.answers.items() if answer is Answer.BAD] == [fault]
    assert judgement.verdict is Verdict.FAIL
    assert judgement.interconnect == judge_health(machine).interconnect


def test_findings_of_a_node_where_everything_is_wrong_stay_readable() -> None:
    """Each message is short enough for an event, and says what to do next."""
    sick = made.instrumented(made.h100(16))
    history = judge_health(sick).history
    for gpu_index in range(16):
        changes = FAULTS["ecc"] | FAULTS["xid"] | FAULTS["pcie-narrow"] | FAULTS["recovery-action"]
        sick = made.with_gpu(sick, gpu_index, **changes)
    alarms = [replace(sensor, alarm=1, value=10_000) for sensor in sick.sensors]
    findings = judge_health(made.later(replace(sick, sensors=alarms)), history=history).findings
    assert len(findings) >= 5
    for finding in findings:
        assert len(finding.message) < 600
        assert finding.message.endswith(f"Next: {CATALOGUE[finding.code].next_step}")  # type: ignore[index]
