"""The operator with its loop, on a cluster in memory and on virtual time.  Pods end by themselves."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube import admission
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile import reconciler as reconciler_module
from nodegauge_operator.reconcile import sweep as sweep_module
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings
from support.api_server import EVENTS, NODES, PODS, POLICIES, READINGS, REPORTS, Body
from support.client import FakeClient, unreachable
from support.cluster import FakeCluster
from support.objects import NOW
from support.operator import MEASURING, SETTINGS, Watches
from support.virtual_time import VirtualLoop, run

Seconds = Callable[[], float]

LATENCY, LAG = 0.004, 0.02
RUN_SECONDS = 5.0


class VirtualProcess:
    client: FakeClient
    sweep: Sweep
    metrics: Metrics
    lag = LAG

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: FakeCluster) -> None:
        self.loop = loop
        self.cluster = cluster
        self.task: asyncio.Task[None] | None = None
        self.watches: Watches | None = None
        self._missed: list[tuple[str, str, Body]] | None = None
        cluster.subscribers.append(self._event)

    def renew(self, client: FakeClient, settings: Settings, *, clock: Seconds, jitter: Seconds) -> None:
        self.client, self.metrics = client, Metrics()
        known: dict[str, Any] = {"settings": settings, "clock": clock, "jitter": jitter}
        self.sweep = Sweep(client=client, cache=Cache(), metrics=self.metrics, **known)
        self.watches, self._missed = Watches(self.sweep), None

    def start(self) -> None:
        self.task = self.loop.create_task(self.sweep.run())

    async def stop(self) -> None:
        self.watches = self._missed = None
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.task = None

    def check(self) -> None:
        if self.task is not None and self.task.done():
            self.task.result()
            raise AssertionError("the operator's loop ended")

    def deafen(self) -> None:
        if self.watches is not None:
            self._missed = []

    def reconnect(self, *, resumed: bool = False) -> None:
        if self.watches is None or self._missed is None:
            return
        missed, self._missed = self._missed, None
        if not resumed:
            self.list_by_watch(self.watches)
        for event in missed if resumed else ():
            self.loop.call_later(self.lag, self._give, self.watches, *event)

    def list_by_watch(self, watches: Watches | None) -> None:
        for path in (POLICIES, NODES, REPORTS, PODS, READINGS):
            for body in list(self.cluster.objects[path].values()):
                self._give(watches, path, None, body)

    def _event(self, path: str, kind: str, body: Body) -> None:
        if self._missed is not None:
            self._missed.append((path, kind, body))
        elif self.watches is not None and path != EVENTS:
            self.loop.call_later(self.lag, self._give, self.watches, path, kind, body)

    def _give(self, watches: Watches | None, path: str, kind: str | None, body: Body) -> None:
        if watches is not None and watches is self.watches:
            watches.give(path, kind, body)


class VirtualTimeOperator(VirtualProcess):
    loop: VirtualLoop

    def __init__(
        self, loop: VirtualLoop, *, settings: Settings = SETTINGS, cluster: FakeCluster | None = None
    ) -> None:
        super().__init__(loop, cluster or FakeCluster(lambda: NOW + loop.time()))
        self.latency = LATENCY
        client = FakeClient(self.cluster, turn=self._wait)
        self.renew(client, settings, clock=self.cluster.clock, jitter=lambda: 0.0)
        self.most_pods = 0
        self.most: Counter[str] = Counter()
        self.begun: list[tuple[str, str]] = []
        self.cluster.subscribers.append(self._count)

    async def _wait(self) -> None:
        await asyncio.sleep(self.latency)

    def _count(self, path: str, kind: str, body: Body) -> None:
        if path == PODS and kind == "ADDED":
            pods = self.cluster.objects[PODS]
            self.most_pods = max(self.most_pods, len(pods))
            self.most |= Counter(pod["metadata"]["labels"][names.POD_PROBE] for pod in pods.values())
            name = body["metadata"]["name"]
            if names.POD_NODE in body["metadata"].get("annotations", {}):
                node = body["metadata"]["annotations"][names.POD_NODE]
                self.begun.append((body["metadata"]["labels"][names.POD_PROBE], node))
                self.loop.call_later(RUN_SECONDS, self._end, name)

    def _end(self, name: str) -> None:
        pod = self.cluster.objects[PODS].get(name)
        if pod and not pod["metadata"].get("deletionTimestamp"):
            self.cluster.end(pod, self.cluster.result(pod))

    def nodes(self, count: int, *, gpus: int = 0) -> None:
        for n in range(count):
            self.cluster.add_node(f"node-{n}")
            offered = {names.GPU_RESOURCE: str(gpus)} if gpus else {}
            self.cluster.change(NODES, f"node-{n}", {"status": {"capacity": offered, "allocatable": offered}})

    async def stop(self) -> None:
        self.cluster.subscribers.remove(self._count)
        await super().stop()

    async def begin(self, nodes: int, *, gpus: int = 0, after: float = 0.0, **spec: Any) -> None:
        self.nodes(nodes, gpus=gpus)
        self.cluster.add_policy(**spec)
        self.start()
        await self.after(after)

    def list_now(self) -> None:
        self.sweep._list_schedule._regular_at = 0.0
        self.sweep.wake("node-0")

    @contextmanager
    def unheard(self) -> Iterator[None]:
        subscribers, self.cluster.subscribers = self.cluster.subscribers, []
        yield
        self.cluster.subscribers = subscribers

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def slow(self, verb: str, path: str, seconds: float) -> None:
        call = self.client.call

        async def slowly(method: str, at: str, **how: Any) -> Body:
            if (method, at) == (verb, path):
                await asyncio.sleep(seconds)
            return await call(method, at, **how)

        self.client.call = slowly  # type: ignore[method-assign,assignment]

    async def after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        assert self.task is not None
        self.check()

    async def until_held(self) -> Body:
        """Wait for a benchmark's pod; it is placed on its node."""
        while not (pods := [pod for pod in self.cluster.pods() if "-nccl-" in pod["metadata"]["name"]]):
            await self.after(0.1)
        [pod] = pods
        await self.after(0.1)
        self.cluster.schedule(pod)
        await self.after(0.1)
        return pod

    def probe(self, node: str = "node-0", name: str = names.PROBE_NCCL) -> Body:
        """One probe's status in a report; empty before its first run."""
        probes = self.cluster.objects[REPORTS][node].get("status", {}).get("probes", ())
        return next((p for p in probes if p["name"] == name), {})

    async def sigterm(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert self.task.cancelled()

    def cut_off(self) -> None:
        self.client.refuse = lambda _verb, _path: unreachable()
        self.deafen()

    def reconnect(self, *, resumed: bool = False) -> None:
        self.client.refuse = lambda _verb, _path: None
        super().reconnect(resumed=resumed)

    def lists(self) -> int:
        return self.client.reads.count(NODES)

    def calls(self) -> int:
        """Calls, without the four a minute that look at the admission policy of NodeReadings."""
        reads = self.client.reads
        return self.client.calls - reads.count(admission.POLICY) - reads.count(admission.BINDING)

    def read(self) -> list[str]:
        return sorted(
            name
            for name, body in self.cluster.objects[NODES].items()
            if names.LABEL_HEALTH in body["metadata"]["labels"]
        )


def play(story: Callable[[VirtualTimeOperator], Awaitable[None]], **options: Any) -> VirtualTimeOperator:
    async def main() -> VirtualTimeOperator:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = SimpleNamespace(monotonic=loop.time, time=lambda: NOW + loop.time())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_module, "time", clock)
            patch.setattr(reconciler_module, "time", clock)
            operator = VirtualTimeOperator(loop, **options)
            await story(operator)
            if operator.task is not None and not operator.task.done():
                operator.task.cancel()
                await asyncio.gather(operator.task, return_exceptions=True)
            return operator

    return run(main())


def on_virtual_time(test: Callable[..., Awaitable[None]], **options: Any) -> Callable[..., None]:
    """Make a test of a coroutine whose first parameter is a new operator; pytest fills the others."""

    def run_test(**arguments: Any) -> None:
        play(lambda operator: test(operator, **arguments), **options)

    run_test.__name__, run_test.__doc__ = test.__name__, test.__doc__
    run_test.__module__ = test.__module__
    signature = inspect.signature(test)
    others = list(signature.parameters.values())[1:]
    run_test.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return run_test


def with_nccl(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    return on_virtual_time(test, settings=MEASURING)


def refusing(error: KubeError | None, verb: str, path: str) -> Callable[[str, str], KubeError | None]:
    return lambda v, p: error if v == verb and p.startswith(path) else None
