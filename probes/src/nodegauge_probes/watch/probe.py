"""The watch probe: looks at the node every second, waits for Xids, and ends with a full reading on a change.

It ends in order to report: the kubelet puts its result into the pod's status and starts it again.  What was
reported is in the state file, so a restart alone is no news.  It holds no GPU, but an open NVML session,
which blocks driver unload and GPU reset; SIGTERM ends it at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from nodegauge_contract import ProblemKind
from nodegauge_probes import health
from nodegauge_probes.host import kernel
from nodegauge_probes.nvml import library
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.watch import schedule, state, xids
from nodegauge_probes.watch.reader import Reader, Value
from nodegauge_probes.watch.state import SeenXid, State
from nodegauge_probes.watch_options import Options

NAME = "watch"
STDERR = 2
LONGEST_WAIT_S = 0.5
"""Of one call that waits for events, and at most half of the time after which a call counts as hung."""
QUEUED_S = 1.0
"""How long to wait, if a call hangs, for the other thread and for the Xids that came meanwhile."""
SHORTEST_PAUSE = 0.5
"""Share of `--poll` that is waited even if a look took longer."""


class Watch(library.Watch, Protocol):
    """Also allows a new deadline: this probe stays for an hour, and each look and reading has its own."""

    before_exit: list[Callable[[], None]]

    def begin(self) -> None: ...

    @property
    def call_limit(self) -> float: ...


class Settings(Struct, frozen=True, kw_only=True):
    """How to read in full, and when."""

    reading: health.Settings
    options: Options


def measure(result: ResultBuilder, *, watch: Watch, settings: Settings) -> None:
    """Watch until there is something to report, then read everything into `result`.

    Raises `NvmlUnusable` if NVML cannot be used, which is a report like any other."""
    Watcher(watch=watch, settings=settings).run(result)


class Watcher:
    """One life of the container."""

    def __init__(self, *, watch: Watch, settings: Settings) -> None:
        self._watch = watch
        self._reading = settings.reading
        self._options = settings.options
        self._lock = threading.Lock()
        """Held to change the state, and for good by the thread that reports: the main one if a call hangs."""
        boot_id = kernel.boot_id(settings.reading.procfs)
        known = state.load(self._options.state, boot_id=boot_id)
        self._state = known or State(boot_id=boot_id if isinstance(boot_id, str) else "")
        self._reader = Reader(
            watch=watch,
            options=self._options,
            sysfs=settings.reading.sysfs,
            procfs=settings.reading.procfs,
            values={name: Value(*pair) for name, pair in self._state.values.items()},
        )

    def run(self, result: ResultBuilder) -> None:
        """Until a report."""
        self._watch.before_exit.append(partial(self._cut_short, result))
        decision = self._wait()
        say(decision.why)
        values = dict(self._reader.values)
        self._watch.begin()
        try:
            health.measure(result, watch=self._watch, settings=self._reading)
        finally:
            self._reader.wait(0)
            self._lock.acquire()
            self._add_xids()
            now = self._report_xids(result)
            shown = {name: (v.level, v.shown) for name, v in values.items()}
            schedule.reported(self._state, decision, values=shown, now=now)
            self._save()
            self._reader.close()

    def _cut_short(self, result: ResultBuilder) -> None:
        """A call hangs, or the deadline has passed: report the Xids with what was read, for the next life may
        end alike.  After SIGTERM nobody reads the document."""
        asked = result.problem is not None and result.problem.kind == ProblemKind.TERMINATED
        if asked or not self._lock.acquire(timeout=QUEUED_S / 2):
            return
        queued = threading.Thread(target=self._reader.wait, args=(0,), daemon=True)
        queued.start()
        queued.join(QUEUED_S / 2)
        self._add_xids()
        if self._state.xids and not result.gpus:
            result.gpus = self._reader.identified()
        if result.gpus:
            self._report_xids(result)
            self._save()

    def _report_xids(self, result: ResultBuilder) -> float:
        """Into the document; returns the seconds since boot."""
        now = kernel.boottime_ms() / 1000
        xids.report(result, self._state, now=now, interval=self._options.interval)
        return now

    def _wait(self) -> schedule.Decision:
        """Until there is a reason to report."""
        options, before = self._options, dict(self._reader.values)
        started, next_look = kernel.boottime_ms() / 1000, 0.0
        while True:
            self._watch.begin()
            now, values = kernel.boottime_ms() / 1000, self._reader.values
            if time.monotonic() >= next_look:
                began = time.monotonic()
                self._reader.look()
                ended = time.monotonic()
                next_look = max(began + options.poll, ended + options.poll * SHORTEST_PAUSE)
                flips = [n for n, v in values.items() if n in before and before[n].level != v.level]
                before = dict(values)
                self._note(flips, now=now)
            decision = schedule.decide(
                values,
                self._state,
                now=now,
                started=started,
                confirm=options.confirm,
                interval=options.interval,
            )
            if decision is not None:
                return decision
            longest = min(LONGEST_WAIT_S, self._watch.call_limit / 2)
            self._reader.wait(max(0.0, min(next_look - time.monotonic(), longest)))
            with self._lock:
                self._add_xids()

    def _add_xids(self) -> None:
        """New Xids into the state and its file, so that they outlive a killed container."""
        taken, now = self._reader.take_xids(), kernel.boottime_ms() / 1000
        for gpu, code, uuid in taken:
            one = SeenXid(gpu=gpu, code=code, count=1, first=now, last=now, uuid=uuid)
            xids.add(self._state, one)
        if taken:
            self._note(sorted({schedule.xid_name(one.gpu, one.code) for one in taken}), now=now)
            self._save()

    def _note(self, names: list[str], *, now: float) -> None:
        for name in schedule.note(self._state, names, now=now):
            say(
                f"braked: {name} changed again and again within {schedule.BRAKE_WITHIN_S:g} s; it is reported"
                f" with other news, or once this container has run for {schedule.LIVED_S:g} s"
            )

    def _save(self) -> None:
        if self._state.boot_id and (failure := state.save(self._options.state, self._state)):
            say(failure)


def say(text: str) -> None:
    """One line on standard error."""
    os.write(STDERR, f"{text}\n".encode())
