"""The judgement of an NCCL run: verdict, labels, how much was measured, and comparable nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Problem, Result, Unavailable
from nodegauge_judge import CATALOGUE, Answer, NodeFacts, Severity, Sharing, Verdict, judge_health
from nodegauge_judge.nccl.judge import NCCL_RULES, judge_nccl
from nodegauge_judge.nccl.measurement import Agreement
from nodegauge_judge.rule import filled
from support.nccl_results import GIB, MIB, codes, finding


def test_a_healthy_node_passes_with_labels_and_a_confirmed_interconnect() -> None:
    """There is no finding, every answer is good, and the message names the floor and its source."""
    judgement = judge_nccl(nccl.h100())
    assert (judgement.verdict, judgement.findings, judgement.again) == (Verdict.PASS, [], False)
    assert judgement.busbw == {"all_reduce": 462, "all_gather": 355, "reduce_scatter": 355}
    assert judgement.agreement is Agreement.CONFIRMED
    assert "462 GB/s" in judgement.message
    assert "published report" in judgement.message
    assert set(judgement.answers.values()) == {Answer.GOOD}


def test_the_nccl_probe_answers_its_own_gated_findings_only() -> None:
    """A gate without an answer would never open; two probes that answer one gate would contradict."""
    gated = {rule.code for rule in NCCL_RULES if rule.gate is not None}
    assert gated == set(judge_nccl(nccl.h100()).answers)
    assert not gated & set(judge_health(made.titan()).answers)


def test_labels_are_rounded_down() -> None:
    """A job that asks for more than 462 must not get 462.9."""
    assert judge_nccl(nccl.h100(462.9)).busbw["all_reduce"] == 462


def test_every_finding_names_the_next_step() -> None:
    """At 3 a.m. the message alone must be enough to begin."""
    worst = nccl.with_pairs(nccl.h100(20, gather=20, host=19), 40.0)
    findings = judge_nccl(nccl.changed(worst, expected=9, cut=["x"])).findings
    assert len(findings) > 3
    for one in findings:
        step = filled(CATALOGUE[one.code].next_step, gpus=one.gpus, evidence=one.evidence)
        assert one.message.endswith(f"Next: {step}")
        assert one.severity in CATALOGUE[one.code].when
    order = [Severity.FAIL, Severity.WARN, Severity.INFO]
    assert [one.severity for one in findings] == sorted((one.severity for one in findings), key=order.index)


# -- missing sizes


def cut(result: Result, *, below: int) -> Result:
    """The NCCL run without the sizes from `below` on."""
    cells = [cell for cell in nccl.arm_of(result, ArmName.DEFAULT).cells if cell.bytes < below]
    return nccl.changed(nccl.with_cells(result, ArmName.DEFAULT, *cells), cut=["all_reduce/1073741824"])


def test_256_mib_replaces_1_gib_and_uses_its_own_expectation() -> None:
    """A label that understates is better than none, and the finding names the size."""
    judgement = judge_nccl(cut(nccl.h100(), below=GIB))
    assert judgement.busbw == {"all_reduce": 415}
    assert codes(judgement) == {"nccl-incomplete/warn", "nccl-incomplete/info"}
    assert "256 MiB" in finding(judgement, "nccl-incomplete").message
    assert judgement.answers["busbw-low"] is Answer.GOOD
    low = judge_nccl(cut(nccl.h100(400), below=GIB))  # 360 at 256 MiB; 0.9 of 420 is 378
    assert finding(low, "busbw-low").evidence["bytes"] == 256 * MIB
    peers = judge_nccl(cut(nccl.h100(), below=GIB), peers=lambda _: (600, 610, 620))
    assert "busbw-below-peers/warn" not in codes(peers)  # theirs are for 1 GiB


def test_256_mib_without_an_expectation_is_not_graded() -> None:
    """Link rates give a floor at 1 GiB only, so 7 GPUs at 256 MiB have neither a floor nor a good answer."""
    judgement = judge_nccl(cut(nccl.h100(300, count=7), below=GIB))
    assert judgement.answers["busbw-low"] is Answer.UNSURE
    assert "busbw-low/warn" not in codes(judgement)


def test_a_larger_size_is_graded_but_gets_no_label() -> None:
    """8 GiB is faster than 1 GiB: a label would overstate, while a floor for 8 GiB is fair."""
    only = nccl.cell(nccl.AR, 8 * GIB, 400, ranks=8, algorithm="NVLS", wrong=0)
    judgement = judge_nccl(nccl.with_cells(nccl.h100(), ArmName.DEFAULT, only))
    assert judgement.busbw == {}
    assert finding(judgement, "busbw-low").evidence["bytes"] == 8 * GIB


def test_less_than_256_mib_gets_no_label() -> None:
    """64 MiB reaches about 60 % of full speed."""
    judgement = judge_nccl(cut(nccl.h100(), below=256 * MIB))
    assert (judgement.busbw, judgement.verdict, judgement.readable) == ({}, Verdict.UNKNOWN, False)
    assert "no label" in finding(judgement, "nccl-incomplete").message


def test_missing_floors_leave_the_rest_judged() -> None:
    """A virtual machine hides link rates: the run is not graded and does not claim to be fast enough."""
    hidden = made.with_links(nccl.h100(count=4), 0, mbps=Unavailable("NotSupported"))
    judgement = judge_nccl(hidden)
    assert codes(judgement) == {"not-gradable/info"}
    assert (judgement.verdict, judgement.answers["busbw-low"]) == (Verdict.PASS, Answer.UNSURE)
    assert "not graded" in judgement.summary
    assert judgement.agreement is Agreement.UNSURE


# -- GPUs and nodes that took part


def test_fewer_gpus_are_graded_and_the_missing_one_is_named() -> None:
    """The floor is that of 7 GPUs; the health probe's history knows the eighth."""
    health = judge_health(made.h100()).history
    judgement = judge_nccl(nccl.changed(nccl.h100(440, count=7), expected=8), history=health)
    assert (judgement.ranks, judgement.expected, codes(judgement)) == (7, 8, {"fewer-gpus/warn"})
    assert "7 of 8 GPUs" in finding(judgement, "fewer-gpus").message
    assert made.uuid(7)[:12] in finding(judgement, "fewer-gpus").message
    assert judgement.agreement is Agreement.CONFIRMED


def test_a_visible_gpu_that_took_no_part_is_named_in_full() -> None:
    """The device plugin withheld it, NVML still shows it."""
    uuids = [made.uuid(number) for number in range(7)]
    seven = nccl.changed(nccl.h100(440), uuids=uuids, ranks=7)
    assert "GPU 7 (0000:16:00.0)" in finding(judge_nccl(seven), "fewer-gpus").message


@pytest.mark.parametrize(("sharing", "warns"), [(Sharing.EXCLUSIVE, True), (Sharing.SHARED, False)])
def test_shared_capacity_is_no_number_of_gpus(sharing: Sharing, warns: bool) -> None:
    """Time slicing multiplies the capacity."""
    node = NodeFacts(gpu_capacity=16, sharing=sharing)
    assert ("fewer-gpus/warn" in codes(judge_nccl(nccl.h100(), node=node))) is warns


def test_a_run_on_several_nodes_is_not_gradable() -> None:
    """Expectations are for one node."""
    judgement = judge_nccl(nccl.changed(nccl.h100(20), nodes=2))
    assert judgement.summary == "not-gradable: 2 nodes"
    assert (judgement.verdict, judgement.readable) == (Verdict.UNKNOWN, False)
    assert (judgement.busbw, judgement.answers) == ({}, {})
    assert codes(judgement) == {"not-gradable/info"}


# -- runs without a measurement


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [("busy", "Busy"), ("single-gpu", "SingleGpu"), ("mig", "Mig"), ("no-engine", "NoEngine")],
)
def test_a_skipped_run_keeps_the_previous_record(skipped: str, reason: str) -> None:
    """It decides nothing, and its message is in the summary."""
    previous = judge_nccl(nccl.h100()).record
    busy = nccl.changed(nccl.h100(), arms=[], skipped=skipped, message="pid 4711 works on GPU 3")
    judgement = judge_nccl(busy, previous=previous)
    assert (judgement.verdict, judgement.reason) == (Verdict.SKIPPED, reason)
    assert judgement.record == previous
    assert (judgement.readable, judgement.answers, judgement.findings) == (False, {}, [])
    assert "4711" in judgement.summary


def test_an_image_without_nccl_names_one_that_has_it() -> None:
    """Python's import error alone does not help somebody who installed a chart."""
    bare = nccl.changed(nccl.h100(), arms=[], skipped="no-engine", message="No module named 'nccl'")
    summary = judge_nccl(bare).summary
    assert "cannot load nccl4py (No module named 'nccl')" in summary
    assert "images.nccl" in summary


def test_a_result_without_an_nccl_run_is_unknown() -> None:
    """It keeps the previous record too."""
    result = replace(made.h100(), problem=Problem(kind="driver-not-loaded"))
    judgement = judge_nccl(result, previous="old")
    assert (judgement.verdict, judgement.reason) == (Verdict.UNKNOWN, "DriverNotLoaded")
    assert judgement.record == "old"


# -- peers


@pytest.mark.parametrize(
    ("others", "warns"),
    [((550, 552), True), ((470, 480), False), ((600,), False), ((), False), ((550, 560, 100, 555), True)],
)
def test_a_node_is_compared_with_at_least_two_others(others: tuple[float, ...], warns: bool) -> None:
    """430 is above its floor of 415.8 and below 0.85 of a median of 550."""
    judgement = judge_nccl(nccl.h100(430), peers=lambda fingerprint: others if "H100" in fingerprint else ())
    assert (codes(judgement) == {"busbw-below-peers/warn"}) is warns
    assert judgement.answers["busbw-low"] is Answer.GOOD


def test_the_fingerprint_has_all_that_makes_nodes_comparable() -> None:
    """GPU, count, driver branch and NCCL version change it; patches, bandwidth and lost links do not."""
    first = nccl.h100()
    others = [
        nccl.h100(count=7),
        nccl.changed(first, nccl="2.29.1"),
        replace(first, system=replace(first.system, driver="580.65.06")),
        made.every_gpu(first, name="NVIDIA H200"),
    ]
    fingerprints = [judge_nccl(result).fingerprint for result in (first, *others)]
    assert len(set(fingerprints)) == len(fingerprints)
    patch = replace(first, system=replace(first.system, driver="550.90.07"))
    assert judge_nccl(patch).fingerprint == fingerprints[0] == judge_nccl(nccl.h100(100)).fingerprint
    for links in (17, 12, 1):
        fewer = made.with_links(first, 0, links=list(range(links)))
        assert judge_nccl(fewer).fingerprint == fingerprints[0]
