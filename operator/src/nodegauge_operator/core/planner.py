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

from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, Policy
from nodegauge_operator.api.report import Change, Outcome, Report, ReportStatus, Run, stamp, unstamp
from nodegauge_operator.core import desired_state, gate, gates, pod_outcome
from nodegauge_operator.core.actions import (
    CreatePod,
    CreateReport,
    DeletePod,
    DeleteReport,
    PatchNode,
    PatchReport,
    PostEvent,
    RefreshReport,
    SetCondition,
    Step,
)
from nodegauge_operator.core.context import Situation, Unselected
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.nccl_eligibility import giving_way, replaced
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.release import delete_next, release, take_off
from nodegauge_operator.core.report_update import advance
from nodegauge_operator.core.schedule import nccl_due_at, nccl_probe, run_due_at, wake_at
from nodegauge_operator.core.taints import taint_patch

__all__ = [
    "CreatePod",
    "CreateReport",
    "DeletePod",
    "DeleteReport",
    "PatchNode",
    "PatchReport",
    "PostEvent",
    "RefreshReport",
    "SetCondition",
    "Situation",
    "Step",
    "Unselected",
    "last_number",
    "nccl_due_at",
    "next_step",
    "refused",
    "run_due_at",
    "wake_at",
]

MAX_REFUSAL = 500
EVENT_REPEAT_SECONDS = 600.0
"""After a restart an event younger than this is posted again; its name makes that harmless."""


def next_step(s: Situation) -> Step | None:
    """The write that comes next, or None when everything is as it should be."""
    if s.node is None:
        return delete_next(s.pods, now=s.now, limits=Limits())
    if s.policy is None:
        return release(s, s.node)
    if s.report is None or s.report.node_uid != s.node.uid:
        return _absent_report(s, s.node, s.policy)
    return (
        _judge_ended(s, s.node, s.policy, s.report)
        or _hold(s, s.node, s.policy, s.report)
        or _tidy(s, s.node, s.policy, s.report)
        or _start(s, s.node, s.policy, s.report)
    )


def last_number(report: Report, probe: str = names.PROBE_HEALTH) -> int:
    """The number of the last finished run of a probe; 0 before the first."""
    last = report.status.probe(probe).last_run
    return last.number if last else 0


def refused(
    s: Situation, *, number: int, reason: str, message: str, probe: str = names.PROBE_HEALTH
) -> PatchReport:
    """The report after the API server refused to create the pod of run `number` (webhook, quota)."""
    assert s.node is not None
    assert s.policy is not None
    assert s.report is not None
    end = pod_outcome.RunEnd(outcome=Outcome.UNKNOWN, reason=reason, message=message)
    run = Run(number=number, started_at=stamp(s.now))
    request, now = s.report.requested_at, s.now
    status = advance(
        s.report.status, run=run, end=end, node=s.node, policy=s.policy, request=request, now=now, probe=probe
    )
    return _patched(s, s.report, status, node=s.node, policy=s.policy)


def _absent_report(s: Situation, node: NodeView, policy: Policy) -> Step | None:
    """Without a report of this very node nothing on it is justified; then a run can begin anew."""
    if s.report is not None:
        return DeleteReport(s.report)
    taken_off = take_off(s, node)
    if taken_off:
        return taken_off
    stale = tuple(p for p in s.pods if p.node_uid != node.uid and not p.gone)
    if stale:
        return delete_next(stale, now=s.now, limits=policy.spec.limits)
    ours = [p for p in s.pods if not p.gone]
    return CreateReport(node) if ours or s.granted or gates.bars(policy) else None


def _judge_ended(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """Patch the report with the end of the current run of a probe, once."""
    mine = [p for p in s.pods if p.node_uid == node.uid and p.probe in names.PROBES]
    if any(p.number > last_number(report, p.probe) + 1 and not p.gone for p in mine) and not s.fresh:
        return RefreshReport(report.name)
    for pod in mine:
        last = report.status.probe(pod.probe).last_run
        if not _current(pod, node, report) or (last is not None and pod.uid == last.pod_uid):
            continue
        end = _ending(s, pod, node, policy)
        if end is not None:
            status = _advanced(s, pod, end, node=node, policy=policy, report=report)
            return _patched(s, report, status, node=node, policy=policy)
    return None


def _ending(s: Situation, pod: PodView, node: NodeView, policy: Policy) -> pod_outcome.RunEnd | None:
    """How the pod's run ended; None while it goes on.  A benchmark gives way where the node is wanted for
    something else, or has done so already: whoever drained the node may have ended it."""
    limits, deadline = policy.limits_of(pod.probe), policy.deadline_of(pod.probe)
    end = pod_outcome.ending(pod, node=node.name, limits=limits, deadline=deadline, now=s.now)
    if pod.probe == names.PROBE_HEALTH or (end is not None and end.outcome is not Outcome.UNKNOWN):
        return end
    return giving_way(node) or replaced(pod, image=policy.nccl_image(s.defaults.nccl_image)) or end


def _advanced(
    s: Situation, pod: PodView, end: pod_outcome.RunEnd, *, node: NodeView, policy: Policy, report: Report
) -> ReportStatus:
    """The status after the pod's run, on the node as it was when the run was planned."""
    started = stamp(pod.started_at or pod.created_at)
    return advance(
        report.status,
        run=Run(number=pod.number, pod_name=pod.name, pod_uid=pod.uid, started_at=started),
        end=end,
        node=replace(node, boot_id=pod.boot_id or node.boot_id),
        policy=policy,
        request=pod.request,
        now=s.now,
        probe=pod.probe,
        image=pod.image,
        peers=s.peers,
    )


def _patched(
    s: Situation, report: Report, status: ReportStatus, *, node: NodeView, policy: Policy
) -> PatchReport:
    """The report with this status and all that follows from it now."""
    ground = desired_state.Ground(
        node=node,
        policy=policy,
        now=s.now,
        since=s.since,
        room=s.gate_room,
        nccl_image=s.defaults.nccl_image,
        peers=s.peers,
    )
    return PatchReport(report, desired_state.settled(report, status, ground))


def _hold(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """Bring report and node in line with what the readings and the policy say now."""
    if desired_state.idle(report, policy):  # one that nobody can read is replaced by the next run
        return None if report.unreadable is not None else _bring(s, node, report, policy)
    patch = _patched(s, report, report.status, node=node, policy=policy)
    if patch.status != report.status:
        overtaken = patch.status.change != report.status.change
        return (_event(s, node, report.status.change) if overtaken else None) or patch
    return _bring(s, node, report, policy) or _event(s, node, report.status.change)


def _bring(s: Situation, node: NodeView, report: Report, policy: Policy) -> Step | None:
    """Write to the node what the report holds; what the API server refuses is said in the report."""
    held = report.status.desired
    labels, wanted = gate.label_patch(node, held.labels), desired_state.condition_of(held)
    taints = taint_patch(node, held.taints, leave=desired_state.left_alone(report.status, policy))
    patch = PatchNode(node, labels, taints) if labels or taints is not None else None
    differs = patch is not None or wanted != node.condition
    words = s.declined.get(PatchNode) or s.declined.get(SetCondition) or ""
    refusal = words[:MAX_REFUSAL] or (held.refusal if differs else "")
    if refusal != held.refusal:
        return PatchReport(report, replace(report.status, desired=replace(held, refusal=refusal)))
    if patch is not None and PatchNode not in s.declined:
        return patch
    if wanted != node.condition and SetCondition not in s.declined:
        return SetCondition(node, wanted)
    return None


def _event(s: Situation, node: NodeView, change: Change | None) -> Step | None:
    if change is None or (change.run, change.reason) == s.posted or PostEvent in s.declined:
        return None
    recent = s.now - unstamp(change.at) < EVENT_REPEAT_SECONDS
    return PostEvent(node, change) if recent else None


def _tidy(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """Delete pods that have been judged or belong to nobody, and force those that do not go."""
    over = tuple(p for p in s.pods if not _current(p, node, report))
    return delete_next(over, now=s.now, limits=policy.spec.limits)


def _current(pod: PodView, node: NodeView, report: Report) -> bool:
    """The pod is of this very node, and of the next run of a probe that this version knows."""
    known = pod.probe in names.PROBES and pod.node_uid == node.uid
    return known and pod.number == last_number(report, pod.probe) + 1


def _start(s: Situation, node: NodeView, policy: Policy, report: Report) -> Step | None:
    """One pod of ours at a time on a node, but that a pull holds up no health run; health goes first where
    both have a place."""
    pods = [pod for pod in s.pods if not pod.gone]
    if any(pod.in_the_way for pod in pods):
        return None
    probe = _next_probe(s, node, policy, report)
    if probe is None or (pods and probe != names.PROBE_HEALTH):
        return None
    number, request = last_number(report, probe) + 1, report.requested_at
    manifest = probe_pod(
        node=node, policy=policy, number=number, request=request, defaults=s.defaults, probe=probe
    )
    return CreatePod(node, number, manifest, probe)


def _next_probe(s: Situation, node: NodeView, policy: Policy, report: Report) -> str | None:
    """The probe that is due and has a place in its budget."""
    if s.granted and s.now >= run_due_at(report, node=node, policy=policy):
        return names.PROBE_HEALTH
    if s.nccl_granted and s.now >= nccl_due_at(report, node=node, policy=policy, defaults=s.defaults):
        image = policy.nccl_image(s.defaults.nccl_image)
        return nccl_probe(report.status, node=node, image=image)
    return None
