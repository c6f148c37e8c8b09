"""The kubelets of all nodes: they run, end and start again the watch containers, and end pods of single runs.

The pods are real ones: of the operator's DaemonSet and kube-controller-manager, or of the operator itself,
bound by kube-scheduler.  Each write is a kubelet's, so the audit log tells it from the operator's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fleet.load import objects
from fleet.load.population import AT_A_TIME, Population, in_flight, pods_path
from nodegauge_contract import Result
from nodegauge_operator import names
from testbed.errors import TestbedError
from testbed.scripted import stamp

Object = dict[str, Any]

RESTART_SECONDS = 1.36
"""From a container's end to its next life, without a back-off: a stock kubelet's (tests/e2e)."""
LOOK_SECONDS = 0.5
CALLS = 100
"""In flight at most: with more, an API server that is slow would let them time out."""
OF_SINGLE_RUNS = f"{names.POD_PROBE}={names.PROBE_HEALTH}"


class _WatchPod:
    def __init__(self, body: Object) -> None:
        self.name, self.uid = str(body["metadata"]["name"]), str(body["metadata"]["uid"])
        self.started = ""
        self.restarts = 0


class Kubelets:
    """All of them, in one namespace."""

    def __init__(self, population: Population, namespace: str) -> None:
        self._population = population
        self._namespace = namespace
        self._watch: dict[str, _WatchPod] = {}
        self._round = 0
        self._calls = asyncio.Semaphore(CALLS)

    async def run_containers(self, *, count: int, within: float, alive: Callable[[], None]) -> None:
        """Start the container of each watch pod as it is bound, until there are so many.

        `TestbedError` if that takes longer than `within` seconds.
        """
        until = time.monotonic() + within
        while len(self._watch) < count:
            alive()
            if time.monotonic() > until:
                raise TestbedError(f"{len(self._watch)} of {count} watch pods were bound")
            bodies = await self._bound(names.WATCH_SET)
            new = [body for body in bodies if body["spec"]["nodeName"] not in self._watch]
            await in_flight(new, self._start, at_a_time=AT_A_TIME)
            await asyncio.sleep(LOOK_SECONDS)

    async def _start(self, body: Object) -> None:
        pod = _WatchPod(body)
        pod.started = stamp()
        await self._write(pod.name, objects.running(pod.started))
        self._watch[body["spec"]["nodeName"]] = pod

    def messages(self, nodes: Iterable[str], result: Result) -> dict[str, str]:
        """What the next end of the container of each node brings, if its machine is this one: made in
        advance, because it takes milliseconds."""
        self._round += 1
        return {
            node: objects.message(result, run=self._watch[node].uid, node=node, round_=self._round)
            for node in nodes
        }

    async def end(self, node: str, message: str) -> None:
        """The container has ended with this message; a moment later it runs again."""
        pod = self._watch[node]
        end = objects.end_of(message, pod=pod.uid, restarts=pod.restarts, started=pod.started, at=stamp())
        await self._write(pod.name, objects.ended(end, restarts=pod.restarts))
        await asyncio.sleep(RESTART_SECONDS)
        pod.restarts, pod.started = pod.restarts + 1, stamp()
        await self._write(pod.name, objects.running(pod.started, restarts=pod.restarts, before=end))

    async def at_rate(self, messages: Mapping[str, str], *, rate: float) -> float:
        """End each node's container with its message, `rate` a second, whether or not the operator keeps up;
        the rate that was reached.  Returns when each of them runs again."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, (node, message) in enumerate(messages.items()):
                await asyncio.sleep(started + number / rate - time.monotonic())
                group.create_task(self.end(node, message))
            seconds = time.monotonic() - started
        return len(messages) / seconds

    def pods_of(self) -> dict[str, str]:
        """From watch pod to node."""
        return {pod.name: node for node, pod in self._watch.items()}

    async def serve_runs(self, machines: Mapping[str, Result]) -> None:
        """Until cancelled: each pod of a single run starts, measures the machine of its node and ends."""
        self._round += 1
        served: set[str] = set()
        while True:
            bodies = await self._bound(OF_SINGLE_RUNS)
            new = [body for body in bodies if body["metadata"]["name"] not in served]
            served |= {body["metadata"]["name"] for body in new}
            await in_flight(
                new, lambda body: self._serve(body, machines[body["spec"]["nodeName"]]), at_a_time=AT_A_TIME
            )
            await asyncio.sleep(LOOK_SECONDS)

    async def _serve(self, body: Object, result: Result) -> None:
        name, node, at = body["metadata"]["name"], body["spec"]["nodeName"], stamp()
        await self._write(name, objects.running(at))
        text = objects.message(result, run=names.run_of_pod(name), node=node, round_=self._round)
        end = objects.end_of(text, pod=name, restarts=0, started=at, at=stamp())
        await self._write(name, objects.ended(end, restarts=0, phase="Succeeded"))

    async def _bound(self, selector: str) -> list[Object]:
        pages = await self._population.pages(pods_path(self._namespace), label_selector=selector)
        bodies = [body for page in pages for body in page.get("items") or ()]
        return [body for body in bodies if body["spec"].get("nodeName")]

    async def _write(self, pod: str, status: Object) -> None:
        async with self._calls:
            await self._population.set_status(pod, namespace=self._namespace, status=status)
