"""What `next_step` may know of one node: everything it decides from, and nothing else."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from nodegauge_judge.nccl.model import Peers, no_peers
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Report
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.probes.pod import ProbeDefaults


class Unselected(Enum):
    """What to do with a node that no policy in force selects."""

    RELEASE = "release"
    """Everything of ours comes off, and the report goes."""
    KEEP_REPORT = "keep-report"
    """Labels, taints and condition come off; the report stays a while: a label may only flap, and the rows'
    memory must not be lost with it."""
    FREEZE = "freeze"
    """Nothing is touched: a policy that may select it cannot be read."""


class Situation(Struct, frozen=True, kw_only=True):
    """All that `next_step` may know of one node.

    `node` None: it is gone for certain.  `policy` None: no policy selects it.  `granted`: the budget of
    concurrent probes has a place for it; `nccl_granted`: that of benchmarks has.  `gate_room`: the budget of
    gated nodes has a place for it, or it is gated already.  `peers`: what nodes like it reach in benchmarks.
    `posted`: run and reason of the last event this process posted.
    `fresh`: the report was read again for this very question.  `since`: when this process began to decide,
    epoch seconds.  `declined`: writes to the node that the API server has just refused, with its words: they
    are left for later, and hold nothing else up.
    """

    node: NodeView | None
    policy: Policy | None
    report: Report | None
    pods: tuple[PodView, ...]
    now: float
    granted: bool = False
    nccl_granted: bool = False
    peers: Peers = no_peers
    gate_room: bool = False
    posted: tuple[str, str] = ("", "")
    fresh: bool = False
    since: float = 0.0
    declined: dict[type, str] = {}
    unselected: Unselected = Unselected.RELEASE
    defaults: ProbeDefaults

    @property
    def known(self) -> Report | None:
        """The report, where it is of this very node and not of one before it of the same name."""
        same = self.node is not None and self.report is not None and self.report.node_uid == self.node.uid
        return self.report if same else None
