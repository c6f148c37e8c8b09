"""What all probes and gates of a node say together: one verdict in label, condition, report and summary.

`fail` and GPUValidated=False make others drain and repair nodes, so they have a taint's hysteresis and
budget: they stand exactly as long as the taint of a fault.  A fault that is not confirmed, has no slot or is
to set no taint is a warning.  What the last runs alone say is `Context.raw_verdict`.

The worse probe comes first.  A node whose last run brought no result is described by that run, and not by
what an earlier one found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodegauge_judge import Severity, Verdict
from nodegauge_operator.api.report import GateState, Outcome, ProbeStatus, ReportStatus
from nodegauge_operator.core import events, gates
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.names import Reason


def overall(context: Context, status: ReportStatus) -> Verdict:
    """`fail` while a taint for a fault stands (in mode Observe: would stand, whatever the budget); at worst
    `warn` for any other fault."""
    if gates.confirmed(status.gates, policy=context.policy):
        return Verdict.FAIL
    raw = context.raw_verdict
    if raw is Verdict.FAIL or (raw is Verdict.PASS and gates.any_entered(status.gates)):
        return Verdict.WARN
    return raw


def summary(context: Context, status: ReportStatus) -> str:
    """The node in a few sentences; empty before the first run.  `status` holds its gates as they are now."""
    probe = status.probe(HEALTH)
    text = _unread(probe) if probe.failing_since else _of_runs(context, _summary_of)
    of_gates = events.gates_sentence(status, policy=context.policy)
    differs = overall(context, status) is not context.raw_verdict
    return f"{text} Gates: {of_gates}." if of_gates and differs else text


def condition(context: Context, status: ReportStatus) -> tuple[str, str, str]:
    """Status, reason and message of the condition GPUValidated; all empty before the first run.

    The message changes only when findings or gates do, or every run would cost a write.
    """
    probe = status.probe(HEALTH)
    if probe.last_run is None:
        return "", "", ""
    message = _of_runs(context, _codes_of)
    match overall(context, status):
        case Verdict.PASS:
            return "True", Reason.VALIDATED, message
        case Verdict.WARN:
            return "True", _reason(status), message
        case Verdict.FAIL:
            return "False", Reason.FAULTS_FOUND, message
    stale = bool(probe.read_at) and HEALTH in context.stale
    return "Unknown", Reason.STALE if stale else Reason.NOT_YET_VALIDATED, message


def _reason(status: ReportStatus) -> Reason:
    """Why a node is only warned of."""
    known = [gate for gate in status.gates if gate.code in gates.GATES]
    if any(gate.state is GateState.HELD_BACK for gate in known):
        return Reason.HELD_BACK
    if any(gate.state is GateState.GATED for gate in known):
        healthy = status.override is not None and status.override.healthy
        return Reason.TAKEN_AS_HEALTHY if healthy else Reason.TAINT_DISABLED
    return Reason.UNCONFIRMED if any(gate.bad for gate in known) else Reason.WARNINGS


def _summary_of(context: Context, probe: ProbeStatus) -> str:
    """A run that stands, for the report's summary."""
    return f"{context.kinds[probe.name].title}: {probe.summary}"


def _codes_of(context: Context, probe: ProbeStatus) -> str:
    """A run that stands, for the condition; it only changes when its findings do."""
    codes = dict.fromkeys(f.code for f in probe.findings if f.severity is not Severity.INFO)
    listed = f" ({', '.join(codes)})" if codes else ""
    return f"{context.kinds[probe.name].title}: {probe.verdict.value}{listed}."


def _of_runs(context: Context, sentence: Callable[[Context, ProbeStatus], str]) -> str:
    """What the last runs found, the worst probe first; `sentence`: about a run that stands beside health."""
    status, raw = context.status, context.raw_verdict
    health = status.probe(HEALTH)
    if not health.read_at or HEALTH in context.stale:
        return " ".join(text for text in (_unread(health), *_of_unread_node(context)) if text)
    if raw is not Verdict.FAIL and gates.any_entered(context.gates):
        return f"Not cleared yet; last verdict {raw.value}."
    measured = [sentence(context, probe) for probe in context.standing]
    if raw is health.verdict:
        text = " ".join([health.summary, *measured])
    else:
        passed = health.verdict is Verdict.PASS
        of_health = "The health probe found no fault." if passed else f"Health probe: {health.summary}"
        text = " ".join([*measured, of_health])
    unconfirmed = raw is Verdict.FAIL and not gates.any_entered(context.gates)
    return f"Not confirmed: {text}" if unconfirmed else text


def _of_unread_node(context: Context) -> Iterator[str]:
    """What other readings that stand still say of a node that the health probe cannot read."""
    for probe in context.readings:
        seen = context.kinds[probe.name].of_unread_node(context) if context.stands(probe.name) else None
        if seen is not None:
            yield f"{_codes_of(context, probe)} {seen}".rstrip()


def _unread(probe: ProbeStatus) -> str:
    """Why nothing is known of the node now, and what its last reading was; empty before the first run."""
    last = probe.last_run
    if last is None:
        return ""
    failed = f"{last.reason}: {last.message.rstrip('.')}." if last.outcome is not Outcome.READ else ""
    if not probe.read_at:
        return f"Not read yet: {failed}"
    before = f"Last read at {probe.read_at}, verdict {probe.verdict.value}"
    return f"{before}; since then {failed}" if failed else f"{before}."
