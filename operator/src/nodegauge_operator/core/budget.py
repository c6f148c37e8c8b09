"""Budgets as counts or percentages of nodes: probe pods at a time, and nodes with a taint for a fault.

What counts against the second is in the reports (`desired.taints`), which are written before the nodes: a
slot is taken before it is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from nodegauge_operator import names
from nodegauge_operator.api.report import Report

MAX_CONCURRENT = 50
"""Probe pods at a time, whatever the policy says.

Chosen by this project: it bounds what a wrong policy can start at once.
"""


def concurrent_probes(setting: int | str, nodes: int) -> int:
    """Probe pods that may run at a time on `nodes` nodes: a count, or per cent rounded down, at least 1.

    At most 50.  A count of 0 pauses the policy.
    """
    if isinstance(setting, int):
        return min(setting, MAX_CONCURRENT)
    percent = int(setting.removesuffix("%"))
    return min(max(1, nodes * percent // 100), MAX_CONCURRENT) if percent else 0


def gated_slots(setting: int | str, nodes: int) -> int:
    """Nodes that may be gated at a time out of `nodes`: a count, or per cent rounded down, at least 1.

    0 and "0%" are none.  The default is 20%: chosen by this project, as karpenter does for node repair.
    """
    if isinstance(setting, int):
        return setting
    percent = int(setting.removesuffix("%"))
    return max(1, nodes * percent // 100) if percent else 0


def is_gated(report: Report) -> bool:
    """Whether the node counts against the budget of gated nodes: its report reserves a taint for a fault."""
    return any(taint.key in names.TAINTS_OF_FAULTS for taint in report.status.desired.taints)


def longest_waiting(waiting: Iterable[tuple[float, str]], slots: int) -> list[str]:
    """Names of the nodes that waited longest; `waiting`: (last run in epoch seconds, name), 0.0 for never."""
    return [name for _, name in heapq.nsmallest(slots, waiting)] if slots > 0 else []
