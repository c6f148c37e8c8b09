"""Gates in words: for the node's condition, which must not change with every run, and for events."""

from __future__ import annotations

from nodegauge_judge import GateKind
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus, ReportStatus
from nodegauge_operator.core import gates
from nodegauge_operator.core.texts import cut

SUFFICIENT = 300
"""Bytes of one row's own words."""


def short(taint: DesiredTaint) -> str:
    """`throttled=thermal:NoSchedule`: as people write taints, without the prefix that all of ours have."""
    name = taint.key.rsplit("/", 1)[1]
    return f"{name}={taint.value}:{taint.effect}" if taint.value else f"{name}:{taint.effect}"


def would_be(row: GateStatus) -> str:
    """`throttled=thermal`: what the row would put on the node."""
    gate = gates.GATES[row.code]
    return f"{gate.kind.value}={gate.cause.value}"


def standing(status: ReportStatus, held: list[DesiredTaint], *, policy: Policy) -> str:
    """The gates of a node, in words that stay the same for as long as they do; empty for none."""
    words = []
    for kind in GateKind:
        row = gates.bearer(status.gates, kind, policy=policy)
        taint = next((t for t in held if t.key == gates.KEYS[kind]), None)
        if row is not None and taint is not None:
            words.append(f"tainted {short(taint)} since {row.since}: {_what(row)}")
    for row in status.gates:
        if row.code in gates.GATES and row.state is GateState.HELD_BACK:
            words.append(f"{held_back(row, policy=policy)}: {_what(row)}")
        elif row.code in gates.GATES and row.state is GateState.PROBATION:
            words.append(f"{would_be(row)} off on trial since {row.since}, one bad run sets it: {_what(row)}")
    return "; ".join(words)


def held_back(row: GateStatus, *, policy: Policy) -> str:
    """Why a row puts no taint on the node."""
    setting = policy.spec.budget.gated_nodes
    return f"{would_be(row)} held back, the budget of gated nodes ({setting}) is used up"


def evidence(row: GateStatus) -> str:
    """What the last bad run said."""
    where = "" if row.subject in ("", "node") else f"{row.subject}: "
    return cut(f"{where}{row.message}", SUFFICIENT)


def after_runs(row: GateStatus) -> str:
    """How many bad runs it took, where the last one was bad."""
    return f" after {row.bad} bad run{'s' if row.bad > 1 else ''}" if row.bad else ""


def _what(row: GateStatus) -> str:
    where = "" if row.subject in ("", "node") else f", {row.subject}"
    return f"{gates.TITLES[row.code]}{where} [{row.code}]"
