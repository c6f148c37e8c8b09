"""The next single write for one node: the order of writes of promise 3 as one pure function.

`next_step` looks at what is and names the one write that comes next; the caller makes it, folds the answer
into the situation and asks again.  A process killed between any two writes asks the same question after its
restart and goes on where it was: there is no other state.  The order:

1. create the pod (its name is made of node UID, probe and run number: AlreadyExists means adopt);
2. patch the report's status: the run, judged once;
3. patch the node where it differs;
4. condition, then event;
5. delete the pod.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, Policy, seconds
from nodegauge_operator.api.report import Change, Held, Outcome, Report, ReportStatus, Run, stamp, unstamp
from nodegauge_operator.core import changes, gate, runs
from nodegauge_operator.core.advance import advance
from nodegauge_operator.core.model import ConditionView, NodeView, PodView
from nodegauge_operator.core.podspec import ProbeDefaults, probe_pod
from nodegauge_operator.core.selection import may_run

RETRY_SECONDS = 30.0
EVENT_REPEAT_SECONDS = 600.0
"""After a restart an event younger than this is posted again; its name makes that harmless."""


class CreateReport(Struct, frozen=True):
    """Make the node's report, owned by the node."""

    node: NodeView


class DeleteReport(Struct, frozen=True):
    """Remove a report: of an earlier node of this name, or because no policy wants one."""

    report: Report


class PatchReport(Struct, frozen=True):
    """Write the report's status, with its resourceVersion."""

    report: Report
    status: ReportStatus


class PatchNode(Struct, frozen=True):
    """Write labels of ours, with the node's resourceVersion."""

    node: NodeView
    labels: dict[str, str | None]


class SetCondition(Struct, frozen=True):
    """Write our condition; None removes it."""

    node: NodeView
    condition: ConditionView | None


class PostEvent(Struct, frozen=True):
    """Post the event of a change, under a name that makes repeating harmless."""

    node: NodeView
    change: Change


class CreatePod(Struct, frozen=True):
    """Start a run."""

    node: NodeView
    number: int
    manifest: dict[str, Any]


class DeletePod(Struct, frozen=True):
    """Remove a pod, with its UID as precondition; `grace` seconds, None for the pod's own."""

    pod: PodView
    grace: int | None


class RefreshReport(Struct, frozen=True):
    """Read the report again: a pod says that it is newer than what we hold."""

    name: str


Step = (
    CreateReport
    | DeleteReport
    | PatchReport
    | PatchNode
    | SetCondition
    | PostEvent
    | CreatePod
    | DeletePod
    | RefreshReport
)


class Situation(Struct, frozen=True, kw_only=True):
    """All that `next_step` may know of one node.

    `node` None: it is gone for certain.  `policy` None: no policy selects it.  `granted`: the budget of
    concurrent probes has a place for it.  `posted`: run and reason of the last event this process posted.
    `fresh`: the report was read again for this very question.
    """

    node: NodeView | None
    policy: Policy | None
    report: Report | None
    pods: tuple[PodView, ...]
    now: float
    granted: bool = False
    posted: tuple[str, str] = ("", "")
    fresh: bool = False
    defaults: ProbeDefaults


def next_step(s: Situation) -> Step | None:
    """The write that comes next, or None when everything is as it should be."""
    if s.node is None:
        return _delete_next(s.pods, now=s.now, limits=Limits())
    if s.policy is None:
        return _release(s, s.node)
    if s.report is None or s.report.node_uid != s.node.uid:
        return _absent_report(s, s.node, s.policy)
    return (
        _judge_ended(s, s.node, s.policy, s.report)
        or _hold(s, s.node, s.policy, s.report)
        or _tidy(s, s.node, s.policy, s.report)
        or _start(s, s.node, s.policy, s.report)
    )


def run_due_at(report: Report | None, *, node: NodeView, policy: Policy) -> float:
    """When the next run may start, epoch seconds; 0.0 for at once, infinity for never.

    At once: never run, asked for by `spec.requestedAt`, booted anew.  A run that brought nothing is repeated
    after 30 s, then twice that, up to the interval.
    """
    if not policy.spec.probes.health.enabled or not may_run(node):
        return float("inf")
    if report is None or report.node_uid != node.uid:
        return 0.0
    probe = report.status.probe(names.PROBE_HEALTH)
    if probe.last_run is None or (report.requested_at and report.requested_at != probe.request):
        return 0.0
    finished = unstamp(probe.last_run.finished_at)
    if probe.unread:
        return finished + min(policy.interval_seconds, RETRY_SECONDS * float(1 << min(probe.unread - 1, 10)))
    return 0.0 if gate.rebooted(probe, node) else finished + policy.interval_seconds


def wake_at(s: Situation) -> float:
    """When to ask `next_step` again if nothing happens before: the next moment after `now`, or infinity."""
    pods = [p for p in s.pods if not p.gone]
    limits = s.policy.spec.limits if s.policy else Limits()
    times = [p.deleting_since + seconds(limits.not_gone) for p in pods if p.deleting_since]
    if s.node is None or s.policy is None:
        return min((at for at in times if at > s.now), default=float("inf"))
    deadline = seconds(s.policy.spec.probes.health.deadline)
    times += [runs.wake_at(p, limits=limits, deadline=deadline) for p in pods if not p.deleting_since]
    if not pods:
        times.append(run_due_at(s.report, node=s.node, policy=s.policy))
    if s.report is not None:
        probe = s.report.status.probe(names.PROBE_HEALTH)
        times.append(gate.stale_at(probe, policy=s.policy) + 1)
    return min((at for at in times if at > s.now), default=float("inf"))


def last_number(report: Report) -> int:
    """The number of the last finished run; 0 before the first."""
    last = report.status.probe(names.PROBE_HEALTH).last_run
    return last.number if last else 0


def refused(s: Situation, *, number: int, reason: str, message: str) -> PatchReport:
    """The report after the API server refused to create the pod of run `number` (webhook, quota)."""
    assert s.node is not None
    assert s.policy is not None
    assert s.report is not None
    end = runs.RunEnd(outcome=Outcome.UNKNOWN, reason=reason, message=message)
    run = Run(number=number, started_at=stamp(s.now))
    request, now = s.report.requested_at, s.now
    status = advance(
        s.report.status, run=run, end=end, node=s.node, policy=s.policy, request=request, now=now
    )
    return _patched(s.report, status, node=s.node, policy=s.policy, now=now)


def _release(s: Situation, node: NodeView) -> Step | None:
    """No policy selects the node: what we hold comes off, then pods and the report go."""
    labels = gate.label_patch(node, {})
    if labels:
        return PatchNode(node, labels)
    if node.condition is not None:
        return SetCondition(node, None)
    deleted = _delete_next(s.pods, now=s.now, limits=Limits())
    return deleted or (DeleteReport(s.report) if s.report else None)


def _absent_report(s: Situation, node: NodeView, policy: Policy) -> Step | None:
    if s.report is not None:
        return DeleteReport(s.report)
    stale = tuple(p for p in s.pods if p.node_uid != node.uid and not p.gone)
    if stale:
        return _delete_next(stale, now=s.now, limits=policy.spec.limits)
    ours = [p for p in s.pods if not p.gone]
    return CreateReport(node) if ours or s.granted else None


def _judge_ended(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """Patch the report with the end of the current run, once."""
    current = last_number(report) + 1
    mine = [p for p in s.pods if p.node_uid == node.uid]
    if any(p.number > current and not p.gone for p in mine) and not s.fresh:
        return RefreshReport(report.name)
    last = report.status.probe(names.PROBE_HEALTH).last_run
    for pod in mine:
        if pod.number != current or (last is not None and pod.uid == last.pod_uid):
            continue
        deadline = seconds(policy.spec.probes.health.deadline)
        end = runs.ending(pod, node=node.name, limits=policy.spec.limits, deadline=deadline, now=s.now)
        if end is not None:
            started = stamp(pod.started_at or pod.created_at)
            run = Run(number=current, pod_name=pod.name, pod_uid=pod.uid, started_at=started)
            met = replace(node, boot_id=pod.boot_id or node.boot_id)
            status = advance(
                report.status, run=run, end=end, node=met, policy=policy, request=pod.request, now=s.now
            )
            return _patched(report, status, node=node, policy=policy, now=s.now)
    return None


def _patched(
    report: Report, status: ReportStatus, *, node: NodeView, policy: Policy, now: float
) -> PatchReport:
    """The status with what the node should carry now, and with the change that this is, if it is one."""
    held = gate.desired(status, node=node, policy=policy, now=now)
    verdict = gate.effective_verdict(status, policy=policy, now=now)
    after = replace(status, policy=policy.name, held=held, verdict=verdict)
    change = changes.of_gate(status, after, node=node, now=now)
    if change is not None:
        of_run = status.change if status.change != report.status.change else None
        after = replace(after, change=changes.together(of_run, change))
    return PatchReport(report, after)


def _hold(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """Bring report and node in line with what the readings and the policy say now."""
    if report.status.probe(names.PROBE_HEALTH).last_run is None:
        return None
    patch = _patched(report, report.status, node=node, policy=policy, now=s.now)
    if patch.status != report.status:
        overtaken = patch.status.change != report.status.change
        return (_event(s, node, report.status.change) if overtaken else None) or patch
    held = report.status.held
    labels = gate.label_patch(node, held.labels)
    if labels:
        return PatchNode(node, labels)
    wanted = condition_of(held)
    if wanted != node.condition:
        return SetCondition(node, wanted)
    return _event(s, node, report.status.change)


def condition_of(held: Held) -> ConditionView | None:
    """The condition that `held` asks for; None for none."""
    if not held.condition:
        return None
    return ConditionView(status=held.condition, reason=held.reason, message=held.message)


def _event(s: Situation, node: NodeView, change: Change | None) -> Step | None:
    if change is None or (change.run, change.reason) == s.posted:
        return None
    recent = s.now - unstamp(change.at) < EVENT_REPEAT_SECONDS
    return PostEvent(node, change) if recent else None


def _tidy(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """Delete pods that have been judged or belong to nobody, and force those that do not go."""
    current = last_number(report) + 1
    over = tuple(p for p in s.pods if p.number != current or p.node_uid != node.uid)
    return _delete_next(over, now=s.now, limits=policy.spec.limits)


def _delete_next(pods: tuple[PodView, ...], *, now: float, limits: Limits) -> Step | None:
    """Delete the first of these that is there, by force where it should have been gone for long."""
    for pod in pods:
        if pod.gone:
            continue
        if not pod.deleting_since:
            return DeletePod(pod, 0 if pod.finished else None)
        if now >= pod.deleting_since + seconds(limits.not_gone):
            return DeletePod(pod, 0)
    return None


def _start(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    if not s.granted or any(not p.gone for p in s.pods):
        return None
    if s.now < run_due_at(report, node=node, policy=policy):
        return None
    number, request = last_number(report) + 1, report.requested_at
    manifest = probe_pod(node=node, policy=policy, number=number, request=request, defaults=s.defaults)
    return CreatePod(node, number, manifest)
