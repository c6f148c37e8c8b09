"""The load test's figures: what a latency is, and that its machines are at work."""

from __future__ import annotations

import pytest

from fleet.load import objects
from fleet.load.figures import latency
from fleet.load.writes import Write, latencies
from nodegauge_contract import Result, decode


def write(name: str, at: float, *, done: bool = True) -> Write:
    """One answered write."""
    return Write(user="operator", kind="patch nodes", name=name, done=done, at=at)


def test_latency_lasts_from_the_answer_to_the_first_write_of_the_end() -> None:
    """The second write of a kubelet shows the same end; patches before the end, refused ones and later ones
    do not count; a node without one is missing."""
    ended = [write("pod-a", 11.8), write("pod-a", 10.0), write("pod-b", 20.5), write("another", 9.0)]
    labelled = [
        write("a", 10.9),
        write("a", 9.0),
        write("a", 10.1, done=False),
        write("a", 10.2),
        write("x", 10.3),
    ]
    match = latencies(ended, labelled, node_of={"pod-a": "a", "pod-b": "b"})
    assert match == {"a": pytest.approx(200.0)}


def test_percentiles_are_of_the_nearest_rank() -> None:
    """Of 200 values from 1 to 200 ms, in any order."""
    assert latency(range(200, 0, -1), of="x") == {
        "x: p50, ms": "100",
        "x: p99, ms": "198",
        "x: worst, ms": "200",
    }


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
