"""One node at a time: ask for the next write, make it, ask again, until nothing is left to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, Report, ReportStatus, Run, unstamp
from nodegauge_operator.core import actions
from nodegauge_operator.core import planner as steps
from nodegauge_operator.core.model import Taint
from nodegauge_operator.kube import nodes
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.concurrency import Kind
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.peers import Peers
from nodegauge_operator.reconcile.writer import Writer
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge.node")

MAX_STEPS = 24
LATER_SECONDS = 60.0
"""When writes that the API server refused are tried again."""
KEEP_SECONDS = 600.0
"""How long the report of a node is kept that left its policy's selection: its label may only flap."""


class Settled(Struct, frozen=True, kw_only=True):
    """Nothing is left to write for now.

    `due_since`: what the node waits for a place for, and when that was last done there (0.0: never); nothing
    where nothing is due.  `wake_at`: when to look again, epoch seconds.
    """

    due_since: dict[Kind, float]
    wake_at: float


class Worker:
    """Settles nodes; holds no state but which event this process posted last for each node."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self.stopping = False
        """Once set, no new pods are made (SIGTERM)."""
        self._client = client
        self._cache = cache
        self._metrics = metrics
        self._defaults = settings.probe
        self._selector = settings.node_label_selector
        self._clock = clock
        self._since = clock()
        self.gate_budget = GateBudget(cache, clock=time.monotonic)
        """Who is gated, and may be."""
        self._peers = Peers(cache)
        self._posted: dict[str, tuple[str, str]] = {}
        self._left_at: dict[str, float] = {}
        self._writer = Writer(
            client=client,
            cache=cache,
            gate_budget=self.gate_budget,
            metrics=metrics,
            namespace=settings.probe.namespace,
            instance=settings.instance,
        )

    async def settle(self, name: str, *, granted: frozenset[Kind], since: float | None) -> Settled:
        """Write what has to be written for one node.

        `granted`: a place in these budgets is kept for it.  `since`: when the pod event came that ended a
        run, monotonic; None where none did.  Raises `KubeError` for what another try has to solve.
        """
        judged = False
        fresh = False
        declined: dict[type, str] = {}
        for _ in range(MAX_STEPS):
            if name in self._cache.suspects:
                await self._confirm(name)
            situation = self._situation(name, granted=granted, fresh=fresh, declined=declined)
            step = steps.next_step(situation)
            if step is None or (self.stopping and isinstance(step, actions.CreatePod)):
                return self._settled(name, situation)
            try:
                done = await self._writer.write(step, situation)
            except KubeError as error:
                if not _may_wait(step, error):
                    raise
                log.warning("node %s: %s, tried again later", name, error, extra={"node": name})
                self._metrics.failures.labels(type(error).__name__).inc()
                declined = declined | {type(step): str(error)}
                continue
            if done is not None:
                judged = self._note(name, done) or judged
                if judged and since is not None and isinstance(done, actions.PatchNode):
                    self._metrics.result_seconds.observe(time.monotonic() - since)
            fresh = isinstance(step, actions.RefreshReport)
        raise KubeError(f"not settled after {MAX_STEPS} writes")

    async def _confirm(self, name: str) -> None:
        """A node that was reported deleted, or that a list lacks: only a 404 makes it gone.

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
        except KubeError:
            self._cache.suspects.add(name)
            raise

    def _situation(
        self, name: str, *, granted: frozenset[Kind], fresh: bool, declined: dict[type, str]
    ) -> steps.Situation:
        node = self._cache.nodes.get(name)
        return steps.Situation(
            node=node,
            policy=self._cache.policy_of(node) if node else None,
            report=self._cache.reports.get(name),
            pods=self._cache.pods_of(name),
            now=self._clock(),
            granted=Kind.HEALTH in granted,
            nccl_granted=Kind.NCCL in granted,
            peers=partial(self._peers.of, but=name),
            gate_room=self.gate_budget.has_slot(name),
            posted=self._posted.get(name, ("", "")),
            fresh=fresh,
            since=self._since,
            declined=declined,
            unselected=self._unselected(name),
            defaults=self._defaults,
        )

    def _unselected(self, name: str) -> steps.Unselected:
        """What to do with a node that no policy in force selects."""
        cache = self._cache
        if cache.policy_errors.keys() - cache.policies.keys():
            return steps.Unselected.FREEZE
        report = cache.reports.get(name)
        node = cache.nodes.get(name)
        flapped = (
            report is not None
            and report.status.policy in cache.policies
            and name not in cache.outside_selector
        )
        if node is None or not flapped or cache.policy_of(node) is not None:
            self._left_at.pop(name, None)
            return steps.Unselected.RELEASE
        left = self._left_at.setdefault(name, self._clock())
        away = self._clock() - left
        return steps.Unselected.RELEASE if away >= KEEP_SECONDS else steps.Unselected.KEEP_REPORT

    def _settled(self, name: str, situation: steps.Situation) -> Settled:
        for pod in situation.pods:
            if pod.gone:
                self._cache.drop_pod(pod)
        node, policy, report = situation.node, situation.policy, situation.report
        if name in self._cache.outside_selector and not self._cache.pods_of(name):
            self._cache.drop_node(name)  # nothing of ours is left there, and no watch tells of it
        if node is None:
            self._cache.reports.pop(name, None)  # the garbage collector removes it with its owner
            self._posted.pop(name, None)
        wake_at = min(steps.wake_at(situation), self._again_at(name, situation))
        pods = self._cache.pods_of(name)
        if node is None or policy is None or any(pod.in_the_way for pod in pods):
            return Settled(due_since={}, wake_at=wake_at)
        due = {Kind.HEALTH: steps.run_due_at(report, node=node, policy=policy)}
        if not pods:
            due[Kind.NCCL] = steps.nccl_due_at(report, node=node, policy=policy, defaults=self._defaults)
        waits = {kind: _last(situation, kind) for kind, at in due.items() if at <= situation.now}
        return Settled(due_since=waits, wake_at=wake_at)

    def _again_at(self, name: str, situation: steps.Situation) -> float:
        """When refused writes are tried again, or a report that was kept has been kept long enough."""
        later = situation.now + LATER_SECONDS if situation.declined else float("inf")
        if name in self._left_at and situation.report is not None:
            return min(later, max(self._left_at[name] + KEEP_SECONDS, situation.now + 1))
        return later

    def _note(self, name: str, step: actions.Step) -> bool:
        """Say what was written; whether a run was judged with it."""
        extra = {"node": name}
        match step:
            case actions.PostEvent(_, change):
                self._posted[name] = (change.run, change.reason)
            case actions.PatchReport(report, status):
                return self._note_runs(name, report, status)
            case actions.PatchNode() as patch:
                log.info("node %s: %s", name, _words(patch), extra=extra)
            case _:
                log.debug("node %s: %s", name, type(step).__name__, extra=extra)
        return False

    def _note_runs(self, name: str, report: Report, status: ReportStatus) -> bool:
        """Count and log what has been judged; whether anything was."""
        judged = False
        for probe in names.PROBES:
            before, after = report.status.probe(probe).last_run, status.probe(probe)
            run = after.last_run
            if run is None or (before is not None and before.number == run.number):
                continue
            judged = True
            self._metrics.runs.labels(probe, run.outcome.value, run.reason).inc()
            if probe == names.PROBE_NCCL:
                self._note_held(name, run)
            extra = {
                "node": name,
                "probe": probe,
                "run": run.number,
                "outcome": run.outcome.value,
                "verdict": after.verdict.value,
            }
            words = after.summary if run.outcome is Outcome.READ else f"{run.reason}: {run.message}"
            log.info("node %s: %s run %d: %s", name, probe, run.number, words, extra=extra)
        return judged

    def _note_held(self, name: str, run: Run) -> None:
        """How long the benchmark held the node's GPUs, where it held them at all."""
        for pod in self._cache.pods_of(name):
            if pod.uid == run.pod_uid and pod.scheduled_at:
                told = pod.terminated.finished_at if pod.terminated else 0.0
                self._metrics.held_seconds.observe(max(0.0, (told or self._clock()) - pod.scheduled_at))


def _may_wait(step: actions.Step, error: KubeError) -> bool:
    """Whether a failed write holds nothing else up: what a node carries or an event says can come later.

    An event may even meet a store of events that is down; a node that cannot be reached cannot wait.
    """
    if isinstance(step, actions.PostEvent):
        return True
    return isinstance(step, actions.PatchNode | actions.SetCondition) and isinstance(
        error, Refused | Forbidden
    )


def _words(patch: actions.PatchNode) -> str:
    """What a patch changed on the node, for people."""
    words = [f"{k} removed" if v is None else f"{k}={v}" for k, v in patch.labels.items()]
    if patch.taints is not None:
        before, after = _taints(patch.node.taints), _taints(patch.taints)
        words += [f"taint {taint} removed" for taint in before if taint not in after]
        words += [f"taint {taint} set" for taint in after if taint not in before]
    return ", ".join(words)


def _taints(taints: Iterable[Taint]) -> list[str]:
    return [f"{t.key}={t.value}:{t.effect}" for t in taints if t.key in names.NODE_TAINTS]


def _last(situation: steps.Situation, kind: Kind) -> float:
    """When it was last done here, epoch seconds; 0.0 for never: those go first.

    Of health runs any end counts; of benchmarks the last that measured: one that found the GPUs taken has its
    own delay, and measured nothing.
    """
    report = situation.known
    if report is None:
        return 0.0
    probe = report.status.probe(kind.value)
    if kind is Kind.NCCL:
        return unstamp(probe.read_at)
    return unstamp(probe.last_run.finished_at) if probe.last_run else 0.0
