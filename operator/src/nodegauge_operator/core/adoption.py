"""A taint for a fault that stands on a node whose report is gone: the taint is what is left of the state.

Who deletes a report, or lets the garbage collector do it, must not lift a taint by that: only readings do
(ADR 0045).  So the first status of a new report begins with the gate of each such taint, and the gate is left
as any other.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, GateState, GateStatus, ReportStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.model import NodeView, Taint


def adopted(status: ReportStatus, node: NodeView, *, now: float) -> ReportStatus:
    """The status of a report that nothing was written to, with what stands on the node; any other as it is.

    A taint whose cause this version does not know is nobody's: no reading could lift it.
    """
    if status != ReportStatus():
        return status
    standing = {taint: code for taint in node.taints if (code := _code(taint, node))}
    at = stamp(now)
    return replace(
        status,
        gates=[
            GateStatus(
                code=code,
                state=GateState.GATED,
                since=at,
                entered_at=at,
                fault_at=at,
                message=gates.ADOPTED,
            )
            for code in standing.values()
        ],
        desired=DesiredNode(
            taints=[DesiredTaint(key=t.key, value=t.value, effect=t.effect) for t in standing],
        ),
    )


def _code(taint: Taint, node: NodeView) -> str:
    """The finding behind a taint: the one that the node's condition names, or else one that the health probe
    answers; empty if it is none of ours."""
    kind = gates.KIND_OF_TAINT.get(taint.own)
    codes = [c for c, g in gates.GATES.items() if g.kind is kind and g.cause.value == taint.value]
    message = node.condition.message if node.condition is not None else ""
    named = [code for code in codes if f"[{code}]" in message]
    of_health = [code for code in codes if gates.PROBES[code] == names.PROBE_HEALTH]
    return next(iter([*named, *of_health, *codes]), "")
