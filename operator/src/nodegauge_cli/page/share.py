"""How many GPUs of a node can be used, and to what the others are lost."""

from __future__ import annotations

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core import gates

UNREAD, MISSING, UNVALIDATED = "unread", "missing", "unvalidated"


def share(status: ReportStatus) -> tuple[int, int, dict[str, int]]:
    """GPUs that it has or had, those that can be used, and by cause those that cannot.  Where nothing was
    seen, nothing can be used."""
    total = status.gpus.count + len(status.gpus.missing)
    lost = _lost_to(status)
    if lost:
        return total, 0, {lost: total} if total else {}
    missing = len(status.gpus.missing)
    return total, status.gpus.count, {MISSING: missing} if missing else {}


def _lost_to(status: ReportStatus) -> str:
    """Why no GPU of the node can be used; empty if they can."""
    entered = [gate for gate in status.gates if gate.state.entered and gate.code in gates.GATES]
    causes = [gates.GATES[gate.code].cause for gate in entered]
    if causes:
        return min(causes, key=gates.WORST_FIRST.__getitem__).value
    health = status.probe[names.PROBE_HEALTH]
    if not health.read_at or health.unreadable is not None or status.verdict not in (Verdict.PASS, Verdict.WARN, Verdict.FAIL):
        return UNREAD
    unvalidated = any(taint.key == names.TAINT_UNVALIDATED for taint in status.desired.taints)
    return UNVALIDATED if unvalidated else ""
