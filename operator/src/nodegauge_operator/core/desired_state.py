"""From readings to what the node should carry: gates, labels, taints, condition, and the change that this is.

`next_status` is asked after every run and at every look at a node.  It is a pure function of the context, so
asking twice changes nothing.  The node is never asked what it carries now, except for who owns the short
label key.

Stale readings (`Context.expires_at`) expire to absent labels and to nothing worse.  Labels of topology and
bandwidth also go when the node reboots.  Taints do not expire: they follow the gates in the report, which
missing data cannot change.

Also how everything of ours comes off a node that no policy selects.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, Mode, seconds
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, ReportStatus
from nodegauge_operator.core import budget, events, gates, transitions, verdict
from nodegauge_operator.core.actions import (
    DeletePod,
    DeleteReading,
    DeleteReport,
    PatchNode,
    PostEvent,
    SetCondition,
    Step,
)
from nodegauge_operator.core.context import HEALTH, Context, Snapshot, Unselected
from nodegauge_operator.core.model import NodeView, PodView, Taint
from nodegauge_operator.core.probes import registry
from nodegauge_operator.core.report_size import cut, fitted

MAX_MESSAGE = 1000
NOTHING: frozenset[str] = frozenset()
UNVALIDATED = frozenset({names.TAINT_UNVALIDATED})


def next_status(context: Context) -> ReportStatus:
    """`context.status` (the report's own, or that after a run) with what the node should carry now, and with
    the change that deserves an event, if there is one."""
    for kind in registry.EVERY.values():
        context = context.after(kind.at_look(context))
    status = context.status
    after = replace(
        status,
        policy=context.policy.name,
        installation=context.defaults.installation,
        gates=context.gates,
        throttle_judged_at=gates.throttle_judged_at(status.throttle_judged_at, context.gates),
        passed_at=status.passed_at or _passed_at(context),
        raw_verdict=context.raw_verdict,
        override=context.override,
    )
    after = replace(after, verdict=verdict.overall(context, after), summary=verdict.summary(context, after))
    after = replace(after, desired=desired_node(context, after))
    if context.policy.spec.mode is not Mode.PAUSED:
        after = replace(after, tainted_at=budget.newly_tainted_at(context, after))
    change = events.of_status(context, after)
    after = replace(
        after,
        change=change or status.change,
        transitions=transitions.with_history(context, after, change=change),
        conditions=transitions.conditions(context, after),
    )
    fits = fitted(after)
    if fits.probes == after.probes:
        return fits
    # the condition only names findings that the report still holds, or it would change at the next look
    return replace(fits, desired=desired_node(context, fits))


def desired_node(context: Context, status: ReportStatus) -> DesiredNode:
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
    condition, reason, message = verdict.condition(context, status)
    gates_sentence = events.gates_sentence(status, policy=context.policy)
    sentences = (
        message,
        *(kind.at_condition(status) for kind in registry.EVERY.values()),
        f"Gates: {gates_sentence}." if gates_sentence else "",
    )
    return DesiredNode(
        labels={k: v for k, v in (labels | short).items() if v and names.is_label_value(v)},
        taints=taints,
        condition=condition,
        reason=reason,
        message=cut(" ".join(sentence for sentence in sentences if sentence), MAX_MESSAGE),
        conflicts=conflicts,
        refusal=refusal,
    )


def label_patch(node: NodeView, wanted: dict[str, str]) -> dict[str, str | None]:
    """The merge patch of metadata.labels that turns what the node carries of ours into `wanted`.

    Ours are the keys of all kinds' labels and those that managedFields give to our field manager (an
    earlier short key).  Others are never touched.  Empty if nothing differs.
    """
    patch: dict[str, str | None] = {k: v for k, v in wanted.items() if node.labels.get(k) != v}
    ours = node.managed_labels | registry.label_keys()
    patch.update({key: None for key in ours if key in node.labels and key not in wanted})
    return patch


def taint_patch(
    node: NodeView, wanted: Iterable[DesiredTaint], *, leave: frozenset[str] = NOTHING
) -> tuple[Taint, ...] | None:
    """The whole list of taints that carries exactly `wanted` of ours; None if the node already does.

    A patch of taints replaces the whole list (promise 2): foreign taints keep their order and `timeAdded`,
    and so do ours if they do not change.  Only keys of `names.NODE_TAINTS` are ours.  `leave`: keys of ours
    that stay as they are unless wanted.  `unvalidated` keeps the value and effect that a kubelet gave it.
    """
    missing = {taint.key: taint for taint in wanted if taint.key in names.NODE_TAINTS}
    after: list[Taint] = []
    untouched = (leave - missing.keys()) | (UNVALIDATED & missing.keys())
    for taint in node.taints:
        if taint.key not in names.NODE_TAINTS or taint.key in untouched:
            after.append(taint)
        elif taint.key in missing and not any(seen.key == taint.key for seen in after):
            after.append(_kept_or_new(node, missing[taint.key]))
    present = {taint.key for taint in after}
    after += [_kept_or_new(node, taint) for key, taint in missing.items() if key not in present]
    return None if tuple(after) == node.taints else tuple(after)


def _kept_or_new(node: NodeView, wanted: DesiredTaint) -> Taint:
    """The node's own taint if it is as wanted, with its time; else a new one."""
    new = Taint(key=wanted.key, value=wanted.value, effect=wanted.effect)
    same = (t for t in node.taints if (t.key, t.value, t.effect) == (new.key, new.value, new.effect))
    return next(same, new)


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


def _passed_at(context: Context) -> str:
    """When the node first passed what the policy asks for: a health run, or an NCCL run where one can be made
    (a report of an older version may hold a health run that it did not note)."""
    kind = registry.EVERY[context.policy.spec.taints.unvalidated_until.value.lower()]
    probe = context.status.probe(kind.name if kind.is_wanted(context) else HEALTH)
    return probe.read_at if probe.verdict in (Verdict.PASS, Verdict.WARN) else ""


def release(snapshot: Snapshot, node: NodeView) -> Step | None:
    """The next write for a node that no policy selects."""
    if snapshot.unselected is Unselected.FREEZE:
        return None
    step = remove_from_node(snapshot, node) or delete_next(snapshot.pods, now=snapshot.now, limits=Limits())
    report, own = snapshot.report, snapshot.own_report
    if step or report is None:
        return step
    if own is not None and taint_patch(node, (), leave=_kept_taints(snapshot)) is not None:
        return None  # the API server refuses to let a taint go: its evidence stays
    if snapshot.reading is not None:
        return DeleteReading(snapshot.reading.name, snapshot.reading.uid)
    change = events.of_release(own, now=snapshot.now) if own is not None else None
    if change is None or (change.run, change.reason) == snapshot.posted or PostEvent in snapshot.declined:
        return DeleteReport(report)
    return PostEvent(node, change)


def remove_from_node(snapshot: Snapshot, node: NodeView) -> Step | None:
    """The write that removes labels, taints and condition of ours."""
    labels, taints = label_patch(node, {}), taint_patch(node, (), leave=_kept_taints(snapshot))
    if (labels or taints is not None) and PatchNode not in snapshot.declined:
        return PatchNode(node, labels, taints)
    if node.condition is not None and SetCondition not in snapshot.declined:
        return SetCondition(node, None)
    return None


def _kept_taints(snapshot: Snapshot) -> frozenset[str]:
    """Taints that no release removes: `unvalidated`, on a node that was never ours (its kubelet registered
    with it, and the labels that will select it may come later)."""
    return UNVALIDATED if snapshot.own_report is None else NOTHING


def delete_next(pods: tuple[PodView, ...], *, now: float, limits: Limits) -> Step | None:
    """Delete the first pod that is still there, by force if it should have been gone long ago."""
    for pod in pods:
        if pod.gone:
            continue
        if not pod.deleting_since:
            return DeletePod(pod, 0 if pod.finished else None)
        if now >= pod.deleting_since + seconds(limits.not_gone):
            return DeletePod(pod, 0)
    return None
