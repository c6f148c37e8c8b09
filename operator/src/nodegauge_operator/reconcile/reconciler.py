"""One node at a time: ask for the next write, make it, ask again, until nothing is left to do."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Hashable, Iterable
from functools import partial

from msgspec import Struct
from msgspec.structs import asdict, replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Outcome, Report, ReportStatus, Run
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core import actions, planner
from nodegauge_operator.core.context import Snapshot, Unselected
from nodegauge_operator.core.model import NodeView, Taint
from nodegauge_operator.core.probes import watch
from nodegauge_operator.core.probes.kind import ProbeKind, Wait
from nodegauge_operator.core.probes.registry import EVERY, KINDS
from nodegauge_operator.kube import nodes, readings
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, WebhookFailed
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.breaker import Breaker
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.device_budget import DeviceBudget
from nodegauge_operator.reconcile.gaps import UNANSWERED_SECONDS, Gaps
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.obstacles import Obstacles
from nodegauge_operator.reconcile.peer_groups import Peers, versions_of
from nodegauge_operator.reconcile.reading_trust import Trust
from nodegauge_operator.reconcile.refused_pieces import RefusedPieces
from nodegauge_operator.reconcile.waiting import Waiting
from nodegauge_operator.reconcile.watch_sets import WatchSets
from nodegauge_operator.reconcile.watchers import Watchers
from nodegauge_operator.reconcile.writer import Writer
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge.node")

MAX_STEPS = 24
LATER_SECONDS = 60.0
"""When writes that the API server refused are tried again."""


class Reconciled(Struct, frozen=True, kw_only=True):
    """Nothing is left to write for now.

    `waits`: pools of which the node wants a slot, and for which run.  `wake_at`: when to look again, epoch
    seconds.
    """

    waits: dict[str, Wait]
    wake_at: float


class Reconciler:
    """Reconciles nodes; its only state is the last event that this process wrote for each node, what it
    judged and has not written yet, since when a node is outside its policy, and when the last gap ended."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], float],
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self.stopping = False
        """Once set, no new pods are made (SIGTERM)."""
        self._client = client
        self._cache = cache
        self._metrics = metrics
        self._defaults = settings.probe
        self._selector = settings.node_label_selector
        self._clock = clock
        self._monotonic = monotonic or time.monotonic
        self._refused = RefusedPieces(self._monotonic)
        self.obstacles = Obstacles(cache, interconnect_keys=settings.interconnect_keys)
        self.gaps = Gaps(clock=clock, monotonic=self._monotonic)
        self._release_grace = settings.release_grace
        self.gate_budget = GateBudget(
            cache,
            clock=self._monotonic,
            now=clock,
            cluster=settings.max_gated_nodes,
            per_hour=settings.max_gated_nodes_per_hour,
        )
        """Which nodes are gated, and which may be."""
        self.device_budget = DeviceBudget(
            cache, self.gate_budget.counters, clock=self._monotonic, cluster=settings.max_gated_nodes
        )
        """The same of devices."""
        account = settings.probe.service_account_name or "default"
        probe_user = f"system:serviceaccount:{settings.probe.namespace}:{account}"
        self.trust = Trust(client=client, probe_user=probe_user, monotonic=self._monotonic)
        """Whether readings count."""
        self.watch_sets = WatchSets(
            client=client,
            cache=cache,
            defaults=settings.probe,
            clock=clock,
            monotonic=self._monotonic,
            trust=self.trust,
        )
        self.watchers = Watchers(
            client=client,
            cache=cache,
            sets=self.watch_sets,
            metrics=metrics,
            refused=self.gate_budget.counters.refused,
            instance=settings.instance,
            clock=clock,
            monotonic=self._monotonic,
        )
        """The containers of mode Watch."""
        clocks = {"clock": clock, "monotonic": self._monotonic}
        self.waiting = Waiting(client=client, cache=cache, gpu_names=settings.give_way_to, **clocks)
        """Whom our runs give way to."""
        self.obstacles.pods = self.waiting.refusal
        self.breaker = Breaker(cache, now=clock, metrics=metrics)
        self._peers = {
            kind.name: Peers(cache, kind.peer_value) for kind in EVERY.values() if kind.peer_value is not None
        }
        self._fleet = Peers(cache, versions_of)
        self._failing_since: dict[str, float] = {}
        """Nodes whose writes fail while the API server answers others, monotonic."""
        self._posted: dict[str, tuple[str, str]] = {}
        self._written: dict[str, actions.WrittenHistory] = {}
        """By node what its NodeHistory got and its report does not say yet."""
        self._judged: dict[str, actions.Judged] = {}
        self._left_at: dict[str, float] = {}
        """When a node was first seen outside of every policy, monotonic: setting a clock ends no grace."""
        self._cordon_seen_at: dict[str, float] = {}
        """Monotonic: setting a clock delays no run."""
        self._writer = Writer(
            client=client,
            cache=cache,
            gate_budget=self.gate_budget,
            device_budget=self.device_budget,
            metrics=metrics,
            namespace=settings.probe.namespace,
            instance=settings.instance,
        )

    async def reconcile(
        self,
        name: str,
        *,
        granted: frozenset[str],
        since: float | None,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> Reconciled | None:
        """Write what has to be written for one node; None if its labels are written and the rest gives way to
        other nodes with news, so that in a storm no label waits for another node's report.

        `granted`: pools that reserve a slot for it.  `since`: when the pod event arrived that ended a run,
        monotonic; None if none did.  `others_wait`: whether others have news.

        Raises `KubeError` if another try has to solve it.
        """
        fresh: frozenset[type] = frozenset()
        declined = self._refused.messages_by_key(name)
        gone, step = False, None
        decided: Snapshot | None = None
        for _ in range(MAX_STEPS):
            if name in self._cache.suspects:
                gone = not await self._confirm(name)
            await self._keep_reading(name)
            snapshot = self._snapshot(name, gone=gone, granted=granted, fresh=fresh, declined=declined)
            if decided is not None and decided.report is snapshot.report:
                snapshot = replace(snapshot, up_to_date=True, now=decided.now)  # wake_at skips no time
            step, decided = planner.next_step(snapshot), None
            if step is None or (self.stopping and isinstance(step, actions.CreatePod)):
                return self._reconciled(name, snapshot)
            began = self._monotonic()
            try:
                done = await self._writer.write(step, snapshot)
            except KubeError as error:
                self.gaps.failed(error, since=began)
                again = isinstance(step, actions.PatchReport) and actions.PatchReport in declined
                if again or not _may_wait(step, error):
                    self._note_refused(name, step, error)
                    raise
                refused = isinstance(error, Refused | Forbidden | WebhookFailed | NotFound)
                if isinstance(step.key, tuple) and refused:
                    self._refused.add(name, step.key, str(error))
                else:
                    self._note_declined(name, error)
                declined = declined | dict.fromkeys(step.keys, str(error) if refused else "")
                continue
            self.gaps.answered()
            decided = snapshot if isinstance(step, actions.FOLLOWING) else None
            if done is not None:
                self._note(name, done)
            if isinstance(done, actions.PatchNode | actions.PutDeviceRule) and done.judged is not None:
                if since is not None:
                    self._metrics.result_seconds.observe(time.monotonic() - since)
                if self._labels_first(name, granted=granted) and others_wait():
                    return None
            is_read = isinstance(step, actions.RefreshReport | actions.RefreshReading)
            fresh = fresh | {type(step)} if is_read else frozenset()
        endless = KubeError(f"still not reconciled after {MAX_STEPS} writes; the last: {_described(step)}")
        self.obstacles.put(name, [actions.Refusal(names.Obstacle.WRITE, "all that is due", str(endless))])
        raise endless

    def _labels_first(self, name: str, *, granted: frozenset[str]) -> bool:
        """Whether the rest may wait until the labels of others are written.  What holds a slot gives way to
        nobody: the report has to show it."""
        return not (granted or self.gate_budget.is_reserved(name) or self.stopping)

    def _note_refused(self, name: str, step: actions.Step, error: KubeError) -> None:
        """Nothing more can be written there; an API server that is away refuses nothing."""
        if isinstance(error, Refused | Forbidden | WebhookFailed) or self._fails_alone(name):
            of_report = isinstance(step, actions.CreateReport | actions.PatchReport)
            kind = names.Obstacle.REPORT if of_report else names.Obstacle.WRITE
            what = "the report" if of_report else f"a step ({type(step).__name__})"
            self.obstacles.put(name, [actions.Refusal(kind, what, str(error))])

    def _fails_alone(self, name: str) -> bool:
        """Whether writes for the node have failed for a while in which the API server answered others: an
        object that etcd finds too large, a quota whose evaluation times out, a conversion that fails."""
        now = self._monotonic()
        if self._client.outage.problem():
            self._failing_since.pop(name, None)
            return False
        return now - self._failing_since.setdefault(name, now) > UNANSWERED_SECONDS

    def _note_declined(self, name: str, error: KubeError) -> None:
        later = "node %s: %s; will try again later"
        log.log(error.log_level, later, name, error, extra={"node": name})
        self._metrics.failures.labels(type(error).__name__).inc()

    async def _confirm(self, name: str) -> bool:
        """Whether a node is there that was reported deleted, or that a list lacks: only a 404 makes it gone.

        One that is there and not in the server-side selection has left it: what we hold there comes off.
        """
        self._cache.suspects.discard(name)  # not after the answer: it may be reported again meanwhile
        try:
            node = await nodes.get(self._client, name)
            if self._selector and not await nodes.selected(self._client, name, self._selector):
                self._cache.outside_selector.add(name)
            self._cache.put_node(node)
        except NotFound:
            self._cache.drop_node(name)
            return False
        except KubeError:
            self._cache.suspects.add(name)
            raise
        return True

    def _snapshot(
        self,
        name: str,
        *,
        gone: bool,
        granted: frozenset[str],
        fresh: frozenset[type],
        declined: dict[Hashable, str],
    ) -> Snapshot:
        """`gone`: the API server has just said that the node is; else one that is not known here may be
        another installation's, with its reading."""
        node = self._cache.nodes.get(name)
        policy = self._cache.policy_of(node) if node and not self._is_foreign(name) else None
        watch_set = self.watch_sets.of_node(policy, node)
        policy = self.watch_sets.applied(policy, node)
        if policy is not None and policy.watches and self.watchers.is_bad(name):
            policy = watch.by_pods(policy)
        return Snapshot(
            node=node,
            policy=policy,
            report=self._cache.reports.get(name),
            pods=self._cache.pods_of(name),
            now=self._clock(),
            granted=granted,
            kinds=EVERY,
            peers={kind: partial(peers.other_values, but=name) for kind, peers in self._peers.items()},
            fleet=partial(self._fleet.other_values, but=name),
            last_peer_read=partial(self._last_read, policy, but=name),
            last_peer_unreadable=partial(self._last_unreadable, policy, but=name),
            gate_slot=self.gate_budget.has_slot(name),
            gives_way=self.gate_budget.gives_way(name),
            device_slots=self.device_budget.allowance(name),
            device_rules=bool(self._cache.rules_api),
            rules=self._cache.rules_of(name),
            incidents=self.breaker.holding(name),
            posted=self._posted.get(name, ("", "")),
            written=self._written.get(name),
            judged=self._judged.get(name),
            fresh=fresh,
            since=self.gaps.over_at(policy, node),
            declined=declined,
            unselected=self._unselected(name),
            defaults=self._defaults,
            nonce=secrets.token_hex(8),
            cordoned_since=self._cordoned_since(name, node),
            chassis=self._cache.chassis.get(name),
            reading=self._cache.readings.get(name) if node is not None or gone else None,
            claims_refused=self.watch_sets.templates.problem,
            distrust=self.trust.problem,
            trusted=self.trust.identity,
            watchers=self.watch_sets.pods.names_by_uid(name, watch_set, trusted=self.trust.identity),
            watch_since=watch_set.since if watch_set else 0.0,
            waited_for=partial(self.waiting.keeps_off, node) if node else bool,
            ends_for=self.waiting.ends,
        )

    def _last_read(self, policy: Policy | None, *, but: str) -> float:
        """When another node of the policy was last read, epoch seconds."""
        counters = self.gate_budget.counters
        return counters.last_read(policy.name, but=but, now=self._clock()) if policy else 0.0

    def _last_unreadable(self, policy: Policy | None, *, but: str) -> float:
        """Since when another node of the policy is unreadable, the last one; epoch seconds."""
        return self.gate_budget.counters.last_unreadable(policy.name, but=but) if policy else 0.0

    def _is_foreign(self, name: str) -> bool:
        """Whether the node's report says that another installation writes there."""
        report = self._cache.reports.get(name)
        return report is not None and report.installation not in ("", self._defaults.installation)

    def _cordoned_since(self, name: str, node: NodeView | None) -> float:
        """Since when the node is cordoned: by its taint, or since this process saw it; 0.0 if it is not."""
        if node is None or not node.unschedulable:
            self._cordon_seen_at.pop(name, None)
            return 0.0
        now = self._monotonic()
        seen_for = now - self._cordon_seen_at.setdefault(name, now)
        return node.cordon_stamp if 0 < node.cordon_stamp <= self._clock() else self._clock() - seen_for

    def _unselected(self, name: str) -> Unselected:
        """What to do with the node if no policy in force selects it."""
        cache = self._cache
        if self._is_foreign(name):
            return Unselected.FREEZE
        if cache.policy_errors.keys() - cache.policies.keys():
            return Unselected.FREEZE
        report, node = cache.reports.get(name), cache.nodes.get(name)
        ours = node is not None and report is not None and report.node_uid == node.uid
        if not ours or node is None or cache.policy_of(node) is not None:
            self._left_at.pop(name, None)
            return Unselected.RELEASE
        left = self._left_at.setdefault(name, self._monotonic())
        return Unselected.RELEASE if self._monotonic() - left >= self._release_grace else Unselected.FREEZE

    def _reconciled(self, name: str, snapshot: Snapshot) -> Reconciled:
        self._failing_since.pop(name, None)
        for pod in snapshot.pods:
            if pod.gone:
                self._cache.drop_pod(pod)
        outside = name in self._cache.outside_selector and name not in self._left_at
        if outside and not self._cache.pods_of(name):
            self._cache.drop_node(name)  # nothing of ours is left there, and no watch will report it
        if snapshot.node is None:
            self._cache.reports.pop(name, None)  # the garbage collector removes it with its owner
            self._posted.pop(name, None)
            self._judged.pop(name, None)
            self._written.pop(name, None)
            self._refused.forget(name)
            self.watch_sets.pods.forget_gone(name)
            self.gaps.forget(name)
        self.obstacles.put(name, planner.refusals(snapshot))
        wake_at = min(planner.wake_at(snapshot), self._retry_at(name, snapshot), self.watchers.due_at(name))
        waits = planner.wanted_slots(snapshot.context) if snapshot.context else {}
        return Reconciled(waits=waits, wake_at=wake_at)

    def _retry_at(self, name: str, snapshot: Snapshot) -> float:
        """When refused writes are tried again, or a node that left its policy is released."""
        at = snapshot.now + LATER_SECONDS if snapshot.declined else NEVER
        if name in self._left_at and snapshot.report is not None:
            left = self._left_at[name] + self._release_grace - self._monotonic()
            return min(at, snapshot.now + max(left, 1.0))
        return at

    async def _keep_reading(self, name: str) -> None:
        """Keep a document until the report holds what it says, for it is most of what the operator would
        keep; read it again if no report does any more, because somebody deleted it.  Raises `KubeError`.
        """
        report, cache = self._cache.reports.get(name), self._cache
        if name not in cache.nodes:  # gone, or another installation's
            cache.forget_documents(name, cache.readings[name].parts if name in cache.readings else ())
            return
        status = report.status if report is not None else ReportStatus()
        reading = cache.readings.get(name)
        parts = reading.parts.items() if reading is not None else ()
        judged_parts = {probe: part.identity == status.probe[probe].reading for probe, part in parts}
        if any(not part.text and not judged_parts[probe] for probe, part in parts):
            fresh = await readings.get(self._client, name)
            if fresh is not None and cache.readings.get(name) is reading:  # no event has come meanwhile
                cache.put_reading(fresh, again=True)
        else:
            cache.forget_documents(name, {probe for probe, holds in judged_parts.items() if holds})

    def _note(self, name: str, step: actions.Step) -> None:
        """Log what was written, and keep what was judged with it."""
        extra = {"node": name}
        match step:
            case actions.PostEvent(_, change):
                self._posted[name] = (change.run, change.reason)
            case actions.PatchReport(report, status):
                self._judged.pop(name, None)
                self._note_runs(name, report, status)
                written = self._written.get(name)
                if written and written.faults == status.recorded and not written.closed & status.days.keys():
                    del self._written[name]
            case actions.WriteHistory() as history:
                self._written[name] = history.written
                log.debug("node %s: history written", name, extra=extra)
            case actions.PatchNode() as patch:
                if patch.judged is not None:
                    self._judged[name] = patch.judged
                log.info("node %s: %s", name, _changes(patch), extra=extra)
            case actions.PutDeviceRule(_, rule):
                if step.judged is not None:
                    self._judged[name] = step.judged
                text = f"device {'/'.join(rule.selector)} tainted {rule.taint[1]}:{rule.taint[2]}"
                log.info("node %s: %s by DeviceTaintRule %s", name, text, rule.name, extra=extra)
            case actions.DeleteDeviceRule(rule):
                log.info("node %s: DeviceTaintRule %s deleted", name, rule.name, extra=extra)
            case _:
                log.debug("node %s: %s", name, type(step).__name__, extra=extra)

    def _note_runs(self, name: str, report: Report, status: ReportStatus) -> None:
        """Count and log the runs that were judged."""
        for probe, kind in KINDS.items():
            before, after = report.status.probe[probe].last_run, status.probe[probe]
            run = after.last_run
            if run is None or (before is not None and before.number == run.number):
                continue
            self._metrics.runs.labels(probe, run.outcome.value, run.reason).inc()
            self._note_hold(name, run, kind=kind, policy=status.policy)
            extra = {
                "node": name,
                "probe": probe,
                "run": run.number,
                "outcome": run.outcome.value,
                "verdict": after.verdict.value,
            }
            message = after.summary if run.outcome is Outcome.READ else f"{run.reason}: {run.message}"
            log.info("node %s: %s run %d: %s", name, probe, run.number, message, extra=extra)

    def _note_hold(self, name: str, run: Run, *, kind: ProbeKind, policy: str) -> None:
        """How long the run held its slot, and the node's GPUs if it held them at all."""
        for pod in self._cache.pods_of(name):
            if pod.uid == run.pod_uid and kind.holds_gpus and pod.scheduled_at:
                ended_at = pod.terminated.finished_at if pod.terminated else 0.0
                self._metrics.held_seconds.observe(max(0.0, (ended_at or self._clock()) - pod.scheduled_at))
            if pod.uid == run.pod_uid and run.outcome is Outcome.READ:
                taken = max(0.0, self._clock() - pod.created_at)
                self.gate_budget.counters.note_run(policy, kind.pool.name, seconds=taken)


def _may_wait(step: actions.Step, error: KubeError) -> bool:
    """Whether other writes may go on after this one failed: an event, a history, or what a node should carry.

    Event and history can wait for any error; a node only if the API server refused the write.
    """
    if isinstance(step, actions.PostEvent | actions.WriteHistory):
        return True
    if isinstance(step, actions.PatchReport):
        return isinstance(error, Refused)  # the run that it would record ends as unknown
    of_rules = isinstance(step, actions.PutDeviceRule | actions.DeleteDeviceRule)
    if of_rules and isinstance(error, NotFound):
        return True  # the API server no longer serves them
    of_node = of_rules or isinstance(step, actions.PatchNode | actions.SetCondition)
    return of_node and isinstance(error, Refused | Forbidden | WebhookFailed)


def _described(step: actions.Step | None) -> str:
    """A write, and what it was to change."""
    match step:
        case actions.PatchNode() as patch:
            return f"PatchNode ({_changes(patch)})"
        case actions.PatchReport(report, status):
            before, after = asdict(report.status), asdict(status)
            differing = [field for field in after if after[field] != before[field]]
            return f"PatchReport ({', '.join(differing) or 'no difference'})"
        case _:
            return type(step).__name__


def _changes(patch: actions.PatchNode) -> str:
    """What a patch changed on the node, for the log."""
    changes = [f"{k} removed" if v is None else f"{k}={v}" for k, v in patch.labels.items()]
    if patch.taints is not None:
        before, after = _taints(patch.node.taints), _taints(patch.taints)
        changes += [f"taint {taint} removed" for taint in before if taint not in after]
        changes += [f"taint {taint} set" for taint in after if taint not in before]
    return ", ".join(changes)


def _taints(taints: Iterable[Taint]) -> list[str]:
    return [f"{t.key}={t.value}:{t.effect}" for t in taints if t.own]
