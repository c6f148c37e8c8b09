"""Reads each BMC at its own pace: one task per BMC, so that no BMC is ever read twice at a time.

BMCs whose last try failed wait for slots of their own, so that hanging ones never delay the others.  The
pause doubles with each failure in a row.  One log line for each change of a BMC's state, none per reading.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_bmc.connection import BmcError, Unreadable
from nodegauge_bmc.growth import Read, remembering
from nodegauge_bmc.inventory import CHART, Target, in_fields
from nodegauge_operator.api.chassis import ChassisStatus
from nodegauge_operator.api.report import one_more
from nodegauge_operator.bmc_reader.metrics import Metrics
from nodegauge_operator.bmc_reader.objects import Objects
from nodegauge_operator.bmc_reader.outcome import Reason, failure, reason_of, status_of
from nodegauge_operator.kube.errors import KubeError, Unavailable

log = logging.getLogger("nodegauge.bmc")

MAX_PAUSE = 1800.0
"""Longest pause after failures, seconds, unless the interval is longer."""
MAX_RETRY = 30.0
"""Longest pause between two tries of one write, seconds."""
STOP_SECONDS = 4.0
"""For logging out of BMCs when the reader stops, before connections are cut."""


class Pace(Struct, frozen=True, kw_only=True):
    """Seconds between two readings of one BMC and for one, and how many BMCs are read at a time."""

    interval: float
    deadline: float
    concurrency: int


class Poller:
    """The running tasks, by node."""

    def __init__(
        self, *, read: Read, objects: Objects, metrics: Metrics, pace: Pace, clock: Callable[[], float]
    ) -> None:
        self._read = read
        self._objects = objects
        self._metrics = metrics
        self._pace = pace
        self._clock = clock
        self._slots = asyncio.Semaphore(pace.concurrency)
        self._slots_of_failing = asyncio.Semaphore(max(1, pace.concurrency // 4))
        self._tasks: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._refused = ""

    async def follow(self, targets: dict[str, Target]) -> None:
        """Read these and no others; one that changed begins anew, once its old task has ended."""
        gone = [node for node, (target, _) in self._tasks.items() if targets.get(node) != target]
        await self._end(gone)
        for node in targets.keys() - self._tasks.keys():
            self._metrics.read_at.setdefault(node, 0.0)
            task = asyncio.create_task(self._poll(targets[node]), name=f"bmc {node}")
            self._tasks[node] = (targets[node], task)

    async def stop(self) -> None:
        """End every task within seconds."""
        await self._end(list(self._tasks))

    async def _end(self, nodes: list[str]) -> None:
        tasks = [self._tasks.pop(node)[1] for node in nodes]
        for _ in range(2):  # the second time cuts those that a BMC holds in its logout
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=STOP_SECONDS)
            tasks = [task for task in tasks if not task.done()]

    async def _poll(self, target: Target) -> None:
        number: int | None = None
        failures, state = 0, ""
        read = remembering(self._read)
        await asyncio.sleep(random.uniform(0, self._pace.interval / 10))
        while True:
            started = time.monotonic()
            status, reason = await self._try(target, read, failing=failures > 0)
            failures = failures + 1 if reason else 0
            _say(target, status.problem, before=state, after=reason)
            state = reason or "read"
            self._metrics.state(target.node, reason)
            pause = pause_after(failures, interval=self._pace.interval) * random.uniform(0.9, 1.1)
            due = started + pause
            number = await self._store(target, status, number, until=due)
            await asyncio.sleep(max(self._pace.interval / 10, due - time.monotonic()))

    async def _try(self, target: Target, read: Read, *, failing: bool) -> tuple[ChassisStatus, Reason | None]:
        """One reading; the reason is None if it worked."""
        async with self._slots_of_failing if failing else self._slots:
            started = time.monotonic()
            try:
                reading = await read(target.access, self._pace.deadline)
                now = self._clock()
                status = status_of(reading, address=target.address, now=now)
            except (BmcError, Unreadable, ValueError) as error:
                reason = reason_of(str(error))
                problem = in_fields(str(error), **CHART)
            except Exception as error:  # one tree that nobody has seen must not end the task
                log.exception("the reader fails on the BMC of %s", target.node, extra={"node": target.node})
                reason, problem = Reason.DEFECT, f"the reader failed ({type(error).__name__}): see its log"
            else:
                self._metrics.was_read(target.node, at=now, seconds=time.monotonic() - started)
                return status, None
        self._metrics.failures.labels(reason.value).inc()
        return failure(problem, address=target.address, now=self._clock()), reason

    async def _store(
        self, target: Target, status: ChassisStatus, number: int | None, *, until: float
    ) -> int | None:
        """Write it; without an answer again and again, until the next reading is due.  The number written."""
        retry = 1.0
        while True:
            try:
                if status.problem:
                    await self._objects.failed(target.node, target.node_uid, status)
                    return number
                if number is None:
                    number = await self._objects.number(target.node)
                status = replace(status, number=one_more(number))
                await self._objects.write(target, status)
                self._refused = ""
                return status.number
            except Unavailable:  # the client logs it once a minute for all
                self._metrics.unwritten.inc()
                pause = retry * random.uniform(0.5, 1.0)
                retry = min(MAX_RETRY, retry * 2)
                if time.monotonic() + pause >= until:
                    return number
                await asyncio.sleep(pause)
            except KubeError as error:
                self._metrics.unwritten.inc()
                if self._refused != type(error).__name__:  # one line for a thousand nodes
                    self._refused = type(error).__name__
                    log.error("readings are not written: %s", error, extra={"node": target.node})
                return number


def pause_after(failures: int, *, interval: float) -> float:
    """Seconds until the next try: the interval, doubled with each failure in a row but the first."""
    return min(max(MAX_PAUSE, interval), interval * 2.0 ** min(20, max(0, failures - 1)))


def _say(target: Target, problem: str, *, before: str, after: Reason | None) -> None:
    """One line if the state of the BMC changed."""
    if before == (after or "read"):
        return
    extra = {"node": target.node}
    if after:
        log.warning("the BMC of %s at %s is not read: %s", target.node, target.address, problem, extra=extra)
    else:
        again = " again" if before else ""
        log.info("the BMC of %s at %s is read%s", target.node, target.address, again, extra=extra)
