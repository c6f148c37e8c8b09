"""Probes that failed, sick and hidden GPUs, and what the driver reports itself."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Ecc, Gpu, Problem, ProblemKind, Repair, Result, Unavailable, Xids
from nodegauge_judge import CATALOGUE, Answer, NodeFacts, Severity, Sharing, Verdict
from nodegauge_judge.rules.xid_catalogue import BUCKETS, numbers
from support.judge_results import GAP, LOST, Row, Table, check, cool, judge, only, rows

GOOD, UNSURE, UNKNOWN, FAIL = Answer.GOOD, Answer.UNSURE, Verdict.UNKNOWN, Verdict.FAIL
CALLED = {"call": "nvmlDeviceGetUUID", "nvml_return": 15}
CALL: dict[str, Any] = {"call": "nvmlDeviceGetUUID", "code": 15, "message": "words of the driver"}


def sick(kind: str, **more: Any) -> Result:
    return made.with_gpu(made.h100(), 3, error=Problem(kind=kind, **more), links=[])


def ended(kind: str) -> list[Result]:
    problem = Problem(kind=kind, call="nvmlInitWithFlags", message="what happened")
    return [Result(probe="health", problem=problem), replace(made.titan(), problem=problem)]


NO_LIBRARY = ended(ProblemKind.LIBRARY_NOT_FOUND)[0]


def facts(capacity: int | None, sharing: Sharing = Sharing.EXCLUSIVE) -> NodeFacts:
    return NodeFacts(gpu_capacity=capacity, sharing=sharing)


def having(member: str, *values: Any, **last: Any) -> Result:
    """One H100 for each of these values; `last`: other fields of the last one."""
    result = made.h100(len(values))
    for gpu_index, value in enumerate(values):
        result = made.with_gpu(result, gpu_index, **{member: value})
    return made.with_gpu(result, len(values) - 1, **last) if last else result


OFF, ON, UNREAD = (Ecc(mode=mode) for mode in (0, 1, Unavailable("NVML_ERROR_UNKNOWN")))
PROHIBITED = "compute-prohibited/fail"


def recovering(*actions: Any) -> Result:
    result = made.every_gpu(made.phb(), repair=Repair(rows_failed=0, action=0))
    return made.with_gpu(result, 1, repair=Repair(rows_failed=0, action=actions[0])) if actions else result


def seen(*codes: int, second: Xids | None = None) -> Result:
    """Two GPUs that were watched, the first of which reported these."""
    watched = made.every_gpu(made.phb(), xids=Xids(registered=True, seen=[]))
    result = made.with_gpu(watched, 0, xids=Xids(registered=True, seen=list(codes)))
    return made.with_gpu(result, 1, xids=second) if second else result


NAMELESS = replace(made.titan(), gpus=[made.titan().gpus[0], Gpu(index=1, error=LOST)])
CUT_LOST = replace(made.with_gpu(made.h100(), 0, error=LOST), problem=Problem(kind="deadline"))
PAIR_OF_DGX1 = replace(made.dgx1(), gpus=made.dgx1().gpus[:2], pairs=made.pairs([[0, 1], [1, 0]]))
FOUR = made.h100(4)
NEXT_BOOT = replace(FOUR, host=replace(FOUR.host, boot_id="another"))
GONE = ", ".join(f"GPU-{n:08d}" for n in range(4, 8))
HIDDEN, NOT_VISIBLE = "gpus-not-visible/warn", "gpus-not-visible"


def without_the_eighth() -> Result:
    lost = made.with_gpu(made.dgx1(), 7, error=LOST, links=[])
    for gpu_index in range(7):
        links = [group for group in lost.gpus[gpu_index].links if group.remote != made.pci(7)]
        lost = made.with_gpu(lost, gpu_index, links=links)
    return lost


TABLE: Table = {
    "ECC off beside siblings with it is named; off on all, or on the only one of its model, is a choice": [
        (having("ecc", *[ON] * 3, OFF, *[ON] * 4), "ecc-off/warn", "GPU 3 (0000:12:00.0): ECC is off; 7 of"),
        (having("ecc", OFF, *[ON] * 3, *[OFF] * 4), "ecc-off/warn", "GPU 0 (0000:0f:00.0) and 4 more: "),
        (having("ecc", OFF, *[UNREAD] * 6, ON), f"ecc-off/warn {GAP}", "1 of the node's 8"),
        (having("ecc", *[OFF] * 8), ""),
        (having("ecc", ON, OFF, name="NVIDIA TITAN V"), "mixed-gpus/info"),
    ],
    "a GPU that no process can use fails; a mode that was not read clears nothing": [
        (having("compute_mode", 0, 0, 2, 0), PROHIBITED, "GPU 2 (0000:11:00.0): ", {"compute_mode": 2}),
        (having("compute_mode", 2), PROHIBITED, {"compute-prohibited": Answer.BAD}),
        (having("compute_mode", 0, 3, 1), "", {"compute-prohibited": GOOD}),
        (having("compute_mode", 0, UNREAD.mode), GAP, {"compute-prohibited": UNSURE}),
    ],
    "NVML's errors that mean a sick device fail at once, on a GPU and for the whole run": [
        (result, f"{code}/fail", FAIL, subject, "words of the driver", CALLED | {"kind": kind})
        for kind, code in (
            (ProblemKind.GPU_LOST, "gpu-lost"),
            (ProblemKind.RESET_REQUIRED, "reset-required"),
            (ProblemKind.INSUFFICIENT_POWER, "insufficient-power"),
            (ProblemKind.IRQ_ISSUE, "gpu-fault"),
            (ProblemKind.CORRUPTED_INFOROM, "gpu-fault"),
        )
        for result, subject in (
            (sick(kind, **CALL), "GPU 3 (0000:12:00.0): "),
            (Result(probe="health", problem=Problem(kind=kind, **CALL)), ""),
        )
    ],
    "a GPU without an address is named by its index, and its board by the past": [
        ((made.titan(), NAMELESS), "gpu-lost/fail", "GPU 1: ", {"missing_uuids": "GPU-00000001"}),
        (NAMELESS, "gpu-lost/fail", {"missing_uuids": None}),
    ],
    "an unreadable GPU leaves the node unjudged": [
        (sick(kind), f"{code}/warn", UNKNOWN)
        for kind, code in (
            ("nvml-error", "gpu-unreadable"),
            ("a-kind-of-tomorrow", "gpu-unreadable"),
            ("call-hung", "call-hung"),
            ("no-permission", NOT_VISIBLE),
        )
    ],
    "a run that ended early is unknown, with and without half a reading": [
        (result, f"{code}/warn", UNKNOWN, "what happened", {"call": "nvmlInitWithFlags"})
        for kind, code in (
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
        )
        for result in ended(kind)
    ],
    "where a claim or a folder brings the driver in, no container runtime is advised": [
        (judge(result, node=NodeFacts(access=access)), f"{code}/warn", UNKNOWN, f"Next: {step}")
        for access, code, result, step in (
            ("Runtime", "library-not-found", NO_LIBRARY, "set `spec.podTemplate"),
            ("DRA", "library-not-found", NO_LIBRARY, "look at the log of the DRA driver"),
            ("HostDriver", "library-not-found", NO_LIBRARY, "find the driver's"),
            ("DRA", NOT_VISIBLE, Result(probe="health"), "see whether the node's ResourceSlices list"),
        )
    ],
    "a failure outweighs an unjudged node": [(CUT_LOST, "gpu-lost/fail probe-deadline/warn", FAIL)],
    "half a node that is only warm is still half a node": [
        (judge(cool(gpu=81, gpu_max=85), node=facts(4)), f"{HIDDEN} hot/warn", UNKNOWN)
    ],
    "no GPU and no error mean that the runtime hides them": [
        (Result(probe="health"), HIDDEN, UNKNOWN, "by the NVIDIA container runtime or CDI")
    ],
    "fewer GPUs than the capacity are hidden": (
        judge(made.titan(), node=facts(3)),
        HIDDEN,
        UNKNOWN,
        "nvidia.com/gpu=3, the probe was shown 2",
        {"gpus_seen": 2, "gpus_known": 0, "gpu_capacity": 3},
    ),
    "a capacity that is met, unknown, or shared proves nothing": [
        (judge(made.titan(), node=node), "", Verdict.PASS)
        for node in (facts(2), facts(1), facts(20, Sharing.SHARED), facts(None), None)
    ],
    "MIG slices are counted as GPUs by some strategies": [
        (judge(made.with_gpu(made.titan(), 0, mig=1), node=facts(7)), "", Verdict.PASS)
    ],
    "a link to an absent GPU shows that it is hidden": [
        (PAIR_OF_DGX1, HIDDEN, UNKNOWN, "an NVLink of GPU 0 leads to GPU 0000:11:00.0")
    ],
    "GPUs of the last whole reading that are gone are named by UUID": [
        ((made.h100(), FOUR), HIDDEN, UNKNOWN, f"8 GPUs were seen in this boot, 4 now; missing: {GONE}."),
        ((made.h100(), NEXT_BOOT), HIDDEN, UNKNOWN, "before the last reboot"),
    ],
    "links to hidden or lost GPUs are not lost": [
        ((made.dgx1(), made.dgx1([0, 1, 2, 3])), HIDDEN, UNKNOWN),
        ((made.dgx1(), without_the_eighth()), "gpu-lost/fail"),
    ],
    "a recovery action fails": [
        (recovering(action), "recovery-action/fail", f"recovery action {action}")
        for action in (1, 2, 4, 6, 7)
    ],
    "draining P2P, recovering IMEX and actions of tomorrow warn": [
        (recovering(action), "recovery-action/warn", f"recovery action {action}") for action in (3, 5, 8, 99)
    ],
    "no recovery action is good, also beside a driver without such a field": [
        (recovering(), "", {"recovery-action": GOOD}),
        (recovering(Unavailable("NVML_ERROR_INVALID_ARGUMENT")), GAP, {"recovery-action": GOOD}),
    ],
    "a recovery action that was not read is unsure": [
        (recovering(Unavailable("NVML_ERROR_UNKNOWN")), GAP, {"recovery-action": UNSURE}),
        (made.phb(), "", {"recovery-action": UNSURE}),
    ],
    "no Xid is good only if every GPU was watched": [
        (seen(), "", {"xid": GOOD}),
        (seen(second=Xids(registered=False)), "", {"xid": UNSURE}),
        (made.phb(), "", {"xid": UNSURE}),
        (seen(second=Xids(registered=Unavailable("NVML_ERROR_NOT_SUPPORTED"))), GAP, {"xid": GOOD}),
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_what_was_read_is_judged(row: Row) -> None:
    check(*row)


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
    assert NodeFacts.from_node(labels=labels, capacity={"nvidia.com/gpu": "8"}) == NodeFacts(
        gpu_capacity=8, sharing=sharing
    )
    assert NodeFacts.from_node(labels=labels, capacity={"nvidia.com/gpu": "many"}).gpu_capacity is None


@pytest.mark.parametrize(
    ("xid", "severity", "bucket"),
    [
        *((xid, "fail", "RESET_GPU") for xid in (64, 95, 119, 140)),
        *((150, "fail", "WORKFLOW_NVLINK5_ERR"), (74, "fail", "WORKFLOW_NVLINK_ERR")),
        *((48, "fail", "WORKFLOW_XID_48"), (79, "fail", "RESTART_BM"), (94, "fail", "RESTART_APP")),
        *((145, "warn", "WORKFLOW_NVLINK5_ERR"), (13, "warn", "RESTART_APP"), (43, "warn", "IGNORE")),
        *((154, "warn", "XID_154"), (165, "warn", "none in the catalogue")),
        *((57, "warn", "none for newer GPUs"), (2**62, "warn", "not in the catalogue")),
    ],
)
def test_xids_that_take_a_gpu_out_fail_and_all_others_warn(xid: int, severity: str, bucket: str) -> None:
    """By the resolution bucket of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); 94 by DCGM's fatal
    list.  A program's own fault takes no node away, and a number of tomorrow is not silent."""
    answer = Answer.BAD if severity == "fail" else GOOD
    check(seen(xid), f"xid/{severity}", f"Xid {xid} (", {"resolution": bucket, "xid": answer})


def test_what_dcgm_fails_fails_here_and_what_it_warns_of_is_listed() -> None:
    """NVIDIA/DCGM, health module: Xids that fail, and those that warn of one subsystem."""
    failing, known = set(numbers(Severity.FAIL)), {xid for bucket in BUCKETS for xid in bucket.xids}
    assert failing >= {48, 74, 79, 94, 95, 119, 120, 140}
    assert known >= {31, 32, 43, 63, 64, 38, 39, 42, 60, 61, 62, 54, 56, 57, 58, 78, 67, 73, 121, 137, 93}


@pytest.mark.parametrize(
    ("xid", "action", "expected"),
    [
        *((149, action, each) for action, each in ((0, "xid/warn"), (4, "recovery-action/fail xid/fail"))),
        *((149, action, "xid/fail") for action in (UNREAD.mode, Unavailable("NVML_ERROR_NOT_SUPPORTED"))),
        *((145, 0, "xid/warn"), (150, 0, "xid/fail"), (48, 0, "xid/fail")),
    ],
)
def test_a_link_that_went_down_accuses_whom_the_driver_repairs(xid: int, action: Any, expected: str) -> None:
    """Table 2 of NVIDIA's catalogue: some reasons of a 149 accuse the peer or a person."""
    blame = {149: "21, 32, 33, 34, 35, 36, 37 accuse the other end", 150: "firmware of this GPU"}.get(xid, "")
    check(made.with_gpu(seen(xid), 0, repair=Repair(action=action)), expected, blame)


def test_xids_of_one_gpu_make_one_finding_per_severity() -> None:
    judgement = judge(seen(63, 79, 48, 13))
    advice = "NVIDIA's advice: reset the GPU, and replace it"
    check(judgement, "xid/fail xid/warn", advice, "; reboot the node.", {"xids": "48, 79"})
    assert judgement.findings[1].evidence["xids"] == "13, 63"


def test_a_flood_of_xids_stays_a_short_message() -> None:
    finding = only(judge(seen(*range(1000, 1032))))
    assert "1007 (not in the catalogue) and 24 more," in finding.message
    assert str(finding.evidence["xids"]).endswith("1031")


def test_the_reference_page_lists_the_codes_that_are_used() -> None:
    when = CATALOGUE["xid"].when
    for severity in (Severity.FAIL, Severity.WARN):
        assert [int(xid) for xid in re.findall(r"\d+", when[severity])] == numbers(severity)
    assert sum(len(bucket.xids) for bucket in BUCKETS) == sum(map(len, map(numbers, Severity)))
