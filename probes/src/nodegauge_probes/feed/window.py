"""One window from its parts, and whether somebody has to hear of it.

A window is told when it differs from the last one that was told, and so does the next one after it: a pause
of a minute is no news.  Else once an interval.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import FeedGpu, FeedHost, FeedPressure, FeedResult, Num, Unavailable
from nodegauge_probes.feed import dcgm, groups, host
from nodegauge_probes.feed.gpus import GpuWindow
from nodegauge_probes.nvml.library import Device, Nvml

MOMENT_S = 10.0
"""Seconds between two readings of the machine's counters."""
SAMPLE_S = 2.0
"""Seconds between two samples of a GPU."""
CLASSES = (5.0, 40.0, 75.0)
"""% of utilisation between which a GPU changes its class, and `MARGIN` beyond which it does so."""
MARGIN = 5.0
SHORTEST_S = 120.0
"""Seconds from one window that is told to the next: a job that goes up and down costs no more writes."""
COVERED = 0.5
"""Part of a window, at least, that the machine's counters have to cover."""
STALLED = 0.2
"""Share of the window from which a resource counts as stalled; half of it to leave that."""

Level = tuple[tuple[tuple[int, int], ...], tuple[bool, ...]]
"""Index and class of each GPU, and whether CPU, I/O and memory stall."""


class Moment(Struct, frozen=True, kw_only=True):
    """The machine's counters at one moment, seconds of the monotonic clock."""

    at: float
    counters: host.Counters
    groups: dict[str, groups.Group] | Unavailable
    dcgm: dcgm.Shares | Unavailable = dcgm.UNASKED


class Roots(Struct, frozen=True, kw_only=True):
    """Where to read; `groups`: the host's control groups, None if the container does not see them; `dcgm`:
    address of an exporter, or empty."""

    procfs: Path
    sysfs: Path
    groups: Path | None = None
    dcgm: str = ""

    def moment(self, *, clock: Callable[[], float] = time.monotonic) -> Moment:
        """The counters now."""
        counters = host.read(procfs=self.procfs, sysfs=self.sysfs)
        return Moment(
            at=clock(), counters=counters, groups=groups.read(self.groups), dcgm=dcgm.read(self.dcgm)
        )


class HostWatch:
    """Takes moments in a thread of its own: a network card with dead firmware makes sysfs wait."""

    def __init__(self, roots: Roots, *, every: float = MOMENT_S) -> None:
        self._roots, self._every = roots, every
        self._never = threading.Event()
        self.moments: deque[Moment] = deque(maxlen=400)
        self.failure = ""
        """Why the last reading failed; empty if it did not."""

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._work, daemon=True, name="feed").start()

    def _work(self) -> None:
        while True:
            try:
                self.moments.append(self._roots.moment())
                self.failure = ""
            except (
                Exception
            ) as error:  # what the machine gave is a gap then, and the GPUs go on being watched
                self.failure = f"{type(error).__name__}: {error}"[:128]
            self._never.wait(self._every)


def build(gpus: list[FeedGpu], moments: Sequence[Moment], *, seconds: float, failure: str = "") -> FeedResult:
    """One window.  Nothing is known of a machine whose moments cover less than half of it; `failure`: why."""
    span = moments[-1].at - moments[0].at if moments else 0.0
    if span <= 0 or span < COVERED * seconds:
        late = Unavailable(failure or "the machine's counters were not read in time")
        unknown = FeedPressure(cpu=late, io=late, io_full=late, memory=late, memory_full=late)
        machine = FeedHost(cpus=late, cpu_busy=late, cpu_iowait=late, pressure=unknown)
        return FeedResult(seconds=round(seconds, 1), gpus=gpus, host=machine, groups_unread=late.unavailable)
    first, *between, last = moments
    shares = [moment.dcgm for moment in moments]
    asked = any(not isinstance(answer, Unavailable) for answer in shares)
    counted, unread = groups.over(first.groups, last.groups, seconds=span)
    return FeedResult(
        seconds=round(seconds, 1),
        source="dcgm" if asked else shares[-1] if isinstance(shares[-1], Unavailable) else dcgm.UNASKED,
        gpus=dcgm.added(gpus, shares),
        host=host.over(
            first.counters, last.counters, seconds=span, between=[moment.counters for moment in between]
        ),
        disks=host.disks(first.counters, last.counters, seconds=span),
        ports=host.ports(first.counters, last.counters, seconds=span),
        groups=counted,
        groups_unread=unread,
    )


def level(result: FeedResult, before: Level | None) -> Level:
    """What would be news if it changed; hysteresis by what it was."""
    known = dict(before[0]) if before is not None else {}
    classes = tuple((gpu.index, _class(gpu.utilization, known.get(gpu.index))) for gpu in result.gpus)
    pressure = result.host.pressure
    stalls = (pressure.cpu, pressure.io, pressure.memory)
    was = before[1] if before is not None else (False,) * len(stalls)
    return classes, tuple(_stalls(value, already) for value, already in zip(stalls, was, strict=True))


def _class(utilization: Num, before: int | None) -> int:
    """-1 for unread, else how many of `CLASSES` it is above."""
    if isinstance(utilization, Unavailable):
        return -1
    now = sum(utilization >= limit for limit in CLASSES)
    if before is None or before < 0 or now == before:
        return now
    edge = CLASSES[min(now, before)]
    return now if abs(utilization - edge) >= MARGIN else before


def _stalls(value: Num, before: bool) -> bool:
    limit = STALLED / 2 if before else STALLED
    return not isinstance(value, Unavailable) and value >= limit


class News:
    """Which windows have to be told, by time on any one clock."""

    def __init__(self, *, interval: float) -> None:
        self._interval = interval
        self._told_at = -math.inf
        self._told: Level | None = None
        self._last: Level | None = None

    def reason(self, result: FeedResult, *, now: float) -> str:
        """Why to tell this one; empty for no reason."""
        seen = level(result, self._last)
        twice, self._last = seen == self._last, seen
        if self._told is None and result.gpus:
            why = "first"
        elif twice and seen != self._told and now - self._told_at >= SHORTEST_S:
            why = "changed"
        elif now - self._told_at >= self._interval:
            why = "due"
        else:
            return ""
        self._told, self._told_at = seen, now
        return why


class FeedWatch:
    """Windows one after the other, in the looks of the watch probe."""

    def __init__(
        self,
        roots: Roots,
        *,
        window: float,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = HostWatch(roots)
        self._roots, self._window, self._clock = roots, window, clock
        self._news, self._gpus = News(interval=interval), GpuWindow()
        self._began = self._sampled = clock()

    def look(self, nvml: Nvml, devices: Sequence[Device]) -> tuple[str, FeedResult] | None:
        """Sample what is due; a window that ended and has to be told, with the reason."""
        now = self._clock()
        if now - self._sampled >= min(SAMPLE_S, self._window / 20):
            self._sampled = now
            self._gpus.look(nvml, devices)
        if now - self._began < self._window:
            return None
        seconds, since, self._began = now - self._began, self._began - MOMENT_S, now
        gpus = self._gpus.close(nvml, devices, seconds=seconds, sysfs=self._roots.sysfs)
        inside = [moment for moment in list(self.host.moments) if since <= moment.at <= now]
        result = build(gpus, inside, seconds=seconds, failure=self.host.failure)
        why = self._news.reason(result, now=now)
        return (why, result) if why else None
