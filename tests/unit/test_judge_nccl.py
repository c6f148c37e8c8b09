"""The judgement of an NCCL run: verdict, labels, how much was measured, peers, NVML, and the slow pair."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NOT_READ, ArmName, Problem, Result, Unavailable
from nodegauge_judge import Answer, NodeFacts, Sharing, Verdict, judge_health
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import NCCL_RULES, judge_nccl
from nodegauge_judge.nccl.measurement import Agreement
from support.nccl_results import GIB, MIB, SHM, codes, finding


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


# -- agreement with what NVML reports


def test_nvlink_at_pcie_speed_is_contradicted_with_numbers() -> None:
    """12 GB/s cannot come from 50 GB/s of NVLink."""
    judgement = judge_nccl(nccl.titan(12))
    assert judgement.agreement is Agreement.CONTRADICTED
    assert {"interconnect-contradicted/warn", "busbw-low/warn"} == codes(judgement)
    for part in ("12 GB/s", "50 GB/s", "Measured: all_reduce"):
        assert part in finding(judgement, "interconnect-contradicted").message


def narrow(gbps: float) -> Result:
    """Two RTX 3090, whose NVLink is hardly faster than PCIe 4."""
    machine = made.every_gpu(made.rtx3090(), pcie=nccl.GEN4, compute_capability="8.6")
    return nccl.node(machine, nccl.default_arm(gbps, gather=40, ranks=2, algorithm="RING"))


@pytest.mark.parametrize(
    ("result", "agreement", "expected"),
    [
        (nccl.h100(100, gather=350), "unsure", {"busbw-low/warn"}),
        (nccl.titan(40, host=32), "contradicted", {"interconnect-contradicted/warn"}),
        (nccl.titan(40, host=31), "confirmed", set()),
        (nccl.titan(40, host=4), "confirmed", set()),
        (nccl.swapped(nccl.titan(40, host=36), ArmName.P2P_OFF, transport=nccl.P2P), "confirmed", set()),
        (narrow(25), "unsure", {"busbw-low/warn"}),
        (narrow(22), "contradicted", {"interconnect-contradicted/warn", "busbw-low/warn"}),
        (nccl.phb(40), "contradicted", {"interconnect-contradicted/warn"}),
        (
            nccl.with_pairs(nccl.h100(), 50.0),
            "contradicted",
            {"interconnect-contradicted/warn", "pair-slow/warn"},
        ),
        (
            replace(
                made.with_bus(nccl.h100(440, count=7), more=["0000:16:00.0"]),
                problem=Problem(kind="deadline"),
            ),
            "confirmed",
            {"nccl-failed/warn"},
        ),
    ],
    ids=[
        "slow NVLink above PCIe speed",
        "36 GB/s with P2P, 32 without: less than 15 % gain",
        "36 GB/s with P2P, 31 without",
        "36 GB/s with P2P, 4 without",
        "the arm with P2P disabled still used it",
        "25 of 56 GB/s may be a narrow NVLink",
        "22 of 56 GB/s is too slow for it",
        "40 GB/s over PCIe 4",
        "every pair at PCIe speed",
        "stopped early, with a GPU on the bus that the pod was not given",
    ],
)
def test_bandwidth_confirms_or_contradicts_the_interconnect(
    result: Result, agreement: str, expected: set[str]
) -> None:
    """A contradiction needs a number that the reported interconnect cannot explain."""
    judgement = judge_nccl(result)
    assert (judgement.agreement, codes(judgement)) == (agreement, expected)


def test_no_gain_from_p2p_is_expected_across_pcie() -> None:
    """NCCL by default uses P2P only up to a PCIe switch."""
    judgement = judge_nccl(nccl.phb(11, host=11))
    assert (judgement.agreement, judgement.findings) == (Agreement.CONFIRMED, [])
    pairs = made.every_gpu(made.a100_bridged_pairs(), pcie=nccl.GEN4, compute_capability="8.0")
    first = nccl.default_arm(20, gather=20, ranks=4, algorithm="RING", transport=f"{nccl.P2P}+{SHM}")
    equal = judge_nccl(nccl.node(pairs, first, nccl.p2p_off_arm(20, ranks=4)))
    assert (equal.agreement, equal.findings) == (Agreement.UNSURE, [])


def test_p2p_disabled_by_the_policy_is_no_contradiction() -> None:
    """The user's environment made it slow: there is no floor, no finding and no confirmation."""
    judgement = judge_nccl(nccl.titan(4), environment={"NCCL_P2P_DISABLE": "1"})
    assert (judgement.agreement, judgement.verdict, judgement.findings) == (
        Agreement.UNSURE,
        Verdict.PASS,
        [],
    )
    assert judge_nccl(nccl.titan(4), environment={"NCCL_DEBUG": "WARN"}).findings


def test_only_the_policys_expectations_apply_with_p2p_disabled() -> None:
    """Published ones are for machines that may use P2P."""
    machine = made.every_gpu(made.a100(), pcie=nccl.GEN4, compute_capability="8.0")
    slow = nccl.node(machine, nccl.default_arm(20, gather=20, ranks=8, algorithm="RING", transport=SHM))
    off = {"NCCL_P2P_LEVEL": "LOC"}
    assert codes(judge_nccl(slow)) >= {"busbw-low/warn"}
    assert judge_nccl(slow, environment=off).findings == []
    own = Expectation(gpu="*A100*", count=8, collective="all_reduce", bytes=1 << 30, busbw=25)
    judgement = judge_nccl(slow, environment=off, expectations=Expectations.default().with_policy([own]))
    assert codes(judgement) == {"busbw-low/warn"}


def test_bridged_pairs_are_confirmed_by_their_copies() -> None:
    """The ring crosses PCIe, so only the pair matrix shows the bridges: 250 GB/s does, 20 does not."""
    machine = made.every_gpu(made.a100_bridged_pairs(), pcie=nccl.GEN4, compute_capability="8.0")
    first = nccl.default_arm(25, gather=25, ranks=4, algorithm="RING", transport=f"{nccl.P2P}+{SHM}")
    node = nccl.node(machine, first)
    bridges = dict.fromkeys(((0, 1), (1, 0), (2, 3), (3, 2)), 250.0)
    assert judge_nccl(nccl.with_pairs(node, 20.0, slow=bridges)).agreement is Agreement.CONFIRMED
    assert judge_nccl(nccl.with_pairs(node, 20.0)).agreement is Agreement.CONTRADICTED
    assert judge_nccl(node).agreement is Agreement.UNSURE


# -- the slow pair


def test_one_bad_link_is_named_by_its_two_gpus() -> None:
    """The ring only shows that something is slow."""
    slow = {(2, 5): 200.0, (5, 2): 210.0}
    slow_pair = finding(judge_nccl(nccl.with_pairs(nccl.h100(), 390.0, slow=slow)), "pair-slow")
    assert slow_pair.subject == "GPU 2 (0000:11:00.0) and GPU 5 (0000:14:00.0)"
    assert "200 GB/s" in slow_pair.message
    assert "390 GB/s" in slow_pair.message


def test_many_slow_pairs_are_not_reported_as_a_few() -> None:
    """A report names only the slowest, so the message says how many there are."""
    all_slow = finding(judge_nccl(nccl.with_pairs(nccl.h100(28), 20)), "pair-slow")
    assert "Half of the 56 measured directions" in all_slow.message
    one = judge_nccl(nccl.with_pairs(nccl.h100(), 396, slow={(2, 5): 60}))
    assert "Half of" not in finding(one, "pair-slow").message


def test_a_single_pair_is_compared_with_what_its_links_carry() -> None:
    """Two GPUs have no other pair: 20 GB/s over 2 x 25 is slow, 26 is not."""
    for gbps, slow_pair in ((20.0, {"pair-slow/warn"}), (26.0, set())):
        assert codes(judge_nccl(nccl.with_pairs(nccl.titan(), gbps))) == slow_pair


def test_a_gpu_in_every_slow_pair_is_named() -> None:
    """The board is the cause, not seven links."""
    slow = {(3, i): 190.0 for i in range(8)} | {(i, 3): 190.0 for i in range(8)}
    slow_pair = finding(judge_nccl(nccl.with_pairs(nccl.h100(), 390.0, slow=slow)), "pair-slow")
    assert "GPU 3 (0000:12:00.0) is in every slow pair" in slow_pair.message


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("gbps", [390.0, 382.0])
def test_pairs_may_differ_by_a_few_percent(gbps: float, whole: bool) -> None:
    """There is no finding."""
    judgement = judge_nccl(nccl.with_pairs(nccl.h100(), 390.0, slow={} if whole else {(0, 1): gbps}))
    assert "pair-slow" not in {slow_pair.code for slow_pair in judgement.findings}


def test_pairs_are_compared_with_pairs_of_as_many_links() -> None:
    """In a DGX-1, NV1 reaches half of NV2."""
    machine = made.every_gpu(made.dgx1(), pcie=nccl.GEN3, compute_capability="7.0")
    node = nccl.node(machine, nccl.default_arm(130, gather=130, ranks=8, algorithm="RING"))
    speeds = {(i, j): 24.0 * made.DGX1_NV[i][j] or 9.0 for i in range(8) for j in range(8)}
    assert judge_nccl(nccl.with_pairs(node, 0.0, slow=speeds)).findings == []
    bad = nccl.with_pairs(node, 0.0, slow=speeds | {(0, 3): 24.0})
    assert finding(judge_nccl(bad), "pair-slow").subject.startswith("GPU 0 ")


@pytest.mark.parametrize("slow", [{(2, 5): 200.0, (5, 2): 210.0}, {(5, i): 260.0 for i in range(8)}])
def test_two_rows_of_a_matrix_are_enough_to_find_the_slow_pair(slow: dict[tuple[int, int], float]) -> None:
    """A message without space keeps only the rows of the slowest pair's two GPUs."""
    whole = nccl.with_pairs(nccl.h100(), 390.0, slow=slow)
    rows = whole.nccl.arms[0].pairs
    kept: list[list[Any]] = [row if i in (2, 5) else [NOT_READ] * 8 for i, row in enumerate(rows)]
    cut_down = replace(nccl.swapped(whole, ArmName.DEFAULT, pairs=kept), omitted=["bench.pairs"])
    judgement = judge_nccl(cut_down)
    assert "GPU 5" in finding(judgement, "pair-slow").subject
    assert "nccl-incomplete/info" in codes(judgement)
