"""The kubelets of all nodes: they register, beat, and run, end and start again the watch containers.

The pods are real ones, of the operator's DaemonSet and kube-controller-manager, bound by kube-scheduler.
Each write is a kubelet's, so the audit log tells it from the operator's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fleet.load import objects
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.kube.client import STRATEGIC, Client
from nodegauge_operator.kube.errors import Unavailable
from testbed.errors import TestbedError
from testbed.scripted import stamp

T = TypeVar("T")
Object = dict[str, Any]

RESTART_SECONDS = 1.36
"""From a container's end to its next life, without a back-off: a stock kubelet's (tests/e2e)."""
LOOK_SECONDS = 0.5
AT_A_TIME = 100
"""Calls in flight: with more, an API server that is slow would let them time out."""
TRIES = 4
QUIET_SECONDS = 300.0
QUIET_WRITES = 20
"""Writes a second below which nobody is at work any more: leases and the like go on for ever."""


async def in_flight(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, at_a_time: int) -> None:
    """`work` on every item, `at_a_time` of them at once; the first error ends all."""
    rest = iter(items)

    async def worker() -> None:
        for item in rest:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(at_a_time)))


class _WatchPod:
    def __init__(self, body: Object) -> None:
        self.name, self.uid = str(body["metadata"]["name"]), str(body["metadata"]["uid"])
        self.started, self.restarts = stamp(), 0


class Kubelets:
    """All of them; their watch pods are in one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._watch: dict[str, _WatchPod] = {}
        self._round = 0
        self._calls = asyncio.Semaphore(AT_A_TIME)

    async def register(self, wanted: Iterable[str]) -> None:
        """Create the nodes."""
        bodies = map(objects.node_body, wanted)
        await in_flight(bodies, lambda body: self._call("POST", "/api/v1/nodes", body), at_a_time=16)

    async def beat(self, every: Sequence[str], *, interval: float) -> None:
        """Until cancelled: write each node's status once an interval, as kubelets do."""
        began = time.monotonic()
        for beat in range(1_000_000):
            await asyncio.sleep(began + beat * interval / len(every) - time.monotonic())
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp()}
            path = f"/api/v1/nodes/{every[beat % len(every)]}/status"
            await self._call("PATCH", path, {"status": {"conditions": [ready]}})

    async def run_containers(self, *, count: int, within: float, alive: Callable[[], None]) -> None:
        """Start the container of each watch pod as it is bound, until there are so many.

        `TestbedError` if that takes longer than `within` seconds.
        """
        until = time.monotonic() + within
        while len(self._watch) < count:
            alive()
            if time.monotonic() > until:
                raise TestbedError(f"{len(self._watch)} of {count} watch pods were bound")
            pages = [page async for page in self._client.pages(self._path, label_selector=names.WATCH_SET)]
            pods = [pod for page in pages for pod in page.get("items") or ()]
            new = [pod for pod in pods if pod["spec"].get("nodeName", "") not in {"", *self._watch}]
            await in_flight(new, self._start, at_a_time=16)
            await asyncio.sleep(LOOK_SECONDS)

    async def _start(self, body: Object) -> None:
        pod = _WatchPod(body)
        await self._write(pod, objects.running(pod.started))
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
        await self._write(pod, objects.ended(end, restarts=pod.restarts))
        await asyncio.sleep(RESTART_SECONDS)
        pod.restarts, pod.started = pod.restarts + 1, stamp()
        await self._write(pod, objects.running(pod.started, restarts=pod.restarts, before=end))

    async def end_at(self, ends: Iterable[tuple[float, str, str]]) -> float:
        """End the containers of nodes with their messages, each so many seconds from now, whether or not the
        operator keeps up; the seconds until the last one.  Returns when each of them runs again."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for at, node, message in ends:
                await asyncio.sleep(started + at - time.monotonic())
                group.create_task(self.end(node, message))
            return time.monotonic() - started

    def pods_of(self) -> Mapping[str, str]:
        """From watch pod to node."""
        return {pod.name: node for node, pod in self._watch.items()}

    async def quiet(self) -> None:
        """Wait until the controllers have done with what was made, `QUIET_SECONDS` at the longest."""
        until, before = time.monotonic() + QUIET_SECONDS, -QUIET_WRITES
        while time.monotonic() < until:
            page = await self._client.call("GET", "/api/v1/nodes", query={"limit": 1})
            now = int(page["metadata"]["resourceVersion"])  # how many writes the whole cluster has seen
            if now - before < QUIET_WRITES:
                return
            before = now
            await asyncio.sleep(1.0)

    async def _write(self, pod: _WatchPod, status: Object) -> None:
        async with self._calls:
            await self._call("PATCH", f"{self._path}/{pod.name}/status", {"status": status})

    async def _call(self, method: str, path: str, body: Object) -> None:
        """One call, tried again after a timeout or an overload.  `KubeError` after the last try."""
        how: Object = {"content_type": STRATEGIC} if method == "PATCH" else {}
        for attempt in range(1, TRIES + 1):
            try:
                await self._client.call(method, path, body=body, **how)
                return
            except Unavailable:
                if attempt == TRIES:
                    raise
                await asyncio.sleep(0.2 * attempt)
