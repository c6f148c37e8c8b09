"""A node's watch container in virtual time: the probe's own schedule, and its outbox."""

import asyncio
import random

from msgspec import to_builtins
from msgspec.structs import replace

from fleet.machines import Machine
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import WatchSettings
from nodegauge_probes.delivery import part_of
from nodegauge_probes.identity import Identity
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.watch import schedule, xids
from nodegauge_probes.watch.state import SeenXid, State
from nodegauge_probes.watch_options import CONFIRM
from support.api_server import NODES, READINGS, Body
from support.cluster import FakeCluster
from support.watch_pods import WatchPod

INTERVAL = seconds(WatchSettings().interval)
CONFIRMATIONS = tuple(map(float, CONFIRM.split(",")))
LOOK_SECONDS = {"p2p": 30.0, "psu": 30.0, "nvlink": 5.0, "memory": 5.0}
"""How often the probe looks at what each fault changes, seconds; 1 for others (probes' watch.signals)."""
READING_SECONDS = 1.6
SLOWED, SLOWED_SECONDS = ("hot", "power-brake"), 3.6
"""Faults that slow GPUs down, during which the container reads as long as a health pod."""


class WatchContainer(WatchPod):
    """The pod of the DaemonSet on one machine.  `written`: readings that the API server got."""

    def __init__(self, cluster: FakeCluster, machine: Machine, *, chance: random.Random) -> None:
        super().__init__(cluster, machine.name)
        self.written = 0
        self._machine, self._chance = machine, chance
        self._cut_off = False
        self._state = State(boot_id=machine.boot_id)
        self._waiting: Body | None = None
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    def xid(self, gpu: int, code: int) -> None:
        loop = asyncio.get_running_loop()
        now = self._uptime(self._machine.document(loop.time()))
        xids.add(self._state, SeenXid(gpu=gpu, code=code, count=1, first=now, last=now))
        schedule.note(self._state, [schedule.xid_name(gpu, code)], now=loop.time())
        self._changed.set()

    def cut_off(self) -> None:
        """The API server is away: the container goes on, and its outbox keeps the newest reading alone."""
        self._cut_off = True

    def reconnect(self) -> None:
        """The outbox tries again, and is answered."""
        self._cut_off = False
        self._write()

    async def live(self) -> None:
        loop, state = asyncio.get_running_loop(), self._state
        await asyncio.sleep(self._chance.uniform(1, 10))
        while True:
            decision, seen = await self._decided(state, loop)
            slowed = self._machine.visible_fault in SLOWED
            await asyncio.sleep(SLOWED_SECONDS if slowed else READING_SECONDS)
            schedule.reported(state, decision, values={"machine": (seen, seen)}, now=loop.time())
            self._put(decision.why)

    async def _decided(self, state: State, loop: asyncio.AbstractEventLoop) -> tuple[schedule.Decision, str]:
        due = schedule.due_after(INTERVAL, node=self._machine.name)
        seen = str(state.values["machine"][0]) if state.values else self._machine.visible_fault
        while True:
            self._changed.clear()
            before, seen = seen, self._machine.visible_fault
            if seen != before:
                schedule.note(state, ["machine"], now=loop.time())
            values = {"machine": (seen, seen)}
            decision = schedule.decide(values, state, now=loop.time(), confirm=CONFIRMATIONS, interval=due)
            if decision is not None:
                return decision, seen
            waits = [state.reported + due - loop.time()]
            if state.confirmed < len(CONFIRMATIONS):
                waits.append(state.reported + CONFIRMATIONS[state.confirmed] - loop.time())
            if state.xids or schedule.different(values, state):  # held up by a brake
                waits.append(schedule.SHORTEST_S)
            try:
                async with asyncio.timeout(max(0.05, min(waits))):
                    await self._changed.wait()
                look = LOOK_SECONDS.get(str(self._machine.fault or seen), 1.0)
                await asyncio.sleep(self._chance.uniform(0, look))
            except TimeoutError:
                continue

    def _put(self, why: str) -> None:
        document = self._machine.document(asyncio.get_running_loop().time())
        builder = ResultBuilder(probe="health", run="", node="")
        builder.gpus = [GpuBuilder(gpu.index) for gpu in document.gpus]
        xids.report(builder, self._state, now=self._uptime(document), interval=INTERVAL)
        own = [replace(gpu.xids.value, registered=True) for gpu in builder.gpus]
        gpus = [replace(gpu, xids=one) for gpu, one in zip(document.gpus, own, strict=True)]
        result = replace(document, gpus=gpus, watch=builder.watch)
        self.sequence += 1
        node_uid = self._cluster.objects[NODES][self.node]["metadata"]["uid"]
        part = part_of(
            replace(result, run=self.uid, node=self.node, probe=names.PROBE_HEALTH),
            identity=Identity(pod=self.name, pod_uid=self.uid, node=self.node, node_uid=node_uid),
            sequence=self.sequence,
            reason=why,
            at=self._cluster.clock(),
        )
        self._waiting = to_builtins(part)
        self._write()

    def _write(self) -> None:
        if self._waiting is None or self._cut_off:
            return
        part, self._waiting = {names.PROBE_HEALTH: self._waiting}, None
        if self.node in self._cluster.objects[READINGS]:
            self._cluster.patch(READINGS, self.node, part)
        else:
            self._cluster.create(READINGS, {"metadata": {"name": self.node}} | part)
        self.written += 1

    @staticmethod
    def _uptime(document: Result) -> float:
        assert isinstance(document.host.boottime_ms, int)
        return document.host.boottime_ms / 1000
