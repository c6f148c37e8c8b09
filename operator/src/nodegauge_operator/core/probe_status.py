"""The report's next status after one run has ended.

A run that read nothing only counts up and says why: verdict and findings of the last reading stay.  A run
that was read replaces what its probe said before, and keeps what the judge needs for its next run.  What else
a run changes is the probe kind's business (`probes`).
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import Finding, Verdict
from nodegauge_operator.api.report import Outcome, ProbeStatus, Run, one_more
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.pod_outcome import is_refused
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.report_size import MAX_REASON, cut, word, worst

MAX_FINDINGS_BYTES = 4096
MAX_TEXT = 500
MAX_REQUEST = 81
"""Characters of a request: two times of 40 each, as the CRD bounds them."""


class Reading(Struct, frozen=True, kw_only=True):
    """What a readable run says; `history`: the judge keeps it for its next run; `coverage`: what was read."""

    verdict: Verdict
    summary: str
    findings: list[Finding] = []
    history: str = ""
    coverage: str = ""


def unread(
    context: Context, name: str, ended: EndedRun, *, findings: list[Finding] | None = None
) -> ProbeStatus:
    """The probe's status after a run that read nothing: the last reading stays.

    `findings`: what can be said before the first reading.
    """
    before, run = context.status.probe[name], finished(context, ended)
    shown = findings if findings is not None and not before.read_at else None
    # refused runs say nothing of the node: what it fails itself is counted from its first failure
    failing_since = "" if is_refused(before.last_run) and not is_refused(run) else before.failing_since
    return replace(
        before,
        last_run=run,
        unread=one_more(before.unread),
        age_limit_seconds=_age_limit(context, name),
        failing_since="" if run.outcome is Outcome.SKIPPED else failing_since or run.finished_at,
        findings=before.findings if shown is None else worst(shown, MAX_FINDINGS_BYTES),
        request=ended.request[:MAX_REQUEST],
        image=before.image if run.outcome is Outcome.SKIPPED else ended.image or before.image,
        reading=ended.reading or before.reading,
    )


def read(context: Context, name: str, ended: EndedRun, reading: Reading) -> ProbeStatus:
    """The probe's status after a readable run: it replaces all that was known."""
    before, run = context.status.probe[name], finished(context, ended)
    same = before.read_at != "" and before.verdict is reading.verdict
    return ProbeStatus(
        name=name,
        last_run=run,
        verdict=reading.verdict,
        summary=cut(reading.summary, MAX_TEXT),
        coverage=cut(reading.coverage, MAX_TEXT),
        findings=worst(reading.findings, MAX_FINDINGS_BYTES),
        streak=one_more(before.streak) if same else 1,
        since=before.since if same else run.finished_at,
        read_at=run.finished_at,
        age_limit_seconds=_age_limit(context, name),
        history=reading.history,
        boot_id=run.boot_id,
        request=ended.request[:MAX_REQUEST],
        image=ended.image,
        reading=ended.reading or before.reading,
    )


def with_new_grade(before: ProbeStatus, reading: Reading) -> ProbeStatus:
    """The same run, graded by other thresholds: when it ran and what it measured stays."""
    same = before.verdict is reading.verdict
    return replace(
        before,
        verdict=reading.verdict,
        summary=cut(reading.summary, MAX_TEXT),
        coverage=cut(reading.coverage, MAX_TEXT),
        findings=worst(reading.findings, MAX_FINDINGS_BYTES),
        streak=before.streak if same else 1,
        since=before.since if same else before.read_at,
    )


def _age_limit(context: Context, name: str) -> int:
    """What `ProbeStatus.age_limit_seconds` becomes; a pull reads nothing that could age."""
    return ceil(context.age_limit_of(name)) if context.kinds[name].reads else 0


def finished(context: Context, ended: EndedRun) -> Run:
    """The run as the report keeps it."""
    return replace(
        ended.run,
        outcome=ended.end.outcome,
        reason=word(ended.end.reason),
        message=cut(ended.end.message, MAX_TEXT),
        finished_at=stamp(ended.end.finished_at or context.now),
        boot_id=context.node.boot_id[:MAX_REASON],
        nonce=context.nonce,
    )
