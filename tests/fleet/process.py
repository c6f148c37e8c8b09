"""Everything between the operator's processes and the API server in memory that can fail."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from fleet.virtual import LivingCluster
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, KubeError, Unavailable, Unreachable
from support.api_server import Body
from support.client import Call, FakeClient, Killed
from support.operator import SETTINGS
from support.virtual_operator import VirtualProcess

LATENCY = 0.005
SWEEP_SECONDS, RELIST_SECONDS, LOOK_SECONDS = 300.0, 6 * 3600.0, 600.0
LIVE_SECONDS, RENEW_SECONDS = 300.0, 290.0
"""Fewer idle passes, lists, looks at the admission policy (nobody touches it here) and renewals of the Lease
(which still lapses in most outages) than by default: they cost most of the time here and decide nothing."""
CLUSTER_BUDGET = "20%"
"""Of all nodes, whatever the policies say (`operator.maxGatedNodes`)."""
SETTINGS_OF_LIFE = replace(
    SETTINGS,
    sweep_interval=SWEEP_SECONDS,
    relist_interval=RELIST_SECONDS,
    max_gated_nodes=CLUSTER_BUDGET,
)


class ApiState:
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
        asked_at = asyncio.get_running_loop().time()
        await asyncio.sleep(self._api.latency)
        if self.dead:
            raise Killed
        answer = await super().take(call)
        date = datetime.fromtimestamp(self.cluster.clock(), UTC)
        self._compare_clocks(format_datetime(date, usegmt=True), asked_at=asked_at)
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


class OperatorProcess(VirtualProcess):
    """One process after another: `start`, `stop` or `kill` it; `clock_error` is its host's."""

    client: FailingClient
    lag = 0.05

    def __init__(self, cluster: LivingCluster, chance: random.Random) -> None:
        super().__init__(cluster.loop, cluster)
        self.api = ApiState()
        self.clock_error = 0.0
        self.api.time = lambda: cluster.clock() + self.clock_error
        self.starts = 0
        self.client = FailingClient(cluster, self.api, chance)
        self._living = cluster
        self._chance = chance

    def start(self) -> None:
        self.starts += 1
        client = FailingClient(self._living, self.api, self._chance)
        self.renew(client, SETTINGS_OF_LIFE, clock=client.now, jitter=self._chance.random)
        self.loop.call_later(0.5, self.list_by_watch, self.watches)
        super().start()

    async def stop(self) -> None:
        await super().stop()
        self.client.dead = True

    async def kill(self) -> None:
        """SIGKILL: no further call has any effect."""
        self.client.dead = True
        await super().stop()

    def check(self) -> None:
        """The loop must not end by itself."""
        if not self.client.dead:
            super().check()


def clocks(process: OperatorProcess) -> Any:
    return SimpleNamespace(
        monotonic=process.loop.time, time=lambda: process.cluster.clock() + process.clock_error
    )
