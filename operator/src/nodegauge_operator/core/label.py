"""A label on nodes: everything that nodegauge knows about it, as one object.

The node's labels, the history in the report, the reference page and the keys in the chart's admission
policies follow from the labels of all kinds (`probes.registry.labels`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.context import HEALTH, Context

Value = Callable[[Context, ReportStatus], str]
"""Of a node with this status, whose gates and verdict are those of now; empty for absent."""


class Label(Struct, frozen=True, kw_only=True):
    """One label.  A key never changes its meaning: schedulers select by it."""

    key: str
    """With our prefix."""
    values: str
    """What it can be, for people: `a | b`, or a unit."""
    meaning: str
    """What each value says, and when the label is absent."""
    value: Value
    """How it follows from what is known of the node."""
    history: str = ""
    """What the report calls its changes; empty for a label whose changes it does not keep."""


def interconnect_stands(context: Context, status: ReportStatus) -> bool:
    """Whether the node's interconnect is known, from a reading of this boot that counts."""
    return bool(status.interconnect.klass) and topology_stands(context, status)


def topology_stands(context: Context, status: ReportStatus) -> bool:
    """Whether the node was read in this boot, and that reading counts."""
    probe = status.probe[HEALTH]
    expired = context.now > context.expires_at(probe) or context.rebooted_since(probe)
    return bool(probe.read_at) and not expired
