"""Nodes, pods, policies and reports in a line: the operator's types with methods that give a changed copy."""

from collections.abc import Iterable
from typing import Any, Self

import msgspec
from msgspec import structs
from msgspec.structs import replace

from nodegauge_contract import Result, columns
from nodegauge_contract.document import _lines
from nodegauge_operator import names
from nodegauge_operator.api.policy import Labels, Mode, Policy, PolicySpec
from nodegauge_operator.api.report import DesiredNode, Outcome, Report, Run
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import decision
from nodegauge_operator.core.actions import RefreshReading
from nodegauge_operator.core.context import Context, Snapshot, run_id
from nodegauge_operator.core.model import ConditionView, NodeView, PodView, ProbeDefaults, Taint, Terminated
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.registry import EVERY, KINDS
from nodegauge_operator.core.reading_view import PartView, ReadingView

NOW = 1_800_000_000.0
"""An arbitrary whole second, so that a stamp of it reads back as the same number."""
MINUTE = 60.0
INTERVAL = 15 * MINUTE
STALE = 3 * INTERVAL
DEFAULTS = ProbeDefaults(namespace="nodegauge", image="probe:1")
TOKEN = {
    "name": "token",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ],
        "defaultMode": 0o444,
    },
}
"""The only volume of a health pod: bound to it, for an hour, with the authority behind the API server's
certificate."""


def by_pods(spec: dict[str, Any]) -> dict[str, Any]:
    """A policy's spec in mode Periodic, unless it names a mode: each reading is then a pod of its own."""
    probes = spec.get("probes", {})
    return spec | {"probes": probes | {"health": {"mode": "Periodic"} | probes.get("health", {})}}


LOST = RunEnd(outcome=Outcome.UNKNOWN, reason="OOMKilled", message="no result")
BUSY = RunEnd(outcome=Outcome.SKIPPED, reason="NotScheduled", message="the node is full")


def read(result: Result) -> RunEnd:
    return RunEnd(outcome=Outcome.READ, reason="Read", result=result)


def taint(text: str) -> Taint:
    """`key`, `key=value` or `key=value:Effect`, as kubectl writes it; NoSchedule where nothing is said."""
    what, _, effect = text.partition(":")
    key, _, value = what.partition("=")
    return Taint(key=key, value=value, effect=effect or "NoSchedule")


class ANode(NodeView, frozen=True, kw_only=True):
    def labelled(self, **labels: str) -> Self:
        """With labels of somebody else; `__` stands for a slash, `_` for a dash."""
        return self.bearing({k.replace("__", "/").replace("_", "-"): v for k, v in labels.items()})

    def bearing(self, labels: dict[str, str]) -> Self:
        return replace(self, labels=self.labels | labels, managed_labels=self.managed_labels - labels.keys())

    def ours(self, labels: dict[str, str]) -> Self:
        return replace(self, labels=self.labels | labels, managed_labels=self.managed_labels | labels.keys())

    def tainted(self, *keys: str) -> Self:
        return replace(self, taints=self.taints + tuple(taint(key) for key in keys))

    def not_ready(self) -> Self:
        return replace(self, ready=False)

    def offering(self, gpus: int, *, of: int = 0) -> Self:
        return replace(self, gpu_allocatable=str(gpus), gpu_capacity=str(of or gpus))

    def cordoned(self) -> Self:
        return replace(self, unschedulable=True).tainted("node.kubernetes.io/unschedulable")

    def booted(self, boot_id: str) -> Self:
        return replace(self, boot_id=boot_id)

    def patched(self, labels: dict[str, str | None], taints: tuple[Taint, ...] | None = None) -> Self:
        kept = {k: v for k, v in self.labels.items() if k not in labels}
        added = {k: v for k, v in labels.items() if v is not None}
        managed = (self.managed_labels - labels.keys()) | added.keys()
        all_taints = self.taints if taints is None else taints
        return replace(self, labels=kept | added, managed_labels=managed, taints=all_taints)

    def carrying(self, desired: DesiredNode) -> Self:
        """With the labels and the condition that a report wants, and none of its taints."""
        condition = ConditionView(status=desired.condition, reason=desired.reason, message=desired.message)
        return self.patched(dict(desired.labels)).saying(condition if desired.condition else None)

    def saying(self, condition: ConditionView | None) -> Self:
        return replace(self, condition=condition)


class APod(PodView, frozen=True, kw_only=True):
    """A probe pod.  `wrote`: the document that it left in the node's NodeReading, at `wrote_at`."""

    wrote: str = ""
    wrote_at: float = NOW

    def running(self, since: float = NOW) -> Self:
        return replace(self, scheduled=True, phase="Running", started_at=since)

    def pending(self, reason: str = "", message: str = "", *, placed: bool = False) -> Self:
        return replace(self, scheduled=placed, pending_reason=reason, pending_message=message)

    def finished_with(self, message: str, *, code: int = 0, reason: str = "") -> Self:
        why = reason or ("Error" if code else "Completed")
        ended = Terminated(exit_code=code, reason=why, message=message, finished_at=NOW)
        return replace(self, scheduled=True, terminated=ended, phase="Failed" if code else "Succeeded")

    def with_result(self, result: Result) -> Self:
        """Its container ended well, and left this document, addressed to this run."""
        return self.leaving(addressed(result, self))

    def leaving(self, document: str) -> Self:
        return replace(self.finished_with(""), wrote=document)

    def failed(self, reason: str, message: str = "") -> Self:
        return replace(self, phase="Failed", reason=reason, message=message)

    def preempted(self) -> Self:
        return replace(self, disrupted="PreemptionByScheduler")

    def deleting(self, since: float = NOW) -> Self:
        return replace(self, deleting_since=since)

    def vanished(self) -> Self:
        return replace(self, gone=True)


class APolicy(Policy, frozen=True, kw_only=True):
    def spec_with(self, **fields: Any) -> Self:
        return replace(self, spec=replace(self.spec, **fields))

    def of(self, spec: dict[str, Any]) -> Self:
        """With this spec as a user writes it, on top of an empty selector; by pods unless it names a mode."""
        return replace(self, spec=msgspec.convert({"nodeSelector": {}} | by_pods(spec), PolicySpec))

    def observing(self) -> Self:
        return self.spec_with(mode=Mode.OBSERVE)

    def keyed(self, key: str, *, take_over: bool = False) -> Self:
        return self.spec_with(labels=Labels(interconnect_key=key, take_over=take_over))

    def selecting(self, **labels: str) -> Self:
        return self.spec_with(node_selector=Selector(match_labels=labels))

    def ranked(self, priority: int) -> Self:
        return self.spec_with(priority=priority)


class AReport(Report, frozen=True, kw_only=True):
    """A report; `after` lets the operator's own code judge a run, so that no state is made up."""

    def asked(self, at: str) -> Self:
        return replace(self, requested_at=at)

    def after(
        self,
        end: RunEnd,
        *,
        request: str = "",
        probe: str = names.PROBE_HEALTH,
        at: float = NOW,
        **known: Any,
    ) -> Self:
        number = self.status.probe[probe].next_number
        name = f"{number}" if probe == names.PROBE_HEALTH else f"{probe}-{number}"
        run = Run(number=number, pod_name=f"pod-{name}", pod_uid=f"uid-{name}", started_at=stamp(at - 5))
        ended = EndedRun(run=run, end=end, request=request, image=known.get("nccl_image", ""))
        context = self.context(at=at, **known)
        return replace(self, status=decision.decide(context, KINDS[probe], ended))

    def seen(self, **known: Any) -> Self:
        """As it is after a look at the node without a run; `known` as for `context`."""
        return replace(self, status=decision.decide(self.context(**known)))

    def context(
        self,
        *,
        node: NodeView,
        policy: Policy | None = None,
        at: float = NOW,
        slot: bool = True,
        nccl_image: str = "",
        peer_read_at: float = 0.0,
        peer_unreadable_at: float = 0.0,
    ) -> Context:
        """The node with this report; `slot`: the budget of gated nodes has one; `peer_read_at`: when another
        node of the policy was last read; `peer_unreadable_at`: since when one cannot be."""
        known: dict[str, Any] = {"node": node, "policy": policy or make_policy(), "report": self, "now": at}
        known |= {"gate_slot": slot, "defaults": replace(DEFAULTS, nccl_image=nccl_image)}
        peers = {"last_peer_read": lambda: peer_read_at, "last_peer_unreadable": lambda: peer_unreadable_at}
        return make_context(**known, **peers)


def make_snapshot(**known: Any) -> Snapshot:
    """A node of the default policy, not measured yet, with a slot and what its pods wrote; or `known`."""
    start: dict[str, Any] = {
        "node": make_node(),
        "policy": make_policy(),
        "report": None,
        "now": NOW,
        "granted": frozenset({names.PROBE_HEALTH}),
        "defaults": DEFAULTS,
        "reading": reading_of(known.get("pods", ())),
        "fresh": frozenset({RefreshReading}),
    }
    return Snapshot(kinds=EVERY, **start | known)


def reading_of(pods: Iterable[PodView]) -> ReadingView | None:
    """The NodeReading with what these pods wrote; None if they wrote nothing."""
    parts = {
        pod.probe: PartView(
            sequence=1,
            at=pod.wrote_at,
            reason="run",
            pod_uid=pod.uid,
            node_uid=pod.node_uid,
            boot_id="boot-1",
            text=pod.wrote,
        )
        for pod in pods
        if isinstance(pod, APod) and pod.wrote
    }
    return ReadingView(name="node-1", uid="reading", resource_version="10", parts=parts) if parts else None


def make_context(**known: Any) -> Context:
    context = make_snapshot(**known).context
    assert context is not None
    return context


def make_node(name: str = "node-1", *, uid: str = "", version: int = 10) -> ANode:
    return ANode(
        name=name, uid=uid or f"{name}-uid", resource_version=str(version), labels={}, boot_id="boot-1"
    )


def make_pod(
    node: NodeView | None = None,
    *,
    number: int = 1,
    version: int = 10,
    uid: str = "",
    probe: str = names.PROBE_HEALTH,
) -> APod:
    node = node or make_node()
    report = make_report(node).uid
    run = run_id(report_uid=report, probe=probe, number=number)
    name = names.pod_name(probe=probe, run=run)
    return APod(
        name=name,
        uid=uid or f"{name}-uid",
        resource_version=str(version),
        probe=probe,
        node=node.name,
        node_uid=node.uid,
        owner_uid=report,
        number=number,
        phase="Pending",
        created_at=NOW,
        scheduled=False,
    )


def make_policy(name: str = "default") -> APolicy:
    spec = msgspec.convert(by_pods({"nodeSelector": {}}), PolicySpec)
    return APolicy(name=name, uid=f"{name}-uid", generation=1, spec=spec)


def make_report(node: NodeView | None = None, *, version: int = 10) -> AReport:
    node = node or make_node()
    return AReport(name=node.name, uid=f"{node.uid}-report", resource_version=str(version), node_uid=node.uid)


def document(result: Result, pod: PodView) -> Result:
    return replace(result, run=names.run_of_pod(pod.name), node=pod.node, probe=pod.probe)


_written: dict[tuple[str, int], tuple[Any, list[str]]] = {}
"""By name and identity: what results share, such as the GPUs of a machine, is written once."""


def addressed(result: Result, pod: PodView) -> str:
    """What a probe writes, as `nodegauge_contract.text` does."""
    result, lines = document(result, pod), []
    for name, value in zip(result.__struct_encode_fields__, structs.astuple(result), strict=True):
        if (name, id(value)) not in _written:
            _written[name, id(value)] = value, _lines(columns.fold({name: msgspec.to_builtins(value)}))
        lines += _written[name, id(value)][1]
    return "{" + ",\n".join(lines) + "}\n"


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below: list[tuple[Any, ...]] = []
    for key, inner in items:
        below.append((*path, key))
        if isinstance(inner, dict | list):
            below += paths_of(inner, (*path, key))
    return below
