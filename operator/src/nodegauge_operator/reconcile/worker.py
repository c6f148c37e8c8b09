"""One node at a time: ask for the next write, make it, ask again, until nothing is left to do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, Report, ReportStatus, unstamp
from nodegauge_operator.core import step as steps
from nodegauge_operator.kube import nodes
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError, NotFound
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.apply import Applier
from nodegauge_operator.reconcile.store import Store
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge.node")

MAX_STEPS = 24


class Settled(Struct, frozen=True, kw_only=True):
    """Nothing is left to write for now.

    `due_since`: the node waits for a place to run, last tried at that time (0.0: never); None when no run is
    due.  `wake_at`: when to look again, epoch seconds.
    """

    due_since: float | None
    wake_at: float


class Worker:
    """Settles nodes; holds no state but which event this process posted last for each node."""

    def __init__(
        self,
        *,
        client: Client,
        store: Store,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self.stopping = False
        """Once set, no new pods are made (SIGTERM)."""
        self._client = client
        self._store = store
        self._metrics = metrics
        self._defaults = settings.probe
        self._selector = settings.node_label_selector
        self._clock = clock
        self._posted: dict[str, tuple[str, str]] = {}
        self._applier = Applier(
            client=client,
            store=store,
            metrics=metrics,
            namespace=settings.probe.namespace,
            instance=settings.instance,
        )

    async def settle(self, name: str, *, granted: bool, since: float) -> Settled:
        """Write what has to be written for one node.

        `granted`: a place in the budget is kept for it.  `since`: when it was woken, monotonic.  Raises
        `KubeError` for what another try has to solve.
        """
        fresh = False
        for _ in range(MAX_STEPS):
            if name in self._store.suspects:
                await self._confirm(name)
            situation = self._situation(name, granted=granted, fresh=fresh)
            step = steps.next_step(situation)
            if step is None or (self.stopping and isinstance(step, steps.CreatePod)):
                return self._settled(name, situation)
            done = await self._applier.apply(step, situation)
            if done is not None:
                self._note(name, done, since)
            fresh = isinstance(step, steps.RefreshReport)
        raise KubeError(f"not settled after {MAX_STEPS} writes")

    async def _confirm(self, name: str) -> None:
        """A node that was reported deleted, or that a list lacks: only a 404 makes it gone.

        One that is there and not in the server-side selection has left it: what we hold there comes off.
        """
        self._store.suspects.discard(name)  # not after the answer: it may be reported again meanwhile
        try:
            node = await nodes.get(self._client, name)
            if self._selector and not await nodes.selected(self._client, name, self._selector):
                self._store.outside.add(name)
            self._store.put_node(node)
        except NotFound:
            self._store.drop_node(name)
        except KubeError:
            self._store.suspects.add(name)
            raise

    def _situation(self, name: str, *, granted: bool, fresh: bool) -> steps.Situation:
        node = self._store.nodes.get(name)
        return steps.Situation(
            node=node,
            policy=self._store.policy_of(node) if node else None,
            report=self._store.reports.get(name),
            pods=self._store.pods_of(name),
            now=self._clock(),
            granted=granted,
            posted=self._posted.get(name, ("", "")),
            fresh=fresh,
            defaults=self._defaults,
        )

    def _settled(self, name: str, situation: steps.Situation) -> Settled:
        for pod in situation.pods:
            if pod.gone:
                self._store.drop_pod(pod)
        node, policy, report = situation.node, situation.policy, situation.report
        if name in self._store.outside and not self._store.pods_of(name):
            self._store.drop_node(name)  # nothing of ours is left there, and no watch tells of it
        if node is None:
            self._store.reports.pop(name, None)  # the garbage collector removes it with its owner
            self._posted.pop(name, None)
        if node is None or policy is None:
            return Settled(due_since=None, wake_at=steps.wake_at(situation))
        due = steps.run_due_at(report, node=node, policy=policy)
        idle = due <= situation.now and not self._store.pods_of(name)
        return Settled(due_since=_last_tried(situation) if idle else None, wake_at=steps.wake_at(situation))

    def _note(self, name: str, step: steps.Step, since: float) -> None:
        extra = {"node": name}
        match step:
            case steps.PostEvent(_, change):
                self._posted[name] = (change.run, change.reason)
            case steps.PatchReport(report, status):
                self._note_run(name, report, status)
            case steps.PatchNode(_, labels):
                self._metrics.result_seconds.observe(time.monotonic() - since)
                words = ", ".join(f"{k} removed" if v is None else f"{k}={v}" for k, v in labels.items())
                log.info("node %s: labels: %s", name, words, extra=extra)
            case _:
                log.debug("node %s: %s", name, type(step).__name__, extra=extra)

    def _note_run(self, name: str, report: Report, status: ReportStatus) -> None:
        before, after = report.status.probe(names.PROBE_HEALTH), status.probe(names.PROBE_HEALTH)
        run = after.last_run
        if run is None or (before.last_run is not None and before.last_run.number == run.number):
            return
        self._metrics.runs.labels(names.PROBE_HEALTH, run.outcome.value, run.reason).inc()
        read = run.outcome is Outcome.READ
        extra = {
            "node": name,
            "run": run.number,
            "outcome": run.outcome.value,
            "verdict": after.verdict.value,
        }
        words = after.summary if read else f"{run.reason}: {run.message}"
        log.info("node %s: run %d: %s", name, run.number, words, extra=extra)


def _last_tried(situation: steps.Situation) -> float:
    """When a run last ended here, epoch seconds; 0.0 for never: those go first."""
    report, node = situation.report, situation.node
    if report is None or node is None or report.node_uid != node.uid:
        return 0.0
    last = report.status.probe(names.PROBE_HEALTH).last_run
    return unstamp(last.finished_at) if last else 0.0
