"""The one decision: from policy, readings, node and time to verdict, labels, taints, condition and why.

`decide` is asked after every run and at every look at a node, by the operator, by the command line and,
through that, by Ansible.  It is a pure function of the context, so asking twice changes nothing.  The node is
never asked what it carries now, except for who owns the short label key.

Stale readings (`Context.expires_at`) expire to absent labels and to nothing worse.  Labels of topology and
bandwidth also go when the node reboots.  Taints do not expire: they follow the gates in the report, which
missing data cannot change.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_contract import Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.desired_device import DesiredDevice
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.policy import Mode, Policy, PolicySpec
from nodegauge_operator.api.report import (
    DesiredNode,
    GateState,
    GateStatus,
    Outcome,
    Report,
    ReportStatus,
    Run,
)
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import (
    budget,
    device_gates,
    events,
    faults,
    gates,
    node_history,
    transitions,
    wording,
)
from nodegauge_operator.core.context import HEALTH, Context, Snapshot
from nodegauge_operator.core.gpu_eligibility import REPLICAS
from nodegauge_operator.core.model import NodeView, ProbeDefaults
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes import registry
from nodegauge_operator.core.probes.kind import EndedRun, Kind
from nodegauge_operator.core.report_size import cut, fitted
from nodegauge_operator.names import Reason

MAX_LATE = 400
"""Bytes of the message of a node that has not passed in time."""
MAX_READ = 80
"""Bytes of a transition's cause for what was read: the counts, and a GPU with a gap."""


def decide(context: Context, kind: Kind | None = None, ended: EndedRun | None = None) -> ReportStatus:
    """The report's status with what the node should carry now, and with the change that deserves an event, if
    there is one.

    `context.status` is the report's own, or what it becomes by news; `ended`: a run of this `kind` that has
    just ended.
    """
    before, of_run = context.status, None
    if kind is not None and ended is not None:
        planned_on = replace(context.node, boot_id=ended.boot_id or context.node.boot_id)
        context = context.after(kind.after_run(replace(context, node=planned_on), ended))
        of_run = events.of_run(before, context.status, kind=kind)
    for each in registry.EVERY.values():
        context = context.after(each.at_look(context))
    passed_at = context.status.passed_at or _passed_at(context)
    by_time = _gates_by_time(context, passed=bool(passed_at))
    context = context.after(replace(context.status, gates=by_time))
    status = context.status
    after = replace(
        status,
        policy=context.policy.name,
        installation=context.defaults.installation,
        gates=context.gates,
        throttle_judged_at=gates.throttle_judged_at(status.throttle_judged_at, context.gates),
        passed_at=passed_at,
        raw_verdict=context.raw_verdict,
        override=context.override,
    )
    raw, unread = context.raw_verdict, status.probe[HEALTH].unreadable is not None
    verdict = gates.verdict(after.gates, raw=raw, unreadable=unread, policy=context.policy)
    after = replace(after, verdict=verdict)
    after = replace(after, desired=replace(after.desired, devices=_devices(context, after)))
    read = wording.covered(context, after, most=MAX_READ)
    every, before_taints = context.after(after).faults, after.desired.taints
    summary = wording.summary(context, after, every)
    after = replace(after, summary=summary, desired=_desired_node(context, after, every))
    if context.policy.spec.mode is not Mode.PAUSED:
        after = replace(after, tainted_at=budget.newly_tainted_at(context, after))
    if ended is not None:
        after = node_history.after_run(context, after)
    if after.desired.taints != before_taints:
        every = context.after(after).faults
    change = events.of_status(context, after, of_run=of_run, kind=kind, every=every)
    after = replace(
        after,
        change=change or status.change,
        cause=faults.cause(every),
        transitions=transitions.with_history(context, after, change=change, read=read),
        conditions=transitions.conditions(context, after, *_condition(context, after)),
    )
    fits = fitted(after)
    if fits.probes == after.probes:
        return fits
    # the condition only names findings that the report still holds, or it would change at the next look
    return replace(fits, desired=_desired_node(context, fits, context.after(fits).faults))


def of_first_result(
    result: Result, *, spec: PolicySpec, gpu_capacity: int | None, shared: bool, now: float
) -> ReportStatus:
    """What follows from a health result alone, on a node of which nothing is known before.

    `gpu_capacity`: GPUs that the cluster counts there, None outside of one; `shared`: whether it counts
    shares of GPUs; `now`: epoch seconds.
    """
    capacity = "" if gpu_capacity is None else str(gpu_capacity)
    labels = {REPLICAS: "2"} if shared else {}
    context = Snapshot(
        node=NodeView(name="node", uid="1", resource_version="1", labels=labels, gpu_capacity=capacity),
        policy=Policy(name="policy", uid="1", generation=1, spec=spec),
        report=Report(name="node", uid="1", resource_version="1", node_uid="1"),
        now=now,
        gate_slot=True,
        kinds=registry.EVERY,
        defaults=ProbeDefaults(namespace="", image=""),
    ).context
    assert context is not None, "node and policy are there"
    run = Run(number=1, pod_uid="1", started_at=stamp(now))
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=result)
    return decide(context, registry.EVERY[HEALTH], EndedRun(run=run, end=end))


def _desired_node(context: Context, status: ReportStatus, every: list[Fault]) -> DesiredNode:
    """What the node should carry by this status; nothing at all in mode Observe, and in mode Paused what it
    should carry before."""
    refusal = status.desired.refusal
    if context.policy.spec.mode is Mode.PAUSED:
        return status.desired
    if context.policy.spec.mode is Mode.OBSERVE:
        return DesiredNode(refusal=refusal)
    labels = {label.key: label.value(context, status) for label in registry.labels()}
    short, conflicts = _short_label(context, labels[names.LABEL_INTERCONNECT])
    taints = gates.taints(status, policy=context.policy)
    condition, reason = _condition(context, status)
    return DesiredNode(
        labels={k: v for k, v in (labels | short).items() if v and names.is_label_value(v)},
        taints=taints,
        devices=status.desired.devices,
        condition=condition,
        reason=reason,
        message=wording.condition_message(context, status, every),
        conflicts=conflicts,
        refusal=refusal,
    )


def _devices(context: Context, status: ReportStatus) -> list[DesiredDevice]:
    """The devices that this status gates, as `_desired_node`; all texts name them."""
    policy = context.policy
    if policy.spec.mode is Mode.PAUSED:
        return status.desired.devices
    if policy.spec.mode is Mode.OBSERVE:
        return []
    slots = context.device_slots if context.device_rules else 0
    return device_gates.desired(status, policy=policy, node=context.node, slots=slots)


def _condition(context: Context, status: ReportStatus) -> tuple[str, str]:
    """Status and reason of the condition GPUValidated; both empty before the first run, unless a taint for a
    fault stands.

    False makes others drain and repair nodes, so it keeps within the budget as taints do: a fault that waits
    for a slot is Unknown (ADR 0046).
    """
    probe = status.probe[HEALTH]
    if probe.last_run is None and status.verdict is not Verdict.FAIL:
        return "", ""
    match context.after(status).verdict:
        case Verdict.PASS:
            return "True", Reason.VALIDATED
        case Verdict.WARN:
            return "True", _why_warned(status, policy=context.policy)
        case Verdict.FAIL:
            within = [gate for gate in status.gates if gate.state is not GateState.HELD_BACK]
            stands = gates.confirmed(within, policy=context.policy)
            return ("False", Reason.FAULTS_FOUND) if stands else ("Unknown", Reason.HELD_BACK)
    if not probe.read_at:
        return "Unknown", Reason.NOT_YET_VALIDATED
    return "Unknown", Reason.UNREADABLE if context.is_known else Reason.STALE


def _why_warned(status: ReportStatus, *, policy: Policy) -> Reason:
    known = [gate for gate in status.gates if gate.code in gates.GATES]
    if any(gate.state is GateState.HELD_BACK for gate in known):
        return Reason.HELD_BACK
    if any(gate.on_devices and gate.state.entered for gate in known):
        return Reason.DEVICES_GATED
    if any(gate.state is GateState.GATED and not gates.is_soft(gate, policy=policy) for gate in known):
        healthy = status.override is not None and status.override.healthy
        return Reason.TAKEN_AS_HEALTHY if healthy else Reason.TAINT_DISABLED
    return Reason.UNCONFIRMED if any(gate.bad for gate in known) else Reason.WARNINGS


def _short_label(context: Context, klass: str) -> tuple[dict[str, str], list[str]]:
    """The interconnect under the policy's short key; or that key, where it belongs to someone else and says
    something else."""
    node, settings = context.node, context.policy.spec.labels
    key = settings.interconnect_key
    if not key or not klass:
        return {}, []
    value = node.labels.get(key)
    if value is None or key in node.managed_labels or settings.take_over:
        return {key: klass}, []
    return {}, [] if value == klass else [key]


def _gates_by_time(context: Context, *, passed: bool) -> list[GateStatus]:
    """The report's gates with that of a node that has not passed in time; `passed`: it has by now."""
    known, policy = context.status.gates, context.policy
    if policy.paused:
        return known
    others = [gate for gate in known if gate.code not in gates.BY_TIME]
    if passed or not policy.spec.taints.validated_within:
        return others
    if len(others) < len(known) or context.node.leaving or context.now < context.validates_by:
        return known
    now = stamp(context.now)
    return [
        *known,
        *(
            GateStatus(
                code=code,
                state=GateState.HELD_BACK,
                since=now,
                entered_at=now,
                fault_at=now,
                subject="node",
                message=_why_late(context),
            )
            for code in gates.BY_TIME
        ),
    ]


def _why_late(context: Context) -> str:
    """Since when the node is awaited, and how its last run ended; written once."""
    within, last = context.policy.spec.taints.validated_within, context.status.probe[HEALTH].last_run
    why = "No run has been made."
    if last is not None:
        read = last.outcome is Outcome.READ
        why = context.status.probe[HEALTH].summary if read else f"{last.reason}: {last.message}"
    return cut(f"No run has passed within {within} of the node's start. Last run: {why}", MAX_LATE)


def _passed_at(context: Context) -> str:
    """When the node first passed what the policy asks for: a health run, or an NCCL run where one can be made
    (a report of an older version may hold a health run that it did not note)."""
    kind = registry.EVERY[context.policy.spec.taints.unvalidated_until.value.lower()]
    probe = context.status.probe[kind.name if kind.is_wanted(context) else HEALTH]
    return probe.read_at if probe.verdict in (Verdict.PASS, Verdict.WARN) else ""
