"""What deserves an event: changes, in words, each under an identity that makes posting it twice harmless.

A change stands in the report's status before it is posted, so that a restart in between loses nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_judge import Severity, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import Change, Outcome, ProbeStatus, ReportStatus, Run, stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.texts import bounded
from nodegauge_operator.reasons import Reason

WHO = {names.PROBE_HEALTH: "", names.PROBE_PULL: "nccl image: ", names.PROBE_NCCL: "NCCL benchmark: "}
"""Who speaks, where it is not the health probe."""


def of_gate(before: ReportStatus, after: ReportStatus, *, node: NodeView, now: float) -> Change | None:
    """What changed without a run: a label of somebody else in our way, or readings that went stale."""
    old, new = before.desired, after.desired
    fresh = [key for key in new.conflicts if key not in old.conflicts]
    if fresh:
        words = ", ".join(f"{key}={node.labels.get(key, '')}" for key in fresh)
        text = (
            f"label {words} is not ours and was left alone; measured was {after.interconnect.klass}. Let "
            "nodegauge have it (the policy's spec.labels.takeOver), or name another interconnectKey."
        )
        return _warning(Reason.LABEL_CONFLICT, identity=words, text=text, now=now)
    if new.reason == Reason.STALE and old.reason != Reason.STALE:
        identity = after.probe(names.PROBE_HEALTH).read_at
        text = f"{new.message}. Labels of what was read are gone."
        return _warning(Reason.STALE, identity=identity, text=text, now=now)
    return None


def together(*found: Change | None) -> Change | None:
    """Changes of one moment as one event: the first one's reason, and the words of all."""
    told = [change for change in found if change is not None]
    if len(told) < 2:
        return told[0] if told else None
    kind = "Warning" if any(change.type == "Warning" for change in told) else told[0].type
    text = " Also: ".join(change.message for change in told)
    return replace(told[0], type=kind, message=bounded(text))


def _warning(reason: Reason, *, identity: str, text: str, now: float) -> Change:
    run = names.digest(identity)
    return Change(run=run, type="Warning", reason=reason, message=bounded(text), at=stamp(now))


def of_run(
    before: ReportStatus, after: ReportStatus, *, run: Run, probe: str = names.PROBE_HEALTH
) -> Change | None:
    """What of this run deserves an event: a new verdict, another interconnect, a first failed reading.

    A pull that succeeds is no news.
    """
    old, new = before.probe(probe), after.probe(probe)
    identity = run.pod_uid or f"{WHO[probe]}run-{run.number}"
    if run.outcome is not Outcome.READ:
        if old.hard_since or run.outcome is Outcome.SKIPPED:
            return None
        text = f"{WHO[probe]}run {run.number} brought no result: {run.reason}: {run.message}"
        return Change(
            run=identity,
            type="Warning",
            reason=Reason.PROBE_FAILED,
            message=bounded(text),
            at=run.finished_at,
        )
    if probe == names.PROBE_PULL:
        return None
    if not old.read_at or old.verdict is not new.verdict or _codes(old) != _codes(new):
        reason, kind = _reason_of(new.verdict)
    elif before.interconnect != after.interconnect and _class(before) != _class(after):
        reason, kind = Reason.INTERCONNECT_CHANGED, "Warning"
    else:
        return None
    text = WHO[probe] + new.summary
    if probe == names.PROBE_NCCL and before.interconnect != after.interconnect:
        why = f": {after.interconnect.message}" if after.interconnect.reported else ""
        text += f" Interconnect label: {_label(before)} -> {_label(after)}{why}."
    elif probe == names.PROBE_HEALTH and old.read_at:
        text += f" Interconnect: {_words(before)} -> {_words(after)}."
    return Change(run=identity, type=kind, reason=reason, message=bounded(text), at=run.finished_at)


def of_grade(before: ReportStatus, after: ReportStatus, *, now: float) -> Change | None:
    """What deserves an event where the same measurement is graded by other rules."""
    old, new = before.probe(names.PROBE_NCCL), after.probe(names.PROBE_NCCL)
    same_run = old.read_at != "" and old.last_run == new.last_run
    if not same_run or before.bandwidth.grade == after.bandwidth.grade:
        return None
    if old.verdict is new.verdict and _codes(old) == _codes(new):
        return None
    reason, kind = _reason_of(new.verdict)
    identity = names.digest(f"{new.read_at}/{after.bandwidth.grade}")
    text = f"{WHO[names.PROBE_NCCL]}graded by other rules than before: {new.summary}"
    return Change(run=identity, type=kind, reason=reason, message=bounded(text), at=stamp(now))


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
    """What NVML reports: a label withheld because of bandwidth is no other interconnect."""
    found = status.interconnect
    return found.klass or found.reported, found.nvlink_gbps


def _words(status: ReportStatus) -> str:
    klass, gbps = _class(status)
    return (klass or "none") + (f" {gbps} GB/s" if gbps is not None else "")


def _label(status: ReportStatus) -> str:
    found = status.interconnect
    return f"{found.klass} ({found.evidence})" if found.klass else "none"
