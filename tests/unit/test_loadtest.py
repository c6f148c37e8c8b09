"""The load test's pure parts: what it counts, what it computes from that, what it puts into the cluster."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fleet.load import cores, documents, objects, pace
from fleet.load.figures import CHANGED, SAME, SAME_16, Cost, Figures, Relist, Start, Steady, latency_of, summary
from fleet.load.measured import top
from fleet.load.writes import Record, Write, latencies
from fleet.load.writes import parse as parse_writes
from nodegauge_contract import Result, decode
from nodegauge_operator import names
from nodegauge_operator.api.policy import parse
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.core.model import NodeView, node_view, pod_view
from nodegauge_operator.core.pod_outcome import RunEnd, ending
from nodegauge_operator.core.watch_pod import watch_view
from support.objects import make_report

NOW = 1_800_000_000.0


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


def a_node() -> NodeView:
    """A node of the benchmark as the API server would answer."""
    body = objects.node_body("gpu-1", labels=objects.SELECTED)
    body["metadata"]["uid"] = "uid-1"
    return node_view(body)


def test_a_cost_is_of_one_result() -> None:
    """CPU in milliseconds and writes a result; two rounds count as one."""
    one = Cost(results=10, writes=50, seconds=1, cpu=0.1, server=0.4)
    both = one + Cost(results=30, writes=150, seconds=3, cpu=0.1, server=0.8)
    assert (both.results, both.milliseconds) == (40, pytest.approx(5.0))
    assert both.server_milliseconds == pytest.approx(30.0)
    assert (both.writes_per_result, both.writes_per_second, both.results_per_second) == (5, 50, 10)


def test_the_steady_state_counts_everybodys_writes() -> None:
    """The sum of all kinds of all who write."""
    writes = {"kubelets": {"patch pods/status": 2.8}, "operator": {"a": 1.4, "b": 0.1}, "controllers": {}}
    steady = Steady(seconds=60, reports=1.4, writes=writes, cpu=0.05)
    assert steady.total == pytest.approx(4.3)
    assert [steady.of(who) for who in writes] == pytest.approx([2.8, 1.5, 0])
    assert steady.of("nobody") == 0
    assert Relist(bytes={"nodes": 1_500_000, "pods": 500_000}, seconds=1, cpu=1).megabytes == 2


def test_what_a_cluster_of_copies_cannot_show_is_no_zero() -> None:
    """Without a scheduler there are no pods of single runs, without controllers none of their writes."""
    cost = Cost(results=10, writes=10, seconds=1, cpu=0.1)
    start = Start(listed=30, cpu=20, calm=5, calm_cpu=4)

    def value(label: str, *, pods: dict[str, Cost], writes: dict[str, dict[str, float]]) -> str:
        text = summary(
            [
                Figures(
                    nodes=20_000,
                    node_kilobytes=22,
                    bare={CHANGED: cost, SAME: cost},
                    roll_out=cost,
                    watch={CHANGED: cost, SAME: cost, SAME_16: cost},
                    pods=pods,
                    paced=latency_of([1.0]),
                    rack=latency_of([1.0]),
                    steady=Steady(seconds=1, reports=1, writes=writes, cpu=0),
                    relist=Relist(bytes={}, seconds=1, cpu=1),
                    start=start,
                    rss_steady_mib=1,
                    rss_peak_mib=1,
                )
            ]
        )
        (row,) = [row for row in text.splitlines() if label in row]
        return row.removeprefix("  ").removeprefix(label).strip()

    single, others = "Periodic (a pod), the same, 8 GPUs", "controllers"
    both: Any = {"pods": {SAME: cost, SAME_16: cost}, "writes": {others: {"update daemonsets/status": 0.5}}}
    neither: Any = {"pods": {}, "writes": {}}
    assert [value(label, **both) for label in (single, others)] == ["10.0", "0.50"]
    assert [value(label, **neither) for label in (single, others)] == ["-", "not run"]
    assert value("CPU until it has nothing to do, s", **neither) == "24.0"


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


def test_the_record_reads_each_line_once_and_waits_for_the_end_of_the_last(tmp_path: Path) -> None:
    """A line that is still being written counts when it is whole; what was before the mark does not."""
    log = tmp_path / "audit.log"
    log.write_bytes(line())
    record = Record(log)
    record.mark()
    with log.open("ab") as audit:
        audit.write(line() + line()[:-20])
        audit.flush()
        assert len(record.since_mark()) == 1
        audit.write(line()[-20:])
    assert len(record.since_mark()) == 2
    assert len(record.since_mark()) == 2


def test_latency_lasts_from_the_answer_to_the_first_write_of_the_end() -> None:
    """The second write of a kubelet shows the same end; patches before the end, refused ones and later ones
    do not count; a node without one is missing."""
    ended = [
        write("pod-a", 11.8, kind="patch pods/status"),
        write("pod-a", 10.0, kind="patch pods/status"),
        write("pod-b", 20.5, kind="patch pods/status"),
        write("another", 9.0, kind="patch pods/status"),
    ]
    labelled = [
        write("a", 10.9),
        write("a", 9.0),
        write("a", 10.1, code=409),
        write("a", 10.2),
        write("foreign", 10.3),
    ]
    match = latencies(ended, labelled, node_of={"pod-a": "a", "pod-b": "b"})
    assert match == {"a": pytest.approx(200.0)}


def test_the_operator_reads_what_a_watch_container_leaves() -> None:
    """Its end is seen in both writes of the kubelet, and is the same one; the next end is another."""
    owner = {"kind": "DaemonSet", "name": "watch", "uid": "set-1", "controller": True}
    metadata = {"name": "watch-1", "uid": "pod-1", "labels": {names.POD_PROBE: names.PROBE_WATCH}}
    body = {"metadata": metadata | {"ownerReferences": [owner]}, "spec": {"nodeName": "gpu-1"}}
    message = documents.message(documents.h100(), run="pod-1", node="gpu-1")

    def seen(status: dict[str, Any]) -> tuple[str, str]:
        view = watch_view(body | {"status": status})
        assert view is not None
        assert view.ended is not None
        return view.ended.message, view.ended_id

    def end(restarts: int) -> dict[str, Any]:
        at = "2026-11-21T10:00:00Z"
        return objects.end_of(message, pod="pod-1", restarts=restarts, started=at, at=at)

    dead = seen(objects.ended(end(0), restarts=0))
    again = seen(objects.running("2026-11-21T10:00:01Z", restarts=1, before=end(0)))
    assert dead == again
    assert dead[0] == message
    assert seen(objects.ended(end(1), restarts=1))[1] != dead[1]


def test_the_operator_reads_a_pod_of_a_single_run() -> None:
    """A running pod does not end its run, a finished one ends it with a reading."""
    node, policy = a_node(), parse(objects.policy_body())
    report = make_report(node)
    metadata = {
        "name": "probe-1",
        "labels": {names.POD_PROBE: names.PROBE_HEALTH},
        "annotations": {names.POD_RUN: "1", names.POD_NODE: node.name, names.POD_NODE_UID: node.uid},
        "ownerReferences": [
            {"kind": names.REPORT_KIND, "name": node.name, "uid": report.uid, "controller": True}
        ],
    }
    at = "2026-11-21T10:00:00Z"
    text = documents.message(documents.h100(), run=names.run_of_pod("probe-1"), node=node.name)
    done = objects.end_of(text, pod="probe-1", restarts=0, started=at, at=at)

    def end(status: dict[str, Any]) -> RunEnd | None:
        view = pod_view({"metadata": metadata, "spec": {"nodeName": node.name}, "status": status})
        assert view is not None
        return ending(view, node=node.name, limits=policy.spec.limits, deadline=60, now=0)

    assert end(objects.running(at)) is None
    read = end(objects.ended(done, restarts=0, phase="Succeeded"))
    assert read is not None
    assert (read.outcome, read.result is not None) == (Outcome.READ, True)


def test_machines_that_take_turns_change_labels_and_set_no_taint() -> None:
    """Whichever comes after whichever, however often: a taint would be a write that the bare loop lacks."""
    one, other = documents.h100(), documents.other_boards()
    results = [one, *(other,) * 3, *(one,) * 3]
    made = objects.statuses(a_node(), results, policy=parse(objects.policy_body()), now=NOW)
    seen = [(a.status.interconnect.nvlink_gbps, a.status.verdict, a.status.gates) for a in made]
    assert seen == [(450, "pass", []), *[(150, "pass", [])] * 3, *[(450, "pass", [])] * 3]


@pytest.mark.parametrize(("machine", "gpus"), [(documents.h100(), 8), (documents.dgx2(), 16)])
def test_documents_are_of_busy_machines_that_fit_a_message(machine: Result, gpus: int) -> None:
    """All GPUs at work, each read in a window; nothing of it is left out of the message."""
    text = documents.message(machine, run="run", node="node", round_=2)
    assert len(text) <= 4096
    read = decode(text)
    assert len(read.gpus) == gpus
    busy = [gpu.window.utilization.median for gpu in read.gpus if gpu.window and gpu.window.utilization]
    assert len(busy) == gpus
    assert min(busy) > 0
    assert read.omitted == []
    before = machine.host.boottime_ms
    assert isinstance(before, int)
    assert read.host.boottime_ms == before + 1_800_000


def test_no_two_nodes_have_the_same_boards() -> None:
    """A node has its own in every round: texts that two reports share would make the operator look small."""

    def boards(node: str, round_: int) -> set[tuple[object, object]]:
        text = documents.message(documents.h100(), run="run", node=node, round_=round_)
        return {(gpu.uuid, gpu.serial) for gpu in decode(text).gpus}

    assert len(boards("a", 1)) == 8
    assert boards("a", 1) == boards("a", 2)
    assert not boards("a", 1) & boards("b", 1)


def test_results_of_a_steady_fleet_come_at_its_rate() -> None:
    """As many as the rate says, give or take, and at no rhythm."""
    times = pace.arrivals(rate=2, seconds=500)
    assert 900 < len(times) < 1100
    assert times == sorted(times)
    assert times[-1] < 500
    gaps = [later - before for before, later in pairwise(times)]
    assert max(gaps) > 4 * sum(gaps) / len(gaps)


@pytest.mark.parametrize(
    ("available", "server", "operator", "rest"),
    [({3}, set(), set(), set()), ({0, 1}, {0}, {1}, set()), ({0, 1, 2, 3}, {0, 1}, {3}, {2})],
)
def test_server_and_operator_share_no_core(
    available: set[int], server: set[int], operator: set[int], rest: set[int]
) -> None:
    """One core is shared; of two each has one; from four on others have some, too."""
    made = cores.split(available)
    assert (made.server, made.operator, made.rest) == (server, operator, rest)
    assert made.enough is bool(rest)


def test_a_profile_lists_the_functions_with_most_samples() -> None:
    """By share of all samples, own and with what they call."""
    text = top({"own": {"a": 1, "b": 3}, "cumulative": {"main": 4, "a": 1, "b": 3}})
    assert text.index("75.0 %  b") < text.index("25.0 %  a") < text.index("100.0 %  main")
