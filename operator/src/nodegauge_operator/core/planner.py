"""The next single write for one node: the order of writes of promise 3 (docs/promises.md)
as one pure function.

`next_step` looks at what is and names the one write that comes next.  The caller makes it, takes the new
state and asks again.  A process that was killed between two writes asks the same question after its restart
and goes on where it was: a reading stays until its report holds it, and is judged again to the same end.  The
order (ADR 0035):

1. create the pod (its name is made of the report's UID, probe, run number and a random text in the report:
   AlreadyExists means adopt);
2. patch the node if what a reading, time or the policy says of it differs: schedulers and drains wait for
   that;
3. patch the report's status: a run is judged once;
4. condition, then event, unless a newer reading waits;
5. delete the pod;
6. write what outlives the node.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, Mode, seconds
from nodegauge_operator.api.report import DesiredNode, Outcome, Report, ReportStatus, Run
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core import events, gates, pod_outcome
from nodegauge_operator.core import override as overrides
from nodegauge_operator.core.actions import (
    CreatePod,
    CreateReport,
    DeleteDeviceRule,
    DeletePod,
    DeleteReading,
    DeleteReport,
    Judged,
    PatchReport,
    PostEvent,
    RefreshReading,
    RefreshReport,
    Refusal,
    Step,
)
from nodegauge_operator.core.context import HEALTH, NO_REPORT, Context, Snapshot, Unselected
from nodegauge_operator.core.decision import decide
from nodegauge_operator.core.driver_access import DriverAccess
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.outlets import (
    DEVICE_RULES,
    EVENTS,
    HISTORY,
    LASTING,
    MARKS,
    event,
    keeps_taint,
    lasting_writes,
    removal,
)
from nodegauge_operator.core.outlets import refusals as refused_marks
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.kind import EndedRun, Kind, ProbeKind, Wait
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import EVERY, KINDS

MAX_REFUSAL = 500
MAX_IMAGE = 1024
"""Characters of an image reference that a report keeps, as its CRD says."""


def next_step(snapshot: Snapshot) -> Step | None:
    """The write that comes next, or None when everything is as it should be."""
    if snapshot.node is None:
        if snapshot.reading is not None:
            return DeleteReading(snapshot.reading.name, snapshot.reading.uid)
        if snapshot.rules:
            return DeleteDeviceRule(snapshot.rules[0])
        return _delete_next(snapshot.pods, now=snapshot.now, limits=Limits())
    context = snapshot.context
    if context is None:
        return _release(snapshot, snapshot.node)
    if context.report is NO_REPORT:
        return _replace_report(context, snapshot.report)
    return (
        _write_judged(context)
        or _judge_ended_run(context)
        or _judge_news(context)
        or _update_report(context)
        or _bring_in_line(context)
        or EVENTS.next_write(context, context.status)
        or _delete_old_pods(context)
        or HISTORY.next_write(context, context.status)
        or _start_run(context)
    )


def wake_at(snapshot: Snapshot) -> float:
    """When to ask `next_step` again if nothing happens before, epoch seconds; `NEVER` for not at all."""
    pods = [pod for pod in snapshot.pods if not pod.gone]
    context = snapshot.context
    not_gone = seconds((context.policy.spec.limits if context else Limits()).not_gone)
    times = [pod.deleting_since + not_gone for pod in pods if pod.deleting_since]
    if context is not None:
        times += _wake_times(context, pods)
    return min((at for at in times if at > snapshot.now), default=NEVER)


def wanted_slots(context: Context) -> dict[str, Wait]:
    """Pools of which the node wants a slot now, and for which run: the one that would start, with the place
    in the queue of whichever waits longest."""
    wanted: dict[str, Wait] = {}
    for kind in KINDS.values():
        if _may_start(kind, context.pods) and _is_due(kind, context):
            wait = kind.wait(context)
            first = wanted.setdefault(kind.pool.name, wait)
            wanted[kind.pool.name] = replace(first, since=min(first.since, wait.since))
    return wanted


def refused(context: Context, *, kind: ProbeKind, number: int, reason: str, message: str) -> PatchReport:
    """The report after the API server refused to create the pod of run `number` (webhook, quota)."""
    end = RunEnd(outcome=Outcome.UNKNOWN, reason=reason, message=message)
    run = Run(number=number, started_at=stamp(context.now))
    ended = EndedRun(run=run, end=end, request=context.report.request_of(kind.name))
    status = decide(context, kind, ended)
    return PatchReport(context.report, status)


def refusals(snapshot: Snapshot) -> tuple[Refusal, ...]:
    """What the API server refuses of what should stand on a node that a policy selects."""
    context = snapshot.context
    if context is None:
        return ()
    if context.claims_refused and context.access is DriverAccess.DRA:
        what = "the template of the probes' claims"
        return (Refusal(names.Obstacle.CLAIM, what, context.claims_refused),)
    return () if context.report is NO_REPORT else tuple(refused_marks(context))


def _release(snapshot: Snapshot, node: NodeView) -> Step | None:
    """The next write for a node that no policy selects."""
    if snapshot.unselected is Unselected.FREEZE:
        return None
    report, own, tainted = snapshot.report, snapshot.own_report, keeps_taint(snapshot, node)
    step = removal(snapshot, node) or _delete_next(snapshot.pods, now=snapshot.now, limits=Limits())
    if step or report is None:
        return step
    if own is not None and tainted:
        return None  # the API server refuses to let a taint go: its evidence stays
    if snapshot.reading is not None:
        return DeleteReading(snapshot.reading.name, snapshot.reading.uid)
    change = events.of_release(own, now=snapshot.now) if own is not None else None
    if change is None or (change.run, change.reason) == snapshot.posted or PostEvent in snapshot.declined:
        return None if report.deleting else DeleteReport(report)
    return PostEvent(node, change)


def _replace_report(context: Context, report: Report | None) -> Step | None:
    """Without a report of this very node nothing on it is justified but a taint for a fault, which only
    readings lift: remove the rest, then start a new report.

    `report`: one of an earlier node of this name.  Where finalizers keep it, the node waits until it is gone.
    """
    if report is not None:
        return None if report.deleting else DeleteReport(report)
    paused, adopts = context.policy.spec.mode is Mode.PAUSED, bool(context.status.gates)
    on_node = None if paused or adopts else removal(context, context.node)
    if on_node:
        return on_node
    of_earlier_node = tuple(p for p in context.pods if p.node_uid != context.node.uid and not p.gone)
    if of_earlier_node:
        return _delete_next(of_earlier_node, now=context.now, limits=context.policy.spec.limits)
    # a slot for any kind: `granted` only ever holds pools of runs that are due
    needed = any(not pod.gone for pod in context.pods) or context.granted or context.override is not None
    needed = needed or adopts or KINDS[HEALTH].news(context) is not None or _lacks_access_label(context)
    return CreateReport(context.node) if needed or context.policy.closes_new_nodes else None


def _judge_ended_run(context: Context) -> Step | None:
    """Record the end of the current run of a probe, once."""
    pods = [pod for pod in context.pods if pod.owner_uid == context.report.uid and pod.probe in KINDS]
    ahead = any(pod.number > context.status.probe[pod.probe].next_number and not pod.gone for pod in pods)
    if ahead and RefreshReport not in context.fresh:
        return RefreshReport(context.report.name)
    for pod in pods:
        last = context.status.probe[pod.probe].last_run
        if not context.is_next_run(pod) or (last and pod.uid == last.pod_uid):
            continue
        kind, part = KINDS[pod.probe], context.unjudged_part(pod.probe)
        left = part is not None and part.pod_uid == pod.uid and pod.trust == context.trusted
        reading = part.identity if part is not None and left else ""
        end = kind.ending(pod, context)
        if end is None:
            continue
        waits = not reading and pod.terminated is not None and not context.distrust
        if waits and RefreshReading not in context.fresh:
            return RefreshReading(context.node.name)  # its event may be on its way
        if refusal := context.declined.get(PatchReport):
            end = RunEnd(outcome=Outcome.UNKNOWN, reason="ReportRefused", message=refusal)
        started = stamp(pod_outcome.started_at(pod, limits=kind.limits(context.policy)))
        run = Run(number=pod.number, pod_name=pod.name, pod_uid=pod.uid, started_at=started)
        of_pod = {"request": pod.request, "image": pod.image[:MAX_IMAGE], "boot_id": pod.boot_id}
        return _record(context, kind, EndedRun(run=run, end=end, reading=reading, **of_pod))
    return None


def _judge_news(context: Context) -> Step | None:
    """Record a reading that no pod of a run brought, once."""
    if PatchReport in context.declined:
        return None
    kinds = ((kind, kind.news(context)) for kind in EVERY.values())
    return next((_record(context, kind, ended) for kind, ended in kinds if ended is not None), None)


def _record(context: Context, kind: Kind, ended: EndedRun) -> Step:
    """What follows from a run, on the node and then in the report."""
    status = decide(context, kind, ended)
    return _write(context, status, Judged(context.report.resource_version, status))


def _write_judged(context: Context) -> Step | None:
    """The next write for a run that was judged when the node was patched, and that the report lacks."""
    known = context.judged
    if known is None or known.version != context.report.resource_version or PatchReport in context.declined:
        return None
    return _write(context, known.status, known)


def _write(context: Context, status: ReportStatus, judged: Judged | None = None) -> Step:
    """The node as this status wants it, then the report."""
    patch = DEVICE_RULES.next_write(context, status) or MARKS.first_write(context, status)
    return replace(patch, judged=judged) if patch is not None else PatchReport(context.report, status)


def _update_report(context: Context) -> Step | None:
    """Bring the report in line with what readings, policy and time say now."""
    if context.up_to_date or _nothing_to_decide(context):
        return None
    status = decide(context)
    if status == context.report.status:
        return None
    overtaken = status.change != context.status.change
    news = event(context, context.status.change) if overtaken else None
    return news or _write(context, status)


def _nothing_to_decide(context: Context) -> bool:
    """Nothing was measured yet, the report asks for nothing and knows what people say of the node, and that
    needs no taint before it is measured."""
    return (
        context.status.probe[HEALTH].last_run is None
        and context.status.desired == DesiredNode()
        and context.status.override == context.override
        and not context.policy.closes_new_nodes
        and not _lacks_access_label(context)
    )


def _lacks_access_label(context: Context) -> bool:
    """The watch container finds a node with DRA alone by a label of ours, before anything was read there."""
    by_claim = context.access is DriverAccess.DRA and context.policy.spec.mode is Mode.ENFORCE
    return by_claim and names.LABEL_DRIVER_ACCESS not in context.status.desired.labels


def _bring_in_line(context: Context) -> Step | None:
    """Write to the node what the report says it should carry; a refusal goes to the report."""
    if context.report.unreadable is not None and _nothing_to_decide(context):
        return None  # the next run replaces a report that cannot be read
    status = context.status
    steps = lasting_writes(context, status)
    return next((step for step in steps if step is not None), None) or _note_refusal(context)


def _note_refusal(context: Context) -> PatchReport | None:
    """Put into the report what the API server refused and the node still lacks."""
    status = context.status
    if not (context.declined or status.desired.refusal):
        return None
    behind = [outlet for outlet in LASTING if outlet.difference(context, status) is not None]
    messages = (context.declined[outlet.writes] for outlet in behind if outlet.writes in context.declined)
    refusal = next(messages, status.desired.refusal)[:MAX_REFUSAL] if behind else ""
    if refusal == status.desired.refusal or context.policy.spec.mode is Mode.PAUSED:
        return None
    return PatchReport(context.report, replace(status, desired=replace(status.desired, refusal=refusal)))


def _delete_old_pods(context: Context) -> Step | None:
    """Delete pods that were judged or belong to no run of this node, and force those that do not go."""
    old = tuple(pod for pod in context.pods if pod.probe not in KINDS or not context.is_next_run(pod))
    return _delete_next(old, now=context.now, limits=context.policy.spec.limits)


def _delete_next(pods: tuple[PodView, ...], *, now: float, limits: Limits) -> Step | None:
    """Delete the first pod that is still there, by force if it should have been gone long ago."""
    for pod in pods:
        if pod.gone:
            continue
        if not pod.deleting_since:
            return DeletePod(pod, 0 if pod.finished else None)
        if now >= pod.deleting_since + seconds(limits.not_gone):
            return DeletePod(pod, 0)
    return None


def _start_run(context: Context) -> Step | None:
    """Start the first kind of run that is due, may start now, and has a slot in its pool."""
    for kind in KINDS.values():
        if kind.pool.name not in context.granted or not _may_start(kind, context.pods):
            continue
        if _is_due(kind, context):
            run = context.next_run(kind.name)
            return CreatePod(context.node, run.number, probe_pod(context, kind, run), kind.name)
    return None


def _is_due(kind: ProbeKind, context: Context) -> bool:
    """A run may start now; none takes GPUs that somebody waits for."""
    return kind.due_at(context) <= context.now and not (kind.holds_gpus and context.waited_for())


def _may_start(kind: ProbeKind, pods: Iterable[PodView]) -> bool:
    """One pod of ours at a time on a node, except that a health run does not wait for a background pod.

    A pod that nodegauge did not make stops nobody, and it may never go.
    """
    others = [KINDS.get(pod.probe) for pod in pods if pod.owner_uid and not pod.gone]
    return all(kind.ignores_background and other is not None and other.in_background for other in others)


def _wake_times(context: Context, pods: list[PodView]) -> Iterable[float]:
    """When pods are overdue, runs are due, readings expire, and gates change with time alone."""
    for pod in pods:
        if not pod.deleting_since:
            kind = KINDS.get(pod.probe)
            limits = kind.limits(context.policy) if kind else context.policy.spec.limits
            deadline = kind.deadline(context.policy) if kind else 0.0
            yield pod_outcome.wake_at(pod, limits=limits, deadline=deadline)
    for kind in KINDS.values():
        if _may_start(kind, pods):
            yield kind.due_at(context)
    for reading in context.readings:
        yield context.expires_at(reading) + 1
    yield context.claims_until + 1
    yield context.unknown_at
    yield context.validates_by
    yield gates.due_at(context.status.gates, policy=context.policy, now=context.now)
    yield overrides.changes_at(context.node.override, now=context.now)
