"""The watch probe: one process on each node that looks every second, waits for Xids, and reads the whole node
when something has changed or a reading is due.

Threads: a *watcher* calls the driver; the main thread watches it, and never enters the driver; the outbox
writes to the API server; `Host` reads what is outside the driver.  A driver call that hangs cannot be
interrupted: its watcher is given up, the call is told at once, and another watcher goes on without that
GPU.  When the call returns, all GPUs are watched again.

It holds no GPU, but an open NVML session, which blocks driver unload and GPU reset; SIGTERM ends it within
seconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from msgspec import Struct

from nodegauge_contract import FeedResult, Problem, ProblemKind, Result
from nodegauge_probes import health
from nodegauge_probes.feed import probe as feed
from nodegauge_probes.feed.window import FeedWatch, Roots
from nodegauge_probes.host import kernel, kernel_events
from nodegauge_probes.nvml.library import Skip
from nodegauge_probes.nvml.results import NvmlUnusable
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.runner import CallWatch, Retired, crash
from nodegauge_probes.watch import schedule, state, xids
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.kernel_log import LogWatch
from nodegauge_probes.watch.reader import Reader, Value
from nodegauge_probes.watch.signals import SELDOM
from nodegauge_probes.watch.state import SeenXid, State
from nodegauge_probes.watch_options import Options

NAME = "watch"
STDERR = 2
LONGEST_WAIT_S = 0.5
"""Of one call that waits for events, and at most half of the time after which a call counts as hung."""
SHORTEST_PAUSE = 0.5
"""Share of `--poll` that is waited even if a look took longer."""
MOST_HANGING = 4
"""Watchers that were given up, beyond which no GPU is asked any more until one of their calls returns: each
keeps a thread."""
QUEUED_S = 0.5
"""How long to wait for Xids that are queued while another call hangs."""
LAST_WORDS_S = 3.5
"""How long SIGTERM waits for what nobody was told yet; the pod's grace period is 5 s."""
HANGING = "driver calls"
GPU = re.compile(r"GPU (\d+)")


class Settings(Struct, frozen=True, kw_only=True):
    """How to read in full, and when.  `run` and `node` are echoed; `deadline`: seconds of one reading;
    `access`: how the driver comes in; `kernel_log`: the kernel's log, if it is to be followed;
    `control_groups`: the host's, if they are seen; `dcgm`: address of an exporter."""

    reading: health.Settings
    options: Options
    run: str
    node: str
    deadline: float
    access: str = ""
    kernel_log: Path | None = None
    control_groups: Path | None = None
    dcgm: str = ""


class Reading(Struct, frozen=True, kw_only=True):
    """One reading: its number, why it was taken, and the document."""

    sequence: int
    reason: str
    result: Result


class Delivery(Struct, kw_only=True):
    """Where readings go: `deliver` must not wait; `pending`: whether one is still on its way; `progress` is
    called while all goes on."""

    deliver: Callable[[Reading], None]
    pending: Callable[[], bool]
    progress: Callable[[], None]


class Hang(Struct, kw_only=True):
    """A watcher whose call does not return."""

    watcher: Watcher
    problem: Problem
    skip: Skip


class Resident:
    """The container's life."""

    def __init__(self, settings: Settings, delivery: Delivery) -> None:
        self.settings = settings
        self.lock = threading.Lock()
        """Held to change the state.  Nobody calls the driver while holding it."""
        boot_id = kernel.boot_id(settings.reading.procfs)
        known = state.load(settings.options.state, boot_id=boot_id)
        self.state = known or State(boot_id=boot_id if isinstance(boot_id, str) else "")
        paths = {"sysfs": settings.reading.sysfs, "procfs": settings.reading.procfs}
        self.host = Host(**paths, every=SELDOM * settings.options.poll)
        self.feed = _feed(settings)
        path, position = settings.kernel_log, self.state.kernel_log.position
        self.log = LogWatch(path, position) if path is not None else None
        self._delivery = delivery
        self._stop = threading.Event()
        self._hanging: list[Hang] = []
        self._watcher = Watcher(self, values={name: Value(*pair) for name, pair in self.state.values.items()})
        self._crash: Problem | None = None

    def run(self) -> int:
        """Until SIGTERM, or a bug; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.host.start()
        if self.feed is not None:
            self.feed.host.start()
        if self.log is not None:
            self.log.start()
        self._watcher.start()
        while not self._stop.wait(self._watcher.calls.tick) and self._crash is None:
            self._delivery.progress()
            if (problem := self._watcher.calls.look()) is not None:
                self._give_up(problem)
            self._take_back()
        self._last_words()
        return int(self._crash is not None)

    def crashed(self, error: BaseException) -> None:
        """A watcher has met a bug."""
        self._crash = crash(error)
        with self.lock:
            result = self.begin()
            result.problem = self._crash
            self.publish(
                result, schedule.Decision(why=f"crashed: {self._crash.call}", confirmed=0, fresh=True)
            )

    def begin(self) -> ResultBuilder:
        """A reading with nothing in it yet."""
        own = self.settings
        return ResultBuilder(probe=health.NAME, run=own.run, node=own.node, access=own.access)

    def publish(
        self, result: ResultBuilder, decision: schedule.Decision, *, values: dict[str, Value] | None = None
    ) -> None:
        """Deliver a reading; `values`: what was seen when it was decided.  Hold `lock`."""
        now, known = kernel.boottime_ms() / 1000, self.state
        interval, written = self.settings.options.interval, not self._delivery.pending()
        xids.report(result, known, now=now, interval=interval, written=written)
        if self.log is not None:
            result.kernel_log = kernel_events.document(known.kernel_log, unread=self.log.unread)
        shown = (
            {name: (v.level, v.shown) for name, v in values.items()} if values is not None else known.values
        )
        schedule.reported(known, decision, values=shown, now=now)
        # By the clock, in ms, if the number before is lost: readings come slower, so that none comes again.
        known.sequence = known.sequence + 1 if known.sequence else int(time.time() * 1000)
        self.save()
        if result.problem is None and self._hanging:
            result.problem = self._hanging[0].problem
        duration = round(self._watcher.calls.seconds * 1000)
        say(decision.why)
        self._delivery.deliver(
            Reading(sequence=known.sequence, reason=decision.why, result=result.build(duration_ms=duration))
        )

    def tell(self, why: str, window: FeedResult) -> None:
        """Deliver a window of the feed probe, beside the readings."""
        result = ResultBuilder(probe=feed.NAME, run=self.settings.run, node=self.settings.node)
        result.host.set(boot_id=kernel.boot_id(self.settings.reading.procfs))
        result.gpus, result.feed = self._watcher.identified(), window
        # By the clock, in ms: windows come seldom, and a container that starts again has no number.
        number = int(time.time() * 1000)
        self._delivery.deliver(Reading(sequence=number, reason=why, result=result.build(duration_ms=0)))

    def save(self) -> None:
        """Keep the state for the next life of the container."""
        if self.state.boot_id and (failure := state.save(self.settings.options.state, self.state)):
            say(failure)

    @property
    def hanging(self) -> str:
        """The calls that do not return, for people; empty if there are none."""
        return "; ".join(f"{hang.problem.call} {hang.problem.message}"[:120] for hang in self._hanging)

    @property
    def skip(self) -> Skip:
        """What must not be asked while a call hangs."""
        if len(self._hanging) >= MOST_HANGING:
            return Skip(problem=self._hanging[0].problem)
        everything = next((hang.skip for hang in self._hanging if hang.skip.problem is not None), None)
        return everything or Skip(
            gpus={index: p for hang in self._hanging for index, p in hang.skip.gpus.items()}
        )

    def _give_up(self, problem: Problem) -> None:
        """Tell of a call that hangs, with what was read before it, and go on with another watcher."""
        given_up, call = self._watcher, self._watcher.calls.now
        gpus = [int(number) for number in GPU.findall(call.subject)] if call is not None else []
        given_up.retire()
        given_up.hear_queued()
        skip = Skip(gpus=dict.fromkeys(gpus, problem)) if gpus else Skip(problem=problem)
        if problem.kind == ProblemKind.CALL_HUNG:
            self._hanging.append(Hang(watcher=given_up, problem=problem, skip=skip))
        with self.lock:
            given_up.add_xids()
            result = given_up.result or self.begin()
            result.gpus = result.gpus or given_up.identified()
            result.problem = problem
            why = (
                f"hung: {problem.call}" if problem.kind == ProblemKind.CALL_HUNG else f"late: {problem.call}"
            )
            self.publish(result, schedule.Decision(why=why, confirmed=0, fresh=True))
        self._watcher = Watcher(self, values=given_up.values)
        self._watcher.start()

    def _take_back(self) -> None:
        """Watch all GPUs again once a call has returned."""
        left = [hang for hang in self._hanging if hang.watcher.is_alive]
        if len(left) == len(self._hanging):
            return
        say(f"{len(self._hanging) - len(left)} driver calls have returned")
        self._hanging = left
        self._watcher.retire()
        self._watcher = Watcher(self, values=self._watcher.values)
        self._watcher.start()

    def _last_words(self) -> None:
        """Wait for what nobody was told yet: Xids that are in no reading, and a reading that is on its
        way."""
        until = time.monotonic() + LAST_WORDS_S
        while (self.state.xids or self._delivery.pending()) and time.monotonic() < until:
            time.sleep(0.05)
        if self.state.xids:
            count = sum(xid.count for xid in self.state.xids)
            say(f"ended before anybody was told of {count} Xids")
        if self._delivery.pending():
            say("ended before the last reading was written")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        say(f"{signal.Signals(number).name}: ends")
        self._stop.set()


class Watcher:
    """Looks and reads, in a thread of its own, until it is retired."""

    def __init__(self, resident: Resident, *, values: dict[str, Value]) -> None:
        self.calls = CallWatch(deadline=resident.settings.deadline)
        self.result: ResultBuilder | None = None
        """The reading under way."""
        self._resident, self._skip = resident, resident.skip
        settings = resident.settings
        self._options = settings.options
        self._reader = Reader(
            watch=self.calls,
            options=self._options,
            host=resident.host,
            values=values | {HANGING: Value(resident.hanging, resident.hanging or "-")},
            skip=self._skip,
        )
        self._thread = threading.Thread(target=self._work, daemon=True, name="watcher")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def retire(self) -> None:
        """End at the next call into the driver; one that hangs does so when it returns."""
        self.calls.retire()

    @property
    def is_alive(self) -> bool:
        """Whether its thread has not ended."""
        return self._thread.is_alive()

    @property
    def values(self) -> dict[str, Value]:
        """What it saw last."""
        return dict(self._reader.values)

    def hear_queued(self) -> None:
        """Take the Xids that the driver has queued while a call hangs: a GPU whose calls hang often has a
        fatal one.  In a thread of its own, for this call may hang as well."""
        queued = threading.Thread(target=self._hear, daemon=True, name="queued")
        queued.start()
        queued.join(QUEUED_S)

    def _hear(self) -> None:
        with contextlib.suppress(Retired):
            self._reader.wait(0)

    def identified(self) -> list[GpuBuilder]:
        """The GPUs, and nothing else."""
        return self._reader.identified()

    def _work(self) -> None:
        try:
            while True:
                self._read(self._wait())
        except Retired:
            self._reader.close()
        except BaseException as error:
            self._resident.crashed(error)

    def _read(self, decision: schedule.Decision) -> None:
        """Take a reading and publish it."""
        resident, values = self._resident, self.values
        result = self.result = resident.begin()
        self.calls.begin()
        try:
            health.measure(result, watch=self.calls, settings=resident.settings.reading, skip=self._skip)
        except NvmlUnusable as error:
            result.problem = error.problem
        self._reader.wait(0)
        with resident.lock:
            self.calls.check()
            self.add_xids()
            self.result = None
            resident.publish(result, decision, values=values)

    def _wait(self) -> schedule.Decision:
        """Until there is a reason to read."""
        options, before, known = self._options, self.values, self._resident.state
        next_look = 0.0
        while True:
            self.calls.begin()
            now, values = kernel.boottime_ms() / 1000, self._reader.values
            if time.monotonic() >= next_look:
                began = time.monotonic()
                self._reader.look()
                if self._resident.feed is not None and (news := self._reader.feed(self._resident.feed)):
                    self._resident.tell(*news)
                ended = time.monotonic()
                next_look = max(began + options.poll, ended + options.poll * SHORTEST_PAUSE)
                with self._resident.lock:
                    self._add_log()
                flips = [n for n, v in values.items() if n in before and before[n].level != v.level]
                before = dict(values)
                with self._resident.lock:
                    self._note(flips, now=now)
            with self._resident.lock:
                decision = schedule.decide(
                    values, known, now=now, confirm=options.confirm, interval=options.interval
                )
            if decision is not None:
                return decision
            longest = min(LONGEST_WAIT_S, self.calls.call_limit / 2)
            self._reader.wait(max(0.0, min(next_look - time.monotonic(), longest)))
            with self._resident.lock:
                self.calls.check()
                self.add_xids()

    def add_xids(self) -> None:
        """New Xids into the state and its file, so that they outlive a killed container.  Hold the lock."""
        known, taken, now = self._resident.state, self._reader.take_xids(), kernel.boottime_ms() / 1000
        waiting = {schedule.xid_name(xid.gpu, xid.code) for xid in known.xids}
        for gpu, code, uuid in taken:
            xid = SeenXid(gpu=gpu, code=code, count=1, first=now, last=now, uuid=uuid)
            xids.add(known, xid)
        if taken:
            # An Xid that comes again before it was told is one piece of news: only then may it be braked.
            self._note(sorted({schedule.xid_name(gpu, code) for gpu, code, _ in taken} - waiting), now=now)
            self._resident.save()

    def _add_log(self) -> None:
        """New lines of the kernel's log into the state, without what NVML told.  Hold the lock."""
        log, known = self._resident.log, self._resident.state
        if log is None:
            return
        gpus = {gpu.index: gpu.identity for gpu in self.identified()}
        heard = [
            kernel_events.HeardXid(gpu.pci, xid.code, xid.first, xid.last)
            for xid in (*known.xids, *known.reported_xids)
            if (gpu := gpus.get(xid.gpu)) is not None and isinstance(gpu.pci, str)
        ]
        before = known.kernel_log.news
        lines, known.kernel_log.position = log.take()
        kernel_events.add(known.kernel_log, lines, heard=heard, now=kernel.boottime_ms() / 1000)
        self._reader.see(
            "kernel log", level=self._level_of_log(log), shown=log.unread or f"{known.kernel_log.news} events"
        )
        if known.kernel_log.news != before:
            self._resident.save()

    def _level_of_log(self, log: LogWatch) -> str:
        known = self._resident.state.kernel_log
        return f"{known.news} {known.position.lost > 0} {log.unread}"

    def _note(self, names: list[str], *, now: float) -> None:
        for name in schedule.note(self._resident.state, names, now=now):
            say(
                f"braked: {name} changed again and again within {schedule.BRAKE_WITHIN_S:g} s; it is read "
                f"once in {schedule.BRAKED_S:g} s, and with other news"
            )


def _feed(settings: Settings) -> FeedWatch | None:
    options, reading = settings.options, settings.reading
    if not options.feed_window:
        return None
    roots = Roots(
        procfs=reading.procfs, sysfs=reading.sysfs, groups=settings.control_groups, dcgm=settings.dcgm
    )
    return FeedWatch(roots, window=options.feed_window, interval=options.feed_interval)


def say(text: str) -> None:
    """One line on standard error."""
    os.write(STDERR, f"{text}\n".encode())
