"""The record of an NCCL run: several runs, grading again, its 2 KiB, and properties of every judgement."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NOT_READ, ArmName, Phase, Result
from nodegauge_judge import Answer, GpuIdentity, NodeFacts, Severity, Sharing, Thresholds, Verdict
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import RECORD_LIMIT, Agreement, Measurement, NcclJudgement
from support.nccl_results import GIB, codes

RESULTS = [
    nccl.with_pairs(nccl.h100(), 390.0, slow={(2, 5): 100.0}),
    nccl.h100(),
    nccl.h100(300, count=7),
    nccl.titan(),
    nccl.titan(12),
    nccl.phb(),
    nccl.changed(nccl.h100(), nodes=2),
    nccl.changed(nccl.h100(), throttled_periods=50, cut=["all_reduce/8"], expected=16),
    nccl.swapped(nccl.titan(), ArmName.DEFAULT, outcome="hung", phase="load", cells=[]),
    made.titan(),
]
OUTCOMES = ["done", "hung", "crashed", "failed", "out-of-memory", "garbage", "partial", "cut", "tomorrow"]
WORSE = [Verdict.PASS, Verdict.WARN, Verdict.FAIL]


def run(*values: float) -> NcclJudgement:
    judgement = judge_nccl(nccl.h100(values[0]))
    for gbps in values[1:]:
        judgement = judge_nccl(nccl.h100(gbps), previous=judgement.record)
    return judgement


def test_the_first_run_below_the_floor_warns_and_the_second_fails() -> None:
    first, second = run(300), run(300, 300)
    assert (first.verdict, first.again, codes(first)) == (Verdict.WARN, True, {"busbw-low/warn"})
    assert (second.verdict, second.again, codes(second)) == (Verdict.FAIL, False, {"busbw-low/fail"})
    assert regrade(second.record) == second  # grading again does not soften it
    assert first.answers["busbw-low"] is second.answers["busbw-low"] is Answer.BAD
    assert codes(run(410, 430, 410)) == {"busbw-low/warn"}  # a good run between resets the count


@pytest.mark.parametrize(
    ("values", "label", "again"),
    [
        ((462, 500), 500, False),
        ((462, 520), 520, True),
        ((462, 520, 470), 470, False),
        ((462, 520, 525), 520, False),
        ((462, 520, 470, 480), 480, False),
        ((520, 462), 462, True),
    ],
)
def test_runs_that_disagree_need_a_third(values: tuple[float, ...], label: int, again: bool) -> None:
    """They differ by more than a tenth of the larger value; a fourth run is compared with the median."""
    judgement = run(*values)
    assert (judgement.busbw["all_reduce"], judgement.again) == (label, again)
    assert ("busbw-disagrees/info" in codes(judgement)) is again


def test_one_slow_run_of_three_is_ignored_and_two_are_not() -> None:
    """462, 30, 462 is a good node that was disturbed; 462, 30, 31 is a bad one."""
    assert run(462, 30, 462).answers["busbw-low"] is Answer.GOOD
    bad = run(462, 30, 31)
    assert (bad.answers["busbw-low"], bad.verdict) == (Answer.BAD, Verdict.FAIL)


@pytest.mark.parametrize(
    "other",
    [
        nccl.h100(30, count=7),
        nccl.changed(nccl.h100(30), nccl="2.29.1"),
        nccl.changed(nccl.h100(30), uuids=[f"GPU-{n}" for n in range(8)]),
    ],
    ids=["count", "nccl", "gpus"],
)
def test_other_gpus_or_another_nccl_start_a_new_history(other: Result) -> None:
    assert "busbw-disagrees/info" not in codes(judge_nccl(other, previous=run(462).record))


def test_new_expectations_thresholds_and_peers_regrade_old_numbers() -> None:
    record = run(400, 400).record
    assert regrade(record).verdict is Verdict.FAIL
    own = Expectation(gpu="*H100*", count=8, collective="all_reduce", bytes=GIB, busbw=400)
    assert regrade(record, expectations=Expectations.default().with_policy([own])).verdict is Verdict.PASS
    assert regrade(record, thresholds=Thresholds(busbw_expected_share=0.8)).verdict is Verdict.PASS
    peers = regrade(run(462).record, peers=lambda _: (600.0, 610.0))
    assert codes(peers) == {"busbw-below-peers/warn"}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "null", "[1]", '{"v":99}', '{"v":"1"}', "[" * 5000, '{"v":1,"ranks":-1}', "\ud800"],
    ids=range(9),
)
def test_an_unreadable_record_counts_as_none(text: str) -> None:
    judgement = regrade(text)
    assert (judgement.verdict, judgement.readable, judgement.reason) == (Verdict.UNKNOWN, False, "NoRecord")
    assert judge_nccl(nccl.h100(), previous=text) == judge_nccl(nccl.h100())


def test_an_edited_record_cannot_control_a_terminal_or_invent_bandwidth() -> None:
    record = json.loads(run(462).record)
    assert regrade(json.dumps(record | {"gpu": "H100 \x1b[2J"})).reason == "NoRecord"
    record["arms"][0]["cells"][0][2] = 1e-300
    assert regrade(json.dumps(record)).busbw.get("all_reduce") != 462
    assert regrade(json.dumps(record | {"ranks": 1})).busbw == {}


def large(count: int, *, message: str) -> Result:
    machine = made.switched(
        count, name="NVIDIA H100 80GB HBM3 in a box of a long name", links=18, mbps=26_562
    )
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability="9.0")
    arms = [
        nccl.default_arm(123.456, gather=111.111, ranks=count, algorithm="NVLS_TREE"),
        nccl.nvls_off_arm(99.99, ranks=count),
        nccl.p2p_off_arm(28.123, ranks=count),
    ]
    arms = [replace(arm, message=message, outcome="partial", phase="measure") for arm in arms]
    cut = [f"reduce_scatter/{2**n}" for n in range(40)]
    node = nccl.node(machine, *arms, expected=count + 8, cut=cut)
    slow = {(i, j): 100.0 + i + j for i in range(count) for j in range(count)}
    return replace(nccl.with_pairs(node, 390.0, slow=slow), omitted=["bench.pairs", "bench.messages"])


@pytest.mark.parametrize("count", [2, 8, 16])
@pytest.mark.parametrize("message", ["", "NCCL WARN Cuda failure 'out of memory' " * 12, "\u00e9" * 500])
def test_a_record_fits_and_keeps_the_numbers_of_labels(count: int, message: str) -> None:
    judgement = judge_nccl(large(count, message=message))
    assert len(judgement.record.encode()) <= RECORD_LIMIT
    assert regrade(judgement.record, known=named(judgement)) == judgement
    assert judgement.busbw == {"all_reduce": 123, "all_gather": 111, "reduce_scatter": 111}
    assert judgement.p2p_off is not None


@pytest.mark.parametrize("count", [8, 16])
def test_a_usual_run_is_kept_complete(count: int) -> None:
    record = judge_nccl(nccl.with_pairs(nccl.h100(count=count), 390.0)).record
    measurement = Measurement.decode(record)
    assert [len(arm.cells) for arm in measurement.arms] == [10, 1, 4]
    assert measurement.pairs
    assert len(record) <= RECORD_LIMIT


def test_wrong_data_at_a_small_size_is_kept_when_the_record_is_full() -> None:
    """It decides that the node fails."""
    result = large(16, message="x" * 500)
    cells = [
        replace(cell, wrong=1 if cell.bytes == 64 << 10 and cell.collective == "all_reduce" else cell.wrong)
        for cell in nccl.arm_of(result, ArmName.DEFAULT).cells
    ]
    judgement = judge_nccl(nccl.with_cells(result, ArmName.DEFAULT, *cells))
    assert Severity.FAIL in {finding.severity for finding in regrade(judgement.record).findings}


fuzzed = settings(max_examples=60, derandomize=True)
quickly = settings(fuzzed, max_examples=30)
results = st.sampled_from(RESULTS)
records = st.sampled_from(["", "{}", *(judge_nccl(result).record for result in RESULTS)])
nodes = st.builds(NodeFacts, gpu_capacity=st.integers(0, 16), sharing=st.sampled_from(Sharing))


@st.composite
def outcomes(draw: st.DrawFn) -> Result:
    result = draw(results)
    if result.nccl is None:
        return result
    arms = []
    for arm in result.nccl.arms:
        kept = [cell for cell in arm.cells if draw(st.booleans())]
        wrong = st.sampled_from([NOT_READ, 0, 0, 0, 5])
        cells = [replace(cell, wrong=draw(wrong)) for cell in kept]
        outcome, phase = draw(st.sampled_from(OUTCOMES)), draw(st.sampled_from(Phase))
        arms.append(replace(arm, outcome=outcome, phase=phase, cells=cells))
    return nccl.changed(result, arms=[arm for arm in arms if draw(st.integers(0, 4))])


def named(judgement: NcclJudgement) -> list[GpuIdentity]:
    """What a report knows of the GPUs beside the record, which has no room for their UUIDs."""
    return [gpu for finding in judgement.locations for gpu in finding.gpus]


def check(judgement: NcclJudgement, *, node: NodeFacts | None = None) -> None:
    """What is true of every judgement; a readable one is the same from its record."""
    assert len(judgement.record.encode()) <= RECORD_LIMIT
    assert judgement.readable is (judgement.verdict in WORSE)
    assert bool(judgement.answers) is judgement.readable
    assert judgement.summary.isprintable()
    assert all(len(finding.message) < 1500 for finding in judgement.findings)
    if judgement.readable:
        assert regrade(judgement.record, node=node, known=named(judgement)) == judgement
    else:
        assert judgement.reason.isalnum()
    if judgement.agreement is not Agreement.UNSURE:
        assert "all_reduce" in judgement.busbw


@given(outcomes(), records)
@fuzzed
def test_every_combination_of_outcomes_is_judged(result: Result, previous: str) -> None:
    judgement = judge_nccl(result, previous=previous)
    check(judgement)
    hung = result.nccl is not None and any(arm.outcome == "hung" for arm in result.nccl.arms)
    if judgement.readable and not hung:
        assert judgement.answers["nccl-hang"] is not Answer.BAD


@given(st.floats(0.5, 899), st.floats(1.0, 2.0), st.sampled_from([nccl.h100, nccl.titan]))
@quickly
def test_more_bandwidth_never_makes_a_verdict_worse(gbps: float, factor: float, machine: object) -> None:
    """On machines with NVLink.  (Without it, more than PCIe carries is a contradiction.)"""
    assert callable(machine)
    slow, fast = judge_nccl(machine(gbps)), judge_nccl(machine(gbps * factor))
    assert WORSE.index(fast.verdict) <= WORSE.index(slow.verdict)
    order = [Agreement.CONFIRMED, Agreement.UNSURE, Agreement.CONTRADICTED]
    assert order.index(fast.agreement) <= order.index(slow.agreement)
    assert fast.busbw["all_reduce"] >= slow.busbw["all_reduce"]


@given(st.permutations(range(8)))
@quickly
def test_the_order_of_gpus_does_not_matter(order: list[int]) -> None:
    """NVML's order changes at a reboot; ranks are matched by UUID."""
    result = nccl.with_pairs(nccl.h100(), 390.0, slow={(2, 5): 100.0})
    moved = made.shuffled(result, order)
    slow = [(one.code, one.evidence.get("gbps")) for one in judge_nccl(moved).findings]
    assert slow == [("pair-slow", 100.0)]
    assert judge_nccl(moved).fingerprint == judge_nccl(result).fingerprint
