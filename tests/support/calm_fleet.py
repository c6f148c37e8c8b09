"""Nodes in mode Watch on virtual time.  What the operator notices late, it notices up to two hours late."""

import asyncio
from collections.abc import Callable
from typing import Any

from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import WatchSettings
from support.api_server import DAEMONSETS, NODES, PODS, POLICIES, REPORTS, Body
from support.judging import saying
from support.virtual_operator import VirtualTimeOperator
from support.watch_pods import WatchPod

INTERVAL = seconds(WatchSettings().interval)
CONFIRMED = (0.0, 12.0, 60.0, 300.0)
"""Seconds from a change to each report about it."""


class CalmFleet:
    def __init__(self, operator: VirtualTimeOperator) -> None:
        self.operator, self.cluster = operator, operator.cluster
        self._containers: dict[str, WatchPod] = {}
        self._lives: list[asyncio.Task[None]] = []

    async def begin(self, count: int, **spec: Any) -> None:
        off = {"enabled": False}
        self.operator.nodes(count)
        probes = {"health": {"mode": "Watch"}, "load": off, "nccl": off}
        self.cluster.add_policy(probes=probes, **({"budget": {"gatedNodes": "100%"}} | spec))
        self.operator.start()
        await self.operator.after(5)
        for name in self.cluster.objects[NODES]:
            self.cluster.results[name] = saying("")
            self._containers[name] = WatchPod(self.cluster, name)
            self._lives.append(asyncio.create_task(self._live(name)))
        await self.operator.after(60)

        (made,) = self.cluster.objects[DAEMONSETS].values()
        self._template = made["spec"]["template"]
        self.cluster.subscribers.append(self._roll_out)

    def _roll_out(self, path: str, _: str, body: Body) -> None:
        if path != DAEMONSETS or body["spec"]["template"] == self._template:
            return
        self._template = body["spec"]["template"]
        for name, old in self._containers.items():
            self.cluster.remove(PODS, old.name)
            self._containers[name] = WatchPod(self.cluster, name)
            self._lives.append(asyncio.create_task(self._confirm(name)))

    def replace(self, name: str, **box: Any) -> WatchPod:
        """Another pod, not ready yet."""
        if self._containers[name].name in self.cluster.objects[PODS]:
            self.cluster.remove(PODS, self._containers[name].name)
        pod = self._containers[name] = WatchPod(self.cluster, name)
        pod.becomes(ready=False, **box)
        return pod

    async def _live(self, name: str) -> None:
        while True:
            self._containers[name].reports(self.cluster.results[name], later=0.0)
            await asyncio.sleep(INTERVAL)

    async def _confirm(self, name: str) -> None:
        began = self.operator.loop.time()
        for after in CONFIRMED:
            await self.operator.after(began + after - self.operator.loop.time())
            self._containers[name].reports(self.cluster.results[name], later=0.0)

    async def becomes(self, name: str, state: str | Result) -> None:
        self.cluster.results[name] = saying(state) if isinstance(state, str) else state
        await self._confirm(name)
        await self.operator.after(5)

    def edit(self, patch: Body) -> None:
        generation = self.cluster.objects[POLICIES]["default"]["metadata"]["generation"]
        metadata = patch.get("metadata", {}) | {"generation": generation + 1}
        self.cluster.change(POLICIES, "default", patch | {"metadata": metadata})

    async def until(self, happens: Callable[[], bool]) -> float:
        """Let time pass until then; the seconds."""
        began = self.operator.loop.time()
        while not happens():
            await self.operator.after(1)
            waited = self.operator.loop.time() - began
            assert waited < 2 * INTERVAL, f"not within {waited:g} s; node-0 has {self.status()}"
        return self.operator.loop.time() - began

    def tainted(self, *nodes: str) -> bool:
        bodies = [self.cluster.objects[NODES][name] for name in nodes]
        return all(
            any(taint["key"] in names.TAINTS_OF_FAULTS for taint in body["spec"].get("taints") or ())
            for body in bodies
        )

    def status(self, name: str = "node-0") -> Body:
        status: Body = self.cluster.objects[REPORTS][name]["status"]
        return status
