"""What deserves an event.

A change is in the report's status before its event is posted, so that a restart in between loses nothing.  It
has an identity, so that posting it twice is harmless.  One event a write: the most serious change gives the
reason, and the message holds all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.desired_device import DeviceState
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.policy import Mode, Policy
from nodegauge_operator.api.report import DesiredTaint, GateState, Outcome, Report, ReportStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import faults, gates, wording
from nodegauge_operator.core import override as overrides
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.probes.kind import Kind
from nodegauge_operator.core.report_size import cut, word
from nodegauge_operator.names import Reason

MAX_NOTE_BYTES = 1024
"""Of an event's note (kubernetes, pkg/apis/core/validation: NoteLengthLimit)."""
OF_A_RUN = 240
"""Bytes of a note that gates leave to the summary of the run that moved them."""
MIN_FINDING = 160
"""Bytes in which a finding can be described.  Both are chosen by this project."""
MOST_SERIOUS_FIRST = (
    Reason.TAINTED,
    Reason.DEVICES_GATED,
    Reason.HELD_BACK,
    Reason.ON_PROBATION,
    Reason.TAINT_LIFTED,
    Reason.DEVICES_RELEASED,
)
NORMAL = (Reason.ON_PROBATION, Reason.TAINT_LIFTED, Reason.DEVICES_RELEASED)
OF_VERDICT = {
    Verdict.PASS: (Reason.VALIDATED, "Normal"),
    Verdict.WARN: (Reason.WARNINGS, "Warning"),
    Verdict.FAIL: (Reason.FAULTS_FOUND, "Warning"),
}


def of_run(before: ReportStatus, after: ReportStatus, *, kind: Kind) -> Change | None:
    """The event of a run, if it deserves one: a new verdict, another interconnect, a first failed run."""
    old, new = before.probe[kind.name], after.probe[kind.name]
    run = new.last_run
    assert run is not None, "it has just ended"
    unreadable = new.unreadable if old.unreadable is None else None
    begins = unreadable is not None or new.failing_since != old.failing_since
    if run.outcome is Outcome.UNKNOWN and begins:
        reason, event_type = Reason.PROBE_FAILED, "Warning"
        why = wording.not_readable(unreadable) if unreadable else f"{run.reason}: {run.message}"
        text = f"run {run.number} gave no result: {why}"
    elif run.outcome is not Outcome.READ:
        return None
    elif (announced := kind.announcement(before, after)) is not None:
        (reason, event_type), text = announced, new.summary + kind.event_suffix(before, after)
    elif not kind.announces_verdict:
        return None
    else:
        text = new.summary + kind.event_suffix(before, after)
        if not old.read_at or old.verdict is not new.verdict or old.codes != new.codes:
            reason, event_type = _reason_of(new.verdict)
        elif before.interconnect.as_reported != after.interconnect.as_reported:
            reason, event_type = Reason.INTERCONNECT_CHANGED, "Warning"
        else:
            return None
    return Change(
        run=run.pod_uid or f"{kind.event_prefix}run-{run.number}",
        type=event_type,
        reason=reason,
        message=bounded(kind.event_prefix + text),
        at=run.finished_at,
    )


def of_status(
    context: Context, after: ReportStatus, *, of_run: Change | None, kind: Kind | None, every: Sequence[Fault]
) -> Change | None:
    """The event of everything that changed from the report to `after`: gates, a run, another grading, labels.

    `of_run`: the event of the run of this `kind` that has just ended, if it deserves one; `every`: the faults
    that `after` describes.
    """
    before, now = context.report.status, context.now
    name = context.node.name
    of_gates = _of_gates(before, after, policy=context.policy, every=every, node=name, now=now)
    if of_run is not None and of_gates is None and kind is not None and kind.announces_verdict:
        of_run = _with_findings(of_run, [fault for fault in every if fault.probe == kind.name])
    candidates = [
        _of_override(before.override, after.override, now=now),
        of_gates,
        of_run,
        _of_grading(before, after, context=context),
        _of_labels(before, after, context=context),
        _of_mode(before, after, context=context),
    ]
    changes = [change for change in candidates if change is not None]
    if len(changes) < 2:
        return changes[0] if changes else None
    event_type = "Warning" if any(change.type == "Warning" for change in changes) else changes[0].type
    text = " Also: ".join(change.message for change in changes)
    return replace(changes[0], type=event_type, message=bounded(text))


def postable(change: Change) -> Change:
    """The change as the API server takes it, whoever edited the report that holds it."""
    kind = change.type if change.type in ("Normal", "Warning") else "Normal"
    return replace(change, type=kind, reason=word(change.reason), message=bounded(change.message))


def bounded(text: str) -> str:
    """As much of a text as an event's note holds."""
    return cut(text, MAX_NOTE_BYTES)


def _of_override(before: Override | None, after: Override | None, *, now: float) -> Change | None:
    """The event of an override that began, changed, ended or cannot be in force."""
    stood = before is not None and not before.problem
    if after is None:
        if before is None or not stood:
            return None
        reason, text = Reason.OVERRIDE_ENDED, f"override {before.kind} by {before.by} was removed"
    elif after.problem:
        if before == after:
            return None
        # also if somebody has moved its end into the past
        over = stood and after.problem.startswith(overrides.OVER)
        reason = Reason.OVERRIDE_ENDED if over else Reason.OVERRIDE_INVALID
        text = f"override {after.kind}: {after.problem}"
    elif before != after:
        reason, text = Reason.OVERRIDE_SET, wording.in_words(after)
    else:
        return None
    return Change(
        run=names.digest(f"{before}{after}"),
        type="Warning" if reason is Reason.OVERRIDE_INVALID else "Normal",
        reason=reason,
        message=text,
        at=stamp(now),
    )


def _of_gates(
    before: ReportStatus,
    after: ReportStatus,
    *,
    policy: Policy,
    every: Sequence[Fault],
    node: str,
    now: float,
) -> Change | None:
    """Taints and device rules set or lifted, and gates newly held back.  `unvalidated` is no fault, and has
    no event.

    The identity is made of the gates' states and times: the same change is told once, a relapse again.
    """
    old, new = (
        {taint.own: taint for taint in status.desired.taints if taint.own in names.TAINTS_OF_FAULTS}
        for status in (before, after)
    )
    changes: list[tuple[Reason, str, Fault | None]] = []
    by_code = {fault.code: fault for fault in every}
    for key, taint in new.items():
        if old.get(key) != taint:
            its = next((fault for fault in every if fault.tainted and fault.cause == taint.value), None)
            bad = next((gate.bad for gate in after.gates if its is not None and gate.code == its.code), 0)
            runs = f" after {bad} bad run{'s' if bad > 1 else ''}" if bad else ""
            changes.append((Reason.TAINTED, f"tainted {taint.short}{runs}", its))
    changes += [(*_lifted(taint, before, after), None) for key, taint in old.items() if key not in new]
    of_devices = _of_devices(before, after, node=node)
    changes += [(reason, text, by_code.get(code)) for reason, text, code in of_devices]
    known = {gate.code for gate in before.gates if gate.state is GateState.HELD_BACK}
    for gate in after.gates:
        waits = gate.state is GateState.HELD_BACK and not gate.on_devices
        if waits and gate.code in gates.GATES and gate.code not in known:
            why = f"{faults.would_be(gate)} {faults.no_slot(gate, policy)}"
            changes.append((Reason.HELD_BACK, why, by_code.get(gate.code)))
    if not changes:
        return None
    changes.sort(key=lambda change: MOST_SERIOUS_FIRST.index(change[0]))
    reason, share = changes[0][0], (MAX_NOTE_BYTES - OF_A_RUN) // len(changes)
    states = "|".join(f"{gate.code}/{gate.state}/{gate.since}" for gate in after.gates)
    return Change(
        run=names.digest(f"{sorted(old)}{sorted(new.items(), key=str)}{states}{of_devices or ''}"),
        type="Normal" if reason in NORMAL else "Warning",
        reason=reason,
        message="; ".join(_with_evidence(head, fault, share - 2) for _, head, fault in changes),
        at=stamp(now),
    )


def _of_devices(before: ReportStatus, after: ReportStatus, *, node: str) -> list[tuple[Reason, str, str]]:
    """Devices newly gated, waits back, or released: reason, text, and the finding's code."""
    old, new = (
        {(device.uuid, device.name): device for device in status.desired.devices}
        for status in (before, after)
    )
    changes = []
    for key, device in new.items():
        known = old.get(key)
        if known is None or (known.state, known.cause, known.effect) != (
            device.state,
            device.cause,
            device.effect,
        ):
            waits = device.state is DeviceState.HELD_BACK
            text = f"{device.cause}: {faults.device_in_words(device, node=node)}"
            changes.append((Reason.HELD_BACK if waits else Reason.DEVICES_GATED, text, device.code))
    gone = [device for key, device in old.items() if key not in new and device.state is DeviceState.GATED]
    for device in gone:
        text = f"{device.cause}: device {device.name} of pool {device.pool} is gated no more"
        changes.append((Reason.DEVICES_RELEASED, text, ""))
    return changes


def _with_evidence(head: str, fault: Fault | None, most: int) -> str:
    """What changed, with the fault that it is about; in at most so many bytes."""
    if fault is None:
        return cut(head, most)
    return cut(f"{head}: {faults.sentence(fault, most - len(head.encode()) - 2)}", most)


def _with_findings(change: Change, every: Sequence[Fault]) -> Change:
    """The event of a run, with what its findings measured, and what to do about each; as far as it fits."""
    text = change.message
    for number, fault in enumerate(every):
        lead = f" Also: {fault.title}: " if number else " "
        space = MAX_NOTE_BYTES - len(f"{text}{lead}".encode())
        if space < MIN_FINDING:
            break
        named = not number and all(gpu.serial in text for gpu in fault.gpus)
        text += lead + (faults.detail(fault, space) if named else faults.sentence(fault, space))
    return replace(change, message=bounded(text))


def _lifted(taint: DesiredTaint, before: ReportStatus, after: ReportStatus) -> tuple[Reason, str]:
    """Why a taint is no longer wanted: on trial, healed, or the policy asks for none now."""
    entered = gates.entered(before.gates, gates.KIND_OF_TAINT[taint.own])
    codes = {gate.code for gate in entered if gate.state is not GateState.HELD_BACK}
    states = {gate.state for gate in after.gates if gate.code in codes}
    reason = Reason.TAINT_LIFTED
    if GateState.PROBATION in states:
        reason, why = Reason.ON_PROBATION, "on trial: one bad run under load brings it back at once"
        return reason, f"{taint.short} lifted {why}"
    if GateState.GATED in states:
        healthy = after.override is not None and after.override.healthy
        why = "the node is taken as healthy" if healthy else "the policy no longer asks for this taint"
    elif codes and codes <= gates.BY_TIME:
        why = "the node has passed" if after.passed_at else "the policy no longer asks for this taint"
    elif not codes:
        why = "this version does not know the finding"
    else:
        why = "enough good runs in a row"
    return reason, f"{taint.short} lifted: {why}"


def _of_grading(before: ReportStatus, after: ReportStatus, *, context: Context) -> Change | None:
    """The same measurement has another verdict by other expectations or thresholds."""
    for kind in context.kinds.values():
        old, new = before.probe[kind.name], after.probe[kind.name]
        same_run = old.read_at != "" and old.last_run == new.last_run
        if not same_run or (old.verdict is new.verdict and old.codes == new.codes):
            continue
        reason, event_type = _reason_of(new.verdict)
        text = f"the same run, graded with other expectations or thresholds: {new.summary}"
        return Change(
            run=names.digest(f"{new.read_at}/{new.verdict}/{sorted(new.codes)}"),
            type=event_type,
            reason=reason,
            message=bounded(f"{kind.title}: {text}"),
            at=stamp(context.now),
        )
    return None


def _of_labels(before: ReportStatus, after: ReportStatus, *, context: Context) -> Change | None:
    """A foreign label is in our way, or readings went stale."""
    old, new = before.desired, after.desired
    conflicts = [key for key in new.conflicts if key not in old.conflicts]
    if conflicts:
        reason = Reason.LABEL_CONFLICT
        identity = ", ".join(f"{key}={context.node.labels.get(key, '')}" for key in conflicts)
        text = (
            f"label {identity} was set by another owner and is left alone; measured: "
            f"{after.interconnect.klass}. To let nodegauge set it, use the policy's spec.labels.takeOver, or "
            "choose another interconnectKey."
        )
    elif new.condition and HEALTH in context.stale and names.LABEL_VALIDATED_AT in old.labels:
        reason, identity = Reason.STALE, after.probe[HEALTH].read_at
        text = f"{new.message} The labels of that reading were removed."
    elif new.reason == Reason.STALE != old.reason and names.LABEL_VALIDATED_AT in old.labels:
        reason, identity = Reason.STALE, after.probe[HEALTH].read_at
        text = f"{new.message} Its health is no longer known; labels of what is built into it stay."
    else:
        return None
    return Change(
        run=names.digest(identity),
        type="Warning",
        reason=reason,
        message=bounded(text),
        at=stamp(context.now),
    )


def _of_mode(before: ReportStatus, after: ReportStatus, *, context: Context) -> Change | None:
    """Mode Observe takes everything off the node."""
    carried = before.desired.in_words
    if context.policy.spec.mode is not Mode.OBSERVE or not carried or after.desired.in_words:
        return None
    return Change(
        run=names.digest(f"{context.policy.name}/{context.policy.generation}/{carried}"),
        reason=Reason.RELEASED,
        message=bounded(f"policy {context.policy.name} is now in mode Observe: removed {carried}"),
        at=stamp(context.now),
    )


def of_release(report: Report, *, now: float) -> Change | None:
    """The event of a node that no policy selects any more, once everything of ours is off it."""
    carried, policy = report.status.desired.in_words, report.status.policy
    if not carried:
        return None
    return Change(
        run=names.digest(f"{report.uid}/{carried}"),
        reason=Reason.RELEASED,
        message=bounded(f"no policy selects this node any more (it followed {policy}): removed {carried}"),
        at=stamp(now),
    )


def _reason_of(verdict: Verdict) -> tuple[Reason, str]:
    return OF_VERDICT.get(verdict, (Reason.WARNINGS, "Warning"))
