"""One operator process without its loop: store, handlers and worker on a cluster in memory.

`settle` runs the real worker with the real adapter; `World` adds the scheduler and the kubelets.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import kopf
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NcclResult, Result
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.model import pod_view
from nodegauge_operator.core.probes.pod import ProbeDefaults
from nodegauge_operator.handlers import watches
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile import resync
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.concurrency import Kind
from nodegauge_operator.reconcile.reconciler import Settled, Worker
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings
from support.client import FakeClient
from support.cluster import EVENTS, NAMESPACE, NODES, PODS, POLICIES, REPORTS, Body, Cluster, copied
from support.views import NOW, addressed
from support.virtual import drive

SETTINGS = Settings(probe=ProbeDefaults(namespace=NAMESPACE, image="probe:1"))
MEASURING = replace(SETTINGS, probe=replace(SETTINGS.probe, nccl_image="nccl:1"))
"""An installation that names a nccl image."""
NOTHING: frozenset[Kind] = frozenset()
HEALTH, NCCL = frozenset({Kind.HEALTH}), frozenset({Kind.NCCL})
"""What a place is kept for on a node."""
HANDLERS = {"node": NODES, "pod": PODS, "policy": POLICIES, "report": REPORTS}


class Feed:
    """The real watch handlers around one store, called as kopf calls them."""

    def __init__(self, sweep: object) -> None:
        registry = kopf.OperatorRegistry()
        watches.register(registry, cast(Sweep, sweep))
        found = registry._watching.get_all_handlers()
        self._by_path: dict[str, Callable[..., Any]] = {HANDLERS[str(h.id)]: h.fn for h in found}

    def give(self, path: str, kind: str | None, body: Body) -> None:
        """One watch event; kind None is an object of kopf's own list."""
        if path == PODS and names.POD_PROBE not in (body["metadata"].get("labels") or {}):
            return
        if path in self._by_path:
            answer = self._by_path[path](event={"type": kind, "object": body})
            if inspect.iscoroutine(answer):
                drive(answer)


class Operator:
    """A process that was just started: it has listed, and gets watch events only when told to."""

    def __init__(
        self, cluster: Cluster, *, turn: Callable[[], Awaitable[None]] | None = None, selector: str = ""
    ) -> None:
        self.selector = selector
        self.client = FakeClient(cluster, turn=turn)
        self.cache = Cache()
        self.woken: list[str] = []
        self.inbox: list[tuple[str, str, Body]] = []
        self.metrics = Metrics()
        self.worker = Worker(
            client=self.client,
            cache=self.cache,
            metrics=self.metrics,
            settings=replace(SETTINGS, node_label_selector=selector),
            clock=cluster.clock,
        )
        self._feed = Feed(
            SimpleNamespace(
                cache=self.cache,
                wake=lambda *names: self.woken.extend(names),
                pod_seen=lambda pod: self.woken.append(pod.node),
                listed_by_watch=lambda uid: None,
                policies_seen=lambda changed: None,
            )
        )
        cluster.subscribers.append(self._receive)
        self.cluster = cluster

    def _shown(self, uid: str) -> None:
        """kopf's own lists come at the start only here."""

    def _receive(self, path: str, kind: str, body: Body) -> None:
        self.inbox.append((path, kind, copied(body)))

    def die(self) -> None:
        """No more watch events; its memory goes with it."""
        self.cluster.subscribers.remove(self._receive)

    def list(self) -> None:
        """A full list."""
        drive(resync.list_all(self.client, self.cache, namespace=NAMESPACE, node_selector=self.selector))

    def deliver(self, count: int | None = None) -> None:
        """Handle the oldest `count` watch events, or all."""
        now, self.inbox = self.inbox[:count], self.inbox[count:] if count is not None else []
        for event in now:
            self._feed.give(*event)

    def settle(self, name: str = "node-1", *, granted: bool = True, benchmark: bool = False) -> Settled:
        """Write what has to be written for a node, with places for a health run, a benchmark, or none."""
        kinds = (HEALTH if granted else NOTHING) | (NCCL if benchmark else NOTHING)
        return drive(self.worker.settle(name, granted=kinds, since=0.0))

    def runs_counted(self) -> float:
        """What the metric of finished runs says."""
        return sum(
            sample.value
            for metric in self.metrics.runs.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        )


class World:
    """A cluster with a clock that stands still until told, and kubelets that do as told."""

    def __init__(self) -> None:
        self.now = NOW
        self.cluster = Cluster(lambda: self.now)
        self.machines: dict[str, Result] = {}
        """The document that each node's probe brings home; a bridged pair of TITANs where nothing is said."""
        self.benchmarks: dict[str, Result] = {}
        """The same of each node's benchmark."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def result(self, pod: Body) -> str:
        """The termination message of this pod's probe."""
        view = pod_view(pod)
        assert view is not None
        found = {
            names.PROBE_HEALTH: self.machines.get(view.node, made.titan()),
            names.PROBE_PULL: Result(probe=names.PROBE_PULL, nccl=NcclResult(engine="nccl4py")),
            names.PROBE_NCCL: self.benchmarks.get(view.node, nccl.titan()),
        }
        return addressed(found[view.probe], view)

    def schedule(self, pod: Body) -> None:
        """The scheduler places a pod, and its container starts."""
        self.cluster.pod_status(
            pod["metadata"]["name"],
            {
                "phase": "Running",
                "containerStatuses": [_container({"running": {"startedAt": stamp(self.now)}})],
            },
            node=pod["metadata"]["annotations"][names.POD_NODE],
        )

    def end(self, pod: Body, message: str, *, code: int = 0) -> None:
        """The container of a pod ends with this message."""
        ended = {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}
        self.cluster.pod_status(
            pod["metadata"]["name"],
            {
                "phase": "Failed" if code else "Succeeded",
                "containerStatuses": [_container({"terminated": ended})],
            },
            node=pod["metadata"]["annotations"][names.POD_NODE],
        )

    def kubelets(self) -> bool:
        """Every kubelet and the scheduler do their work; whether there was any."""
        worked = False
        for pod in self.cluster.pods():
            if pod["metadata"].get("deletionTimestamp"):
                self.cluster.remove(PODS, pod["metadata"]["name"])
            elif pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            else:
                self.end(pod, self.result(pod))
            worked = True
        return worked

    def state(self) -> dict[str, Any]:
        """All that counts at the end: labels, condition, report, events, pods; no revisions."""
        objects = self.cluster.objects
        return {
            "nodes": {n: _node_state(b) for n, b in objects[NODES].items()},
            "reports": {n: _report_state(b) for n, b in objects[REPORTS].items()},
            "events": sorted(
                (b["regarding"]["name"], b["reason"], b["note"]) for b in self.cluster_events().values()
            ),
            "pods": sorted(objects[PODS]),
        }

    def cluster_events(self) -> dict[str, Body]:
        """The events that were posted, by name."""
        return self.cluster.objects[EVENTS]


def _container(state: Body) -> Body:
    return {"name": names.PROBE_CONTAINER, "state": state}


def _node_state(body: Body) -> Body:
    conditions = {
        c["type"]: {k: v for k, v in c.items() if k not in ("lastHeartbeatTime", "lastTransitionTime")}
        for c in body["status"]["conditions"]
    }
    taints = (body.get("spec") or {}).get("taints") or []
    return {"labels": body["metadata"]["labels"], "taints": taints, "conditions": conditions}


def _report_state(body: Body) -> Body:
    status = copied(body.get("status", {}))
    for probe in status.get("probes", ()):
        probe["lastRun"].pop("podUID")
    if status.get("change"):
        status["change"].pop("run")
    return status
