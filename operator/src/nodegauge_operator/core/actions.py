"""The single writes that a node can need, each a value: `planner` chooses one, `reconcile` makes it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec import Struct

from nodegauge_operator.api.history import Change
from nodegauge_operator.api.report import Report, ReportStatus
from nodegauge_operator.core.model import ConditionView, NodeView, PodView, Taint


class CreateReport(Struct, frozen=True):
    """Make the node's report, owned by the node."""

    node: NodeView


class DeleteReport(Struct, frozen=True):
    """Remove a report of an earlier node of this name, or one that no policy wants."""

    report: Report


class PatchReport(Struct, frozen=True):
    """Write the report's status, with its resourceVersion."""

    report: Report
    status: ReportStatus


class Judged(Struct, frozen=True):
    """A run that was judged and is not in the report yet: what tells the run, the report's version by which
    it was judged, and the status that follows."""

    run: str
    version: str
    status: ReportStatus


class PatchNode(Struct, frozen=True):
    """Write labels and taints of ours in one patch, with the node's resourceVersion.

    `labels`: merge patch; `taints`: the whole new list, foreign taints included, in their order; None leaves
    the taints alone.  `judged`: the run that it follows, if the report does not hold that yet.  `piece`: the
    key of the one label that it holds, or `taints`, after a refusal of the whole.
    """

    node: NodeView
    labels: dict[str, str | None]
    taints: tuple[Taint, ...] | None = None
    judged: Judged | None = None
    piece: str = ""


class SetCondition(Struct, frozen=True):
    """Write our condition; None removes it."""

    node: NodeView
    condition: ConditionView | None


class PostEvent(Struct, frozen=True):
    """Post the event of a change, under a name that makes repeating harmless."""

    node: NodeView
    change: Change


class CreatePod(Struct, frozen=True):
    """Start a run of a probe."""

    node: NodeView
    number: int
    manifest: dict[str, Any]
    probe: str


class DeletePod(Struct, frozen=True):
    """Remove a pod, with its UID as precondition; `grace` seconds, None for the pod's own."""

    pod: PodView
    grace: int | None


class RefreshReport(Struct, frozen=True):
    """Read the report again: a pod has a later run number than the report we know."""

    name: str


class RefreshReading(Struct, frozen=True):
    """Read the node's NodeReading again: a pod has ended, and its reading may not have arrived."""

    name: str


class DeleteReading(Struct, frozen=True):
    """Remove what the probes of a node wrote that is gone, or that no policy selects."""

    name: str
    uid: str


Step = (
    CreateReport
    | DeleteReport
    | PatchReport
    | PatchNode
    | SetCondition
    | PostEvent
    | CreatePod
    | DeletePod
    | RefreshReport
    | RefreshReading
    | DeleteReading
)


def key_of(step: Step) -> Hashable:
    """What tells a refused write from others that may still be made."""
    return (PatchNode, step.piece) if isinstance(step, PatchNode) and step.piece else type(step)
