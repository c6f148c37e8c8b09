"""The single writes that a node can need, each a value: `planner` chooses one, `reconcile` makes it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.node_history import NodeRecord
from nodegauge_operator.api.report import Report, ReportStatus
from nodegauge_operator.core.device_rule import DeviceRule
from nodegauge_operator.core.model import ConditionView, NodeView, PodView, Taint

TAINTS = "taints"
"""The piece of a patch that holds the taints."""


class Write(Struct, frozen=True):
    """One write, or a look before one."""

    @property
    def key(self) -> Hashable:
        """What tells a refused write from others that may still be made.  A pair is tried again later than
        the rest (`reconcile.refused_pieces`)."""
        return type(self)

    @property
    def keys(self) -> frozenset[Hashable]:
        """What is refused with it."""
        return frozenset({self.key})


class CreateReport(Write, frozen=True):
    """Make the node's report, owned by the node."""

    node: NodeView
    """The owner."""


class DeleteReport(Write, frozen=True):
    """Remove a report of an earlier node of this name, or one that no policy wants."""

    report: Report
    """The report, whose UID is the precondition."""


class PatchReport(Write, frozen=True):
    """Write the report's status, with its resourceVersion."""

    report: Report
    """The report as it was read."""
    status: ReportStatus
    """The whole new status."""


class Judged(Struct, frozen=True):
    """A run that was judged and is not in the report yet."""

    version: str
    """The report's version by which it was judged."""
    status: ReportStatus
    """The status that follows."""


class PatchNode(Write, frozen=True):
    """Write labels and taints of ours in one patch, with the node's resourceVersion."""

    node: NodeView
    """The node as it was read."""
    labels: dict[str, str | None]
    """Merge patch; None removes a key."""
    taints: tuple[Taint, ...] | None = None
    """The whole new list, foreign taints included, in their order; None leaves the taints alone."""
    judged: Judged | None = None
    """The run that it follows, if the report does not hold that yet."""
    piece: str = ""
    """After a refusal of the whole: the key of the one label that this patch holds, or `taints`."""

    @property
    def parts(self) -> list[str]:
        """What it holds, as pieces."""
        return [*([] if self.taints is None else [TAINTS]), *self.labels]

    @property
    def key(self) -> Hashable:
        return (PatchNode, self.piece) if self.piece else PatchNode

    @property
    def keys(self) -> frozenset[Hashable]:
        """A patch of one piece is that piece as well."""
        piece = self.parts if len(self.parts) == 1 else []
        return frozenset({self.key, *((PatchNode, part) for part in piece)})


class PutDeviceRule(Write, frozen=True):
    """Make a DeviceTaintRule, or bring it in line."""

    node: NodeView
    """The node, which owns it."""
    rule: DeviceRule
    """As it should be; with the resourceVersion of the one that stands, empty for none."""
    devices: int
    """Devices of the node that are gated then, for the budget."""
    judged: Judged | None = None
    """The run that it follows, if the report does not hold that yet."""


class DeleteDeviceRule(Write, frozen=True):
    """Remove one of our DeviceTaintRules."""

    rule: DeviceRule
    """Whose UID is the precondition."""


class SetCondition(Write, frozen=True):
    """Write our condition."""

    node: NodeView
    """The node as it was read."""
    condition: ConditionView | None
    """None removes it."""


class PostEvent(Write, frozen=True):
    """Post the event of a change, under a name that makes repeating harmless."""

    node: NodeView
    """The node that the event is about."""
    change: Change
    """The change, of which the name is made."""


class CreatePod(Write, frozen=True):
    """Start a run of a probe."""

    node: NodeView
    """The node that the pod is pinned to."""
    number: int
    """Number of the run."""
    manifest: dict[str, Any]
    """The whole pod."""
    probe: str
    """The probe that it runs."""


class DeletePod(Write, frozen=True):
    """Remove a pod, with its UID as precondition."""

    pod: PodView
    """The pod."""
    grace: int | None
    """Seconds until it is killed; None for the pod's own."""


class RefreshReport(Write, frozen=True):
    """Read the report again: a pod has a later run number than the report we know."""

    name: str


class RefreshReading(Write, frozen=True):
    """Read the node's NodeReading again: a pod has ended, and its reading may not have arrived."""

    name: str


class DeleteReading(Write, frozen=True):
    """Remove what the probes of a node wrote that is gone, or that no policy selects."""

    name: str
    """Name of the node."""
    uid: str
    """UID of the NodeReading."""


class WriteHistory(Write, frozen=True):
    """Merge into the node's NodeHistory what it lacks, or make it."""

    node: NodeView
    """The node."""
    installation: str
    """`NAMESPACE/RELEASE` of this operator."""
    days: dict[str, str | None]
    """Texts by date; None removes a day that is too old."""
    written: WrittenHistory
    """What it holds then."""
    record: NodeRecord | None = None
    """None leaves the record as it is."""

    @property
    def key(self) -> Hashable:
        """A NodeHistory can wait."""
        return HISTORY_KEY


HISTORY_KEY: tuple[type, str] = (WriteHistory, "")
"""Its key among refused writes."""


class WrittenHistory(Struct, frozen=True):
    """What this process wrote last into a NodeHistory, until the report says so."""

    closed: frozenset[str] = frozenset()
    """Dates of complete days."""
    faults: str = ""
    """`ReportStatus.recorded`."""


class Refusal(Struct, frozen=True):
    """Something that a node lacks because the API server refuses it."""

    kind: names.Obstacle
    """What kind of thing."""
    what: str
    """The thing in words, such as `the label nodegauge.dev/health`."""
    message: str
    """The API server's."""


Step = (
    CreateReport
    | DeleteReport
    | PatchReport
    | PatchNode
    | PutDeviceRule
    | DeleteDeviceRule
    | SetCondition
    | PostEvent
    | CreatePod
    | DeletePod
    | RefreshReport
    | RefreshReading
    | DeleteReading
    | WriteHistory
)
FOLLOWING = SetCondition | CreatePod | DeletePod | WriteHistory
"""Writes that follow from a report which says what it should, and change nothing of what it should say."""
