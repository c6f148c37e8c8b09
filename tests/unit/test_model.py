"""From API objects to what decisions need: nothing raises, and what is not decoded is not read."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ReportStatus, parse_report, whole
from nodegauge_operator.api.sharing import DEEPEST, LONGEST, shared
from nodegauge_operator.api.times import stamp, unstamp
from nodegauge_operator.core.model import node_view, pod_view
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.kube import nodes
from nodegauge_operator.kube.client import MERGE, Client
from nodegauge_operator.kube.decoding import decoded
from support.api_server import Body
from support.objects import NOW, ANode, make_node, make_report, paths_of
from support.properties import tried
from support.virtual_time import drive

BODIES = yaml.safe_load(Path(__file__).with_name("node-and-pod.yaml").read_text(encoding="utf-8"))
NODE: Body = BODIES["node"]
POD: Body = BODIES["pod"]


def test_a_node_becomes_its_view() -> None:
    view = node_view(NODE)
    assert (view.name, view.uid, view.resource_version, view.boot_id) == ("node-1", "uid-1", "17", "boot-1")
    assert (view.labels, view.managed_labels) == ({"other": "x", "interconnect": "nvlink"}, {"interconnect"})
    assert (view.ready, view.deleting, view.leaving, view.gpu_capacity) == (True, True, True, "8")
    assert (view.condition.status, view.condition.message) == ("True", "all well")


def test_a_pod_becomes_its_view() -> None:
    view = pod_view(POD)
    assert (view.node, view.node_uid, view.number, view.probe) == ("n", "nu", 3, "health")
    assert (view.boot_id, view.request) == ("boot", "2027-01-15T08:00:00Z")
    assert (view.created_at, view.started_at, view.scheduled, view.finished) == (NOW, NOW + 2, True, False)
    assert view.terminated is None


def test_why_a_pod_pends_is_the_scheduler_s_word_and_then_the_kubelet_s() -> None:
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
    annotations = POD["metadata"]["annotations"] | {names.POD_RUN: number}
    assert pod_view(POD | {"metadata": POD["metadata"] | {"annotations": annotations}}) is None
    for lost in (names.POD_NODE, names.POD_RUN):
        rest = {k: v for k, v in POD["metadata"]["annotations"].items() if k != lost}
        assert pod_view(POD | {"metadata": POD["metadata"] | {"annotations": rest}}) is None
    assert pod_view(POD | {"metadata": POD["metadata"] | {"labels": {"app": "x"}}}) is None


def test_a_node_reads_the_same_from_the_few_fields_that_are_decoded() -> None:
    view = node_view(decoded(msgspec.json.encode(NODE), resource="nodes"))
    assert view == node_view(NODE)
    defaults = node_view({"metadata": {"name": ""}})
    same = [field for field in view.__struct_fields__ if getattr(view, field) == getattr(defaults, field)]
    # devices come from ResourceSlices
    assert same == ["devices"], (
        "give other fields of the view a value in NODE, so that the comparison sees them"
    )
    answer = decoded(msgspec.json.encode(NODE), resource="nodes/status")
    assert "images" not in answer["status"]
    assert "other" not in answer["metadata"]["annotations"]


def test_a_taint_is_written_as_it_was_read() -> None:
    """All that v1.Taint has comes back: the list is replaced whole, and nothing else remembers it."""
    view = node_view(decoded(msgspec.json.encode(NODE), resource="nodes"))
    sent: list[Any] = []

    class Recorder(Client):
        def __init__(self) -> None:
            pass

        async def call(self, method: str, path: str, **how: Any) -> dict[str, Any]:
            sent.append((method, path, how["content_type"], how["body"]))
            return NODE

    drive(nodes.patch(Recorder(), view, labels={}, taints=view.taints))
    drive(nodes.patch(Recorder(), view, labels={"a": None}))
    drive(nodes.patch(Recorder(), view, labels={}, taints=()))
    identity = {"resourceVersion": view.resource_version, "uid": view.uid}
    assert sent == [
        ("PATCH", f"/api/v1/nodes/{view.name}", MERGE, body)
        for body in (
            {"metadata": identity, "spec": {"taints": NODE["spec"]["taints"]}},
            {"metadata": identity | {"labels": {"a": None}}},
            {"metadata": identity, "spec": {"taints": []}},
        )
    ]


def test_of_metadata_alone_only_the_identity_is_decoded() -> None:
    page = {"metadata": {"continue": "next"}, "items": [{"metadata": NODE["metadata"]}]}
    answer = decoded(msgspec.json.encode(page), resource="metadata")
    assert answer["metadata"]["continue"] == "next"
    (item,) = answer["items"]
    assert item["metadata"].keys() <= {"name", "uid", "resourceVersion"}
    assert item["metadata"]["name"] == NODE["metadata"]["name"]


def without(body: Body, path: tuple[Any, ...], *, null: bool) -> Body:
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
    view = node_view if body is NODE else pod_view
    view(without(body, path, null=False))
    if not isinstance(path[-1], int) and path[0] != "metadata" and len(path) < 3:
        view(without(body, path, null=True))


@given(text=st.text(max_size=30))
@tried(300)
def test_times_and_numbers_of_any_text_never_raise(text: str) -> None:
    assert isinstance(unstamp(text), float)
    number = whole(text)
    assert number is None or str(number) == text.lstrip("0") or number == 0


@given(at=st.integers(1, 4_000_000_000))
@tried(100)
def test_a_time_reads_back(at: int) -> None:
    assert unstamp(stamp(at)) == at
    assert unstamp(stamp(at + 0.9)) == at


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
    "status", [{"verdict": 7}, {"probes": 7}, {"gpus": {"count": "8"}}, {"probes": [{"lastRun": {}}]}]
)
def test_a_status_that_cannot_be_read_counts_as_empty(status: Body) -> None:
    """Never guessed, and kept as it stands so that the next write can replace it."""
    metadata = {"name": "n", "ownerReferences": None}
    report = parse_report({"metadata": metadata, "status": status, "spec": None})
    assert report.status == ReportStatus()
    assert report.unreadable == status
    assert report.node_uid == ""


DEPLOY = "nvidia.com/gpu.deploy."
PAUSED = "paused-for-driver-upgrade"
RUNS_BY_LABEL = {
    # label: the values with which a run may be planned, and those with which none may
    "nvidia.com/gpu-driver-upgrade-state": (
        ("upgrade-done", "upgrade-required"),
        ("by-hand", "cordon-required", "drain-required", "pod-restart-required"),
    ),
    DEPLOY + "client": (("true",), (PAUSED,)),
    DEPLOY + "device-plugin": (("false",), (PAUSED, "paused-for-mig-change")),
    "nvidia.com/mig.config.state": (("success", "failed"), ("pending", "rebooting")),
}


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
            (make_node().bearing({label: value}), may)
            for label, both in RUNS_BY_LABEL.items()
            for may, values in zip((True, False), both, strict=True)
            for value in values
        ],
    ],
)
def test_where_a_run_may_be_planned(node: ANode, may: bool) -> None:
    """An open NVML client would block a driver upgrade or a MIG change (promise 7)."""
    assert node.may_run is may


def report(name: str) -> dict[str, Any]:
    """As it comes from the API server: each text is an object of its own."""
    status = {
        "summary": "8x NVIDIA H100 80GB HBM3: healthy",
        "desired": {"labels": {"nodegauge.dev/interconnect": "nvlink, of 450 GB/s"}},
        "probes": [{"name": "health", "verdict": "pass", "history": name + "h" * LONGEST}],
    }
    body: dict[str, Any] = json.loads(json.dumps({"metadata": {"name": name}, "status": status}))
    return body


def test_reports_share_equal_texts() -> None:
    one, other = parse_report(report("node-1")), parse_report(report("node-2"))
    assert one.status.summary is other.status.summary
    (label,), (same,) = one.status.desired.labels.values(), other.status.desired.labels.values()
    assert label is same
    assert one.status.probe["health"].history.startswith("node-1")


def test_a_shared_document_is_equal() -> None:
    document: Any = {"a": [1, True, None, 1.5, "text", {"b": "c" * (LONGEST + 1)}]}
    for _ in range(2 * DEEPEST):
        document = [document]
    assert shared(document) == document
    assert shared({"a": [1, True]})["a"][1] is True
