"""The report's next status after one run has ended.

One place decides what a run changes: an unreadable run only counts up and says why; a readable one replaces
verdict, findings, interconnect and GPUs, and keeps the raw inputs of the next judgement.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_judge import History, Judgement, NodeFacts, Severity, Verdict, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import (
    Change,
    GpusStatus,
    InterconnectStatus,
    Outcome,
    ProbeStatus,
    ReportStatus,
    Run,
    stamp,
)
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.runs import RunEnd
from nodegauge_operator.reasons import Reason

MAX_FINDINGS = 20
MAX_NOTE_BYTES = 1024
"""Of an event's note (kubernetes, pkg/apis/core/validation: NoteLengthLimit)."""
MAX_MATRIX = 4096


def advance(
    status: ReportStatus, *, run: Run, end: RunEnd, node: NodeView, policy: Policy, request: str, now: float
) -> ReportStatus:
    """The status after `end`.

    `run` carries the number, the pod and the start; `node` is the node as the run met it; `request` the
    `spec.requestedAt` that it answers; `now` in epoch seconds.
    """
    before = status.probe(names.PROBE_HEALTH)
    judgement = _judge(end, before=before, node=node, policy=policy)
    if judgement is not None and not judgement.readable:
        end = RunEnd(outcome=Outcome.UNKNOWN, reason="NotReadable", message=judgement.summary)
    run = replace(
        run, outcome=end.outcome, reason=end.reason, message=end.message[:500], finished_at=stamp(now)
    )
    if judgement is None or not judgement.readable:
        after = replace(status, policy=policy.name, probes=[_unread(before, run, judgement, request)])
    else:
        probe = _read(before, run=run, judgement=judgement, node=node, request=request)
        after = replace(
            status,
            policy=policy.name,
            verdict=probe.verdict,
            summary=probe.summary,
            probes=[probe],
            interconnect=_interconnect(judgement),
            gpus=_gpus(judgement),
            matrix=judgement.matrix[:MAX_MATRIX],
        )
    return replace(after, change=_change(status, after, run=run) or status.change)


def _judge(end: RunEnd, *, before: ProbeStatus, node: NodeView, policy: Policy) -> Judgement | None:
    if end.result is None:
        return None
    facts = NodeFacts.of(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpu_capacity})
    return judge_health(
        end.result, thresholds=policy.spec.thresholds, history=History.decode(before.raw), node=facts
    )


def _unread(before: ProbeStatus, run: Run, judgement: Judgement | None, request: str) -> ProbeStatus:
    """Nothing was read: verdict and findings of the last reading stay; a first run shows what it can say."""
    hard = 0 if run.outcome is Outcome.SKIPPED else 1
    first = judgement is not None and not before.read_at
    return replace(
        before,
        last_run=run,
        unread=before.unread + 1,
        unread_hard=before.unread_hard + hard,
        findings=list(judgement.findings[:MAX_FINDINGS]) if first and judgement else before.findings,
        request=request,
    )


def _read(
    before: ProbeStatus, *, run: Run, judgement: Judgement, node: NodeView, request: str
) -> ProbeStatus:
    same = before.read_at != "" and before.verdict is judgement.verdict
    return ProbeStatus(
        name=before.name,
        last_run=run,
        verdict=judgement.verdict,
        summary=judgement.summary[:500],
        findings=list(judgement.findings[:MAX_FINDINGS]),
        streak=before.streak + 1 if same else 1,
        since=before.since if same else run.finished_at,
        read_at=run.finished_at,
        raw=judgement.history.encode(),
        boot_id=node.boot_id,
        request=request,
    )


def _interconnect(judgement: Judgement) -> InterconnectStatus:
    found = judgement.interconnect
    return InterconnectStatus(
        klass=found.klass or "",
        nvlink_gbps=found.nvlink_gbps,
        evidence=found.evidence or "",
        reason=found.reason,
        message=found.message[:500],
    )


def _gpus(judgement: Judgement) -> GpusStatus:
    return GpusStatus(
        count=len(judgement.gpus),
        product=judgement.product,
        driver=judgement.driver,
        items=list(judgement.gpus),
    )


def _change(before: ReportStatus, after: ReportStatus, *, run: Run) -> Change | None:
    """What of this run deserves an event: a new verdict, another interconnect, a first failed reading."""
    old, new = before.probe(names.PROBE_HEALTH), after.probe(names.PROBE_HEALTH)
    identity = run.pod_uid or f"run-{run.number}"
    if run.outcome is not Outcome.READ:
        if old.unread_hard or run.outcome is Outcome.SKIPPED:
            return None
        text = f"run {run.number} brought no result: {run.reason}: {run.message}"
        return Change(
            run=identity, type="Warning", reason=Reason.PROBE_FAILED, message=_note(text), at=run.finished_at
        )
    if not old.read_at or old.verdict is not new.verdict or _codes(old) != _codes(new):
        reason, kind = _reason_of(new.verdict)
    elif before.interconnect != after.interconnect and _class(before) != _class(after):
        reason, kind = Reason.INTERCONNECT_CHANGED, "Warning"
    else:
        return None
    text = f"{new.summary} Interconnect: {_words(before)} -> {_words(after)}." if old.read_at else new.summary
    return Change(run=identity, type=kind, reason=reason, message=_note(text), at=run.finished_at)


def _note(text: str) -> str:
    """At most `MAX_NOTE_BYTES` of UTF-8: what was read may be made of long characters."""
    return text.encode()[:MAX_NOTE_BYTES].decode(errors="ignore")


def _reason_of(verdict: Verdict) -> tuple[Reason, str]:
    match verdict:
        case Verdict.PASS:
            return Reason.VALIDATED, "Normal"
        case Verdict.FAIL:
            return Reason.FAULTS_FOUND, "Warning"
    return Reason.WARNINGS, "Warning"


def _codes(probe: ProbeStatus) -> frozenset[str]:
    return frozenset(f.code for f in probe.findings if f.severity is not Severity.INFO)


def _class(status: ReportStatus) -> tuple[str, int | None]:
    return status.interconnect.klass, status.interconnect.nvlink_gbps


def _words(status: ReportStatus) -> str:
    klass, gbps = _class(status)
    return (klass or "none") + (f" {gbps} GB/s" if gbps is not None else "")
