"""How everything of ours comes off a node that no policy selects."""

from __future__ import annotations

from nodegauge_operator.api.policy import Limits, seconds
from nodegauge_operator.core import events
from nodegauge_operator.core.actions import (
    DeletePod,
    DeleteReading,
    DeleteReport,
    PatchNode,
    PostEvent,
    SetCondition,
    Step,
)
from nodegauge_operator.core.context import Snapshot, Unselected
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.outlets import NOTHING, UNVALIDATED, allowed, label_patch, taint_patch


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
    if snapshot.reading is not None:
        return DeleteReading(snapshot.reading.name, snapshot.reading.uid)
    change = events.of_release(own, now=snapshot.now) if own is not None else None
    if change is None or (change.run, change.reason) == snapshot.posted or PostEvent in snapshot.declined:
        return DeleteReport(report)
    return PostEvent(node, change)


def remove_from_node(snapshot: Snapshot, node: NodeView) -> Step | None:
    """The write that removes labels, taints and condition of ours."""
    labels, taints = label_patch(node, {}), taint_patch(node, (), leave=_kept_taints(snapshot))
    differs = labels or taints is not None
    if differs and (patch := allowed(snapshot, PatchNode(node, labels, taints))):
        return patch
    if node.condition is not None and SetCondition not in snapshot.declined:
        return SetCondition(node, None)
    return None


def _kept_taints(snapshot: Snapshot) -> frozenset[str]:
    """Taints that no release removes: `unvalidated`, on a node that was never ours (its kubelet registered
    with it, and the labels that will select it may come later)."""
    return UNVALIDATED if snapshot.own_report is None else NOTHING


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
