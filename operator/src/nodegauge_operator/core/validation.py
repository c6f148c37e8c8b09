"""The deadline by which a new node has to pass, if its policy sets one (ADR 0061).

Missing data changes no verdict; here the policy asks for one.  The gate is entered by time alone and left by
the first pass, and it needs a slot as any other: what breaks all new nodes taints a budget's worth of them.
"""

from __future__ import annotations

from nodegauge_operator.api.report import GateState, GateStatus, Outcome, stamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.report_size import cut

MAX_MESSAGE = 400


def gates_by_time(context: Context, *, passed: bool) -> list[GateStatus]:
    """The report's gates with that of a node that has not passed in time; `passed`: it has by now."""
    known, policy = context.status.gates, context.policy
    if policy.paused:
        return known
    others = [gate for gate in known if gate.code not in gates.BY_TIME]
    if passed or not policy.spec.taints.validated_within:
        return others
    if len(others) < len(known) or context.node.leaving or context.now < context.validates_by:
        return known
    now = stamp(context.now)
    return [
        *known,
        *(
            GateStatus(
                code=code,
                state=GateState.HELD_BACK,
                since=now,
                entered_at=now,
                fault_at=now,
                subject="node",
                message=_message(context),
            )
            for code in gates.BY_TIME
        ),
    ]


def _message(context: Context) -> str:
    """Since when the node is awaited, and how its last run ended; written once."""
    within, last = context.policy.spec.taints.validated_within, context.status.probe[HEALTH].last_run
    why = "No run has been made."
    if last is not None:
        read = last.outcome is Outcome.READ
        why = context.status.probe[HEALTH].summary if read else f"{last.reason}: {last.message}"
    return cut(f"No run has passed within {within} of the node's start. Last run: {why}", MAX_MESSAGE)
