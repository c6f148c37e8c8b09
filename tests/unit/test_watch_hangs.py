"""What the watch container tells of a driver call that hangs, and what it keeps of Xids."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodegauge_contract import Problem, ProblemKind, RepeatedXid, WatchReport
from nodegauge_probes import health
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.runner import Call, CallWatch
from nodegauge_probes.settings import parse
from nodegauge_probes.watch import probe, xids
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.probe import MOST_HANGING, Delivery, Reading, Resident, Watcher
from nodegauge_probes.watch.state import SeenXid, State
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
    assert (reading.result.problem.kind, node.heard) == (ProblemKind.CALL_HUNG, [first])
    assert node.watcher is not first
    assert (set(node.resident.skip.gpus), node.resident.skip.problem) == ({1}, None)
    node.hang("GPU 3")
    assert (set(node.resident.skip.gpus), node.resident.skip.problem) == ({1, 3}, None)


@pytest.mark.parametrize("subjects", [[""], [f"GPU {gpu}" for gpu in range(MOST_HANGING)]])
def test_a_driver_that_hangs_for_no_gpu_or_for_every_one_is_left_alone(
    node: Node, subjects: list[str]
) -> None:
    for subject in subjects:
        assert node.resident.skip.problem is None
        node.hang(subject)
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


INTERVAL = 5400.0


def came(at: float, *, code: int = 79, gpu: int = 0, uuid: str = "", count: int = 1) -> SeenXid:
    return SeenXid(gpu=gpu, code=code, count=count, first=at, last=at, uuid=uuid)


def reported(
    state: State, *new: SeenXid, now: float, uuids: tuple[str, ...] = ("a", "b"), written: bool = True
) -> ResultBuilder:
    """A report of a machine with these GPUs, after these Xids; whether those before it were written."""
    for one in new:
        xids.add(state, one)
    result = ResultBuilder(probe="health", run="", node="")
    for index, uuid in enumerate(uuids):
        gpu = GpuBuilder(index)
        gpu.identity.uuid = uuid
        result.gpus.append(gpu)
    xids.report(result, state, now=now, interval=INTERVAL, written=written)
    return result


def repeated(result: ResultBuilder) -> list[tuple[int, int]]:
    return [(one.gpu, one.last) for one in result.watch.repeated]


def test_each_report_repeats_those_before_it_for_four_intervals() -> None:
    state = State(boot_id="b")
    first = reported(state, came(100.5), came(101.5), now=102.9)
    assert first.watch == WatchReport(at=102)
    [count] = first.gpus[0].xids.value.counts
    assert (count.count, count.first, count.last) == (2, 100, 101)
    second = reported(state, came(5000), now=5001)
    before = RepeatedXid(gpu=0, code=79, count=2, first=100, last=101)
    assert second.watch == WatchReport(at=5001, repeated=[before])
    assert second.gpus[0].xids.value.counts[0].count == 1
    assert repeated(reported(state, now=101 + 4 * INTERVAL)) == [(0, 101), (0, 5000)]
    assert repeated(reported(state, now=102 + 4 * INTERVAL)) == [(0, 5000)]


def test_an_xid_in_the_second_of_a_report_is_told_from_those_in_it() -> None:
    state = State(boot_id="b")
    assert reported(state, came(100.2), now=100.4).watch == WatchReport(at=100)
    second, third = (reported(state, *new, now=100.9) for new in ([came(100.7)], []))
    assert second.gpus[0].xids.value.counts[0].last == second.watch.at == third.watch.at == 101
    assert repeated(third) == [(0, 100), (0, 101)]


def test_a_report_without_gpus_ends_no_second_early() -> None:
    """The next one covers the Xid that came with it, so that the one after that tells nobody of it again."""
    state = State(boot_id="b")
    reported(state, now=100.2)
    reported(state, came(100.4), now=100.5, uuids=())
    third = reported(state, now=100.9)
    assert (third.watch.at, repeated(third)) == (101, [(0, 101)])


def test_a_gpu_is_named_by_the_index_that_it_has_now() -> None:
    """GPU a is gone, and what was GPU 1 is GPU 0: its Xids are its own, and nobody is given those of a."""
    state = State(boot_id="b")
    reported(state, came(10, uuid="a"), came(11, gpu=1, uuid="b"), now=12)
    assert repeated(reported(state, now=20, uuids=("b",))) == [(0, 11)]
    assert repeated(reported(state, now=30)) == [(0, 10), (1, 11)]


@pytest.mark.parametrize("uuids", [("", "b"), ("a", "b")], ids=["it does not say", "it does"])
def test_a_gpu_without_a_uuid_is_the_one_with_its_index(uuids: tuple[str, ...]) -> None:
    """Lost GPUs refuse theirs; the same Xid with and without it is one."""
    state = State(boot_id="b")
    result = reported(state, came(10, uuid="a"), came(11), now=12, uuids=uuids)
    assert result.gpus[0].xids.value.counts[0].count == 2
    assert repeated(reported(state, now=20, uuids=uuids)) == [(0, 11)]


def test_a_report_without_gpus_has_none_and_does_not_say_so() -> None:
    """The driver is away: its Xids are repeated by the next report, for a reader that knows none of them."""
    state = State(boot_id="b")
    assert reported(state, came(10), now=12, uuids=()).watch is None
    assert reported(state, now=20).watch == WatchReport(
        at=20, repeated=[RepeatedXid(gpu=0, code=79, count=1, first=10, last=10)]
    )


def test_a_flood_does_not_push_out_others() -> None:
    """One Xid in each of hundreds of reports: its oldest times become one, none is lost, others stay."""
    state = State(boot_id="b")
    reported(state, came(1), now=2)
    for at in range(10, 5010, 10):
        result = reported(state, came(at, code=13, gpu=1), now=at + 1)
    kept = result.watch.repeated
    assert len(kept) == xids.MOST_REPEATED
    assert (kept[0].code, kept[1].first, kept[1].count) == (79, 10, 499 - (xids.MOST_REPEATED - 2))
    assert sum(one.count for one in kept[1:]) == 499
    assert [one.last for one in kept] == sorted(one.last for one in kept)


def test_of_many_kinds_the_newest_stay_and_no_old_one_is_lost() -> None:
    """They were all told: what goes to make room for new ones is no loss."""
    state = State(boot_id="b")
    reported(state, *(came(n, code=n) for n in range(1, 2 * xids.MOST_REPEATED + 1)), now=200)
    result = reported(state, now=201)
    assert [at for _, at in repeated(result)] == [*range(xids.MOST_REPEATED + 1, 2 * xids.MOST_REPEATED + 1)]
    assert result.watch.lost == 0


def test_xids_of_reports_that_were_not_written_are_repeated_until_one_is() -> None:
    """The API server is away for a day; after that they age as all others do."""
    state, day = State(boot_id="b"), 86400.0
    reported(state, came(100), now=101)
    for hour in range(1, 24):
        result = reported(state, now=3600.0 * hour, written=False)
    assert repeated(result) == [(0, 100)]
    assert repeated(reported(state, now=day, written=False)) == [(0, 100)]
    assert repeated(reported(state, now=day + 1)) == []


def test_xids_that_nobody_was_told_of_are_counted() -> None:
    """Twelve kinds have no room, and are told by every report until one is written."""
    state = State(boot_id="b")
    reported(state, now=1)
    reported(state, *(came(10 + n, code=n + 1, count=2) for n in range(60)), now=100)
    lost = 2 * (60 - xids.MOST_REPEATED)
    for now in (101, 102):
        assert reported(state, now=now, written=False).watch.lost == lost
    assert reported(state, now=103).watch.lost == 0
    kinds = [came(10, code=n + 1) for n in range(xids.MOST_NEW + 3)]
    assert reported(State(boot_id="b"), *kinds, now=11).watch.lost == 3, "before any report"
