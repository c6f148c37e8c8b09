"""The load test's figures: what a latency is, and that its machines are at work."""

from __future__ import annotations

import pytest

from fleet.load import objects
from fleet.load.writes import Write, latencies
from nodegauge_contract import Result, decode
from nodegauge_contract.reading import PART_BYTES
from nodegauge_probes.identity import Identity


def write(name: str, at: float, *, done: bool = True) -> Write:
    return Write(user="operator", kind="patch nodes", name=name, done=done, at=at)


def test_latency_lasts_from_the_answer_to_the_first_write_of_a_reading() -> None:
    """A refused write wrote none, a second one comes later; patches before the reading, refused ones and
    later ones do not count; a node without one is missing."""
    written = [write("a", 11.8), write("a", 9.5, done=False), write("a", 10.0), write("b", 20.5)]
    refused = write("a", 10.1, done=False)
    labelled = [write("a", 10.9), write("a", 9.0), refused, write("a", 10.2), write("x", 10.3)]
    assert latencies(written, labelled) == {"a": pytest.approx(200.0)}


@pytest.mark.parametrize(("machine", "gpus"), [(objects.h100(), 8), (objects.dgx2(), 16)])
def test_readings_are_of_busy_machines_that_fit_their_part(machine: Result, gpus: int) -> None:
    """All GPUs at work, each read in a window; nothing of it is left out."""
    identity = Identity(pod="pod", pod_uid="pod-uid", node="node", node_uid="node-uid")
    part = objects.part(machine, identity=identity, sequence=3, round_=2)
    assert (part.pod_uid, part.node_uid, part.sequence) == ("pod-uid", "node-uid", 3)
    assert part.boot_id == machine.host.boot_id
    assert len(part.reading) <= PART_BYTES["health"]
    read = decode(part.reading)
    assert (read.run, read.node, read.problem) == ("pod-uid", "node", None)
    assert len(read.gpus) == gpus
    busy = [gpu.window.utilization.median for gpu in read.gpus if gpu.window and gpu.window.utilization]
    assert len(busy) == gpus
    assert all(isinstance(share, int | float) and share > 0 for share in busy)
    assert read.omitted == []
    before = machine.host.boottime_ms
    assert isinstance(before, int)
    assert read.host.boottime_ms == before + 1_800_000
