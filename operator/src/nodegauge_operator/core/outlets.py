"""Where the operator says what it knows of a node: labels and taints, the condition, events, its history.

An outlet compares what should stand there with what stands, and names the write that comes next.  The API
server may refuse a write (an admission policy or webhook, missing rights): `Context.declined` has what it has
just refused, and one refusal holds back neither another outlet nor another key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.policy import Mode
from nodegauge_operator.api.report import DesiredTaint, ReportStatus
from nodegauge_operator.core import device_rule, events, gates, node_history
from nodegauge_operator.core.actions import (
    HISTORY_KEY,
    TAINTS,
    DeleteDeviceRule,
    PatchNode,
    PatchReport,
    PostEvent,
    PutDeviceRule,
    Refusal,
    SetCondition,
    Step,
    WriteHistory,
)
from nodegauge_operator.core.context import Context, Snapshot
from nodegauge_operator.core.model import ConditionView, NodeView, Taint
from nodegauge_operator.core.probes import registry

EVENT_REPEAT_SECONDS = 600.0
"""After a restart an event younger than this is posted again; its name makes that harmless.  Chosen by this
project: an operator is back within ten minutes, or its old news is no longer worth an event."""
NOTHING: frozenset[str] = frozenset()
UNVALIDATED = frozenset({names.TAINT_UNVALIDATED})


class Outlet(ABC):
    """One place on a node.  An instance has no state."""

    writes: type[Step]

    @abstractmethod
    def difference(self, context: Context, status: ReportStatus) -> Step | None:
        """The write after which this status stands here; None if it does."""

    def next_write(self, context: Context, status: ReportStatus) -> Step | None:
        """The same, without what the API server has just refused."""
        step = self.difference(context, status)
        return None if step is None or step.key in context.declined else step


class Marks(Outlet):
    """Labels and taints: schedulers and drains wait for them."""

    writes = PatchNode

    def difference(self, context: Context, status: ReportStatus) -> PatchNode | None:
        if context.policy.spec.mode is Mode.PAUSED:
            return None
        node, desired = context.node, status.desired
        ours = registry.label_keys() | {context.policy.spec.labels.interconnect_key}
        labels = label_patch(node, {k: v for k, v in desired.labels.items() if k in ours})
        # `unvalidated` stays, whoever set it, until the first pass, or a person takes the node as healthy
        healthy = context.override is not None and context.override.healthy
        replaced = gates.replaces_unvalidated(status, desired.taints)
        open_now = status.passed_at or healthy or replaced or context.policy.spec.mode is not Mode.ENFORCE
        taints = taint_patch(node, desired.taints, leave=NOTHING if open_now else UNVALIDATED)
        return PatchNode(node, labels, taints) if labels or taints is not None else None

    def next_write(self, context: Context, status: ReportStatus) -> PatchNode | None:
        patch = self.difference(context, status)
        return without_refused(context, patch) if patch is not None else None

    def first_write(self, context: Context, status: ReportStatus) -> PatchNode | None:
        """What report and condition wait for: everything, or the taints alone once that was refused."""
        patch = self.next_write(context, status)
        return None if patch is not None and patch.piece and patch.taints is None else patch


class DeviceRules(Outlet):
    """DeviceTaintRules of the node's GPUs: a new one is written before the node's taint goes, and an old one
    deleted after it came."""

    writes = PutDeviceRule

    def difference(self, context: Context, status: ReportStatus) -> PutDeviceRule | None:
        """The first rule that is missing or differs."""
        if context.policy.spec.mode is not Mode.ENFORCE or not context.device_rules:
            return None
        standing = {rule.name: rule for rule in context.rules}
        wanted = device_rule.wanted(context.node, status)
        for rule in wanted:
            known = standing.get(rule.name)
            if known is None or not known.says(rule):
                version = known.resource_version if known is not None else ""
                return PutDeviceRule(context.node, replace(rule, resource_version=version), len(wanted))
        return None


class OldDeviceRules(Outlet):
    """Rules of ours that nothing asks for any more."""

    writes = DeleteDeviceRule

    def difference(self, context: Context, status: ReportStatus) -> DeleteDeviceRule | None:
        if context.policy.spec.mode is Mode.PAUSED:
            return None
        wanted = device_rule.wanted(context.node, status)
        return first_old(context, {rule.name for rule in wanted})


class Condition(Outlet):
    """GPUValidated."""

    writes = SetCondition

    def difference(self, context: Context, status: ReportStatus) -> SetCondition | None:
        if context.policy.spec.mode is Mode.PAUSED:
            return None
        desired, condition = status.desired, None
        if desired.condition:
            condition = ConditionView(
                status=desired.condition, reason=desired.reason, message=desired.message
            )
        return SetCondition(context.node, condition) if condition != context.node.condition else None


class Events(Outlet):
    """The event of the report's last change, unless this process posted it or it is too old."""

    writes = PostEvent

    def difference(self, context: Context, status: ReportStatus) -> PostEvent | None:
        return event(context, status.change)


class History(Outlet):
    """The NodeHistory, which outlives the node."""

    writes = WriteHistory

    def difference(self, context: Context, status: ReportStatus) -> WriteHistory | None:
        return node_history.due_write(context, status)


MARKS = Marks()
CONDITION = Condition()
DEVICE_RULES, OLD_DEVICE_RULES = DeviceRules(), OldDeviceRules()
LASTING: tuple[Outlet, ...] = (DEVICE_RULES, MARKS, CONDITION, OLD_DEVICE_RULES)
"""What stands on a node until it is changed."""
EVENTS = Events()
HISTORY = History()


def event(context: Context, change: Change | None) -> PostEvent | None:
    """The event of a change, unless this process posted it or it is too old."""
    if change is None or PostEvent in context.declined:
        return None
    change = events.postable(change)
    too_old = context.now - change.at_epoch >= EVENT_REPEAT_SECONDS
    if too_old or (change.run, change.reason) == context.posted:
        return None
    return PostEvent(context.node, change)


def lasting_writes(context: Context, status: ReportStatus) -> Iterator[Step | None]:
    """What stands on a node until it is changed, in the order in which it is written: safety first.  Once the
    API server has refused everything at once, each label alone comes last."""
    yield DEVICE_RULES.next_write(context, status)
    yield MARKS.first_write(context, status)
    yield OLD_DEVICE_RULES.next_write(context, status)
    yield CONDITION.next_write(context, status)
    yield MARKS.next_write(context, status)


def refusals(context: Context) -> Iterator[Refusal]:
    """What the API server refuses of what should stand now, and does not."""
    declined, status = context.declined, context.status
    patch = MARKS.difference(context, status)
    for piece in _pieces(patch) if patch is not None else ():
        if message := declined.get(piece.key):
            taints = piece.taints is not None
            kind = names.Obstacle.TAINT if taints else names.Obstacle.LABEL
            yield Refusal(kind, "a change of taints" if taints else f"the label {piece.piece}", message)
    if SetCondition in declined and CONDITION.difference(context, status) is not None:
        what = f"the condition {names.CONDITION}"
        yield Refusal(names.Obstacle.CONDITION, what, declined[SetCondition])
    if PutDeviceRule in declined:
        what = "a DeviceTaintRule, so that the node is tainted in its place"
        yield Refusal(names.Obstacle.TAINT, what, declined[PutDeviceRule])
    if DeleteDeviceRule in declined and OLD_DEVICE_RULES.difference(context, status) is not None:
        yield Refusal(names.Obstacle.TAINT, "the end of a DeviceTaintRule", declined[DeleteDeviceRule])
    if PatchReport in declined:
        yield Refusal(names.Obstacle.REPORT, "the report", declined[PatchReport])
    message = declined.get(HISTORY_KEY)
    if message and HISTORY.difference(context, status) is not None:
        yield Refusal(names.Obstacle.WRITE, "the history (NodeHistory)", message)


def without_refused(snapshot: Snapshot, patch: PatchNode) -> PatchNode | None:
    """The patch; or, once it was refused as a whole, its next piece that was not."""
    if PatchNode not in snapshot.declined:
        return patch
    return next((piece for piece in _pieces(patch) if piece.key not in snapshot.declined), None)


def _pieces(patch: PatchNode) -> Iterator[PatchNode]:
    """The taints and each label, by themselves."""
    if patch.taints is not None:
        yield replace(patch, labels={}, piece=TAINTS)
    for key, value in patch.labels.items():
        yield replace(patch, labels={key: value}, taints=None, piece=key)


def first_old(snapshot: Snapshot, wanted: Collection[str] = ()) -> DeleteDeviceRule | None:
    """The removal of the first of our rules that is not wanted; None if there is none."""
    return next((DeleteDeviceRule(rule) for rule in snapshot.rules if rule.name not in wanted), None)


def removal(snapshot: Snapshot, node: NodeView) -> PatchNode | SetCondition | DeleteDeviceRule | None:
    """The write that removes labels, taints, device rules and condition of ours from a node that no policy
    selects, or that has no report of its own."""
    labels, taints = label_patch(node, {}), _without_taints(snapshot, node)
    differs = labels or taints is not None
    if differs and (patch := without_refused(snapshot, PatchNode(node, labels, taints))):
        return patch
    if DeleteDeviceRule not in snapshot.declined and (old := first_old(snapshot)):
        return old
    if node.condition is not None and SetCondition not in snapshot.declined:
        return SetCondition(node, None)
    return None


def keeps_taint(snapshot: Snapshot, node: NodeView) -> bool:
    """A taint of ours is still there that a release removes."""
    return _without_taints(snapshot, node) is not None


def _without_taints(snapshot: Snapshot, node: NodeView) -> tuple[Taint, ...] | None:
    """The node's taints without ours; None if it has none.  `unvalidated` stays on a node that was never
    ours: its kubelet registered with it, and the labels that will select it may come later."""
    return taint_patch(node, (), leave=UNVALIDATED if snapshot.own_report is None else NOTHING)


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
    and so do ours if they do not change.  Ours are all that `names.own_taint` knows, so that one of an
    earlier key goes when the new one comes.  `leave`: those of ours that stay as they are unless wanted.
    `unvalidated` keeps the value and effect that a kubelet gave it.
    """
    missing = {taint.key: taint for taint in wanted if taint.own}
    after: list[Taint] = []
    untouched = leave - {taint.own for taint in missing.values()}
    for taint in node.taints:
        if not taint.own or taint.own in untouched or (taint.own in UNVALIDATED and taint.key in missing):
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
