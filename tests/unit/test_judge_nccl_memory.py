"""What is remembered of a benchmark: enough to grade it again, in 2 KiB, whatever happened to the text."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Result
from nodegauge_judge import Answer, Severity, Thresholds, Verdict
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import RECORD_LIMIT, Measurement
from nodegauge_judge.nccl.model import NcclJudgement
from support.nccl_results import GIB, codes


def run(*values: float, before: str = "") -> NcclJudgement:
    """The last of several runs on one node of 8 H100, each all_reduce at so many GB/s."""
    said = judge_nccl(nccl.h100(values[0]), previous=before)
    for gbps in values[1:]:
        said = judge_nccl(nccl.h100(gbps), previous=said.record)
    return said


# -- runs that disagree, and what is bad twice


def test_the_first_run_below_the_floor_warns_and_asks_for_another() -> None:
    """One slow run proves little; the second fails and asks no more."""
    first, second = run(300), run(300, 300)
    assert (first.verdict, first.again, codes(first)) == (Verdict.WARN, True, {"busbw-low/warn"})
    assert (second.verdict, second.again, codes(second)) == (Verdict.FAIL, False, {"busbw-low/fail"})
    assert first.answers["busbw-low"] is second.answers["busbw-low"] is Answer.BAD


def test_a_good_run_between_makes_the_next_bad_one_a_first() -> None:
    """Twice in a row is what counts."""
    assert codes(run(410, 430, 410)) == {"busbw-low/warn"}


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
def test_runs_that_disagree_ask_for_a_third_and_its_median_counts(
    values: tuple[float, ...], label: int, again: bool
) -> None:
    """More than a tenth of the larger value apart; after the third the next is compared with the median."""
    said = run(*values)
    assert (said.busbw["all_reduce"], said.again) == (label, again)
    assert ("busbw-disagrees/info" in codes(said)) is again


def test_one_slow_run_of_three_is_forgiven_and_two_are_not() -> None:
    """462, 30, 462 is a good node that was disturbed; 462, 30, 31 is a bad one."""
    assert run(462, 30, 462).answers["busbw-low"] is Answer.GOOD
    said = run(462, 30, 31)
    assert (said.answers["busbw-low"], said.verdict) == (Answer.BAD, Verdict.FAIL)


@pytest.mark.parametrize(
    "other",
    [
        nccl.h100(30, count=7),
        nccl.changed(nccl.h100(30), nccl="2.29.1"),
        nccl.changed(nccl.h100(30), uuids=[f"GPU-{n}" for n in range(8)]),
    ],
    ids=["count", "nccl", "gpus"],
)
def test_another_set_of_gpus_or_another_nccl_does_not_disagree(other: Result) -> None:
    """It is another machine then, and its first number."""
    said = judge_nccl(other, previous=run(462).record)
    assert "busbw-disagrees/info" not in codes(said)


# -- grading again


def test_the_memory_alone_gives_the_same_judgement() -> None:
    """For each kind of run, the sound and the sick."""
    hung = nccl.swapped(nccl.titan(), ArmName.DEFAULT, outcome="hung", phase="init", cells=[])
    pairs = nccl.with_pairs(nccl.h100(), 390.0, slow={(1, 2): 100.0})
    several = nccl.changed(nccl.h100(), nodes=2)
    for result in (nccl.h100(), nccl.titan(12), nccl.phb(), hung, pairs, several, nccl.h100(300, count=7)):
        said = judge_nccl(result)
        assert regrade(said.record) == said


def test_other_expectations_thresholds_and_peers_grade_old_numbers_anew() -> None:
    """Without a new run: a floor that was wrong lifts its finding within one sweep."""
    memory = run(400, 400).record
    assert regrade(memory).verdict is Verdict.FAIL
    own = Expectation(gpu="*H100*", count=8, collective="all_reduce", bytes=GIB, busbw=400)
    assert regrade(memory, expectations=Expectations.default().with_policy([own])).verdict is Verdict.PASS
    assert regrade(memory, thresholds=Thresholds(busbw_expected_share=0.8)).verdict is Verdict.PASS
    good = run(462).record
    assert codes(regrade(good, peers=lambda _: (600.0, 610.0))) == {"busbw-below-peers/warn"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[1]",
        "not json",
        '{"v":99}',
        '{"v":"1"}',
        "[" * 5000,
        '{"v":1,"ranks":-1}',
        "\ud800",
    ],
    ids=range(10),
)
def test_text_that_cannot_be_read_is_no_measurement(text: str) -> None:
    """Cut, edited, or written by another version: unknown, and a first run for the next one."""
    said = regrade(text)
    assert (said.verdict, said.readable, said.reason) == (Verdict.UNKNOWN, False, "NoRecord")
    assert judge_nccl(nccl.h100(), previous=text) == judge_nccl(nccl.h100())


def test_a_text_cut_anywhere_is_refused_and_none_raises() -> None:
    """A report that was edited by hand must not stop the operator."""
    memory = run(462, 300).record
    for end in range(0, len(memory), 7):
        assert regrade(memory[:end]).verdict is Verdict.UNKNOWN


def test_text_that_would_move_a_terminal_is_refused() -> None:
    """Whoever may edit a report shall not paint on the screen of who reads it."""
    told = json.loads(run(462).record)
    told["gpu"] = "H100 \x1b[2J"
    assert regrade(json.dumps(told)).reason == "NoRecord"


def test_numbers_edited_by_hand_cannot_make_a_bandwidth_of_nonsense() -> None:
    """Times of nothing, and ranks of one."""
    told = json.loads(run(462).record)
    told["arms"][0]["cells"][0][2] = 1e-300
    assert regrade(json.dumps(told)).busbw.get("all_reduce") != 462
    told["ranks"] = 1
    assert regrade(json.dumps(told)).busbw == {}


# -- room


def large(count: int, *, words: str) -> Result:
    """A machine of so many GPUs with everything in it that takes room."""
    machine = made.switched(
        count, name="NVIDIA H100 80GB HBM3 in a box with a very long name", links=18, mbps=26_562
    )
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability="9.0")
    arms = [
        nccl.default_arm(123.456, gather=111.111, ranks=count, algorithm="NVLS_TREE"),
        nccl.nvls_off_arm(99.99, ranks=count),
        nccl.p2p_off_arm(28.123, ranks=count),
    ]
    arms = [replace(arm, message=words, outcome="partial", phase="measure") for arm in arms]
    cut = [f"reduce_scatter/{2**n}" for n in range(40)]
    node = nccl.node(machine, *arms, expected=count + 8, cut=cut)
    slow = {(i, j): 100.0 + i + j for i in range(count) for j in range(count)}
    return replace(nccl.with_pairs(node, 390.0, slow=slow), omitted=["bench.pairs", "bench.messages"])


@pytest.mark.parametrize("count", [2, 8, 16])
@pytest.mark.parametrize("words", ["", "NCCL WARN Cuda failure 'out of memory' " * 12, "\u00e9" * 500])
def test_the_memory_fits_whatever_a_run_says(count: int, words: str) -> None:
    """2 KiB of a report, and what labels and floors are made of is never what is left out."""
    said = judge_nccl(large(count, words=words))
    assert len(said.record.encode()) <= RECORD_LIMIT
    assert regrade(said.record) == said
    assert said.busbw == {"all_reduce": 123, "all_gather": 111, "reduce_scatter": 111}
    assert said.p2p_off is not None


def test_a_usual_run_is_remembered_whole() -> None:
    """Nothing is left out of what 8 or 16 GPUs measure when all goes well."""
    for result in (nccl.with_pairs(nccl.h100(), 390.0), nccl.with_pairs(nccl.h100(count=16), 390.0)):
        memory = judge_nccl(result).record
        found = Measurement.decode(memory)
        assert found is not None
        assert [len(arm.cells) for arm in found.arms] == [10, 1, 4]
        assert found.pairs
        assert len(memory) <= RECORD_LIMIT


def test_severities_of_a_second_run_do_not_depend_on_who_asks() -> None:
    """What was bad before is part of the memory, so grading again does not soften it."""
    said = run(300, 300)
    assert {finding.severity for finding in regrade(said.record).findings} == {Severity.FAIL}
