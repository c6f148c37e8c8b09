"""What all kinds and gates of a node say together, and what its condition and label say of that by now.

A node whose probe fails for a reason of its own (`unreadable`) is unknown from that reading on: the report
says so at once, the node after the policy's `unreadAfter`.  A taint for a fault outlasts both.
"""

from __future__ import annotations

from nodegauge_judge import Verdict
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import HEALTH, Context


def overall(context: Context, status: ReportStatus) -> Verdict:
    """The report's verdict: `fail` while a taint for a fault stands or waits for a slot (in mode Observe:
    would stand), `unknown` from the first reading that failed on; at worst `warn` for any other fault.

    `fail` has a taint's hysteresis.  A fault that is not confirmed, that an incident holds back or that is to
    set no taint is a warning.
    """
    return _of_readings(context, status, unreadable=status.probe[HEALTH].unreadable is not None)


def on_node(context: Context, status: ReportStatus) -> Verdict:
    """The verdict behind the condition and the label: that of the last reading for a while longer, so that a
    call that is merely slow costs no write."""
    return _of_readings(context, status, unreadable=context.now >= context.unknown_at)


def _of_readings(context: Context, status: ReportStatus, *, unreadable: bool) -> Verdict:
    if gates.confirmed(status.gates, policy=context.policy):
        return Verdict.FAIL
    if unreadable:
        return Verdict.UNKNOWN
    raw = context.raw_verdict
    if raw is Verdict.FAIL or (raw is Verdict.PASS and gates.any_entered(status.gates)):
        return Verdict.WARN
    return raw
