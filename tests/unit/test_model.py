"""From API objects to what decisions need: nothing that a cluster may hold raises here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ReportStatus, parse_report, stamp, unstamp, whole
from nodegauge_operator.core.model import node_view, pod_view
from nodegauge_operator.core.pod_outcome import RunEnd
from support.api_server import Body
from support.objects import NOW, ANode, make_node, make_report, paths_of
from support.properties import tried

NODE: Body = {
    "metadata": {
        "name": "n",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"a": "b", "interconnect": "nvlink"},
        "deletionTimestamp": "2027-01-15T08:00:00Z",
        "managedFields": [
            {"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}},
            {
                "manager": "nodegauge",
                "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:interconnect": {}}}},
            },
            {"manager": "nodegauge", "fieldsV1": {"f:status": {}}, "subresource": "status"},
        ],
    },
    "spec": {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "GPUValidated", "status": "False", "reason": "FaultsFound", "message": "m"},
        ],
        "nodeInfo": {"bootID": "boot"},
        "capacity": {"nvidia.com/gpu": "8"},
    },
}
POD: Body = {
    "metadata": {
        "name": "p",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": stamp(NOW),
        "labels": {names.POD_PROBE: "health"},
        "annotations": {
            names.POD_NODE: "n",
            names.POD_NODE_UID: "nu",
            names.POD_RUN: "3",
            names.POD_BOOT: "boot",
            names.POD_REQUEST: "2027-01-15T08:00:00Z",
        },
    },
    "spec": {"nodeName": "n"},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": "sidecar", "state": {"terminated": {"exitCode": 1, "message": "not ours"}}},
            {"name": "probe", "state": {"running": {"startedAt": stamp(NOW + 2)}}},
        ],
    },
}


def test_a_node_becomes_its_view() -> None:
    """Identity, labels and whose they are, readiness, boot, GPUs, our condition."""
    view = node_view(NODE)
    assert (view.name, view.uid, view.resource_version, view.boot_id) == ("n", "u", "7", "boot")
    assert (view.labels, view.managed_labels) == ({"a": "b", "interconnect": "nvlink"}, {"interconnect"})
    assert (view.ready, view.deleting, view.leaving, view.gpu_capacity) == (True, True, True, "8")
    assert (view.condition.status, view.condition.message) == ("False", "m")


def test_a_node_says_what_pods_can_get_there() -> None:
    """GPUs that are offered, which can be fewer than there are, and a cordon."""
    body = json.loads(json.dumps(NODE))
    assert (node_view(body).gpu_allocatable, node_view(body).unschedulable) == ("", False)
    body["status"]["allocatable"] = {"nvidia.com/gpu": "7"}
    body["spec"]["unschedulable"] = True
    assert (node_view(body).gpu_allocatable, node_view(body).unschedulable) == ("7", True)


def test_a_pod_holds_what_it_asked_for_once_it_is_placed() -> None:
    """Since the condition says so; before that, and where nothing says it, since never."""
    body = json.loads(json.dumps(POD))
    body["metadata"]["annotations"][names.POD_IMAGE] = "nccl:1"
    body["spec"] = {"nodeName": "n"}
    body["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(NOW + 7)}
    ]
    view = pod_view(body)
    assert (view.scheduled_at, view.image) == (NOW + 7, "nccl:1")
    body["spec"] = {}
    waiting = pod_view(body)
    assert waiting.scheduled_at == 0.0


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_only_a_true_ready_condition_is_ready(status: str) -> None:
    """Unknown is what a dead kubelet looks like."""
    body = NODE | {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    assert not node_view(body).ready
    assert not node_view(NODE | {"status": {}}).ready


def test_a_pod_becomes_its_view() -> None:
    """Our marks, our container's state, and nobody else's."""
    view = pod_view(POD)
    assert (view.node, view.node_uid, view.number, view.probe) == ("n", "nu", 3, "health")
    assert (view.boot_id, view.request) == ("boot", "2027-01-15T08:00:00Z")
    assert (view.created_at, view.started_at, view.scheduled, view.finished) == (NOW, NOW + 2, True, False)
    assert view.terminated is None


def test_why_a_pod_pends_is_the_scheduler_s_word_and_then_the_kubelet_s() -> None:
    """Before it is placed and after."""
    waiting = {"name": "probe", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}
    status = {"phase": "Pending", "conditions": [placed], "containerStatuses": [waiting]}
    before, after = pod_view(POD | {"spec": {}, "status": status}), pod_view(POD | {"status": status})
    assert (before.pending_reason, before.pending_message) == ("Unschedulable", "full")
    assert (after.pending_reason, after.pending_message) == ("ErrImagePull", "denied")


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_disruption_counts_where_it_is_true(status: str) -> None:
    """A condition may also say that there is none."""
    condition = {"type": "DisruptionTarget", "status": status, "reason": "PreemptionByScheduler"}
    view = pod_view(POD | {"status": {"conditions": [condition]}})
    assert view.disrupted == ("PreemptionByScheduler" if status == "True" else "")


@pytest.mark.parametrize("number", ["", "x", "-1", "1.5", "\u00b2", "\u0663", "9" * 5000, " 3"])
def test_a_pod_without_our_marks_is_somebody_else_s(number: str) -> None:
    """A label alone, or a number that is none, must not stop the list that meets it."""
    annotations = POD["metadata"]["annotations"] | {names.POD_RUN: number}
    assert pod_view(POD | {"metadata": POD["metadata"] | {"annotations": annotations}}) is None
    for lost in (names.POD_NODE, names.POD_RUN):
        rest = {k: v for k, v in POD["metadata"]["annotations"].items() if k != lost}
        assert pod_view(POD | {"metadata": POD["metadata"] | {"annotations": rest}}) is None
    assert pod_view(POD | {"metadata": POD["metadata"] | {"labels": {"app": "x"}}}) is None


def without(body: Body, path: tuple[Any, ...], *, null: bool) -> Body:
    """The document with one place taken out, or null."""
    spoilt: Body = json.loads(json.dumps(body))
    at: Any = spoilt
    for key in path[:-1]:
        at = at[key]
    if null:
        at[path[-1]] = None
    else:
        del at[path[-1]]
    return spoilt


OPTIONAL = [
    (body, path)
    for body in (NODE, POD)
    for path in paths_of(body)
    if path not in (("metadata",), ("metadata", "name"))
]


@pytest.mark.parametrize(
    ("body", "path"), OPTIONAL, ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else ""
)
def test_whatever_is_missing_is_unknown(body: Body, path: tuple[Any, ...]) -> None:
    """Any field but the name may be left out: the API server leaves out what is empty."""
    view = node_view if body is NODE else pod_view
    view(without(body, path, null=False))
    if not isinstance(path[-1], int) and path[0] != "metadata" and len(path) < 3:
        view(without(body, path, null=True))


@given(text=st.text(max_size=30))
@tried(300)
def test_times_and_numbers_of_any_text_never_raise(text: str) -> None:
    """They come from annotations and reports, which people edit."""
    assert isinstance(unstamp(text), float)
    number = whole(text)
    assert number is None or str(number) == text.lstrip("0") or number == 0


@given(at=st.integers(1, 4_000_000_000))
@tried(100)
def test_a_time_reads_back(at: int) -> None:
    """Whole seconds, UTC."""
    assert unstamp(stamp(at)) == at
    assert unstamp(stamp(at + 0.9)) == at


def test_no_time_is_no_text() -> None:
    """0 is "never", and reads back as that."""
    assert stamp(0.0) == ""
    assert unstamp("") == 0.0


def test_a_report_reads_back_as_it_was_written() -> None:
    """What the operator keeps survives the way through the API, or it would write for ever."""
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=made.with_pair(made.dgx1(), 0, 1, read=1))
    status = make_report().after(end, node=make_node()).status
    owner = [{"kind": "Node", "name": "n", "uid": "u"}]
    body = {
        "metadata": {"name": "n", "ownerReferences": owner},
        "status": json.loads(json.dumps(to_builtins(status))),
    }
    report = parse_report(body)
    assert report.status == status
    assert report.node_uid == "u"
    assert report.unreadable is None


@pytest.mark.parametrize(
    "status",
    [{"verdict": 7}, {"probes": 7}, {"gpus": {"count": "8"}}, {"probes": [{"lastRun": {}}]}],
)
def test_a_status_that_cannot_be_read_counts_as_empty(status: Body) -> None:
    """Never guessed, and kept as it stands so that the next write can replace it."""
    report = parse_report(
        {"metadata": {"name": "n", "ownerReferences": None}, "status": status, "spec": None}
    )
    assert report.status == ReportStatus()
    assert report.unreadable == status
    assert report.node_uid == ""


DEPLOY = "nvidia.com/gpu.deploy."
GPU_DRIVER_UPGRADE, MIG_CONFIG = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/mig.config.state"


@pytest.mark.parametrize(
    ("node", "may"),
    [
        (make_node(), True),
        (make_node().not_ready(), False),
        (replace(make_node(), deleting=True), False),
        (make_node().tainted("node.kubernetes.io/unschedulable"), True),
        (make_node().tainted("nvidia.com/gpu", "whatever"), True),
        *[(make_node().tainted("x", taint), False) for taint in names.TAINTS_OF_NODES_BEING_REMOVED],
        *[
            (make_node().bearing({GPU_DRIVER_UPGRADE: state}), may)
            for state, may in [
                ("upgrade-done", True),
                ("upgrade-required", True),
                ("by-hand", False),
                ("cordon-required", False),
                ("drain-required", False),
                ("pod-restart-required", False),
            ]
        ],
        *[
            (make_node().bearing({DEPLOY + what: state}), may)
            for what, state, may in [
                ("client", "true", True),
                ("client", "paused-for-driver-upgrade", False),
                ("device-plugin", "paused-for-driver-upgrade", False),
                ("device-plugin", "paused-for-mig-change", False),
                ("device-plugin", "false", True),
            ]
        ],
        *[
            (make_node().bearing({MIG_CONFIG: state}), may)
            for state, may in [("success", True), ("failed", True), ("pending", False), ("rebooting", False)]
        ],
    ],
)
def test_where_a_run_may_be_planned(node: ANode, may: bool) -> None:
    """Ready and not leaving; cordoned nodes are health-checked; an open NVML client would block a driver
    upgrade or a MIG change (promise 7)."""
    assert node.may_run is may
