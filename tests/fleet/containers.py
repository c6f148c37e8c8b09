"""A node's watch container in virtual time: the probe's own schedule, and a kubelet that starts it again."""

from __future__ import annotations

import asyncio
import random

from msgspec.structs import replace

from fleet.machines import Machine
from nodegauge_contract import Result, encode_message
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import WatchSettings
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.watch import schedule, xids
from nodegauge_probes.watch.state import SeenXid, State
from nodegauge_probes.watch_options import CONFIRM
from support.api_server import Body
from support.cluster import FakeCluster
from support.watch_pods import WatchPod

INTERVAL = seconds(WatchSettings().interval)
CONFIRMATIONS = tuple(map(float, CONFIRM.split(",")))
LOOK_SECONDS = {"p2p": 30.0, "psu": 30.0, "nvlink": 5.0, "memory": 5.0}
"""How often the probe looks at what each fault changes, seconds; 1 for others (probes' watch.signals)."""
READING_SECONDS = 1.6
SLOWED, SLOWED_SECONDS = ("hot", "power-brake"), 3.6
"""Faults that slow GPUs down, during which the container reads as long as a health pod."""
START_SECONDS = 1.3
"""From the end of a container to the next one's first look, without a back-off: a stock kubelet's, 1.36."""
FIRST_BACKOFF, LONGEST_BACKOFF, CALM_SECONDS = 10.0, 300.0, 600.0
"""A kubelet's (pkg/kubelet, MaxContainerBackOff and backOffPeriod)."""


class WatchContainer(WatchPod):
    """The pod of the DaemonSet on one machine.  `restarts` and `backed_off` count its ends and its waits."""

    def __init__(self, cluster: FakeCluster, machine: Machine, *, chance: random.Random) -> None:
        super().__init__(cluster, machine.name)
        self.backed_off = 0
        self._machine, self._chance = machine, chance
        self._cut_off, self._listens = False, True
        self._state = State(boot_id=machine.boot_id)
        self._unsent: Body = {}
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something on the machine has changed."""
        self._changed.set()

    def xid(self, gpu: int, code: int) -> None:
        """The driver reports an Xid, to those who listen."""
        if self._listens:
            now = self._uptime(self._machine.document(asyncio.get_running_loop().time()))
            xids.add(self._state, SeenXid(gpu=gpu, code=code, count=1, first=now, last=now))
            self._changed.set()

    def cut_off(self) -> None:
        """The API server is away: the container goes on, and its kubelet keeps the newest status alone."""
        self._cut_off = True

    def reconnect(self) -> None:
        """The kubelet sends what it kept."""
        self._cut_off = False
        if self._unsent:
            self._status(self._unsent)

    async def live(self) -> None:
        """Until cancelled: watch, report by ending, be started again."""
        loop = asyncio.get_running_loop()
        state, backoff = self._state, 0.0
        await asyncio.sleep(self._chance.uniform(1, 10))
        while True:
            began = loop.time()
            decision = await self._decided(state, loop, started=began)
            slowed = self._machine.visible_fault in SLOWED
            await asyncio.sleep(SLOWED_SECONDS if slowed else READING_SECONDS)
            fault = self._machine.visible_fault
            schedule.reported(state, decision, values={"machine": (fault, fault)}, now=loop.time())
            self.stopped(self._message())
            self._listens = False
            if loop.time() - began >= CALM_SECONDS:
                backoff = 0.0
            self.backed_off += bool(backoff)
            await asyncio.sleep(backoff + START_SECONDS)
            self._listens = True
            self.started()
            backoff = min(LONGEST_BACKOFF, backoff * 2) if backoff else FIRST_BACKOFF

    async def _decided(
        self, state: State, loop: asyncio.AbstractEventLoop, *, started: float
    ) -> schedule.Decision:
        due = schedule.due_after(INTERVAL, node=self._machine.name)
        while True:
            self._changed.clear()
            fault = self._machine.visible_fault
            decision = schedule.decide(
                {"machine": (fault, fault)},
                state,
                now=loop.time(),
                started=started,
                confirm=CONFIRMATIONS,
                interval=due,
            )
            if decision is not None:
                return decision
            waits = [state.reported + due - loop.time()]
            if state.confirmed < len(CONFIRMATIONS):
                wait = state.reported + CONFIRMATIONS[state.confirmed] - loop.time()
                waits.append(wait if wait > 0 else started + schedule.LIVED_S - loop.time())
            try:
                async with asyncio.timeout(max(0.05, min(waits))):
                    await self._changed.wait()
                known = state.values["machine"][0]
                look = LOOK_SECONDS.get(str(self._machine.fault or known), 1.0)
                await asyncio.sleep(self._chance.uniform(0, look))
            except TimeoutError:
                continue

    def _message(self) -> str:
        """What the probe leaves: its reading, and the Xids that it has heard of."""
        document = self._machine.document(asyncio.get_running_loop().time())
        builder = ResultBuilder(probe="health", run="", node="")
        builder.gpus = [GpuBuilder(gpu.index) for gpu in document.gpus]
        xids.report(builder, self._state, now=self._uptime(document), interval=INTERVAL)
        own = [replace(gpu.xids.value, registered=True) for gpu in builder.gpus]
        gpus = [replace(gpu, xids=one) for gpu, one in zip(document.gpus, own, strict=True)]
        result = replace(document, gpus=gpus, watch=builder.watch)
        return encode_message(replace(result, run=self.uid, node=self.node, probe="health"))

    @staticmethod
    def _uptime(document: Result) -> float:
        assert isinstance(document.host.boottime_ms, int)
        return document.host.boottime_ms / 1000

    def _status(self, container: Body) -> None:
        self._unsent = container if self._cut_off else {}
        if not self._cut_off:
            super()._status(container)
