"""The judgement as a whole: verdict, summary, matrix, and a node of which everything was read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Ecc, Gpu, Pcie, Power, Problem, Repair, Result, Temperature, Xids
from nodegauge_judge import (
    CATALOGUE,
    Answer,
    History,
    Judgement,
    Psu,
    Severity,
    Thresholds,
    ThresholdsInvalid,
    Verdict,
    judge_health,
)
from nodegauge_judge.rule import filled
from support.judge_results import LOST, codes, only

HOT = Temperature(gpu=84, gpu_max=85)


def test_nothing_readable_is_unknown() -> None:
    """GPUs without any identity and without an error are no healthy GPUs."""
    judgement = judge_health(Result(probe="health", gpus=[Gpu(index=0), Gpu(index=1)]))
    assert (judgement.verdict, judgement.readable) == (Verdict.UNKNOWN, False)
    assert "nothing was readable" in judgement.summary


def test_findings_are_listed_worst_first_and_the_worst_is_the_verdict() -> None:
    """fail, warn, info."""
    result = made.with_pair(made.titan(), 0, 1, nvlink=5)
    result = made.with_gpu(result, 0, temperature=Temperature(gpu=84, gpu_max=85), window=None, vbios="1")
    judgement = judge_health(result)
    assert codes(judgement) == ["p2p-refused/fail", "hot/warn", "mixed-gpus/info"]
    assert judgement.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (made.h100(), "8x NVIDIA H100 80GB HBM3: healthy; NVLink joins all GPUs, 450 GB/s per GPU one way."),
        (made.phb(), "2x NVIDIA GeForce RTX 4090: healthy; no NVLink, GPUs talk over PCIe."),
        (
            made.mesh([[0]], name="Tesla T4", mbps=0),
            "1x Tesla T4: healthy; one GPU: there is nothing to join.",
        ),
        (
            made.with_gpu(made.titan(), 1, error=LOST),
            "2x NVIDIA TITAN RTX: a GPU is lost: GPU 1 (0000:10:00.0) [gpu-lost].",
        ),
        (
            Result(probe="health", problem=Problem(kind="driver-mismatch", message="550.54 and 550.90")),
            "Could not be judged: driver library and kernel module differ: 550.54 and 550.90 "
            "[driver-mismatch].",
        ),
        (
            made.with_gpu(made.titan(), 1, error=Problem(kind="call-hung", call="nvmlDeviceGetUUID")),
            "2x NVIDIA TITAN RTX: could not be judged: GPU 1 (0000:10:00.0): an NVML call did not return: "
            "problem call-hung (in nvmlDeviceGetUUID) [call-hung].",
        ),
    ],
)
def test_the_summary_is_one_sentence(result: Result, text: str) -> None:
    """What it is, what is wrong, where."""
    assert judge_health(result).summary == text


def test_the_summary_counts_other_findings_without_info() -> None:
    """One more finding, two more findings; info is none of them."""
    two = made.with_gpu(
        made.with_pair(made.titan(), 0, 1, read=5), 0, temperature=HOT, window=None, vbios="1"
    )
    assert judge_health(two).summary.endswith("[p2p-refused]; 1 more finding.")
    three = made.with_gpu(two, 1, power=Power(enforced_limit_mw=100_000, default_limit_mw=400_000))
    assert judge_health(three).summary.endswith("[p2p-refused]; 2 more findings.")


def test_the_judgement_has_the_whole_matrix() -> None:
    """With its legend; empty without a GPU."""
    for gpus in (8, 64):
        matrix = judge_health(made.h100(gpus)).matrix
        assert "Legend:" in matrix
        assert f"\nGPU{gpus - 1} " in matrix
    assert judge_health(Result(probe="health")).matrix == ""


def test_a_judgement_encodes_to_json() -> None:
    """Encoding needs no help and decodes to the same."""
    judgement = judge_health(made.without_links(made.h100(), 3, count=5))
    assert msgspec.json.decode(msgspec.json.encode(judgement), type=Judgement) == judgement


def test_foreign_text_is_clipped_and_kept_on_one_line() -> None:
    """A driver's words of any length and shape cannot flood a message."""
    problem = Problem(kind="crashed", message="line\n" * 100)
    finding = only(judge_health(Result(probe="health", problem=problem)))
    assert "\n" not in finding.message
    assert len(finding.message) < 400


def test_invalid_thresholds_are_refused_by_name() -> None:
    """camelCase names, defaults for what is absent, an error that names the field."""
    assert Thresholds.of({"hotWarn": 75, "nvlinkSumRatio": 0.5}).nvlink_sum_ratio == 0.5
    assert Thresholds.of({}) == Thresholds()
    for spec, named in [
        ({"hotWarn": 900}, "spec.thresholds.hotWarn"),
        ({"hotWam": 75}, "hotWam"),
        ({"powerCapRatio": "x"}, "powerCapRatio"),
    ]:
        with pytest.raises(ThresholdsInvalid, match=named):
            Thresholds.of(spec)


def test_an_empty_history_equals_none() -> None:
    """A first run and an empty history are the same."""
    assert judge_health(made.titan()) == judge_health(made.titan(), history=History())


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


def test_a_healthy_node_has_no_findings() -> None:
    """First run and later ones, and the supply is ok."""
    for machine in MACHINES:
        first = judge_health(machine)
        second = judge_health(made.later(machine), history=first.history)
        for judgement in (first, second):
            assert judgement.findings == []
            assert judgement.psu is Psu.OK


def test_every_hardware_gate_can_answer_good() -> None:
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
def test_a_fault_on_any_gpu_is_found_there_alone(machine: Result, fault: str, gpu_index: int) -> None:
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
    assert len(msgspec.json.encode(findings)) < 4096
    for finding in findings:
        assert len(finding.message) < 600
        rule = CATALOGUE[finding.code]
        step = filled(rule.next_step, gpus=finding.gpus, evidence=finding.evidence)
        assert finding.message.endswith(f"Next: {step}")
