"""Operator processes one after another, and everything between them and the API server that can fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from life.cluster import LivingCluster
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, KubeError, Unavailable, Unreachable
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.sweep import Sweep
from support.api_server import EVENTS, NODES, PODS, POLICIES, REPORTS, Body
from support.client import Call, FakeClient, Killed
from support.operator import SETTINGS, Watches

WATCH_LAG = 0.05
LATENCY = 0.005
SWEEP_SECONDS, RELIST_SECONDS = 60.0, 6 * 3600.0
"""Fewer idle passes and lists than by default: they cost most of the time here and decide nothing."""
SETTINGS_OF_LIFE = replace(SETTINGS, sweep_interval=SWEEP_SECONDS, relist_interval=RELIST_SECONDS)


class ApiState:
    """How the API server answers now."""

    def __init__(self) -> None:
        self.down = ""
        """`refused` or `503`; empty while it answers."""
        self.conflicts = 0.0
        """Share of patches that somebody else's write comes before."""
        self.lost = 0.0
        """Share of writes that are made, and whose answer is lost."""
        self.latency = LATENCY
        self.time: Callable[[], float] = lambda: 0.0
        """The clock of the operator's host."""


class FailingClient(FakeClient):
    """A client whose calls fail as the API state says; after its process is dead none does anything."""

    def __init__(self, cluster: LivingCluster, api: ApiState, chance: random.Random) -> None:
        super().__init__(cluster)
        self.dead = False
        self._epoch = api.time() - cluster.loop.time()
        self._api = api
        self._chance = chance
        self.refuse = self._refusal
        self.answered = self._answered

    now = Client.now
    """It follows the answers' dates, as in a real process."""

    async def take(self, call: Call) -> Body:
        await asyncio.sleep(self._api.latency)
        if self.dead:
            raise Killed
        answer = await super().take(call)
        date = datetime.fromtimestamp(self.cluster.clock(), UTC)
        self._compare_clocks(format_datetime(date, usegmt=True))
        return answer

    def _maybe_die(self, when: str) -> None:
        try:
            super()._maybe_die(when)
        except Killed:
            self.dead = True
            raise

    def _refusal(self, verb: str, path: str) -> KubeError | None:
        if self._api.down == "refused":
            return Unreachable("connection refused")
        if self._api.down:
            return Unavailable("etcd has no leader", status=503)
        if verb == "PATCH" and self._chance.random() < self._api.conflicts:
            return Conflict("the object has been modified", status=409, reason="Conflict")
        return None

    def _answered(self, verb: str, path: str) -> None:
        if verb != "GET" and self._chance.random() < self._api.lost:
            raise Unavailable("no answer")


class OperatorProcess:
    """The operator: `start`, `stop` (SIGTERM) or `kill` it; `clock_error` is its host's."""

    def __init__(self, cluster: LivingCluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.api = ApiState()
        self.clock_error = 0.0
        self.api.time = lambda: cluster.clock() + self.clock_error
        self.starts = 0
        self.task: asyncio.Task[None] | None = None
        self.client = FailingClient(cluster, self.api, chance)
        self.runs_killed = 0
        self._chance = chance
        self._loop = cluster.loop
        self._watches: Watches | None = None
        self._listening = False
        self._missed: list[tuple[str, str, Body]] | None = None
        cluster.subscribers.append(self._event)

    def start(self) -> None:
        """A new process, which knows only what the API server holds."""
        self.starts += 1
        self.client = FailingClient(self.cluster, self.api, self._chance)
        self.sweep = Sweep(
            client=self.client,
            cache=Cache(),
            metrics=Metrics(),
            settings=SETTINGS_OF_LIFE,
            clock=self.client.now,
            jitter=self._chance.random,
        )
        self._watches = Watches(self.sweep)
        self._listening, self._missed = True, None
        self._loop.call_later(0.5, self._list_by_watch, self._watches)
        self.task = self._loop.create_task(self.sweep.run())

    async def stop(self) -> None:
        """SIGTERM: it finishes its writes."""
        await self._end()
        self.client.dead = True

    async def kill(self) -> None:
        """SIGKILL: no further call has any effect."""
        self.client.dead = True
        await self._end()

    async def _end(self) -> None:
        self._watches, self._listening = None, False
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.task = None

    def check(self) -> None:
        """The loop must not end by itself."""
        if self.task is not None and self.task.done() and not self.client.dead:
            self.task.result()
            raise AssertionError("the operator's loop ended")

    def deafen(self) -> None:
        """The watches are interrupted."""
        if self._watches is not None:
            self._listening, self._missed = False, []

    def reconnect(self, *, resumed: bool) -> None:
        """The watches come back: with every event since, or with a list of what is there."""
        if self._watches is None or self._listening:
            return
        missed, self._listening, self._missed = self._missed or [], True, None
        if resumed:
            for event in missed:
                self._loop.call_later(WATCH_LAG, self._give, self._watches, *event)
        else:
            self._list_by_watch(self._watches)

    def _event(self, path: str, kind: str, body: Body) -> None:
        if self._watches is None or path == EVENTS:
            return
        if self._listening:
            self._loop.call_later(WATCH_LAG, self._give, self._watches, path, kind, body)
        elif self._missed is not None:
            self._missed.append((path, kind, body))

    def _give(self, watches: Watches, path: str, kind: str | None, body: Body) -> None:
        if watches is self._watches:
            watches.give(path, kind, body)

    def _list_by_watch(self, watches: Watches) -> None:
        for path in (POLICIES, NODES, REPORTS, PODS):
            for body in list(self.cluster.objects[path].values()):
                self._give(watches, path, None, body)


def clocks(loop: asyncio.AbstractEventLoop, process: OperatorProcess) -> Any:
    """What the operator's modules see as `time`."""
    return SimpleNamespace(monotonic=loop.time, time=lambda: process.cluster.clock() + process.clock_error)
