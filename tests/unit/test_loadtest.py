"""The benchmark's pure parts: what it counts, what it computes from that, what it puts into the cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest import objects
from loadtest.figures import Rate
from loadtest.writes import Write, latencies
from loadtest.writes import parse as parse_writes
from nodegauge_operator import names
from nodegauge_operator.api.policy import parse
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.core.model import NodeView, node_view, pod_view
from nodegauge_operator.core.pod_outcome import RunEnd, ending
from support.objects import make_report
from support.results import h100


def line(**changes: Any) -> bytes:
    """One line of an audit log."""
    event: dict[str, Any] = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "requestReceivedTimestamp": "2026-11-21T10:00:00.125000Z",
        "stageTimestamp": "2026-11-21T10:00:00.250000Z",
        "user": {"username": "operator"},
        "objectRef": {"resource": "nodes", "name": "n"},
        "responseStatus": {"code": 200},
        "requestObject": {"metadata": {"labels": {"a": "b"}}},
    }
    return json.dumps(event | changes).encode() + b"\n"


def write(name: str, at: float, *, kind: str = "patch nodes", code: int = 200) -> Write:
    """One answered write."""
    verb, resource = kind.split()
    return Write(
        user="operator", verb=verb, resource=resource, name=name, code=code, received=at - 0.5, at=at
    )


BUSBW = (names.LABEL_BUSBW_ALLREDUCE, names.LABEL_BUSBW_ALLGATHER, names.LABEL_BUSBW_REDUCESCATTER)


def a_node() -> NodeView:
    """A node of the benchmark as the API server would answer."""
    body = objects.node_body("gpu-1", labels=objects.SELECTED)
    body["metadata"]["uid"] = "uid-1"
    return node_view(body)


def test_a_ratio_is_the_time_that_a_write_takes() -> None:
    """Half the writes a second is twice as slow; two bare rounds count as one."""
    bare = Rate(nodes=10, writes=60, seconds=1, cpu=0) + Rate(nodes=10, writes=60, seconds=2, cpu=0)
    assert (bare.nodes, bare.writes_per_second) == (20, 40)
    operator = Rate(nodes=30, writes=180, seconds=9, cpu=0.3)
    assert operator.times_slower_than(bare) == pytest.approx(2.0)
    assert operator.cpu_per_thousand_nodes == pytest.approx(10.0)
    assert operator.writes_per_node == 6


def test_only_answered_writes_are_read_from_the_audit_log() -> None:
    """Reads, the start of long answers and a line that is still being written are left out."""
    status = {"resource": "nodereports", "subresource": "status", "name": "n"}
    lines = [
        line(verb="get"),
        line(stage="ResponseStarted"),
        line(objectRef=status, responseStatus={"code": 409}),
        line(),
        line()[:-20],
    ]
    match = list(parse_writes(lines))
    assert [one.kind for one in match] == ["patch nodereports/status", "patch nodes"]
    assert [one.done for one in match] == [False, True]
    assert (match[1].received, match[1].at) == pytest.approx((1795255200.125, 1795255200.25))


def test_latency_ends_at_the_first_patch_after_the_end_of_the_pod() -> None:
    """Patches before it, refused ones and later ones do not count; a node without one is missing."""
    finished = [
        write("pod-a", 10.5, kind="patch pods/status"),
        write("pod-b", 20.5, kind="patch pods/status"),
    ]
    labelled = [
        write("a", 10.9),
        write("a", 9.0),
        write("a", 10.1, code=409),
        write("a", 10.2),
        write("foreign", 10.3),
    ]
    match = latencies(finished, labelled, node_of={"pod-a": "a", "pod-b": "b"})
    assert match == {"a": pytest.approx(200.0)}


def test_the_operator_reads_the_results_of_the_benchmark() -> None:
    """A finished pod of the benchmark ends its run with a reading, a running one does not end."""
    node, policy = a_node(), parse(objects.policy_body())
    pod = objects.pod_body(node, policy=policy, report=make_report(node), namespace="nodegauge")
    limits = policy.spec.limits
    running = pod_view(pod | {"status": objects.running_status("2026-11-21T10:00:00Z")})
    assert running is not None
    assert ending(running, node=node.name, limits=limits, deadline=60, now=0) is None
    finished = pod_view(pod | {"status": objects.finished_status(node, h100(), pod=pod["metadata"]["name"])})
    assert finished is not None
    end = ending(finished, node=node.name, limits=limits, deadline=60, now=0)
    assert end is not None
    assert end.result is not None
    assert end.result.gpus == h100().gpus


def test_the_bare_loop_writes_what_the_operator_would() -> None:
    """Its report holds the labels that an H100 gets which is idle and has no sensors: nothing is said of
    throttling, supplies or bandwidth, and there is no taint."""
    policy = parse(objects.policy_body())
    status = objects.report_status(a_node(), h100(), policy=policy, now=1_800_000_000.0)
    assert status["desired"]["labels"][names.LABEL_NVLINK_GBPS] == "450"
    silent = {names.LABEL_THROTTLED, names.LABEL_PSU, *BUSBW}
    assert status["desired"]["labels"].keys() == {"interconnect", *names.NODE_LABELS} - silent
    assert status["desired"]["taints"] == []
    assert status["change"]["reason"] == "Validated"
    assert status["summary"]


def test_machines_that_take_turns_change_labels_and_set_no_taint() -> None:
    """Whichever comes after whichever, however often: a taint would be a write that the same loop lacks."""
    policy, node, report = parse(objects.policy_body()), a_node(), make_report(a_node())
    seen = []
    for result in [h100(), *(objects.other_boards(),) * 3, *(h100(),) * 3]:
        end = RunEnd(outcome=Outcome.READ, reason="Read", result=result)
        report = report.after(end, node=node, policy=policy)
        status = report.status
        seen.append((status.interconnect.nvlink_gbps, status.verdict, status.gates))
    assert seen == [(450, "pass", []), *[(150, "pass", [])] * 3, *[(450, "pass", [])] * 3]
