"""What a benchmark says of a node: floors, labels, how much of it was measured, nodes like it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Problem, Result, Unavailable
from nodegauge_judge import (
    CATALOGUE,
    Answer,
    NodeFacts,
    Severity,
    Sharing,
    Verdict,
    judge_health,
)
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import NCCL_RULES, judge_nccl
from nodegauge_judge.nccl.model import Agreement
from support.nccl_results import GIB, MIB, codes, finding

# -- a node as it should be


def test_a_sound_node_passes_with_labels_and_a_measured_interconnect() -> None:
    """Nothing is found, every row answers good, and the message says which floor of whom was reached."""
    said = judge_nccl(nccl.h100())
    assert (said.verdict, said.findings, said.again) == (Verdict.PASS, [], False)
    assert said.busbw == {"all_reduce": 462, "all_gather": 355, "reduce_scatter": 355}
    assert said.agreement is Agreement.CONFIRMED
    assert "462 GB/s" in said.message
    assert "published report" in said.message
    assert set(said.answers.values()) == {Answer.GOOD}


def test_every_gated_row_of_the_benchmark_is_answered_and_no_other() -> None:
    """A row that nobody answers could never be left; one that two probes answer is left by the wrong."""
    rows = {rule.code for rule in NCCL_RULES if rule.gate is not None}
    assert rows == set(judge_nccl(nccl.h100()).answers)
    assert not rows & set(judge_health(made.titan()).answers)


def test_labels_are_rounded_down() -> None:
    """A job that asks for more than 462 must not get 462.9."""
    assert judge_nccl(nccl.h100(462.9)).busbw["all_reduce"] == 462


# -- floors


def test_a_row_of_its_own_size_gives_the_floor_and_is_named() -> None:
    """0.9 of 462 is 415.8: 416 passes, 415 does not, and the finding says by whose number."""
    assert judge_nccl(nccl.h100(416)).verdict is Verdict.PASS
    low = finding(judge_nccl(nccl.h100(415)), "busbw-low")
    assert low.evidence["floor_gbps"] == 415.8
    assert low.evidence["source"] == "published report, 8x H100 SXM with NVLS"
    assert "published report" in low.message


@pytest.mark.parametrize(("gbps", "verdict"), [(369, Verdict.PASS), (368, Verdict.WARN)])
def test_a_count_without_a_row_has_the_rule_of_its_algorithm(gbps: float, verdict: Verdict) -> None:
    """7 GPUs with NVLS on compute capability 9: 0.85 of 450 GB/s, and 27/28 of that, is 368.8."""
    assert judge_nccl(nccl.h100(gbps, count=7)).verdict is verdict


@pytest.mark.parametrize(("algorithm", "floor"), [("NVLS", 368.8), ("RING", 270), ("TREE", 270)])
def test_which_rule_applies_is_read_from_what_nccl_chose(algorithm: str, floor: float) -> None:
    """The algorithm is never guessed from model and count."""
    machine = made.every_gpu(made.h100(7), pcie=nccl.GEN5, compute_capability="9.0")
    slow = nccl.default_arm(100, gather=350, ranks=7, algorithm=algorithm)
    low = finding(judge_nccl(nccl.node(machine, slow)), "busbw-low")
    assert low.evidence["floor_gbps"] == floor
    assert "no expectation applies" in low.message


def test_an_algorithm_that_nccl_did_not_say_gets_the_lower_rule() -> None:
    """NVLS channels that were made need not have been used: 8 H100 at 300 GB/s may be rings."""
    silent = nccl.default_arm(300, gather=350, ranks=8, algorithm="", nvls=True)
    machine = made.every_gpu(made.h100(), pcie=nccl.GEN5, compute_capability="9.0")
    assert judge_nccl(nccl.node(machine, silent)).verdict is Verdict.PASS


def test_newer_machines_have_their_own_share() -> None:
    """B200: 0.65 of 900 GB/s; 0.85 would fail what was measured at 8 GiB."""
    machine = made.switched(8, name="NVIDIA B200", links=18, mbps=53_125)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability="10.0")
    for gbps, below in ((586, False), (584, True)):
        first = nccl.default_arm(gbps, gather=600, ranks=8, algorithm="NVLS")
        assert ("busbw-low/warn" in codes(judge_nccl(nccl.node(machine, first)))) is below


def test_only_all_reduce_gains_by_sharp() -> None:
    """all_gather with NVLS moves every byte all the same: its floor is that of rings, 270 of 450 GB/s."""
    machine = made.every_gpu(made.h100(7), pcie=nccl.GEN5, compute_capability="9.0")
    first = nccl.default_arm(440, gather=300, ranks=7, algorithm="NVLS")
    cells = [replace(cell, algorithm="NVLS") for cell in first.cells]
    assert judge_nccl(nccl.node(machine, replace(first, cells=cells))).verdict is Verdict.PASS


@pytest.mark.parametrize("gbps", [0.4, 4.0, 28.0])
def test_pcie_through_the_host_has_no_floor(gbps: float) -> None:
    """Host memory decides there, so it is recorded, labelled, and good."""
    said = judge_nccl(nccl.phb(gbps, host=gbps))
    assert (said.verdict, said.answers["busbw-low"]) == (Verdict.PASS, Answer.GOOD)
    assert "no floor" in said.summary


def test_a_row_of_the_policy_beats_ours_at_every_size_that_it_names() -> None:
    """A lower number of the user's own lifts a finding; one for 64 MiB is held against 64 MiB."""
    default = Expectations.default()
    slow = nccl.h100(340)
    assert codes(judge_nccl(slow)) == {"busbw-low/warn"}
    own = Expectation(gpu="*H100*", count=8, collective="all_reduce", bytes=GIB, busbw=350, source="ours")
    assert judge_nccl(slow, expectations=default.with_policy([own])).verdict is Verdict.PASS
    small = replace(own, bytes=64 * MIB, floor=300.0)
    low = judge_nccl(nccl.h100(), expectations=default.with_policy([small]))
    assert finding(low, "busbw-low").evidence["bytes"] == 64 * MIB
    assert judge_nccl(nccl.h100(600), expectations=default.with_policy([small])).verdict is Verdict.PASS


def test_a_row_for_nvls_off_is_held_against_that_arm_and_others_are_not() -> None:
    """352 GB/s without SHARP is below 0.9 of 400; a row for whichever state is about what NCCL chooses."""
    row = Expectation(gpu="*H100*", count=8, collective="all_reduce", bytes=GIB, busbw=400)
    for nvls, found in ((None, set()), (False, {"busbw-low/warn"})):
        rows = Expectations.default().with_policy([replace(row, nvls=nvls)])
        assert codes(judge_nccl(nccl.h100(), expectations=rows)) == found


def test_all_gather_has_its_own_floor() -> None:
    """ZeRO-3 lives on it, and a fast all_reduce by SHARP says nothing of it."""
    low = finding(judge_nccl(nccl.h100(gather=200)), "busbw-low")
    assert low.subject == "all_gather and 1 more"


def test_nothing_to_grade_by_is_said_and_leaves_the_rest_judged() -> None:
    """A virtual machine that hides link rates: no row, no rule, no claim that it is fast enough."""
    hidden = made.with_links(nccl.h100(count=4), 0, mbps=Unavailable("NotSupported"))
    said = judge_nccl(hidden)
    assert codes(said) == {"not-gradable/info"}
    assert (said.verdict, said.answers["busbw-low"]) == (Verdict.PASS, Answer.UNSURE)
    assert "not graded" in said.summary
    assert said.agreement is Agreement.UNSURE


# -- sizes that are missing


def cut(result: Result, *, below: int) -> Result:
    """The benchmark without the sizes from `below` on."""
    assert result.nccl is not None
    arm = next(arm for arm in result.nccl.arms if arm.name == ArmName.DEFAULT)
    cells = [cell for cell in arm.cells if cell.bytes < below]
    return nccl.changed(nccl.with_cells(result, ArmName.DEFAULT, *cells), cut=["all_reduce/1073741824"])


def test_256_mib_stands_in_for_1_gib_and_has_the_floor_of_its_own_row() -> None:
    """A label that claims too little beats none, and the finding names the size."""
    said = judge_nccl(cut(nccl.h100(), below=GIB))
    assert said.busbw == {"all_reduce": 415}
    assert codes(said) == {"nccl-incomplete/warn", "nccl-incomplete/info"}
    assert "256 MiB" in finding(said, "nccl-incomplete").message
    assert said.answers["busbw-low"] is Answer.GOOD
    low = judge_nccl(cut(nccl.h100(400), below=GIB))  # 360 at 256 MiB; 0.9 of 420 is 378
    assert finding(low, "busbw-low").evidence["bytes"] == 256 * MIB


def test_256_mib_without_a_row_is_not_graded() -> None:
    """The rule is for 1 GiB: 7 GPUs at 256 MiB have no floor, and no good answer either."""
    said = judge_nccl(cut(nccl.h100(300, count=7), below=GIB))
    assert said.answers["busbw-low"] is Answer.UNSURE
    assert "busbw-low/warn" not in codes(said)


def test_a_larger_size_is_graded_by_its_row_and_makes_no_label() -> None:
    """8 GiB is faster than 1 GiB: a label would claim too much, a floor of its own size is fair."""
    only = nccl.cell(nccl.AR, 8 * GIB, 400, ranks=8, algorithm="NVLS", wrong=0)
    said = judge_nccl(nccl.with_cells(nccl.h100(), ArmName.DEFAULT, only))
    assert said.busbw == {}
    assert finding(said, "busbw-low").evidence["bytes"] == 8 * GIB


def test_less_than_256_mib_makes_no_label() -> None:
    """64 MiB runs at some 60 %: whoever asked for a number would be told the wrong one."""
    said = judge_nccl(cut(nccl.h100(), below=256 * MIB))
    assert (said.busbw, said.verdict, said.readable) == ({}, Verdict.UNKNOWN, False)
    assert "no label" in finding(said, "nccl-incomplete").message


# -- how much was measured


def test_fewer_gpus_are_measured_graded_and_named() -> None:
    """7 of 8: the floor is that of 7, and the one that is missing is the one that health remembers."""
    health = judge_health(made.h100()).history
    seven = nccl.changed(nccl.h100(440, count=7), expected=8)
    said = judge_nccl(seven, history=health)
    assert (said.ranks, said.expected, codes(said)) == (7, 8, {"fewer-gpus/warn"})
    assert "7 of 8 GPUs" in finding(said, "fewer-gpus").message
    assert made.uuid(7)[:12] in finding(said, "fewer-gpus").message
    assert said.agreement is Agreement.CONFIRMED


def test_a_gpu_that_is_seen_and_takes_no_part_is_named_in_full() -> None:
    """The device plugin kept it back, NVML still shows it."""
    eight = nccl.h100(440)
    assert eight.nccl is not None
    seven = nccl.changed(eight, uuids=eight.nccl.uuids[:7], ranks=7)
    assert "GPU 7 (0000:16:00.0)" in finding(judge_nccl(seven), "fewer-gpus").message


@pytest.mark.parametrize(("sharing", "found"), [(Sharing.EXCLUSIVE, True), (Sharing.SHARED, False)])
def test_capacity_counts_gpus_only_where_it_counts_whole_ones(sharing: Sharing, found: bool) -> None:
    """Time slicing multiplies it."""
    node = NodeFacts(gpu_capacity=16, sharing=sharing)
    assert ("fewer-gpus/warn" in codes(judge_nccl(nccl.h100(), node=node))) is found


def test_several_nodes_are_not_gradable() -> None:
    """What 16 GPUs of two nodes reach says nothing of either."""
    said = judge_nccl(nccl.changed(nccl.h100(20), nodes=2))
    assert said.summary == "not-gradable: 2 nodes"
    assert (said.verdict, said.readable, said.busbw, said.answers) == (Verdict.UNKNOWN, False, {}, {})
    assert codes(said) == {"not-gradable/info"}


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [("busy", "Busy"), ("single-gpu", "SingleGpu"), ("mig", "Mig"), ("no-engine", "NoEngine")],
)
def test_a_run_that_was_skipped_decides_nothing_and_forgets_nothing(skipped: str, reason: str) -> None:
    """The old result stays, and so does its memory."""
    before = judge_nccl(nccl.h100()).record
    busy = nccl.changed(nccl.h100(), arms=[], skipped=skipped, message="pid 4711 works on GPU 3")
    said = judge_nccl(busy, previous=before)
    assert (said.verdict, said.reason, said.record) == (Verdict.SKIPPED, reason, before)
    assert (said.readable, said.answers, said.findings, said.busbw) == (False, {}, [], {})
    assert "4711" in said.summary


def test_an_image_without_an_engine_says_which_image_has_one() -> None:
    """The words of Python's import alone help nobody who installed a chart."""
    bare = nccl.changed(nccl.h100(), arms=[], skipped="no-engine", message="No module named 'nccl'")
    said = judge_nccl(bare).summary
    assert "cannot load nccl4py (No module named 'nccl')" in said
    assert "images.nccl" in said


def test_a_document_without_a_benchmark_is_unknown() -> None:
    """A probe that never got there decides nothing."""
    said = judge_nccl(replace(made.h100(), problem=Problem(kind="driver-not-loaded")), previous="old")
    assert (said.verdict, said.reason, said.record) == (Verdict.UNKNOWN, "DriverNotLoaded", "old")


# -- peers


def peers_of(*values: float) -> Any:
    """Peers by fingerprint, whatever that is."""
    return lambda fingerprint: values if "H100" in fingerprint else ()


@pytest.mark.parametrize(
    ("others", "found"),
    [((550, 552), True), ((470, 480), False), ((600,), False), ((), False), ((550, 560, 100, 555), True)],
)
def test_a_node_is_compared_with_its_kind_once_there_are_three(
    others: tuple[float, ...], found: bool
) -> None:
    """430 is above its floor of 415.8 and below 0.85 of a median of 550."""
    said = judge_nccl(nccl.h100(430), peers=peers_of(*others))
    assert (codes(said) == {"busbw-below-peers/warn"}) is found
    assert said.answers["busbw-low"] is Answer.GOOD


def test_a_smaller_size_is_not_compared_with_peers() -> None:
    """Theirs are of 1 GiB."""
    said = judge_nccl(cut(nccl.h100(), below=GIB), peers=peers_of(600, 610, 620))
    assert "busbw-below-peers/warn" not in codes(said)


def test_what_makes_nodes_comparable_is_in_the_fingerprint() -> None:
    """GPU, count, links, driver branch and NCCL version, each of them changes it; the bandwidth does not."""
    first = nccl.h100()
    others = [
        nccl.h100(count=7),
        nccl.changed(first, nccl="2.29.1"),
        replace(first, system=replace(first.system, driver="580.65.06")),
        made.every_gpu(first, name="NVIDIA H200"),
        made.with_links(first, 0, links=list(range(17))),
    ]
    prints = [judge_nccl(result).fingerprint for result in (first, *others)]
    assert len(set(prints)) == len(prints)
    patch = replace(first, system=replace(first.system, driver="550.90.07"))
    assert judge_nccl(patch).fingerprint == prints[0] == judge_nccl(nccl.h100(100)).fingerprint


def test_every_finding_says_what_to_do_next() -> None:
    """At 3 a.m. the message alone must be enough to begin."""
    worst = nccl.with_pairs(nccl.h100(20, gather=20, host=19), 40.0)
    found = judge_nccl(nccl.changed(worst, expected=9, cut=["x"])).findings
    assert len(found) > 3
    for one in found:
        assert one.message.endswith(f"Next: {CATALOGUE[one.code].next_step}")
        assert one.severity in CATALOGUE[one.code].when
    assert [one.severity for one in found] == sorted(
        (one.severity for one in found), key=[Severity.FAIL, Severity.WARN, Severity.INFO].index
    )
