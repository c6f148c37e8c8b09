"""A driver call of the watch probe that hangs: what is told, what goes on, and who is asked again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodegauge_contract import Problem, ProblemKind
from nodegauge_probes import health
from nodegauge_probes.runner import Call, CallWatch
from nodegauge_probes.settings import parse
from nodegauge_probes.watch import probe
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.probe import MOST_HANGING, Delivery, Reading, Resident, Watcher
from nodegauge_probes.watch.state import SeenXid
from testbed.wait import wait_for

MOST_ROUNDS = 1000
HUNG = Problem(kind=ProblemKind.CALL_HUNG, call="nvmlDeviceGetPowerUsage", message="has not returned")


class Node:
    """A container whose watchers wait for `hung`; those that were given up are `heard` first."""

    def __init__(self, folder: Path, *, hung: threading.Event, heard: list[Watcher]) -> None:
        self.readings: list[Reading] = []
        self.pending = False
        self.rounds = 0
        """Of the main thread."""
        self.hung, self.heard = hung, heard
        settings = parse(
            ["watch", "--state", str(folder / "watch.json"), "--sysfs", str(folder)],
            {},
            probes=["watch"],
            engines=["nccl4py"],
        )
        own = probe.Settings(
            reading=health.settings_of(settings),
            options=settings.watch,
            run="pod-uid",
            node="node-1",
            deadline=settings.deadline,
        )
        delivery = Delivery(
            deliver=self.readings.append, pending=lambda: self.pending, progress=self.progress
        )
        self.resident = Resident(own, delivery)

    @property
    def watcher(self) -> Watcher:
        return self.resident._watcher

    def progress(self) -> None:
        """The main thread goes on: a call that was told of returns, and in the end comes SIGTERM."""
        self.rounds += 1
        if self.readings:
            self.hung.set()
        over = self.readings and not self.resident.hanging
        if over or self.rounds == MOST_ROUNDS:
            self.resident._stop.set()

    def hang(self, subject: str) -> None:
        """The current call, about this GPU, takes too long, and another watcher takes over."""
        if not self.watcher.is_alive:
            self.watcher.start()
        self.watcher.calls.now = Call(HUNG.call, subject, 0.0)
        self.resident._give_up(HUNG)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Its watchers only wait, and hear nothing."""
    hung, heard = threading.Event(), list[Watcher]()
    monkeypatch.setattr(Watcher, "_work", lambda _: hung.wait())
    monkeypatch.setattr(Watcher, "hear_queued", lambda watcher: heard.append(watcher))
    yield Node(tmp_path, hung=hung, heard=heard)
    hung.set()


def test_a_call_that_hangs_is_told_and_its_gpu_alone_is_left_out(node: Node) -> None:
    """What was queued for it is heard first; the next watcher asks the others."""
    first = node.watcher
    node.hang("GPU 1")
    [reading] = node.readings
    assert reading.reason == "hung: nvmlDeviceGetPowerUsage"
    assert reading.result.problem is not None
    assert (reading.result.problem.kind, node.heard) == (ProblemKind.CALL_HUNG, [first])
    assert node.watcher is not first
    assert (set(node.resident.skip.gpus), node.resident.skip.problem) == ({1}, None)
    node.hang("GPU 3")
    assert (set(node.resident.skip.gpus), node.resident.skip.problem) == ({1, 3}, None)


def test_a_call_about_no_gpu_that_hangs_leaves_the_driver_alone(node: Node) -> None:
    """Nothing can be asked before it returns."""
    node.hang("")
    assert node.resident.skip.problem is not None


def test_a_driver_that_hangs_for_every_gpu_is_left_alone(node: Node) -> None:
    """Each watcher that is given up keeps a thread."""
    for gpu in range(MOST_HANGING):
        assert node.resident.skip.problem is None
        node.hang(f"GPU {gpu}")
    assert node.resident.skip.problem is not None


def test_once_a_call_returns_its_gpu_is_asked_again(node: Node) -> None:
    """By a new watcher; until then nothing changes."""
    node.hang("GPU 1")
    second = node.watcher
    node.resident._take_back()
    assert node.watcher is second
    node.hung.set()
    wait_for(lambda: not second.is_alive, what="the calls' return")
    node.resident._take_back()
    assert node.watcher is not second
    assert node.resident.skip.gpus == {}


def test_the_main_thread_tells_of_a_hang_and_of_its_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else looks at the call."""
    looks = iter([None, HUNG])
    node.watcher.calls.now = Call(HUNG.call, "GPU 1", 0.0)
    monkeypatch.setattr(CallWatch, "look", lambda _: next(looks, None))
    monkeypatch.setattr(CallWatch, "tick", 0.001)
    monkeypatch.setattr(Host, "start", lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert node.resident.run() == 0
    assert [reading.reason for reading in node.readings] == [f"hung: {HUNG.call}"]
    assert node.resident.hanging == ""
    assert node.rounds < MOST_ROUNDS


@pytest.mark.parametrize(("xids", "pending"), [(True, False), (False, True)])
def test_the_end_waits_for_what_nobody_was_told_of(
    node: Node, xids: bool, pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if xids:
        node.resident.state.xids = [SeenXid(gpu=0, code=79, count=1, first=1.0, last=1.0)]
    node.pending = pending
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            node.resident.state.xids, node.pending = [], False

    monkeypatch.setattr("time.sleep", nap)
    node.resident._last_words()
    assert len(naps) == 3
