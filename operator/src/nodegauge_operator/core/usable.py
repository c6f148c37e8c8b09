"""How many of a node's GPUs can be used, and to which cause the others are lost: the one number of a fleet.

A GPU counts once, for the worst cause.  It can be used if the node was read lately and passed before, no
fault of it is confirmed, and Kubernetes and people let pods go there.  Where nothing was seen, nothing can be
used.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import BEST_FIRST, GateStatus, ReportStatus, whole
from nodegauge_operator.core import device_gates
from nodegauge_operator.core.context import HEALTH
from nodegauge_operator.core.gates import FIRST_IN_LINE, GATES
from nodegauge_operator.core.gpu_eligibility import COUNT, PRODUCT, divided_by_labels
from nodegauge_operator.core.model import NodeView

UNKNOWN = "unknown"
"""The class of GPUs whose model or number nobody knows."""
_DIVIDED = re.compile(r"-(?:SHARED|MIG-.*)$")
"""What GPU feature discovery adds to a product's name (NVIDIA/k8s-device-plugin, internal/lm/resource.go)."""


class Lost(StrEnum):
    """What GPUs are lost to beside the causes of taints, the worst first."""

    MISSING = "missing"
    """The GPU is gone: the node had it, or should have it, and the driver no longer lists it."""
    AWAY = "away"
    """The node is not Ready, runs no probes, is being removed, or its driver or MIG layout is changed."""
    PAUSED = "paused"
    """Nobody looks: its policy is paused, or a person has the node left alone."""
    UNREAD = "unread"
    """Never read, its driver does not answer, or the last reading is stale."""
    UNVALIDATED = "unvalidated"
    """No run has passed yet, or the taint of that name stands."""
    CORDONED = "cordoned"
    """A person or program cordoned the node, and nodegauge knows of nothing else."""


class Usable(Struct, frozen=True, kw_only=True):
    """The GPUs of one node: `gpus` is always `usable` and all of `lost` together."""

    klass: str = UNKNOWN
    """Their number and model, as `8 x NVIDIA-H100-80GB-HBM3`; `unknown` if either is."""
    gpus: int = 0
    """GPUs that the node has or should have, also those that are gone."""
    usable: int = 0
    """Those that can be used."""
    lost: dict[str, int] = {}
    """By cause (of a taint, or `Lost`) those that cannot; none with 0."""
    counted: bool = True
    """False: nobody knows how many there are, and `gpus` is 0."""


def usable(status: ReportStatus, node: NodeView, policy: Policy | None) -> Usable:
    """What can be used of a node now; `status`: an empty one without a report, `policy`: None for none."""
    read = bool(status.probe[HEALTH].read_at)
    gpus = _gpus(status, node, policy)
    worst = worst_fault(status)
    alone = device_gates.lost_gpus(status) if worst is None and read else {}
    known = {gpu.uuid for gpu in status.gpus.items}
    gone = sum(uuid not in known for uuid in alone)
    missing = 0 if worst is not None or not read else max(0, gpus - _read(status) - gone)
    rest = GATES[worst.code].cause.value if worst is not None else _unavailable(status, node, policy)
    lost: Counter[str] = Counter(alone.values())
    lost[Lost.MISSING.value] += missing
    lost[rest] += max(0, gpus - lost.total())
    return Usable(
        klass=_class(status, node, gpus),
        gpus=gpus,
        usable=lost.pop("", 0),
        lost={cause: number for cause, number in lost.items() if number},
        counted=read or gpus > 0,
    )


def worst_fault(status: ReportStatus) -> GateStatus | None:
    """The worst confirmed fault of the node, whether or not its taint stands; None for none.  One that was
    lifted on trial is none, and so is one of single GPUs that leaves the node the others."""
    of_node = (gate for gate in status.gates if not gate.on_devices)
    entered = [gate for gate in of_node if gate.state.entered and gate.code in GATES]
    return min(entered, key=lambda gate: FIRST_IN_LINE[GATES[gate.code].cause], default=None)


def _unavailable(status: ReportStatus, node: NodeView, policy: Policy | None) -> str:
    """Why a node without a confirmed fault gives no GPU; empty if it does."""
    left_alone = status.override is not None and status.override.leaves_alone
    unreadable = status.probe[HEALTH].unreadable is not None
    unvalidated = any(taint.own == names.TAINT_UNVALIDATED for taint in node.taints)
    reasons = {
        Lost.AWAY: not node.may_run,
        Lost.PAUSED: left_alone or (policy is not None and policy.paused),
        Lost.UNREAD: unreadable or status.raw_verdict not in BEST_FIRST,
        Lost.UNVALIDATED: unvalidated or not status.passed_at,
        Lost.CORDONED: node.unschedulable,
    }
    return next((reason.value for reason, holds in reasons.items() if holds), "")


def _gpus(status: ReportStatus, node: NodeView, policy: Policy | None) -> int:
    """GPUs that the policy expects, else those that the node had or that the cluster counts; 0 if unknown.

    Capacity counts whole GPUs only where no label says that they are shared or divided, and GPU feature
    discovery counts MIG devices as GPUs.
    """
    if policy is not None and policy.spec.expected_gpus:
        return max(policy.spec.expected_gpus, _read(status))
    known = _read(status) + len(status.gpus.missing)
    offered = 0 if divided_by_labels(node) else whole(node.gpus_counted) or 0
    labelled = 0 if "-MIG-" in node.labels.get(PRODUCT, "") else whole(node.labels.get(COUNT, "")) or 0
    return max(known, offered) or labelled


def _read(status: ReportStatus) -> int:
    return max(0, status.gpus.count)


def _class(status: ReportStatus, node: NodeView, gpus: int) -> str:
    """As GPU feature discovery writes names, so that nodes that were read and others have one class."""
    product = status.gpus.product.replace(" ", "-") or _DIVIDED.sub("", node.labels.get(PRODUCT, ""))
    return f"{gpus} x {product}" if gpus and product else UNKNOWN
