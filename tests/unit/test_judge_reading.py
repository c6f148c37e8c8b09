"""Probes that failed, sick and hidden GPUs, and what the driver reports itself."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Gpu, Problem, ProblemKind, Repair, Result, Unavailable, Xids
from nodegauge_judge import CATALOGUE, Answer, NodeFacts, Severity, Sharing, Verdict, judge_health
from nodegauge_judge.rules.xid_catalogue import BUCKETS, numbers
from support.judge_results import LOST, codes, cool, only


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ProblemKind.GPU_LOST, "gpu-lost"),
        (ProblemKind.RESET_REQUIRED, "reset-required"),
        (ProblemKind.INSUFFICIENT_POWER, "insufficient-power"),
        (ProblemKind.IRQ_ISSUE, "gpu-fault"),
        (ProblemKind.CORRUPTED_INFOROM, "gpu-fault"),
    ],
)
def test_a_sick_gpu_fails_the_node(kind: ProblemKind, code: str) -> None:
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
        ("nvml-error", "gpu-unreadable"),
        ("a-kind-of-tomorrow", "gpu-unreadable"),
        ("call-hung", "call-hung"),
        ("no-permission", "gpus-not-visible"),
    ],
)
def test_an_unreadable_gpu_leaves_the_node_unjudged(kind: str, code: str) -> None:
    """Neither healthy nor broken: unknown, with a finding that says which GPU."""
    judgement = judge_health(made.with_gpu(made.h100(), 3, error=Problem(kind=kind)))
    assert (only(judgement).code, judgement.verdict, judgement.readable) == (code, Verdict.UNKNOWN, False)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ProblemKind.LIBRARY_NOT_FOUND, "library-not-found"),
        (ProblemKind.DRIVER_NOT_LOADED, "driver-not-loaded"),
        (ProblemKind.DRIVER_MISMATCH, "driver-mismatch"),
        (ProblemKind.CALL_HUNG, "call-hung"),
        (ProblemKind.DEADLINE, "probe-deadline"),
        (ProblemKind.TERMINATED, "probe-terminated"),
        (ProblemKind.CRASHED, "probe-crashed"),
        (ProblemKind.TOO_LARGE, "result-too-large"),
        (ProblemKind.NVML_ERROR, "probe-problem"),
        (ProblemKind.NO_PERMISSION, "probe-problem"),
        ("a-kind-of-tomorrow", "probe-problem"),
    ],
)
def test_a_run_that_ended_early_is_unknown_and_names_the_next_step(kind: str, code: str) -> None:
    """No data decides nothing: the verdict is unknown, with and without half a reading."""
    problem = Problem(kind=kind, call="nvmlInitWithFlags", message="what happened")
    for result in (Result(probe="health", problem=problem), replace(made.titan(), problem=problem)):
        judgement = judge_health(result)
        finding = only(judgement)
        assert (finding.code, judgement.verdict, judgement.readable) == (code, Verdict.UNKNOWN, False)
        assert "what happened" in finding.message
        assert finding.evidence["call"] == "nvmlInitWithFlags"


def test_every_problem_kind_of_the_contract_has_a_finding() -> None:
    """A kind added to the contract without a code of its own still gives a finding with a next step."""
    for kind in ProblemKind:
        finding = only(judge_health(Result(probe="health", problem=Problem(kind=kind))))
        assert "Next: " in finding.message


def test_a_failure_outweighs_an_unjudged_node() -> None:
    """A lost GPU fails the node even when the run was cut off afterwards."""
    result = replace(made.with_gpu(made.h100(), 0, error=LOST), problem=Problem(kind="deadline"))
    judgement = judge_health(result)
    assert (judgement.verdict, judgement.readable) == (Verdict.FAIL, True)
    assert codes(judgement) == ["gpu-lost/fail", "probe-deadline/warn"]


def test_a_warning_does_not_make_an_unjudged_node_known() -> None:
    """Half a node that is only warm is still half a node."""
    facts = NodeFacts(gpu_capacity=4, sharing=Sharing.EXCLUSIVE)
    assert judge_health(cool(gpu=81, gpu_max=85), node=facts).verdict is Verdict.UNKNOWN


def test_no_gpu_at_all_means_that_the_runtime_hides_them() -> None:
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
def test_capacity_is_compared_only_if_it_counts_whole_gpus(facts: NodeFacts | None, visible: bool) -> None:
    """Time-slicing multiplies nvidia.com/gpu; then it proves nothing."""
    judgement = judge_health(made.titan(), node=facts)
    assert judgement.verdict == ("pass" if visible else "unknown")
    if not visible:
        assert "nvidia.com/gpu=3, the probe was shown 2" in only(judgement).message
        assert only(judgement).evidence == {"gpus_seen": 2, "gpus_known": 0, "gpu_capacity": 3}


def test_a_link_to_an_absent_gpu_shows_that_it_is_hidden() -> None:
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
def test_sharing_is_read_from_labels_of_gpu_discovery(labels: dict[str, str], sharing: Sharing) -> None:
    """Any sign of sharing makes the capacity meaningless."""
    assert NodeFacts.of(labels=labels, capacity={"nvidia.com/gpu": "8"}) == NodeFacts(
        gpu_capacity=8, sharing=sharing
    )
    assert NodeFacts.of(labels=labels, capacity={"nvidia.com/gpu": "many"}).gpu_capacity is None


def test_missing_gpus_are_named_by_uuid() -> None:
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


def test_links_to_hidden_gpus_are_not_lost() -> None:
    """A half-hidden DGX-1 has fewer links to visible GPUs; that is not damage."""
    history = judge_health(made.dgx1()).history
    assert codes(judge_health(made.dgx1([0, 1, 2, 3]), history=history)) == ["gpus-not-visible/warn"]
    lost = made.with_gpu(made.dgx1(), 7, error=LOST, links=[])
    for gpu_index in range(7):
        lost = made.with_gpu(
            lost, gpu_index, links=[g for g in lost.gpus[gpu_index].links if g.remote != made.pci(7)]
        )
    assert codes(judge_health(lost, history=history)) == ["gpu-lost/fail"]


def sound() -> Result:
    """Two GPUs that need no recovery."""
    return made.every_gpu(made.phb(), repair=Repair(rows_failed=0, action=0))


@pytest.mark.parametrize(
    ("action", "expected"),
    [(0, [])]
    + [(action, ["recovery-action/fail"]) for action in (1, 2, 4, 6, 7)]
    + [(action, ["recovery-action/warn"]) for action in (3, 5, 8, 99)],
)
def test_a_recovery_action_fails_or_warns(action: int, expected: list[str]) -> None:
    """Draining P2P, recovering IMEX and actions of tomorrow warn; everything else fails."""
    judgement = judge_health(made.with_gpu(sound(), 1, repair=Repair(rows_failed=0, action=action)))
    assert codes(judgement) == expected
    if expected:
        assert f"recovery action {action}" in only(judgement).message


def test_a_missing_recovery_action_is_unsure() -> None:
    """Older drivers have no such field: then nothing is said, and nothing cleared."""
    assert judge_health(sound()).answers["recovery-action"] is Answer.GOOD
    mixed = made.with_gpu(sound(), 1, repair=Repair(action=Unavailable("NVML_ERROR_INVALID_ARGUMENT")))
    assert judge_health(mixed).answers["recovery-action"] is Answer.GOOD
    mute = made.with_gpu(sound(), 1, repair=Repair(action=Unavailable("NVML_ERROR_UNKNOWN")))
    assert judge_health(mute).answers["recovery-action"] is Answer.UNSURE
    assert judge_health(made.phb()).answers["recovery-action"] is Answer.UNSURE


def seen(*codes: int, gpu_index: int = 0) -> Result:
    """Two GPUs that were watched, one of which reported these."""
    watched = made.every_gpu(made.phb(), xids=Xids(registered=True))
    return made.with_gpu(watched, gpu_index, xids=Xids(registered=True, seen=list(codes)))


@pytest.mark.parametrize(
    ("xid", "bucket"),
    [(xid, "RESET_GPU") for xid in (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)]
    + [(149, "WORKFLOW_NVLINK5_ERR"), (150, "WORKFLOW_NVLINK5_ERR"), (74, "WORKFLOW_NVLINK_ERR")]
    + [(48, "WORKFLOW_XID_48"), (171, "WORKFLOW_XID_48"), (172, "WORKFLOW_XID_48")]
    + [(79, "RESTART_BM"), (151, "RESTART_VM"), (54, "CHECK_MECHANICALS"), (94, "RESTART_APP")],
)
def test_xids_that_take_a_gpu_out_of_service_fail_at_once(xid: int, bucket: str) -> None:
    """By the resolution bucket of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); 94 by DCGM's fatal
    list."""
    judgement = judge_health(seen(xid))
    assert codes(judgement) == ["xid/fail"]
    assert judgement.answers["xid"] is Answer.BAD
    finding = judgement.findings[0]
    assert f"Xid {xid} (" in finding.message
    assert finding.evidence["resolution"] == bucket


@pytest.mark.parametrize(
    ("xid", "bucket"),
    [(xid, "WORKFLOW_NVLINK5_ERR") for xid in (144, 145, 146, 147, 148)]
    + [(xid, "RESTART_APP") for xid in (8, 13, 31, 32, 39, 41, 60, 69, 72, 80, 85, 98, 105, 126, 135, 139)]
    + [(xid, "IGNORE") for xid in (14, 37, 38, 43, 44, 63, 67, 92, 93, 107, 121, 137, 141, 157, 160, 161)]
    + [(45, "WORKFLOW_XID_45"), (78, "UPDATE_SWFW"), (159, "CHECK_UVM"), (142, "CONTACT_SUPPORT")]
    + [(154, "XID_154"), (165, "none in the catalogue"), (57, "none for newer GPUs")]
    + [(xid, "not in the catalogue") for xid in (1, 153, 173, 9999, 2**62)],
)
def test_every_other_xid_warns(xid: int, bucket: str) -> None:
    """A program's own fault takes no node away, and a number of tomorrow is not silent."""
    judgement = judge_health(seen(xid))
    assert codes(judgement) == ["xid/warn"]
    assert judgement.answers["xid"] is Answer.GOOD
    assert f"Xid {xid} (" in judgement.findings[0].message
    assert judgement.findings[0].evidence["resolution"] == bucket


def test_xids_of_one_gpu_make_one_finding_per_severity() -> None:
    """The fatal ones are not buried, and the advice is that of each."""
    judgement = judge_health(seen(63, 79, 48, 13))
    assert codes(judgement) == ["xid/fail", "xid/warn"]
    failed, warned = judgement.findings
    assert (failed.evidence["xids"], warned.evidence["xids"]) == ("48, 79", "13, 63")
    assert "NVIDIA's advice: reset the GPU, and replace it" in failed.message
    assert "; reboot the node." in failed.message


def test_a_flood_of_xids_stays_a_short_message() -> None:
    """Thirty-two different ones of one GPU: the first eight by name, all of them in the evidence."""
    finding = only(judge_health(seen(*range(1000, 1032))))
    assert "1007 (not in the catalogue) and 24 more," in finding.message
    assert str(finding.evidence["xids"]).endswith("1031")


def test_no_xid_is_good_only_if_every_gpu_was_watched() -> None:
    """No registration, no opinion."""
    assert judge_health(seen()).answers["xid"] is Answer.GOOD
    unreadable = made.with_gpu(seen(), 1, xids=Xids(registered=False))
    assert judge_health(unreadable).answers["xid"] is Answer.UNSURE
    assert judge_health(made.phb()).answers["xid"] is Answer.UNSURE
    never = Xids(registered=Unavailable("NVML_ERROR_NOT_SUPPORTED"))
    assert judge_health(made.with_gpu(seen(), 1, xids=never)).answers["xid"] is Answer.GOOD


def test_the_reference_page_lists_the_codes_that_are_used() -> None:
    """The words of the catalogue and the lists of the check are one."""
    when = CATALOGUE["xid"].when
    for severity in (Severity.FAIL, Severity.WARN):
        assert [int(xid) for xid in re.findall(r"\d+", when[severity])] == numbers(severity)
    assert sum(len(bucket.xids) for bucket in BUCKETS) == sum(map(len, map(numbers, Severity)))
