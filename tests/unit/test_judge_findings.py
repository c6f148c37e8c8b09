"""Findings and verdicts: each rule of the health judgement, one by one, on otherwise healthy machines."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

import result_builders as made
from judge_builders import codes, only
from nodegauge_contract import (
    Fabric,
    Gpu,
    Power,
    Problem,
    ProblemKind,
    Result,
    Span,
    Temperature,
    Unavailable,
    Window,
)
from nodegauge_judge import (
    CATALOGUE,
    Code,
    History,
    Judgement,
    NodeFacts,
    Severity,
    Sharing,
    Thresholds,
    ThresholdsInvalid,
    Verdict,
    judge_health,
)
from nodegauge_judge.health import MATRIX_LIMIT

HOT = Temperature(gpu=84, gpu_max=85)
LOST = Problem(kind=ProblemKind.GPU_LOST, call="nvmlDeviceGetHandleByIndex", code=15, message="GPU is lost")


def cool(**values: int) -> Result:
    """Two PCIe GPUs, the first with these temperatures and no sampling window."""
    return made.with_gpu(made.phb(), 0, temperature=Temperature(**values), window=None)


# -- temperature


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"gpu": 79, "gpu_max": 85}, []),
        ({"gpu": 80, "gpu_max": 85}, ["hot/warn"]),
        ({"gpu": 95, "gpu_max": 85}, ["hot/warn"]),
        ({"gpu": 87, "gpu_max": 93}, []),
        ({"gpu": 60, "margin": 6}, []),
        ({"gpu": 60, "margin": 5}, ["hot/warn"]),
        ({"gpu": 60, "margin": 4, "tlimit_gpu_max": -2}, []),
        ({"gpu": 60, "margin": 3, "tlimit_gpu_max": -2}, ["hot/warn"]),
        ({"gpu": 40, "margin": 0}, []),
        ({"gpu": 40, "margin": -3}, []),
        ({"gpu": 82, "margin": -3}, ["hot/warn"]),
        ({"margin": 3}, ["hot/warn"]),
        ({"gpu": 89, "margin": 30}, []),
        ({"gpu": 79}, []),
        ({"gpu": 80}, ["hot/warn"]),
        ({"gpu": 89}, ["hot/warn"]),
        ({"gpu": 90}, ["hot/warn"]),
        ({"gpu": 89, "gpu_max": 0}, ["hot/warn"]),
        ({"gpu": 0, "gpu_max": 85}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 89, "memory_max": 95}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 90, "memory_max": 95}, ["memory-hot/warn"]),
        ({"gpu": 30, "gpu_max": 85, "memory": 99}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 0, "memory_max": 95}, []),
    ],
)
def test_heat_is_judged_by_the_vendor_and_else_by_the_policy(
    values: dict[str, int], found: list[str]
) -> None:
    """Within 5 °C of the vendor's limit warns, else from 80 on; nothing fails without load or sensor."""
    assert codes(judge_health(cool(**values))) == found


def test_the_hottest_sample_of_the_window_counts() -> None:
    """A window's maximum stands for the GPU, and only the first reading where there was no window."""
    temperature = Temperature(gpu=40, gpu_max=85)
    window = Window(seconds=3.0, samples=12, temperature=Span(min=60, median=70, max=81))
    hot = made.with_gpu(made.phb(), 0, temperature=temperature, window=window)
    assert only(judge_health(hot)).evidence == {"celsius": 81, "limit_celsius": 85}


def test_temperature_thresholds_come_from_the_policy() -> None:
    """Margin and warning are two numbers of the policy, memory's margin a third."""
    assert codes(judge_health(cool(gpu=78, gpu_max=85), thresholds=Thresholds(hot_margin=7))) == ["hot/warn"]
    assert codes(judge_health(cool(gpu=78), thresholds=Thresholds(hot_warn=78))) == ["hot/warn"]
    memory = cool(gpu=30, gpu_max=85, memory=80, memory_max=95)
    assert codes(judge_health(memory, thresholds=Thresholds(memory_hot_margin=15))) == ["memory-hot/warn"]


def test_heat_without_a_vendor_limit_names_the_policys_number() -> None:
    """Which number, and whose."""
    warned, failed = only(judge_health(cool(gpu=85))), only(judge_health(cool(gpu=95)))
    assert warned.message.startswith("85 °C; the driver gives no limit, the policy's hotWarn is 80 °C.")
    assert failed.message.startswith("95 °C; the driver gives no limit, the policy's hotFail is 90 °C.")
    assert failed.evidence == {"celsius": 95, "limit_celsius": 90}


# -- power


@pytest.mark.parametrize(
    ("power", "found"),
    [
        (Power(enforced_limit_mw=359_999, default_limit_mw=400_000), ["power-cap-low/warn"]),
        (Power(enforced_limit_mw=360_000, default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=500_000, default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=0, default_limit_mw=400_000), []),
        (Power(default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=100_000), []),
    ],
)
def test_a_cap_below_nine_tenths_of_the_default_is_said(power: Power, found: list[str]) -> None:
    """Below 0.9 warns, exactly 0.9 does not; a missing or zero reading is no cap."""
    result = replace(made.phb(), gpus=[replace(gpu, power=power) for gpu in made.phb().gpus])
    assert codes(judge_health(result)) == found


def test_the_share_of_power_is_a_threshold() -> None:
    """A policy that wants caps may have them."""
    capped = Power(enforced_limit_mw=250_000, default_limit_mw=400_000)
    result = replace(made.phb(), gpus=[replace(gpu, power=capped) for gpu in made.phb().gpus])
    assert codes(judge_health(result, thresholds=Thresholds(power_cap_ratio=0.6))) == []
    finding = only(judge_health(result))
    assert finding.message.startswith("Capped at 250 W of 400 W by default (62%, warns below 90%).")
    assert finding.evidence["enforced_watts"] == 250


# -- links


def test_refused_p2p_fails_and_names_pair_status_and_way_out() -> None:
    """The message holds what a person needs at night: which pair, how many links, which status, what next."""
    finding = only(judge_health(made.with_pair(made.titan(), 0, 1, read=5, nvlink=4)))
    assert (finding.code, finding.severity) == ("p2p-refused", Severity.FAIL)
    assert finding.subject == "GPU 0 (0000:0f:00.0) - GPU 1 (0000:10:00.0)"
    assert "2 NVLinks up" in finding.message
    assert "READ (NS: not supported), NVLINK (DR: disabled by a registry key)" in finding.message
    assert finding.message.endswith(f"Next: {CATALOGUE[Code.P2P_REFUSED].next_step}")
    assert "WRITE" not in finding.message


def test_many_refused_pairs_are_one_finding() -> None:
    """28 pairs of one cause make one finding that counts them, the worst pair first."""
    result = made.h100()
    for i in range(8):
        for j in range(i + 1, 8):
            result = made.with_pair(result, i, j, nvlink=5)
    result = made.with_pair(result, 2, 3, read=5, write=5)
    finding = only(judge_health(result))
    assert finding.subject == "GPU 2 (0000:11:00.0) - GPU 3 (0000:12:00.0) and 27 more"
    assert finding.evidence["pairs"] == 28
    assert str(finding.evidence["also"]).startswith("0-1, 0-2, ")


def test_a_fabric_that_is_not_ready_speaks_before_the_pairs_that_refuse_because_of_it() -> None:
    """The cause leads, the consequences are counted."""
    result = made.with_pair(made.with_gpu(made.h100(), 7, fabric=Fabric(state=2)), 0, 1, read=5)
    finding = only(judge_health(result))
    assert finding.code == "p2p-refused"
    assert finding.subject == "GPU 7 (0000:16:00.0) and 1 more"
    assert "still in progress" in finding.message
    assert finding.evidence["fabric_state"] == 2


def test_missing_links_warn_and_far_too_few_fail() -> None:
    """Behind switches siblings tell: 17 of 18 warns, 13 of 18 fails; the numbers are in the evidence."""
    warned = only(judge_health(made.without_links(made.h100(), 3, count=1)))
    failed = only(judge_health(made.without_links(made.h100(), 3, count=5)))
    assert (warned.severity, failed.severity) == (Severity.WARN, Severity.FAIL)
    assert failed.evidence == {"links": 13, "expected": 18, "against": "siblings", "limit": 0.75}
    assert "13 NVLinks active; its siblings have 18 (72%, below 75%" in failed.message


def test_siblings_are_compared_within_a_model_and_only_behind_switches() -> None:
    """Another model may have fewer links, and a direct mesh may be uneven."""
    result = made.with_gpu(made.without_links(made.h100(), 3, count=9), 3, name="NVIDIA H800")
    assert "nvlink-degraded/fail" not in codes(judge_health(result))
    assert codes(judge_health(made.dgx1([0, 1, 2, 3]))) == []


def test_the_worse_of_siblings_and_history_is_what_counts() -> None:
    """All siblings degraded alike are seen against the past."""
    history = judge_health(made.h100()).history
    result = made.h100()
    for place in range(8):
        result = made.without_links(result, place, count=2)
    finding = only(judge_health(result, history=history))
    assert finding.evidence["against"] == "history"
    assert finding.subject.endswith("and 7 more")


def test_links_that_cannot_be_told_warn_and_are_no_degradation() -> None:
    """A doubt is not a lost link, even with a past to compare with."""
    history = judge_health(made.titan()).history
    result = made.with_links(made.with_links(made.titan(), 0, state=3), 1, state=3)
    finding = only(judge_health(result, history=history))
    assert (finding.code, finding.severity) == ("nvlink-unresolved", Severity.WARN)
    assert "traffic is disabled" in finding.message


def test_a_gpu_whose_links_are_all_down_is_degraded_and_not_a_riddle() -> None:
    """Zero of 18 is a fact, although the GPU still counts its wires to the switches."""
    finding = only(judge_health(made.with_links(made.h100(), 1, state=0)))
    assert (finding.code, finding.evidence["links"]) == ("nvlink-degraded", 0)


def test_lost_links_are_not_a_riddle_as_well() -> None:
    """All links of a pair gone while NVLINK P2P still reads OK: one finding, against the past."""
    gone = made.with_links(made.with_links(made.titan(), 0, state=0), 1, state=0)
    assert codes(judge_health(gone, history=judge_health(made.titan()).history)) == ["nvlink-degraded/fail"]
    assert codes(judge_health(gone)) == ["nvlink-unresolved/warn"]


def test_unreadable_p2p_is_a_warning_of_its_own() -> None:
    """What could not be told is neither refused nor fine."""
    finding = only(judge_health(made.with_pair(made.titan(), 0, 1, write=Unavailable("Unknown"))))
    assert (finding.code, finding.severity) == ("nvlink-unresolved", Severity.WARN)
    assert "WRITE (not readable: Unknown)" in finding.message
    absent = only(judge_health(replace(made.titan(), pairs=replace(made.titan().pairs, read=[]))))
    assert "READ (not in the document)" in absent.message


def test_mig_silences_every_opinion_on_links() -> None:
    """With MIG on, refused P2P and a fabric in progress mean nothing."""
    result = made.with_gpu(made.with_pair(made.h100(), 1, 2, read=5), 0, mig=1, fabric=Fabric(state=2))
    assert codes(judge_health(result, history=judge_health(made.h100()).history)) == []


def test_a_lone_gpu_of_a_bridged_pair_is_left_alone() -> None:
    """One GPU in a virtual machine whose links name itself is no riddle worth a warning."""
    whole = made.ncv4()
    assert judge_health(replace(whole, gpus=whole.gpus[:1], pairs=made.pairs([[0]]))).verdict == "pass"


# -- GPUs with errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ProblemKind.GPU_LOST, Code.GPU_LOST),
        (ProblemKind.RESET_REQUIRED, Code.RESET_REQUIRED),
        (ProblemKind.INSUFFICIENT_POWER, Code.INSUFFICIENT_POWER),
        (ProblemKind.IRQ_ISSUE, Code.GPU_FAULT),
        (ProblemKind.CORRUPTED_INFOROM, Code.GPU_FAULT),
    ],
)
def test_a_sick_gpu_fails_the_node(kind: ProblemKind, code: Code) -> None:
    """NVML's errors that mean a sick device fail at once, on a GPU and for the whole run."""
    error = Problem(kind=kind, call="nvmlDeviceGetUUID", code=15, message="words of the driver")
    judgement = judge_health(made.with_gpu(made.h100(), 3, error=error, links=[]))
    finding = only(judgement)
    assert (finding.code, finding.severity, judgement.verdict) == (code, Severity.FAIL, Verdict.FAIL)
    assert finding.subject == "GPU 3 (0000:12:00.0)"
    assert "words of the driver" in finding.message
    assert finding.evidence == {"kind": kind, "call": "nvmlDeviceGetUUID", "nvml_return": 15}
    assert judge_health(Result(probe="health", problem=error)).verdict is Verdict.FAIL


def test_a_gpu_without_an_address_is_named_by_its_index() -> None:
    """A lost GPU may not even tell its address; the node's past knows the board by its UUID."""
    lost = Gpu(index=1, error=LOST)
    result = replace(made.titan(), gpus=[made.titan().gpus[0], lost])
    finding = only(judge_health(result, history=judge_health(made.titan()).history))
    assert finding.subject == "GPU 1"
    assert finding.evidence["missing_uuids"] == "GPU-00000001"
    assert "missing_uuids" not in only(judge_health(result)).evidence


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("nvml-error", Code.GPU_UNREADABLE),
        ("a-kind-of-tomorrow", Code.GPU_UNREADABLE),
        ("call-hung", Code.CALL_HUNG),
        ("no-permission", Code.GPUS_NOT_VISIBLE),
    ],
)
def test_a_gpu_that_says_nothing_leaves_the_node_unjudged(kind: str, code: Code) -> None:
    """Neither healthy nor broken: unknown, with a finding that says which GPU."""
    judgement = judge_health(made.with_gpu(made.h100(), 3, error=Problem(kind=kind)))
    assert (only(judgement).code, judgement.verdict, judgement.readable) == (code, Verdict.UNKNOWN, False)


# -- runs with problems


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ProblemKind.LIBRARY_NOT_FOUND, Code.LIBRARY_NOT_FOUND),
        (ProblemKind.DRIVER_NOT_LOADED, Code.DRIVER_NOT_LOADED),
        (ProblemKind.DRIVER_MISMATCH, Code.DRIVER_MISMATCH),
        (ProblemKind.CALL_HUNG, Code.CALL_HUNG),
        (ProblemKind.DEADLINE, Code.PROBE_DEADLINE),
        (ProblemKind.TERMINATED, Code.PROBE_TERMINATED),
        (ProblemKind.CRASHED, Code.PROBE_CRASHED),
        (ProblemKind.TOO_LARGE, Code.RESULT_TOO_LARGE),
        (ProblemKind.NVML_ERROR, Code.PROBE_PROBLEM),
        (ProblemKind.NO_PERMISSION, Code.PROBE_PROBLEM),
        ("a-kind-of-tomorrow", Code.PROBE_PROBLEM),
    ],
)
def test_a_run_that_ended_early_is_unknown_and_names_the_way_out(kind: str, code: Code) -> None:
    """No data decides nothing: the verdict is unknown, with and without half a reading."""
    problem = Problem(kind=kind, call="nvmlInitWithFlags", message="what happened")
    for result in (Result(probe="health", problem=problem), replace(made.titan(), problem=problem)):
        judgement = judge_health(result)
        finding = only(judgement)
        assert (finding.code, judgement.verdict, judgement.readable) == (code, Verdict.UNKNOWN, False)
        assert "what happened" in finding.message
        assert finding.evidence["call"] == "nvmlInitWithFlags"


def test_every_problem_kind_of_the_contract_has_words() -> None:
    """A kind added to the contract without a code of its own still gives a finding with a next step."""
    for kind in ProblemKind:
        finding = only(judge_health(Result(probe="health", problem=Problem(kind=kind))))
        assert "Next: " in finding.message


def test_what_is_proven_broken_outweighs_what_could_not_be_judged() -> None:
    """A lost GPU fails the node even when the run was cut off afterwards."""
    result = replace(made.with_gpu(made.h100(), 0, error=LOST), problem=Problem(kind="deadline"))
    judgement = judge_health(result)
    assert (judgement.verdict, judgement.readable) == (Verdict.FAIL, True)
    assert codes(judgement) == ["gpu-lost/fail", "probe-deadline/warn"]


def test_a_warning_beside_an_unjudged_node_does_not_make_it_a_pass() -> None:
    """Half a node that is only warm is still half a node."""
    facts = NodeFacts(gpu_capacity=4, sharing=Sharing.EXCLUSIVE)
    assert judge_health(cool(gpu=81, gpu_max=85), node=facts).verdict is Verdict.UNKNOWN


# -- visibility


def test_nvml_without_a_gpu_is_a_runtime_that_hides_them() -> None:
    """No GPU and no error is not a healthy node."""
    judgement = judge_health(Result(probe="health"))
    assert (only(judgement).code, judgement.verdict) == ("gpus-not-visible", Verdict.UNKNOWN)
    assert "runtimeClassName" in only(judgement).message


@pytest.mark.parametrize(
    ("facts", "visible"),
    [
        (NodeFacts(gpu_capacity=2, sharing=Sharing.EXCLUSIVE), True),
        (NodeFacts(gpu_capacity=1, sharing=Sharing.EXCLUSIVE), True),
        (NodeFacts(gpu_capacity=3, sharing=Sharing.EXCLUSIVE), False),
        (NodeFacts(gpu_capacity=20, sharing=Sharing.SHARED), True),
        (NodeFacts(sharing=Sharing.EXCLUSIVE), True),
        (None, True),
    ],
)
def test_capacity_is_compared_only_where_it_counts_whole_gpus(facts: NodeFacts | None, visible: bool) -> None:
    """Time-slicing multiplies nvidia.com/gpu; then it proves nothing."""
    judgement = judge_health(made.titan(), node=facts)
    assert judgement.verdict == ("pass" if visible else "unknown")
    if not visible:
        assert "nvidia.com/gpu=3, the probe was shown 2" in only(judgement).message
        assert only(judgement).evidence == {"gpus_seen": 2, "gpus_known": 0, "gpu_capacity": 3}


def test_a_link_to_a_gpu_that_is_not_there_tells_that_it_was_hidden() -> None:
    """No capacity and no past needed: GPUs 2 to 7 of a DGX-1 are named by the links of the first two."""
    whole = made.dgx1()
    pair = replace(whole, gpus=whole.gpus[:2], pairs=made.pairs([[0, 1], [1, 0]]))
    finding = only(judge_health(pair))
    assert finding.code == "gpus-not-visible"
    assert "an NVLink of GPU 0 leads to GPU 0000:11:00.0" in finding.message


def test_capacity_proves_nothing_while_mig_is_on() -> None:
    """MIG slices are counted as GPUs by some strategies."""
    facts = NodeFacts(gpu_capacity=7, sharing=Sharing.EXCLUSIVE)
    assert judge_health(made.with_gpu(made.titan(), 0, mig=1), node=facts).verdict == "pass"


@pytest.mark.parametrize(
    ("labels", "sharing"),
    [
        ({}, Sharing.EXCLUSIVE),
        ({"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}, Sharing.EXCLUSIVE),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, Sharing.SHARED),
        ({"nvidia.com/gpu.replicas": "4"}, Sharing.SHARED),
        ({"nvidia.com/mig.strategy": "single"}, Sharing.SHARED),
    ],
)
def test_sharing_is_read_from_the_labels_of_gpu_feature_discovery(
    labels: dict[str, str], sharing: Sharing
) -> None:
    """Any sign of sharing makes the capacity meaningless."""
    assert NodeFacts.of(labels=labels, capacity={"nvidia.com/gpu": "8"}) == NodeFacts(
        gpu_capacity=8, sharing=sharing
    )
    assert NodeFacts.of(labels=labels, capacity={"nvidia.com/gpu": "many"}).gpu_capacity is None


def test_gpus_that_were_there_before_are_missed_by_name() -> None:
    """Fewer GPUs than in the last whole reading: unknown, with the UUIDs that are gone."""
    history = judge_health(made.h100()).history
    four = made.h100(4)
    judgement = judge_health(four, history=history)
    finding = only(judgement)
    assert (finding.code, judgement.verdict) == ("gpus-not-visible", Verdict.UNKNOWN)
    assert "8 GPUs were seen in this boot, 4 now" in finding.message
    assert "GPU-00000004" in finding.message
    assert "GPU-00000003" not in finding.message
    later = replace(four, host=replace(four.host, boot_id="another"))
    assert "before the last reboot" in only(judge_health(later, history=history)).message


def test_links_of_a_mesh_are_not_called_lost_when_their_gpus_are_hidden() -> None:
    """A half-hidden DGX-1 has fewer links to visible GPUs; that is not damage."""
    history = judge_health(made.dgx1()).history
    assert codes(judge_health(made.dgx1([0, 1, 2, 3]), history=history)) == ["gpus-not-visible/warn"]
    lost = made.with_gpu(made.dgx1(), 7, error=LOST, links=[])
    for place in range(7):
        lost = made.with_gpu(
            lost, place, links=[g for g in lost.gpus[place].links if g.remote != made.pci(7)]
        )
    assert codes(judge_health(lost, history=history)) == ["gpu-lost/fail"]


# -- inventory


def test_gpus_that_are_not_alike_are_worth_knowing() -> None:
    """Model first; VBIOS and power limit within a model; info never changes the verdict."""
    judgement = judge_health(made.with_gpu(made.phb(), 0, name="NVIDIA A10"))
    assert (only(judgement).code, only(judgement).severity) == ("mixed-gpus", Severity.INFO)
    assert judgement.verdict is Verdict.PASS
    assert "1x NVIDIA A10, 1x NVIDIA GeForce RTX 4090" in only(judgement).message
    assert judgement.product == "NVIDIA A10 + NVIDIA GeForce RTX 4090"
    assert codes(judge_health(made.with_gpu(made.phb(), 0, vbios="94.02"))) == ["mixed-gpus/info"]
    power = Power(enforced_limit_mw=390_000, default_limit_mw=400_000)
    assert codes(judge_health(made.with_gpu(made.phb(), 0, power=power))) == ["mixed-gpus/info"]


# -- the judgement as a whole


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
    ("result", "words"),
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
def test_the_summary_is_one_sentence_for_a_person(result: Result, words: str) -> None:
    """What it is, what is wrong, where."""
    assert judge_health(result).summary == words


def test_the_summary_counts_what_else_there_is_without_what_is_only_worth_knowing() -> None:
    """One more finding, two more findings; info is none of them."""
    two = made.with_gpu(
        made.with_pair(made.titan(), 0, 1, read=5), 0, temperature=HOT, window=None, vbios="1"
    )
    assert judge_health(two).summary.endswith("[p2p-refused]; 1 more finding.")
    three = made.with_gpu(two, 1, power=Power(enforced_limit_mw=100_000, default_limit_mw=400_000))
    assert judge_health(three).summary.endswith("[p2p-refused]; 2 more findings.")


def test_the_matrix_is_part_of_the_judgement_while_it_is_of_sane_size() -> None:
    """With its legend for real machines, without for large ones, not at all for absurd ones; never cut."""
    assert "Legend:" in judge_health(made.h100(16)).matrix
    assert len(judge_health(made.h100(16)).matrix.encode()) <= MATRIX_LIMIT
    large = judge_health(made.h100(31)).matrix
    assert large.splitlines()[-1].startswith("GPU30")
    assert judge_health(made.h100(64)).matrix == ""
    assert judge_health(Result(probe="health")).matrix == ""


def test_a_judgement_is_json_as_it_is() -> None:
    """Encoding needs no help and decodes to the same."""
    judgement = judge_health(made.without_links(made.h100(), 3, count=5))
    assert msgspec.json.decode(msgspec.json.encode(judgement), type=Judgement) == judgement


def test_a_node_where_everything_is_wrong_fits_into_a_report() -> None:
    """Sixteen sick GPUs: findings under 4 KiB, each message under 600 characters."""
    result = made.h100(16)
    for i in range(16):
        result = made.with_gpu(
            result,
            i,
            fabric=Fabric(state=2),
            temperature=Temperature(gpu=99, gpu_max=85, memory=99, memory_max=95),
            power=Power(enforced_limit_mw=100_000 + i, default_limit_mw=700_000),
            vbios=f"{i}" * 20,
            window=None,
        )
    judgement = judge_health(result)
    assert len(judgement.findings) == 5
    assert len(msgspec.json.encode(judgement.findings)) < 4096
    assert max(len(finding.message) for finding in judgement.findings) < 600


def test_foreign_text_is_clipped_and_kept_on_one_line() -> None:
    """A driver's words of any length and shape cannot flood a message."""
    problem = Problem(kind="crashed", message="line\n" * 100)
    finding = only(judge_health(Result(probe="health", problem=problem)))
    assert "\n" not in finding.message
    assert len(finding.message) < 400


def test_thresholds_are_read_from_a_policy_and_refuse_nonsense_by_name() -> None:
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


def test_history_is_an_input_that_is_never_required() -> None:
    """A first run and an empty history are the same."""
    assert judge_health(made.titan()) == judge_health(made.titan(), history=History())
