"""The kubelets of all nodes, and the probes in their watch containers.  Pods are real ones; each write is a
kubelet's, or has the token of a pod, so the audit log tells them from the operator's."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from fleet.load import objects
from fleet.load.release import NAMESPACED, PODS, READINGS
from nodegauge_contract import Result
from nodegauge_contract.reading import Part
from nodegauge_operator import names
from nodegauge_operator.kube.client import MERGE, STRATEGIC, Client, configuration
from nodegauge_operator.kube.errors import AlreadyExists, NotFound, Unavailable
from nodegauge_probes import delivery
from nodegauge_probes.api_client import MANAGER, METADATA
from nodegauge_probes.identity import Identity
from testbed.controlplane import TOKEN_SECONDS, ControlPlane
from testbed.errors import TestbedError
from testbed.rest import Object
from testbed.scripted import stamp

T = TypeVar("T")

AS_PROBE: Mapping[str, Any] = {"query": {"fieldManager": MANAGER}, "accept": f"{METADATA},application/json"}
LOOK_SECONDS = 0.5
AT_A_TIME = 100
"""Calls in flight: with more, an API server that is slow would let them time out."""
TRIES = 4
QUIET_SECONDS = 300.0
QUIET_WRITES = 20
"""Writes a second below which nobody is at work any more: leases and the like go on for ever."""


async def in_flight(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, at_a_time: int) -> None:
    rest = iter(items)

    async def worker() -> None:
        for item in rest:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(at_a_time)))


class ManyClients(Client):
    """A client that also speaks with the tokens of pods, over the same connections."""

    _token: ContextVar[str] = ContextVar("token", default="")

    @classmethod
    @asynccontextmanager
    async def of(cls, plane: ControlPlane) -> AsyncIterator[Self]:
        environ = {"KUBECONFIG": str(plane.kubelet_kubeconfig)}
        client = cls(await configuration(environ=environ), environ=environ)
        try:
            yield client
        finally:
            await client.close()

    @contextmanager
    def speaking(self, token: str) -> Iterator[None]:
        before = self._token.set(token)
        try:
            yield
        finally:
            self._token.reset(before)

    async def _authorization(self) -> dict[str, str]:
        token = self._token.get()
        return {"Authorization": f"Bearer {token}"} if token else await super()._authorization()


class _WatchPod:
    def __init__(self, body: Object, *, node_uid: str) -> None:
        metadata = body["metadata"]
        self.name, self.uid = str(metadata["name"]), str(metadata["uid"])
        self.account = str(body["spec"].get("serviceAccountName", "default"))
        self.identity = Identity(
            pod=self.name, pod_uid=self.uid, node=str(body["spec"]["nodeName"]), node_uid=node_uid
        )
        self.token, self.sequence = "", 0


class Kubelets:
    def __init__(self, client: ManyClients) -> None:
        self._client = client
        self._uids: dict[str, str] = {}
        self._watch: dict[str, _WatchPod] = {}
        self._round = 0
        self._calls = asyncio.Semaphore(AT_A_TIME)

    async def register(self, wanted: Iterable[str]) -> None:
        async def one(name: str) -> None:
            body = await self._call("POST", "/api/v1/nodes", objects.node_body(name))
            self._uids[name] = body["metadata"]["uid"]

        await in_flight(wanted, one, at_a_time=16)

    async def beat(self, every: Sequence[str], *, interval: float) -> None:
        """Until cancelled: write each node's status once an interval, as kubelets do."""
        began = time.monotonic()
        for beat in range(1_000_000):
            await asyncio.sleep(began + beat * interval / len(every) - time.monotonic())
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp()}
            path = f"/api/v1/nodes/{every[beat % len(every)]}/status"
            await self._call("PATCH", path, {"status": {"conditions": [ready]}})

    async def run_containers(self, *, count: int, within: float, alive: Callable[[], None]) -> None:
        """Start the container of each watch pod as it is bound, until there are so many."""
        until = time.monotonic() + within
        while len(self._watch) < count:
            alive()
            if time.monotonic() > until:
                raise TestbedError(f"{len(self._watch)} of {count} watch pods were bound")
            pages = [page async for page in self._client.pages(PODS, label_selector=names.WATCH_SET)]
            pods = [pod for page in pages for pod in page.get("items") or ()]
            new = [pod for pod in pods if pod["spec"].get("nodeName", "") not in {"", *self._watch}]
            await in_flight(new, self._start, at_a_time=16)
            await asyncio.sleep(LOOK_SECONDS)

    async def _start(self, body: Object) -> None:
        node = body["spec"]["nodeName"]
        pod = _WatchPod(body, node_uid=self._uids[node])
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        spec = {"boundObjectRef": bound, "expirationSeconds": TOKEN_SECONDS}
        path = f"{NAMESPACED}/serviceaccounts/{pod.account}/token"
        pod.token = (await self._call("POST", path, {"spec": spec}))["status"]["token"]
        status = {"status": objects.running(stamp())}
        await self._call("PATCH", f"{PODS}/{pod.name}/status", status)
        self._watch[node] = pod

    def parts(self, nodes: Iterable[str], result: Result) -> dict[str, Part]:
        """What the probe of each node writes next, if its machine is this one: made in advance."""
        self._round += 1
        return {node: self._part(self._watch[node], result) for node in nodes}

    def _part(self, pod: _WatchPod, result: Result) -> Part:
        pod.sequence += 1
        return objects.part(result, identity=pod.identity, sequence=pod.sequence, round_=self._round)

    async def write(self, node: str, part: Part) -> None:
        """As `nodegauge_probes.api_client` does: a merge patch, and a create where there is none yet."""
        body = {names.PROBE_HEALTH: to_builtins(replace(part, at=delivery.stamp(time.time())))}
        async with self._calls:
            with self._client.speaking(self._watch[node].token):
                try:
                    await self._call("PATCH", f"{READINGS}/{node}", body, content_type=MERGE, **AS_PROBE)
                except NotFound:
                    await self._create(node, body)

    async def _create(self, node: str, body: Object) -> None:
        kind = {"apiVersion": names.API_VERSION, "kind": names.READING_KIND, "metadata": {"name": node}}
        try:
            await self._call("POST", READINGS, kind | body, **AS_PROBE)
        except AlreadyExists:  # a first try came through, and its answer did not
            await self._call("PATCH", f"{READINGS}/{node}", body, content_type=MERGE, **AS_PROBE)

    async def write_at(self, parts: Iterable[tuple[float, str, Part]]) -> float:
        """Each so many seconds from now, also if the operator lags; returns when all are written."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for at, node, part in parts:
                await asyncio.sleep(started + at - time.monotonic())
                group.create_task(self.write(node, part))
            return time.monotonic() - started

    async def quiet(self) -> None:
        until, before = time.monotonic() + QUIET_SECONDS, -QUIET_WRITES
        while time.monotonic() < until:
            page = await self._client.call("GET", "/api/v1/nodes", query={"limit": 1})
            now = int(page["metadata"]["resourceVersion"])  # how many writes the whole cluster has seen
            if now - before < QUIET_WRITES:
                return
            before = now
            await asyncio.sleep(1.0)

    async def _call(
        self, method: str, path: str, body: Object, *, content_type: str = STRATEGIC, **how: Any
    ) -> Object:
        """Tried again after a timeout or an overload."""
        if method == "PATCH":
            how["content_type"] = content_type
        for attempt in range(1, TRIES):
            try:
                return await self._client.call(method, path, body=body, **how)
            except Unavailable:
                await asyncio.sleep(0.2 * attempt)
        return await self._client.call(method, path, body=body, **how)
