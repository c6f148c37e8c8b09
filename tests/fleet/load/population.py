"""Fills a cluster with nodes, makes calls as kubelets do, and waits until it is quiet.

Writes as the simulated kubelets, so that the audit log tells them from the operator's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from fleet.load import objects
from nodegauge_operator.core.model import NodeView, node_view
from nodegauge_operator.kube.client import STRATEGIC, Client
from nodegauge_operator.kube.errors import Unavailable
from testbed.scripted import stamp

T = TypeVar("T")
Object = dict[str, Any]

AT_A_TIME = 16
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

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_a_time):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def pods_path(namespace: str, name: str = "") -> str:
    """The collection, or one pod."""
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


class Population:
    """Makes and changes objects.  Calls are tried again when the API server had no time for them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, method: str, path: str, **how: Any) -> Object:
        """One call, tried again after a timeout or an overload.  `KubeError` after the last try."""
        for attempt in range(1, TRIES):
            try:
                return await self._client.call(method, path, **how)
            except Unavailable:
                await asyncio.sleep(0.2 * attempt)
        return await self._client.call(method, path, **how)

    async def nodes(self, wanted: Iterable[str], *, labels: Mapping[str, str]) -> list[NodeView]:
        """Create nodes; as the operator sees them."""
        made: list[NodeView] = []

        async def create(name: str) -> None:
            body = await self.call("POST", "/api/v1/nodes", body=objects.node_body(name, labels=labels))
            made.append(node_view(body))

        await in_flight(wanted, create, at_a_time=AT_A_TIME)
        return sorted(made, key=lambda node: node.name)

    async def pages(self, path: str, *, label_selector: str) -> list[Object]:
        """The pages of a list."""
        return [page async for page in self._client.pages(path, label_selector=label_selector)]

    async def set_status(self, pod: str, *, namespace: str, status: Object) -> None:
        """Write a pod's status as a kubelet does."""
        path = f"{pods_path(namespace, pod)}/status"
        await self.call("PATCH", path, body={"status": status}, content_type=STRATEGIC)

    async def heartbeat(self, node: str) -> None:
        """Write a node's status as a kubelet does to which nothing happens."""
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp()}
        body = {"status": {"conditions": [ready]}}
        await self.call("PATCH", f"/api/v1/nodes/{node}/status", body=body, content_type=STRATEGIC)

    async def quiet(self) -> None:
        """Wait until the controllers have done with what was made, `QUIET_SECONDS` at the longest."""
        until = time.monotonic() + QUIET_SECONDS
        before = await self._revision()
        while time.monotonic() < until:
            await asyncio.sleep(1.0)
            now = await self._revision()
            if now - before < QUIET_WRITES:
                return
            before = now

    async def _revision(self) -> int:
        """How many writes the whole cluster has seen."""
        page = await self.call("GET", "/api/v1/nodes", query={"limit": 1})
        return int(page["metadata"]["resourceVersion"])
