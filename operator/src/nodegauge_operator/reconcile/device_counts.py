"""How many devices of a node there are, are gated, and wait for a slot."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodegauge_operator.api.desired_device import DeviceState
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core import device_gates
from nodegauge_operator.core.device_rule import DeviceRule
from nodegauge_operator.core.gates import FIRST_IN_LINE, LAST_IN_LINE
from nodegauge_operator.core.model import NodeView


class Devices(Struct, frozen=True, kw_only=True):
    """Devices of DRA."""

    all: int = 0
    """Those that ResourceSlices show."""
    gated: int = 0
    """Those with a DeviceTaintRule of ours, or whose report asks for one."""
    waiting: int = 0
    """Those that wait for a slot in the budget."""
    turn: int = LAST_IN_LINE
    """Place in the queue of the worst that waits."""


def devices_of(node: NodeView, status: ReportStatus, *, rules: Sequence[DeviceRule]) -> Devices:
    """Its devices; a rule that still stands is gated, whatever the report says."""
    ruled = sum(rule.taint[2] != "None" for rule in rules)
    waits = [d.cause for d in status.desired.devices if d.state is DeviceState.HELD_BACK]
    return Devices(
        all=len(node.devices),
        gated=max(device_gates.taken(status), ruled),
        waiting=device_gates.waiting(status),
        turn=min((FIRST_IN_LINE.get(cause, LAST_IN_LINE) for cause in waits), default=LAST_IN_LINE),
    )
