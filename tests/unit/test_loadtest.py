"""The load test's figures: what a latency is, and that its machines make the writes that it compares."""

from __future__ import annotations

import pytest

from fleet.load import objects
from fleet.load.writes import Write, latencies
from nodegauge_contract import Result, decode
from nodegauge_operator.api.policy import parse
from nodegauge_operator.core.model import NodeView, node_view

NOW = 1_800_000_000.0


def write(name: str, at: float, *, kind: str = "patch nodes", code: int = 200) -> Write:
    """One answered write."""
    verb, resource = kind.split()
    return Write(user="operator", verb=verb, resource=resource, name=name, code=code, at=at)


def a_node() -> NodeView:
    """A node of the benchmark as the API server would answer."""
    body = objects.node_body("gpu-1", labels=objects.SELECTED)
    body["metadata"]["uid"] = "uid-1"
    return node_view(body)


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


def test_machines_that_take_turns_change_labels_and_set_no_taint() -> None:
    """Whichever comes after whichever, however often: a taint would be a write that the bare loop lacks."""
    one, other = objects.h100(), objects.other_boards()
    results = [one, *(other,) * 3, *(one,) * 3]
    made = objects.statuses(a_node(), results, policy=parse(objects.policy_body()), now=NOW)
    seen = [(a.status.interconnect.nvlink_gbps, a.status.verdict, a.status.gates) for a in made]
    assert seen == [(450, "pass", []), *[(150, "pass", [])] * 3, *[(450, "pass", [])] * 3]


@pytest.mark.parametrize(("machine", "gpus"), [(objects.h100(), 8), (objects.dgx2(), 16)])
def test_documents_are_of_busy_machines_that_fit_a_message(machine: Result, gpus: int) -> None:
    """All GPUs at work, each read in a window; nothing of it is left out of the message."""
    text = objects.message(machine, run="run", node="node", round_=2)
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
