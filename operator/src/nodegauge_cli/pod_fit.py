"""Which nodes a pod may go to, as far as taints, labels and the number of GPUs say; what is in its way.

The rules are the scheduler's: TaintToleration, NodeAffinity, NodeUnschedulable, and the extended resource
`nvidia.com/gpu` (kubernetes.io/docs/concepts/scheduling-eviction).  Free GPUs, ResourceClaims and all other
resources are not looked at.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from nodegauge_cli.fleet import holds
from nodegauge_operator import names
from nodegauge_operator.api.report import whole
from nodegauge_operator.core.model import Taint

Object = Mapping[str, Any]
BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep a pod away; PreferNoSchedule does not."""
NAME = "metadata.name"
"""The only field that a node affinity may match."""
SIGNS = {"In": "in", "NotIn": "notin", "Gt": ">", "Lt": "<"}


class Kind(StrEnum):
    """What is in a pod's way."""

    TAINT = "taint"
    LABEL = "label"
    CORDON = "cordoned"
    GPUS = "gpus"


class Barrier(Struct, frozen=True, kw_only=True):
    """One thing that keeps a pod from a node."""

    kind: Kind
    text: str
    """As kubectl writes it, our prefix included."""
    key: str = ""
    """Of the taint or label."""
    ours: bool = False
    """Whether nodegauge writes it."""


class Wish(Struct, frozen=True, kw_only=True):
    """What a pod asks of a node."""

    tolerations: list[dict[str, Any]]
    terms: list[list[dict[str, Any]]]
    """Match expressions: all of one term must hold."""
    gpus: int
    """Whole GPUs (`nvidia.com/gpu`)."""
    claims: list[str]
    """Names of its claims of devices, as the pod has them; what they ask for is not read."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A node as far as it was read."""

    name: str
    labels: dict[str, str]
    taints: Sequence[Taint]
    whole: bool
    """False: only what nodegauge writes is known of it."""
    unschedulable: bool = False
    gpus: int | None = None
    """Allocatable GPUs; None if unknown."""


def wish_of(pod: Object) -> Wish:
    """What the pod's spec asks for."""
    spec = pod.get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    always = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in (spec.get("nodeSelector") or {}).items()
    ]
    terms = [
        [*always, *(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        for term in required or [{}]
    ]
    return Wish(
        tolerations=list(spec.get("tolerations") or ()),
        terms=terms,
        gpus=_gpus(spec),
        claims=[claim.get("name", "") for claim in spec.get("resourceClaims") or ()],
    )


def _gpus(spec: Object) -> int:
    """The containers' together, or an init container's if that asks for more."""
    asked = [
        [_asked(container) for container in spec.get(kind) or ()] for kind in ("containers", "initContainers")
    ]
    return max(sum(asked[0]), *asked[1], 0)


def _asked(container: Object) -> int:
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return whole(str(asked.get(names.GPU_RESOURCE, ""))) or 0


def barriers(wish: Wish, node: Candidate, *, short_keys: Collection[str]) -> list[Barrier]:
    """Everything that keeps the pod from the node; of several terms the one that lacks least.

    `short_keys`: label keys that nodegauge writes beside those with its prefix.
    """
    barriers_of_node = [
        Barrier(kind=Kind.TAINT, text=_taint(taint), key=taint.key, ours=bool(taint.own))
        for taint in node.taints
        if taint.effect in BLOCKING and taint.key != names.TAINT_OF_CORDON
        if not any(_tolerates(known, taint) for known in wish.tolerations)
    ]
    by_term = [list(_lacks(term, node, short_keys)) for term in wish.terms]
    fewest: list[Barrier] = min(by_term, key=len, default=[])
    barriers_of_node += fewest
    unschedulable = Taint(key=names.TAINT_OF_CORDON, effect="NoSchedule")
    if node.unschedulable and not any(_tolerates(known, unschedulable) for known in wish.tolerations):
        barriers_of_node.append(Barrier(kind=Kind.CORDON, text="cordoned"))
    if node.gpus is not None and node.gpus < wish.gpus:
        barriers_of_node.append(Barrier(kind=Kind.GPUS, text=f"fewer than {wish.gpus} allocatable GPUs"))
    return barriers_of_node


def _lacks(
    term: Sequence[Mapping[str, Any]], node: Candidate, short_keys: Collection[str]
) -> Iterator[Barrier]:
    labels = {NAME: node.name, **node.labels}
    for part in term:
        key = str(part["key"])
        ours = key.startswith(names.PREFIX) or key in short_keys
        if (ours or node.whole or key == NAME) and not holds(labels, part):
            yield Barrier(kind=Kind.LABEL, text=in_words(part), key=key, ours=ours)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    """As v1.Toleration.ToleratesTaint (kubernetes, component-helpers/scheduling/corev1)."""
    effect, key = toleration.get("effect") or "", toleration.get("key") or ""
    if (effect and effect != taint.effect) or (key and key != taint.key):
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == taint.value


def _taint(taint: Taint) -> str:
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def in_words(part: Mapping[str, Any]) -> str:
    """A match expression as kubectl takes it: `key=value`, `key notin (a,b)`, `!key`."""
    key, values = part["key"], [str(value) for value in part.get("values") or ()]
    match part["operator"]:
        case "Exists":
            return str(key)
        case "DoesNotExist":
            return f"!{key}"
        case "In" if len(values) == 1:
            return f"{key}={values[0]}"
        case "Gt" | "Lt" as operator:
            return f"{key}{SIGNS[operator]}{','.join(values)}"
        case operator:
            return f"{key} {SIGNS.get(operator, operator)} ({','.join(values)})"
