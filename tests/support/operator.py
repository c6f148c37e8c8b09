"""One operator process without its loop: events arrive at `deliver`, a node is taken at `reconcile`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import kopf
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.handlers import watches
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile import resync
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.reconciler import Reconciled, Reconciler
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings
from support import api_server
from support.client import FakeClient
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import INTERVAL
from support.virtual_time import drive

SETTINGS = Settings(
    probe=ProbeDefaults(namespace=api_server.NAMESPACE, image="probe:1"),
    max_gated_nodes="100%",
    max_gated_nodes_per_hour="100%",
)
"""Tests state the budgets of policies; those of the cluster have tests of their own."""
MEASURING = replace(SETTINGS, probe=replace(SETTINGS.probe, nccl_image="nccl:1"))
"""An installation with an NCCL image."""
NOTHING: frozenset[str] = frozenset()
HEALTH, NCCL = frozenset({names.PROBE_HEALTH}), frozenset({names.PROBE_NCCL})
"""The pools that keep a slot for the node."""
HANDLERS = {
    "node": api_server.NODES,
    "pod": api_server.PODS,
    "policy": api_server.POLICIES,
    "report": api_server.REPORTS,
}
HANDLERS |= {
    "watch-set": api_server.DAEMONSETS,
    "reading": api_server.READINGS,
    "chassis": api_server.CHASSIS,
    "slice": api_server.SLICES,
}


class Watches:
    def __init__(self, sweep: object) -> None:
        registry = kopf.OperatorRegistry()
        watches.register(registry, cast(Sweep, sweep), bmc=True, slices=True)
        handlers = registry._watching.get_all_handlers()
        self._by_path: dict[str, Callable[..., Any]] = {HANDLERS[str(h.id)]: h.fn for h in handlers}

    def give(self, path: str, kind: str | None, body: api_server.Body) -> None:
        """One watch event; kind None is an object of kopf's own list."""
        if path == api_server.PODS and names.POD_PROBE not in (body["metadata"].get("labels") or {}):
            return
        if path in self._by_path:
            answer = self._by_path[path](event={"type": kind, "object": body})
            if inspect.iscoroutine(answer):
                drive(answer)


class SteppedOperator:
    """A process that was just started.  `client` can refuse calls, and kill the process at a write."""

    def __init__(
        self, cluster: FakeCluster, *, selector: str = "", release: str = SETTINGS.probe.instance
    ) -> None:
        self.cluster = cluster
        probe = replace(SETTINGS.probe, instance=release, bmc_interval=300.0)
        self._settings = replace(SETTINGS, probe=probe, node_label_selector=selector)
        self._selector = selector
        self._start()

    def _start(self) -> None:
        self.client = FakeClient(self.cluster)
        self.cache = Cache()
        self.woken: list[str] = []
        self.policies_changed: list[bool] = []
        """Of each watch event of a policy since the start: whether it changed which are in force."""
        self.inbox: list[tuple[str, str, api_server.Body]] = []
        self.metrics = Metrics()
        self.reconciler = Reconciler(
            client=self.client,
            cache=self.cache,
            metrics=self.metrics,
            settings=self._settings,
            clock=self.cluster.clock,
            monotonic=lambda: self.cluster.clock() - self.cluster.clock_error,
        )
        self._watches = Watches(
            SimpleNamespace(
                cache=self.cache,
                wake=lambda *names: self.woken.extend(names),
                pod_seen=lambda pod: self.woken.append(pod.node),
                watch_pod_seen=self._watch_pod_seen,
                watch_set_seen=self.reconciler.watch_sets.seen,
                reading_seen=self.woken.append,
                now=self.cluster.clock,
                listed_by_watch=lambda uid: None,
                policies_seen=lambda changed: self.policies_changed.append(changed),
            )
        )
        self.cluster.subscribers.append(self._receive)

    def _watch_pod_seen(self, pod: WatchView) -> None:
        if self.reconciler.watchers.put_pod(pod):
            self.woken.append(pod.node)

    def keep_watch_sets(self) -> None:
        drive(self.reconciler.watch_sets.keep(on_change=lambda: None))

    def _receive(self, path: str, kind: str, body: api_server.Body) -> None:
        self.inbox.append((path, kind, body))

    def die(self) -> None:
        self.cluster.subscribers.remove(self._receive)

    def restart(self) -> None:
        self.die()
        self._start()
        self.list()

    def list(self) -> None:
        drive(self.reconciler.trust.look(on_change=lambda: None))
        known = {
            "bmc": bool(self.cluster.objects[api_server.CHASSIS]),
            "watch_pods": self.reconciler.watch_sets.pods,
        }
        where = {"namespace": api_server.NAMESPACE, "node_selector": self._selector}
        drive(resync.list_all(self.client, self.cache, **where, **known))

    def deliver(self, count: int | None = None) -> None:
        now, self.inbox = self.inbox[:count], self.inbox[count:] if count is not None else []
        for event in now:
            self._watches.give(*event)

    def reconcile(self, name: str = "node-1", *, granted: bool = True, nccl: bool = False) -> Reconciled:
        kinds = (HEALTH if granted else NOTHING) | (NCCL if nccl else NOTHING)
        return drive(self.reconciler.reconcile(name, granted=kinds, since=0.0))

    def wait(self) -> float:
        """Until a run waits for its slot; the seconds that this took."""
        began = self.cluster.now
        while not (reconciled := self.reconcile(granted=False)).waits:
            self.cluster.pass_time(max(1.0, reconciled.wake_at - self.cluster.now))
        return self.cluster.now - began

    def catch_up(self, name: str = "node-1", *, granted: bool = True) -> Reconciled:
        self.deliver()
        result = self.reconcile(name, granted=granted)
        self.deliver()
        return result

    def run(self, message: str | None = None) -> None:
        self.reconcile()
        (pod,) = self.cluster.pods()
        self.cluster.end(pod, self.cluster.result(pod) if message is None else message)
        self.catch_up()

    def measure(self, answers: str = "", *, name: str = "node-1", after: float = INTERVAL) -> None:
        self.cluster.pass_time(after)
        self.cluster.results[name] = saying(answers)
        self.catch_up(name)
        self.cluster.kubelets()
        self.catch_up(name, granted=False)

    def look(self, *, granted: bool = True) -> None:
        self.deliver()
        for name in sorted(self.cluster.objects[api_server.NODES]):
            self.reconcile(name, granted=granted)
        self.deliver()

    def run_all(self, *, after: float = 0.0) -> None:
        self.cluster.pass_time(after)
        self.look()
        self.cluster.kubelets()
        self.look(granted=False)

    def write_over(self, path: str, name: str, **part: Any) -> None:
        body = self.cluster.objects[path][name]
        merged = {key: body.get(key, {}) | value for key, value in part.items()}
        self.cluster._store(path, body | merged, "MODIFIED")
        self.deliver()

    def end_run(self) -> None:
        self.cluster.kubelets()
        self.deliver()
        self.reconcile()

    def refuse(self, method: str, path: str, error: KubeError) -> None:
        self.client.refuse = lambda verb, asked: error if (verb, asked) == (method, path) else None

    def heal(self) -> None:
        self.client.refuse = lambda verb, path: None

    @property
    def labels(self) -> dict[str, str]:
        return self.cluster.objects[api_server.NODES]["node-1"]["metadata"]["labels"]

    @property
    def status(self) -> dict[str, Any]:
        return self.cluster.objects[api_server.REPORTS]["node-1"]["status"]

    @property
    def probe(self) -> dict[str, Any]:
        return self.status["probes"][0]

    @property
    def events(self) -> list[tuple[str, str]]:
        return [
            (body["reason"], body["message"]) for body in self.cluster.objects[api_server.EVENTS].values()
        ]

    def runs_counted(self) -> float:
        samples = [sample for metric in self.metrics.runs.collect() for sample in metric.samples]
        return sum(sample.value for sample in samples if sample.name.endswith("_total"))


def one_node(**labels: str) -> SteppedOperator:
    return some_nodes("node-1", labels=labels)


def some_nodes(
    *nodes: str, taints: tuple[str, ...] = (), labels: dict[str, str] | None = None, **spec: Any
) -> SteppedOperator:
    cluster = FakeCluster()
    for name in nodes:
        cluster.add_node(name, taints=taints, **labels or {})
    cluster.add_policy(**spec)
    operator = SteppedOperator(cluster)
    operator.list()
    operator.inbox.clear()
    return operator
