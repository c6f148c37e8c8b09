"""What is removed from a node that no policy selects, or that has no report of its own: labels, taints,
condition, pods, and in the end the report.  One write at a time; `planner` decides whether it happens.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_operator.api.policy import Limits, seconds
from nodegauge_operator.core.actions import (
    DeletePod,
    DeleteReport,
    PatchNode,
    PatchReport,
    SetCondition,
    Step,
)
from nodegauge_operator.core.context import Snapshot, Unselected
from nodegauge_operator.core.desired_state import NOTHING, UNVALIDATED, label_patch, taint_patch
from nodegauge_operator.core.model import NodeView, PodView


def release(snapshot: Snapshot, node: NodeView) -> Step | None:
    """The next write for a node that no policy selects."""
    if snapshot.unselected is Unselected.FREEZE:
        return None
    step = remove_from_node(snapshot, node) or delete_next(snapshot.pods, now=snapshot.now, limits=Limits())
    report, own = snapshot.report, snapshot.own_report
    if step or report is None:
        return step
    if own is not None and taint_patch(node, (), leave=_kept_taints(snapshot)) is not None:
        return None  # the API server refuses to let a taint go: its evidence stays
    if snapshot.unselected is not Unselected.KEEP_REPORT:
        return DeleteReport(report)
    if own is None or not own.status.desired.taints:
        return None
    # the node carries no taint of ours any more: its slot in the budget is free
    return PatchReport(own, replace(own.status, desired=replace(own.status.desired, taints=[])))


def remove_from_node(snapshot: Snapshot, node: NodeView) -> Step | None:
    """The write that removes labels, taints and condition of ours."""
    labels, taints = label_patch(node, {}), taint_patch(node, (), leave=_kept_taints(snapshot))
    if (labels or taints is not None) and PatchNode not in snapshot.declined:
        return PatchNode(node, labels, taints)
    if node.condition is not None and SetCondition not in snapshot.declined:
        return SetCondition(node, None)
    return None


def _kept_taints(snapshot: Snapshot) -> frozenset[str]:
    """Taints that no release removes: `unvalidated`, on a node that was never ours (its kubelet registered
    with it, and the labels that will select it may come later) or that may only have lost a label for a
    moment."""
    keep = snapshot.own_report is None or snapshot.unselected is Unselected.KEEP_REPORT
    return UNVALIDATED if keep else NOTHING


def delete_next(pods: tuple[PodView, ...], *, now: float, limits: Limits) -> Step | None:
    """Delete the first pod that is still there, by force if it should have been gone long ago."""
    for pod in pods:
        if pod.gone:
            continue
        if not pod.deleting_since:
            return DeletePod(pod, 0 if pod.finished else None)
        if now >= pod.deleting_since + seconds(limits.not_gone):
            return DeletePod(pod, 0)
    return None
