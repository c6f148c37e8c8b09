"""One probe's status after one of its runs: the same for all of them.

A run that brought nothing only counts up and says why; verdict and findings of the last reading stay.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import Finding, Severity, Verdict
from nodegauge_operator.api.report import Outcome, ProbeStatus, Run, stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.report_size import worst

MAX_FINDINGS = 20
MAX_FINDINGS_BYTES = 4096
MAX_WORDS = 500


class Reading(Struct, frozen=True, kw_only=True):
    """What a run brought that could be read; `history` is kept for the next judgement."""

    verdict: Verdict
    summary: str
    findings: list[Finding] = []
    history: str = ""


def ended(run: Run, end: RunEnd, *, node: NodeView, now: float) -> Run:
    """The run with how it ended; `node` as the run met it."""
    return replace(
        run,
        outcome=end.outcome,
        reason=end.reason,
        message=end.message[:MAX_WORDS],
        finished_at=stamp(now),
        boot_id=node.boot_id,
    )


def unread(
    before: ProbeStatus, run: Run, *, request: str, findings: list[Finding] | None = None
) -> ProbeStatus:
    """Nothing was read: the last reading stays; before the first, `findings` are what can be said."""
    good_until = before.last_run.finished_at if before.last_run else run.finished_at
    hard_since = "" if run.outcome is Outcome.SKIPPED else before.hard_since or good_until
    shown = findings if findings is not None and not before.read_at else None
    return replace(
        before,
        last_run=run,
        unread=before.unread + 1,
        hard_since=hard_since,
        findings=before.findings if shown is None else fitting(shown),
        request=request,
    )


def read(before: ProbeStatus, run: Run, reading: Reading, *, request: str) -> ProbeStatus:
    """What was read replaces all that was known."""
    same = before.read_at != "" and before.verdict is reading.verdict
    return ProbeStatus(
        name=before.name,
        last_run=run,
        verdict=reading.verdict,
        summary=reading.summary[:MAX_WORDS],
        findings=fitting(reading.findings),
        streak=before.streak + 1 if same else 1,
        since=before.since if same else run.finished_at,
        read_at=run.finished_at,
        history=reading.history,
        boot_id=run.boot_id,
        request=request,
    )


def graded_again(before: ProbeStatus, reading: Reading) -> ProbeStatus:
    """The same run under other rules: when it was and what it brought stays."""
    same = before.verdict is reading.verdict
    return replace(
        before,
        verdict=reading.verdict,
        summary=reading.summary[:MAX_WORDS],
        findings=fitting(reading.findings),
        streak=before.streak if same else 1,
        since=before.since if same else before.read_at,
    )


def fitting(findings: list[Finding]) -> list[Finding]:
    """The worst of them, as many as a report has room for: at least one, in the judge's order."""
    few = sorted(findings, key=lambda f: list(Severity).index(f.severity), reverse=True)[:MAX_FINDINGS]
    return worst([finding for finding in findings if finding in few], MAX_FINDINGS_BYTES)
