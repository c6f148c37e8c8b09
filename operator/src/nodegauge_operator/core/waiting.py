"""Pods of others that wait for GPUs, where they could go, and which runs of ours end for them (ADR 0058).

With dynamic resource allocation the scheduler preempts nobody for a device (KEP-5690 is open), so a job would
wait for our run to end.  A device that our run holds is the only thing that is given way here: whether the
pod then fits is the scheduler's business, and a doubt counts for the pod.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum, auto
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.report import whole
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core.model import NodeView, PodView, Taint

ALL = 1 << 16
"""GPUs of a claim for all devices of a node: more than any has."""
IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass has (kubernetes, api/resource/v1,
ResourceDeviceClassPrefix)."""
MOST_DEMANDS = 256
"""Different demands that are compared with nodes at a time.  Chosen by this project: all pods of a job have
the same one, and so many take about a millisecond for a node."""
CLOSED = ("NoSchedule", "NoExecute")
NODE_NAME = "metadata.name"
NO_NODE = re.compile(r"0/[0-9]+ nodes are available: (?P<reasons>.+?)(?:[.]?$|[.] )")
"""How the stock scheduler says why no node would do; what it thinks of preemption follows (kubernetes 1.37,
pkg/scheduler/framework, FitError.Error)."""
DEVICES_LACK = "cannot allocate all claims"
"""Of a node where all else was in order: the plugin for devices asks last (kubernetes 1.37, pkg/scheduler,
default_plugins.go and dynamicresources.go)."""
NEVER_OURS = re.compile(
    r"node\(s\)(?!.*anti-affinity)|.*persistentvolumeclaim|.*device class .* does not exist"
    r"|.*CSI driver is not installed",
    re.IGNORECASE,
)
"""Reasons of the stock scheduler's plugins that no pod of ours can be the cause of: taints, labels, volumes,
cordons, ports, classes.  Not among them: a lack of CPU, memory, GPUs or places for pods."""


class Sign(StrEnum):
    """What the scheduler's words say of why a pod waits."""

    DEVICES = auto()
    """On some node, for devices alone."""
    UNCLEAR = auto()
    """Perhaps for what a run of ours holds: the pod has the benefit of the doubt."""
    OTHER = auto()
    """On every node for something else: no run can help it by ending."""


def sign_of(message: str) -> Sign:
    """What the message of the pod's condition `PodScheduled` says; another scheduler's is unclear."""
    match = NO_NODE.match(message)
    reasons = [part.lstrip("0123456789 ") for part in match["reasons"].split(", ")] if match else []
    if DEVICES_LACK in reasons:
        return Sign.DEVICES
    other = bool(reasons) and all(NEVER_OURS.match(reason) for reason in reasons)
    return Sign.OTHER if other else Sign.UNCLEAR


class Expression(NamedTuple):
    """One expression of a node affinity."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """As the scheduler has it; an operator that is not known here holds."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                number, bound = whole(value or ""), whole(self.values[0] if self.values else "")
                if number is None or bound is None:
                    return False
                return number > bound if self.operator == "Gt" else number < bound
        return True


class Tolerated(NamedTuple):
    """One toleration; an empty key with `Exists` is every taint, an empty effect every effect."""

    key: str
    operator: str
    value: str
    effect: str

    def covers(self, taint: Taint) -> bool:
        """As kubernetes, api/core/v1, Toleration.ToleratesTaint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class Placement(NamedTuple):
    """Where a pod may go: equal for all pods of a job.  Each of `terms` is a way to meet its affinity; none:
    it has no affinity."""

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[tuple[Expression, ...], tuple[Expression, ...]], ...] = ()
    tolerations: tuple[Tolerated, ...] = ()

    def admits(self, node: NodeView) -> bool:
        """Whether the node's labels, name, taints and cordon let such a pod in."""
        if node.unschedulable or node.deleting:
            return False
        if any(node.labels.get(key) != value for key, value in self.selector):
            return False
        closed = (taint for taint in node.taints if taint.effect in CLOSED)
        if not all(any(t.covers(taint) for t in self.tolerations) for taint in closed):
            return False
        fields = {NODE_NAME: node.name}
        return not self.terms or any(
            all(e.holds(node.labels) for e in by_label) and all(e.holds(fields) for e in by_field)
            for by_label, by_field in self.terms
        )


class ClaimName(NamedTuple):
    """A claim that a pod waits for: `name` of the claim, and of the template that it was made from, empty for
    none.  Both may be unknown for a moment."""

    namespace: str
    name: str
    template: str = ""

    @property
    def key(self) -> str:
        """Claims of one template ask for the same: a template cannot be changed."""
        kind, name = ("template", self.template) if self.template else ("claim", self.name)
        return f"{kind}/{self.namespace}/{name}"


class WaitingPod(Struct, frozen=True, kw_only=True):
    """A pod that the scheduler found no node for, and that asks for GPUs or for claims."""

    uid: str
    """Its UID."""
    name: str
    """NAMESPACE/NAME."""
    gpus: int
    """GPUs that it asks for as an extended resource."""
    placement: Placement
    """Where it may go."""
    claims: tuple[ClaimName, ...] = ()
    """Claims that it refers to, of GPUs or of anything else."""
    priority: int = 0
    """The scheduler serves the highest first."""
    since: float = 0.0
    """Since when it waits, epoch seconds."""
    nominated: str = ""
    """The node where the scheduler makes room for it; empty for none."""
    sign: Sign = Sign.UNCLEAR
    """What the scheduler says of why."""


class Demand(NamedTuple):
    """What a pod waits for.  `by_claim`: only as devices.  Equal for all pods of a job."""

    gpus: int
    by_claim: bool
    placement: Placement

    def fits(self, node: NodeView) -> bool:
        """Whether the node could serve it if nobody held its GPUs; a node of which nobody has said how many
        it has counts as one that could."""
        if self.by_claim and node.gpu_capacity and not node.devices:
            return False  # a device plugin hands out its GPUs
        offered = _offered(node)
        return (self.gpus >= ALL or self.gpus <= offered) and self.placement.admits(node)


class HoldingRun(Struct, frozen=True, kw_only=True):
    """A run of ours that holds GPUs, or is about to."""

    node: NodeView
    """Where."""
    pod: PodView
    """Its pod."""
    ending: bool = False
    """It was decided that it ends."""
    late: bool = False
    """Its pod should have been gone long ago: nobody knows when it leaves its GPUs."""

    @property
    def ends(self) -> bool:
        """It is on its way out: its GPUs come free."""
        pod = self.pod
        return self.ending or bool(pod.deleting_since) or pod.finished or pod.terminated is not None


def waiting_pod(body: Mapping[str, Any], *, gpu_names: Collection[str]) -> WaitingPod | None:
    """The view of a v1.Pod that waits; None for one that does not, that wants neither GPUs nor claims, or
    that is ours.  `gpu_names`: extended resources and device classes that stand for GPUs."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = (c for c in status.get("conditions") or () if c.get("type") == "PodScheduled")
    placed: Mapping[str, Any] = next(conditions, {})
    waits = placed.get("status") == "False" and placed.get("reason") == "Unschedulable"
    ours = names.POD_PROBE in (metadata.get("labels") or {})
    if not waits or ours or metadata.get("deletionTimestamp"):
        return None
    namespace = metadata.get("namespace", "")
    gpus, claims = _extended(spec, gpu_names), _claims(spec, status, namespace)
    if not gpus and not claims:
        return None
    return WaitingPod(
        uid=metadata["uid"],
        name=f"{namespace}/{metadata['name']}",
        gpus=gpus,
        placement=_shared(_placement(spec)),
        claims=claims,
        priority=spec.get("priority") or 0,
        since=unstamp(placed.get("lastTransitionTime") or ""),
        nominated=status.get("nominatedNodeName") or "",
        sign=sign_of(placed.get("message") or ""),
    )


def claimed_gpus(body: Mapping[str, Any], *, gpu_names: Collection[str]) -> int:
    """GPUs that a v1.ResourceClaim waits for; 0 for a claim of something else, one that has its devices, and
    requests with admin access, which wait for nobody."""
    if (body.get("status") or {}).get("allocation"):
        return 0
    asked = 0
    for request in ((body.get("spec") or {}).get("devices") or {}).get("requests") or ():
        ways = [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ()
        asked += min((_devices(way) for way in ways if way.get("deviceClassName") in gpu_names), default=0)
    return asked


def demand(pod: WaitingPod, known: Mapping[str, int]) -> Demand | None:
    """What the pod waits for; None for no GPUs, or if something else keeps it from every node.  `known`: GPUs
    by `ClaimName.key`; of a claim that was not read the most modest request is assumed."""
    if pod.sign is Sign.OTHER:
        return None
    by_claim = sum(known.get(claim.key, 1) for claim in pod.claims)
    gpus = pod.gpus + by_claim
    return Demand(min(gpus, ALL), not pod.gpus, pod.placement) if gpus else None


def runs_to_end(
    waiting: Iterable[tuple[WaitingPod, Demand]], runs: Iterable[HoldingRun], *, served: Mapping[str, str]
) -> dict[str, WaitingPod]:
    """UIDs of our pods that end now, each with the pod that it ends for.

    As few as can be: what a run leaves, or is about to leave, serves as many pods as fit.  `served`: pods for
    which one ended a moment ago, by UID, and on which node; nobody else is thought to take what it leaves.
    The youngest first: it has measured the least.  A pod of ours that is not bound yet holds nothing and ends
    for whoever could go there, or it would be next.
    """
    runs = sorted(runs, key=lambda run: -run.pod.created_at)
    holding = [run for run in runs if run.pod.scheduled and not run.ends]
    unbound = [run for run in runs if not run.pod.scheduled and not run.ends]
    leaving = [run.node for run in runs if run.pod.scheduled and run.ends and not run.late]
    leaves = {node.name: (node, _offered(node)) for node in leaving}
    ordered = sorted(waiting, key=lambda pair: (pair[0].uid not in served, -pair[0].priority, pair[0].since))
    ends: dict[str, WaitingPod] = {}
    seen: set[Demand] = set()
    fruitless: set[tuple[Demand, str]] = set()
    for pod, wanted in ordered:
        if len(seen) >= MOST_DEMANDS or not (holding or unbound):
            break
        if wanted not in seen:
            seen.add(wanted)
            ends |= {run.pod.uid: pod for run in unbound if wanted.fits(run.node)}
            unbound = [run for run in unbound if run.pod.uid not in ends]
        if pod.uid in served:
            _takes(wanted, leaves, nominated=served[pod.uid])
            continue
        key = (wanted, pod.nominated)
        if key in fruitless or _takes(wanted, leaves, nominated=pod.nominated):
            continue
        chosen = next((run for run in holding if _serves(run.node, wanted, nominated=pod.nominated)), None)
        if chosen is None:
            fruitless.add(key)
            continue
        holding.remove(chosen)
        ends[chosen.pod.uid] = pod
        leaves[chosen.node.name] = (chosen.node, _offered(chosen.node))
        _takes(wanted, leaves, nominated=chosen.node.name)
    return ends


def _takes(wanted: Demand, leaves: dict[str, tuple[NodeView, int]], *, nominated: str) -> bool:
    """Whether GPUs that come free serve it; they are taken then."""
    for name, (node, free) in leaves.items():
        asked = min(wanted.gpus, _offered(node))
        if asked <= free and _serves(node, wanted, nominated=nominated):
            leaves[name] = (node, free - asked)
            return True
    return False


def _serves(node: NodeView, wanted: Demand, *, nominated: str) -> bool:
    return nominated in ("", node.name) and wanted.fits(node)


def _offered(node: NodeView) -> int:
    """GPUs that pods can get there, MIG devices counted singly; `ALL` where nobody has said how many."""
    return len(node.devices) or whole(node.gpu_allocatable) or ALL


def _devices(request: Mapping[str, Any]) -> int:
    """Devices of one request, as the API defaults them: exactly one."""
    if request.get("adminAccess"):
        return 0
    return ALL if request.get("allocationMode") == "All" else int(request.get("count") or 1)


def _extended(spec: Mapping[str, Any], gpu_names: Collection[str]) -> int:
    """GPUs that the pod asks for as an extended resource: its containers together, or its greediest init
    container."""
    together = sum(_limit(c, gpu_names) for c in spec.get("containers") or ())
    return max(together, *(_limit(c, gpu_names) for c in spec.get("initContainers") or ()), 0)


def _limit(container: Mapping[str, Any], gpu_names: Collection[str]) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return sum(whole(str(n)) or 0 for key, n in limits.items() if key.removeprefix(IMPLICIT) in gpu_names)


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any], namespace: str) -> tuple[ClaimName, ...]:
    made = {
        s.get("name"): s.get("resourceClaimName") or "" for s in status.get("resourceClaimStatuses") or ()
    }
    return tuple(
        ClaimName(
            namespace,
            claim.get("resourceClaimName") or made.get(claim.get("name"), ""),
            claim.get("resourceClaimTemplateName") or "",
        )
        for claim in spec.get("resourceClaims") or ()
    )


def _placement(spec: Mapping[str, Any]) -> Placement:
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return Placement(
        tuple(sorted((spec.get("nodeSelector") or {}).items())),
        tuple(
            (_expressions(term.get("matchExpressions")), _expressions(term.get("matchFields")))
            for term in affinity.get("nodeSelectorTerms") or ()
        ),
        tuple(
            Tolerated(
                t.get("key") or "", t.get("operator") or "Equal", t.get("value") or "", t.get("effect") or ""
            )
            for t in chain(spec.get("tolerations") or ())
        ),
    )


def _expressions(expressions: Iterable[Mapping[str, Any]] | None) -> tuple[Expression, ...]:
    return tuple(Expression(e["key"], e["operator"], tuple(e.get("values") or ())) for e in expressions or ())


@lru_cache(maxsize=1 << 10)
def _shared(placement: Placement) -> Placement:
    """The same placement as one object: thousands of pods of a job go to the same places."""
    return placement
