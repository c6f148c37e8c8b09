"""What all probes of a node say together: one verdict in label, condition, report and summary.

The worse probe comes first.  A node whose last run brought no result is described by that run, and not by
what an earlier one found.
"""

from __future__ import annotations

from nodegauge_judge import Probe, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus
from nodegauge_operator.core import bandwidth
from nodegauge_operator.core.context import Context
from nodegauge_operator.names import Reason


def summary(context: Context) -> str:
    """The node in a sentence or two; empty before the first run."""
    probe, measured = (context.status.probe(name) for name in (names.PROBE_HEALTH, names.PROBE_NCCL))
    if not probe.read_at or probe.failing_since or Probe.HEALTH in context.stale:
        return _unread(probe)
    return _joined(context, f"NCCL probe: {measured.summary}")


def condition(context: Context, status: ReportStatus) -> tuple[str, str, str]:
    """Status, reason and message of the condition GPUValidated; all empty before the first run.

    The message changes only when findings do, or every run would cost a write.
    """
    probe = status.probe(names.PROBE_HEALTH)
    if probe.last_run is None:
        return "", "", ""
    if not probe.read_at:
        return "Unknown", Reason.NOT_YET_VALIDATED, _unread(probe)
    if Probe.HEALTH in context.stale:
        return "Unknown", Reason.STALE, _unread(probe)
    message = _joined(context, bandwidth.sentence(status))
    match context.verdict:
        case Verdict.PASS:
            return "True", Reason.VALIDATED, message
        case Verdict.WARN:
            return "True", Reason.WARNINGS, message
        case Verdict.FAIL:
            return "False", Reason.FAULTS_FOUND, message
    return "Unknown", Reason.NOT_YET_VALIDATED, message


def _joined(context: Context, measured: str) -> str:
    """Both probes, the worse one first; `measured`: an NCCL run that stands, in a sentence."""
    health = context.status.probe(names.PROBE_HEALTH)
    if not context.nccl_stands:
        return health.summary
    if context.verdict is health.verdict:
        return f"{health.summary} {measured}"
    passed = health.verdict is Verdict.PASS
    return f"{measured} {'The health probe found no fault.' if passed else f'Health probe: {health.summary}'}"


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
