"""The loop: wakes, timers, places in the budget, keyed workers, a full list now and then.

One worker at a time per node and a few in flight.  Nothing is decided before the first full list; later ones,
and the status of policies, are taken care of beside the loop, so that no result waits for them.  A pass that
ends in API errors counts as finished; an error that nobody expected in the loop itself ends the task, and
with it the process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from nodegauge_operator import names
from nodegauge_operator.core.model import PodView
from nodegauge_operator.kube.client import LIST_TIMEOUT, Client
from nodegauge_operator.kube.errors import KubeError, NotFound, Unreachable
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile import resync
from nodegauge_operator.reconcile.background_task import Beside
from nodegauge_operator.reconcile.backoff import Jitter
from nodegauge_operator.reconcile.cache import Store
from nodegauge_operator.reconcile.concurrency import Turns
from nodegauge_operator.reconcile.policy_status import PolicyStatus
from nodegauge_operator.reconcile.reconciler import Worker
from nodegauge_operator.reconcile.relist import Relist
from nodegauge_operator.reconcile.workqueue import Agenda, Turn
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge.sweep")

FIRST_SECONDS = 30.0
"""The watches' own first lists arrive within this time of our first one and mean no gap."""
SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.5, 60.0
LAST_WRITES_SECONDS = 5.0
STUCK_SECONDS = 1.5 * LIST_TIMEOUT
"""Beyond its own pace the loop may wait that long for one answer: a page of a list takes up to a minute."""


class Sweep:
    """Runs until cancelled; `wake` it from handlers on the same event loop."""

    def __init__(
        self,
        *,
        client: Client,
        store: Store,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        jitter: Jitter = random.random,
    ) -> None:
        self.store = store
        self.listed = False
        """Whether the first full list has been taken: nothing is decided before."""
        self._client = client
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._worker = Worker(client=client, store=store, metrics=metrics, settings=settings, clock=clock)
        self._ledger = self._worker.places
        self._policy_status = PolicyStatus(
            client=client, store=store, places=self._ledger, metrics=metrics, clock=clock, jitter=jitter
        )
        self._agenda = Agenda()
        self._turns = Turns(store, self._ledger.tally)
        self._failures: dict[str, int] = {}
        self._flying: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, float] = {}
        """When the pod event came that ended a run on the node, monotonic; until that has been dealt with."""
        self._wakeup = asyncio.Event()
        self._relist = Relist(interval=settings.relist_interval, jitter=jitter)
        self._listing = Beside("full list", ended=self._wakeup.set)
        self._statuses = Beside("policy status", ended=self._wakeup.set)
        self._first_listed_at = 0.0
        self._shown: set[str] = set()
        """UIDs of what the watches' own first lists have shown."""
        self._list_beat = self._last_pass = time.monotonic()

    def wake(self, *nodes: str) -> None:
        """Look at these nodes soon."""
        for name in nodes:
            self._agenda.wake(name)
        if nodes:
            self._wakeup.set()

    def pod_seen(self, pod: PodView) -> None:
        """A pod changed: look at its node before those without news."""
        if pod.finished or pod.gone or pod.terminated is not None:
            self._ended.setdefault(pod.node, time.monotonic())
        self._agenda.wake(pod.node, turn=Turn.FIRST)
        self._wakeup.set()

    def policies_seen(self, *, changed: bool) -> None:
        """A policy arrived, changed or went: count anew, and look at every node if it matters to them."""
        self._policy_status.dirty = True
        if changed:
            self.wake(*self.store.known_names())
        self._wakeup.set()

    def shown(self, uid: str) -> None:
        """kopf listed this object by itself: a gap in that watch, or its own first list.

        Later than our first list, or for the second time, it is a gap: take a full list soon.
        """
        now = time.monotonic()
        first = not self.listed or now < self._first_listed_at + FIRST_SECONDS
        if not first:
            self._shown.clear()
        elif uid not in self._shown:
            self._shown.add(uid)
            return
        self._relist.gap(now)
        self._wakeup.set()

    def alive(self) -> bool:
        """Whether a pass was finished lately, and a part of the full list that is under way."""
        oldest = min(self._last_pass, self._list_beat) if self._listing.busy else self._last_pass
        return time.monotonic() - oldest < 3 * self._settings.sweep_interval + STUCK_SECONDS

    async def run(self) -> None:
        """Sweep until cancelled; then finish the writes in flight, and make no new pods."""
        try:
            while True:
                self._wakeup.clear()
                await self._pass()
                if not self._more():
                    await self._sleep()
        finally:
            self._worker.stopping = True
            await asyncio.gather(
                self._listing.end(within=0),
                self._statuses.end(within=LAST_WRITES_SECONDS),
                self._land(),
            )

    async def _land(self) -> None:
        """Give the writes in flight their time."""
        if self._flying:
            _, late = await asyncio.wait(list(self._flying.values()), timeout=LAST_WRITES_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _pass(self) -> None:
        await self._keep_listed()
        if self.listed:
            self.wake(*self._agenda.fire(self._clock()))
            self._grant()
            for name in self._ledger.call(busy=self._flying.keys()):
                self._agenda.wake(name, turn=Turn.FIRST)
            self._launch()
            self._statuses.check()
            if not self._statuses.busy and self._clock() >= self._policy_status.due_at():
                self._statuses.start(self._policy_status.write())
        self._last_pass = time.monotonic()
        self._metrics.last_pass.set(self._clock())

    async def _keep_listed(self) -> None:
        """Begin a full list where one is due; the first one is waited for."""
        self._listing.check()
        if not self._listing.busy and time.monotonic() >= self._relist.at():
            self._relist.begin()
            self._beat()
            self._listing.start(self._list())
        if not self.listed:
            await self._listing.wait()

    def _beat(self) -> None:
        self._list_beat = time.monotonic()
        if not self.listed:
            self._last_pass = self._list_beat  # the loop waits for the list

    async def _list(self) -> None:
        """A full list; a failed one is tried again later, and nothing is taken for gone because of it."""
        settings = self._settings
        try:
            await resync.list_all(
                self._client,
                self.store,
                namespace=settings.probe.namespace,
                node_selector=settings.node_label_selector,
                beat=self._beat,
                wake=self.wake,
            )
        except NotFound:
            log.error("CRDs missing: install %s (kubectl apply -f crds/)", " and ".join(names.CRD_NAMES))
            self._relist.missing(time.monotonic())
        except KubeError as error:
            self._relist.failed(time.monotonic())
            wait = self._relist.at() - time.monotonic()
            log.warning("full list failed, again in %.0f s: %s", wait, error)
        else:
            nodes, policies = len(self.store.nodes), len(self.store.policies)
            log.info("listed %d nodes, %d reports, %d policies", nodes, len(self.store.reports), policies)
            self._relist.done(time.monotonic())
            self._policy_status.dirty = True
            for policy, taken, places in self._ledger.exceeded():
                log.warning("policy %s: %d nodes gated, budget %d: none is added", policy, taken, places)
            if not self.listed:
                self.listed, self._first_listed_at = True, time.monotonic()
                self.wake(*self.store.known_names())

    def _grant(self) -> None:
        """Give free places of each policy's budgets to the nodes that waited longest."""
        for name in self._turns.grant():
            self._agenda.wake(name, turn=Turn.FIRST)  # its place is kept empty until then
        for probe, count in self._turns.waiting().items():
            self._metrics.waiting.labels(probe).set(count)
        for probe in names.PROBES:
            self._metrics.running.labels(probe).set(len(self.store.nodes_with_pods(probe)))

    def _launch(self) -> None:
        places = self._settings.workers - len(self._flying)
        for name in self._agenda.take(places, busy=frozenset(self._flying)):
            task = asyncio.create_task(self._work(name), name=f"node {name}")
            self._flying[name] = task

    def _more(self) -> bool:
        """Whether the next pass has something to launch at once."""
        free = len(self._flying) < self._settings.workers
        return self.listed and free and self._agenda.pending(busy=frozenset(self._flying))

    async def _sleep(self) -> None:
        waits = [self._settings.sweep_interval, self._agenda.next_timer() - self._clock()]
        if not self._listing.busy:
            waits.append(self._relist.at() - time.monotonic())
        if not self._statuses.busy:
            waits.append(self._policy_status.due_at() - self._clock())
        try:
            await asyncio.wait_for(self._wakeup.wait(), max(0.02, min(waits)))
        except TimeoutError:
            return

    async def _work(self, name: str) -> None:
        """Settle one node; whatever goes wrong there is tried again later and stops nobody else."""
        granted, ended = self._turns.granted(name), self._ended.get(name)
        try:
            settled = await self._worker.settle(name, granted=granted, since=ended)
        except KubeError as error:
            if isinstance(error, Unreachable):
                # The API server may have restarted, of which watches tell nothing.
                self._relist.gap(time.monotonic())
            self._failed(name, type(error).__name__, error)
        except Exception as error:
            log.exception("unexpected error on node %s", name, extra={"node": name})
            self._failed(name, "Unexpected", error)
        else:
            if self._ended.get(name) == ended:
                self._ended.pop(name, None)
            if granted or not settled.due_since:
                self._failures.pop(name, None)  # else what failed has only been put off: no new start
            self._turns.wait(name, settled.due_since)
            self._agenda.set_timer(name, settled.wake_at)
        finally:
            self._turns.done(name)
            self._flying.pop(name, None)
            self._ledger.answered(name)
            self._policy_status.dirty = True
            self._wakeup.set()

    def _failed(self, name: str, kind: str, error: Exception) -> None:
        count = self._failures[name] = self._failures.get(name, 0) + 1
        wait = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2 ** min(count - 1, 10))
        self._metrics.failures.labels(kind).inc()
        log.warning("node %s: %s: %s; again in %.1f s", name, kind, error, wait, extra={"node": name})
        self._agenda.set_timer(name, self._clock() + wait)
