"""Properties of the judge of bandwidth over many documents: it never raises, forgets nothing, is monotone."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NOT_READ, ArmName, Phase, Result
from nodegauge_judge import Answer, NodeFacts, Sharing, Verdict
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import RECORD_LIMIT, Measurement
from nodegauge_judge.nccl.model import Agreement, NcclJudgement
from support.disturbing import disturbed

HUNG = nccl.swapped(nccl.titan(), ArmName.DEFAULT, outcome="hung", phase="init", cells=[])
RESULTS = [
    nccl.with_pairs(nccl.h100(), 390.0, slow={(2, 5): 100.0}),
    nccl.h100(300, count=7),
    nccl.titan(),
    nccl.titan(12),
    nccl.phb(),
    nccl.changed(nccl.h100(), nodes=2),
    nccl.changed(nccl.h100(), throttled_periods=50, cut=["all_reduce/8"], expected=16),
    HUNG,
    made.titan(),
]
OUTCOMES = ["done", "hung", "crashed", "failed", "out-of-memory", "garbage", "partial", "cut", "tomorrow"]
WORSE = [Verdict.PASS, Verdict.WARN, Verdict.FAIL]
quickly = settings(max_examples=60, deadline=None, derandomize=True)
results = st.sampled_from(RESULTS)
memories = st.sampled_from(["", "{}", *(judge_nccl(result).record for result in RESULTS)])
nodes = st.builds(NodeFacts, gpu_capacity=st.integers(0, 16), sharing=st.sampled_from(Sharing))


@st.composite
def endings(draw: st.DrawFn) -> Result:
    """A run whose arms ended in any way, with any part of their cells, right or wrong."""
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


def holds(said: NcclJudgement) -> None:
    """What is true of every judgement."""
    assert len(said.record.encode()) <= RECORD_LIMIT
    assert said.readable is (said.verdict in WORSE)
    assert bool(said.answers) is said.readable
    assert said.summary.isprintable()
    assert all(len(found.message) < 1500 for found in said.findings)
    if not said.readable:
        assert said.reason.isalnum()
    if said.agreement is not Agreement.UNSURE:
        assert "all_reduce" in said.busbw


@given(results, st.integers(0, 2**32), st.integers(1, 40), memories, nodes)
@quickly
def test_no_document_stops_the_judge(
    result: Result, seed: int, times: int, before: str, node: NodeFacts
) -> None:
    """Whatever decodes is judged, and what is remembered of it gives the same grade."""
    said = judge_nccl(disturbed(result, seed=seed, times=times), previous=before, node=node)
    holds(said)
    if said.readable:
        assert regrade(said.record, node=node) == said


@given(endings(), memories)
@quickly
def test_any_end_of_any_arm_is_judged_and_remembered(result: Result, before: str) -> None:
    """Each combination of arms, ends and cells has an answer, and the same one from memory."""
    said = judge_nccl(result, previous=before)
    holds(said)
    if said.readable:
        assert regrade(said.record) == said
    hung = result.nccl is not None and any(arm.outcome == "hung" for arm in result.nccl.arms)
    if said.readable and not hung:
        assert said.answers["nccl-hang"] is not Answer.BAD


@given(st.text(max_size=200))
@quickly
def test_no_text_stops_a_grading(text: str) -> None:
    """A report is edited by anybody who may."""
    assert regrade(text).verdict is Verdict.UNKNOWN


@given(results, st.integers(0, 2**32), st.integers(1, 30))
@quickly
def test_a_memory_edited_by_hand_is_graded_or_refused(result: Result, seed: int, times: int) -> None:
    """Numbers may be anybody's; nothing of it moves a terminal, and it is graded alike again."""
    found = Measurement.decode(judge_nccl(result).record)
    if found is None:
        return
    said = regrade(msgspec.json.encode(disturbed(found, seed=seed, times=times)).decode())
    holds(said)
    if said.readable:
        assert regrade(said.record) == said


@given(endings())
@quickly
def test_without_data_there_is_no_decision(result: Result) -> None:
    """A run of which nothing is left but how it ended: only a hang decides something."""
    assert result.nccl is None or judge_nccl(nccl.changed(result, arms=[])).answers == {}
    if result.nccl is not None:
        bare = [replace(arm, cells=[], outcome="failed") for arm in result.nccl.arms]
        said = judge_nccl(nccl.changed(result, arms=bare))
        assert (said.readable, said.busbw, said.agreement) == (False, {}, Agreement.UNSURE)


@given(st.floats(0.5, 899), st.floats(1.0, 2.0), st.sampled_from([nccl.h100, nccl.titan]))
@quickly
def test_more_bandwidth_never_makes_it_worse(gbps: float, more: float, machine: object) -> None:
    """On machines whose NVLinks NVML reports.  (Where it reports none, more than PCIe carries is a
    contradiction, rightly.)"""
    assert callable(machine)
    slow, fast = judge_nccl(machine(gbps)), judge_nccl(machine(gbps * more))
    assert WORSE.index(fast.verdict) <= WORSE.index(slow.verdict)
    order = [Agreement.CONFIRMED, Agreement.UNSURE, Agreement.CONTRADICTED]
    assert order.index(fast.agreement) <= order.index(slow.agreement)
    assert fast.busbw["all_reduce"] >= slow.busbw["all_reduce"]


@given(st.permutations(range(8)))
@quickly
def test_the_order_of_gpus_does_not_matter(order: list[int]) -> None:
    """NVML's order changes at a reboot; ranks are found by UUID."""
    result = nccl.with_pairs(nccl.h100(), 390.0, slow={(2, 5): 100.0})
    moved = made.shuffled(result, order)
    found = [(one.code, one.evidence.get("gbps")) for one in judge_nccl(moved).findings]
    assert found == [("pair-slow", 100.0)]
    assert judge_nccl(moved).fingerprint == judge_nccl(result).fingerprint
