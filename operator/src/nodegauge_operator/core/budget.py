"""Budgets as counts or percentages of nodes: probe pods at a time, and nodes with a taint for a fault.

What counts against the second is in the reports (`desired.taints`) and on the nodes.
"""

from __future__ import annotations

from nodegauge_operator import names
from nodegauge_operator.api.report import Report, ReportStatus
from nodegauge_operator.api.times import stamp, unstamp
from nodegauge_operator.core.context import Context

HOUR = 3600.0
"""Seconds for which a node counts that newly took a taint for a fault."""

SMALL = 4
"""From so many nodes on a percentage lets at least two be gated, at a time and newly within an hour.  Chosen
by this project: with one slot, whichever fault came first would keep the worse one out, and a percentage of
few nodes is one (ADR 0046).  Of three nodes two would be most of them."""

RETRY_SHARE = 5
"""One slot in so many is for nodes whose last run read nothing.  Chosen by this project: such a run may hold
its slot for minutes, and the other slots still renew every reading."""


def concurrent_probes(setting: int | str, nodes: int, *, most: int) -> int:
    """Probe pods that may run at a time on `nodes` nodes, as `slots_of`; 0 pauses the policy.

    `most`: the installation's limit.
    """
    return min(slots_of(setting, nodes), most)


def retry_slots(slots: int, *, unread: int, nodes: int) -> int:
    """How many of the slots may be held by nodes whose last run read nothing: `unread` of `nodes`.

    A fifth, at least 1; more where they are more than a fifth of the nodes.  The others then keep as many
    slots a node as they have when all is well.
    """
    share = slots * unread // nodes if nodes else 0
    return min(slots, max(1, slots // RETRY_SHARE, share))


def slow_start(*, well: int, badly: int) -> int:
    """How many runs that hold GPUs may go on at a time in one image: 1, 2, 4, ... while they end well.

    `well` and `badly`: nodes whose last run in this image ended so.  One more than the excess of the good
    ones: when all that run at a time end well, the next are twice as many.  Chosen by this project.
    """
    return max(1, 1 + well - badly)


def slots_of(setting: int | str, nodes: int) -> int:
    """How many of `nodes` may have a probe pod: a count, or per cent rounded down, at least 1; 0 for none."""
    if isinstance(setting, int):
        return setting
    percent = int(setting.removesuffix("%"))
    return max(1, nodes * percent // 100) if percent else 0


def gated_slots(setting: int | str, nodes: int) -> int:
    """How many of `nodes` may be gated at a time, or newly within an hour: as `slots_of`, but per cent are at
    least 2 of `SMALL` nodes or more.

    At a time the default is 20%: chosen by this project, as karpenter does for node repair.
    """
    slots = slots_of(setting, nodes)
    return max(slots, 2) if slots and isinstance(setting, str) and nodes >= SMALL else slots


def newly_tainted_at(context: Context, status: ReportStatus) -> str:
    """`taintedAt` of the status: now if the node takes a taint for a fault that its report does not reserve
    yet.

    A reservation that has stood for an hour without its taint is as good as none: somebody removed the taint,
    or wrote the reservation.
    """
    if not reserves(status):
        return status.tainted_at
    on_node = any(taint.own in names.TAINTS_OF_FAULTS for taint in context.node.taints)
    counted = on_node or context.now < unstamp(status.tainted_at) + HOUR
    return status.tainted_at if counted and reserves(context.status) else stamp(context.now)


def is_gated(report: Report) -> bool:
    """Whether the node counts against the budget of gated nodes: its report reserves a taint for a fault."""
    return reserves(report.status)


def reserves(status: ReportStatus) -> bool:
    """Whether the status reserves a taint for a fault."""
    return any(taint.own in names.TAINTS_OF_FAULTS for taint in status.desired.taints)
