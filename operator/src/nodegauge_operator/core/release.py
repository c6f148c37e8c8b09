"""What comes off a node that no policy selects, or that has no report of its own: labels, taints, condition,
pods and in the end the report.

Whether it does is `step`'s decision; here is the order, one write at a time.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_operator.api.policy import Limits, seconds
from nodegauge_operator.api.report import Report
from nodegauge_operator.core import gate
from nodegauge_operator.core.actions import (
    DeletePod,
    DeleteReport,
    PatchNode,
    PatchReport,
    SetCondition,
    Step,
)
from nodegauge_operator.core.context import Situation, Unselected
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.taints import NOTHING, UNVALIDATED, taint_patch


def release(s: Situation, node: NodeView) -> Step | None:
    """No policy selects the node: what we hold comes off, then pods and the report go."""
    if s.unselected is Unselected.FREEZE:
        return None
    taken_off = take_off(s, node) or delete_next(s.pods, now=s.now, limits=Limits())
    report, known = s.report, s.known
    if (
        taken_off
        or report is None
        or (known is not None and taint_patch(node, (), leave=_kept(s)) is not None)
    ):
        return taken_off  # where the API server refuses to let a taint go, its evidence stays
    if s.unselected is Unselected.KEEP_REPORT:
        return _vacate(known) if known is not None else None
    return DeleteReport(report)


def _vacate(report: Report) -> Step | None:
    """The node carries no taint of ours any more: its place in the budget is free."""
    held = report.status.desired
    return (
        PatchReport(report, replace(report.status, desired=replace(held, taints=[]))) if held.taints else None
    )


def take_off(s: Situation, node: NodeView) -> Step | None:
    """Labels, taints and condition of ours come off."""
    labels, taints = gate.label_patch(node, {}), taint_patch(node, (), leave=_kept(s))
    if (labels or taints is not None) and PatchNode not in s.declined:
        return PatchNode(node, labels, taints)
    if node.condition is not None and SetCondition not in s.declined:
        return SetCondition(node, None)
    return None


def _kept(s: Situation) -> frozenset[str]:
    """What no release takes off: `unvalidated` of a node that was never ours (its kubelet registered with it,
    and the labels that will select it may come later), or that may only have lost a label for a moment."""
    return UNVALIDATED if s.known is None or s.unselected is Unselected.KEEP_REPORT else NOTHING


def delete_next(pods: tuple[PodView, ...], *, now: float, limits: Limits) -> Step | None:
    """Delete the first of these that is there, by force where it should have been gone for long."""
    for pod in pods:
        if pod.gone:
            continue
        if not pod.deleting_since:
            return DeletePod(pod, 0 if pod.finished else None)
        if now >= pod.deleting_since + seconds(limits.not_gone):
            return DeletePod(pod, 0)
    return None
