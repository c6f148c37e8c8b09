"""The loop: woken nodes, timers, slots of the budgets, a few reconciles in flight, full lists.

At most one reconcile per node at a time.  Nothing is decided before the first full list; later lists and the
status of policies run in background tasks, so that no result waits for them.  A pass that ends in API errors
counts as finished; an unexpected error in the loop itself ends the task, and with it the process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.probes import whole_node
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.kube.client import LIST_TIMEOUT, Client
from nodegauge_operator.kube.errors import KubeError, NotFound, Unreachable
from nodegauge_operator.kube.workloads import missing
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache, Restored
from nodegauge_operator.reconcile.concurrency import Concurrency
from nodegauge_operator.reconcile.histories import Histories
from nodegauge_operator.reconcile.incident_status import IncidentStatus
from nodegauge_operator.reconcile.installation import Installation
from nodegauge_operator.reconcile.node_counts import CLUSTER
from nodegauge_operator.reconcile.policy_status import PolicyStatus
from nodegauge_operator.reconcile.reconciler import Reconciler
from nodegauge_operator.reconcile.resync import Jitter, ListSchedule, list_all
from nodegauge_operator.reconcile.waiting import HOLDERS
from nodegauge_operator.reconcile.workqueue import BackgroundTask, Priority, WorkQueue
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge.sweep")

FIRST_LISTS_SECONDS = 30.0
"""The watches' own first lists arrive within this time of our first one; they are no sign of a gap."""
SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.5, 60.0
LAST_WRITES_SECONDS = 5.0
LISTS_FAIL = 4
"""After so many lists in a row that failed, half a minute, policies say so.  Chosen by this project: an API
server that has just started refuses for a moment what it allows."""
STUCK_SECONDS = 1.5 * LIST_TIMEOUT
"""How much longer than a few intervals a pass may take: a page of a list takes up to a minute."""


class Sweep:
    """Runs until cancelled; `wake` it from handlers on the same event loop."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        metrics: Metrics,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        jitter: Jitter = random.random,
    ) -> None:
        self.cache = cache
        self.listed = False
        """Whether the first full list is complete: nothing is decided before."""
        self._client = client
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self.installation = Installation(
            client=client,
            name=settings.probe.installation,
            metrics=metrics,
            clock=clock,
            monotonic=time.monotonic,
        )
        self._reconciler = Reconciler(
            client=client, cache=cache, metrics=metrics, settings=settings, clock=clock
        )
        self._budget, self._watch_sets = self._reconciler.gate_budget, self._reconciler.watch_sets
        self._trust, self._waiting = self._reconciler.trust, self._reconciler.waiting
        self._waiting.on_change = lambda: self._wakeup.set()
        self._watch_sets.on_end = self._counts_changed
        metrics.readings_protected.set_function(lambda: float(not self._trust.problem))
        metrics.waiting_pods.set_function(self._waiting.count)
        self._queue = WorkQueue()
        self._concurrency = Concurrency(
            cache,
            self._budget.counters,
            limits={
                names.PROBE_HEALTH: settings.max_concurrent_probes,
                whole_node.POOL.name: settings.max_concurrent_nccl_probes,
            },
        )
        metrics.count_runs(waiting=self._concurrency.waiting, running=self._concurrency.running)
        self._policy_status = PolicyStatus(
            client=client,
            cache=cache,
            gate_budget=self._budget,
            device_budget=self._reconciler.device_budget,
            concurrency=self._concurrency,
            incidents=IncidentStatus(
                client=client,
                cache=cache,
                breaker=self._reconciler.breaker,
                metrics=metrics,
                instance=settings.instance,
                clock=clock,
            ),
            obstacles=self._reconciler.obstacles,
            trust=self._trust,
            watchers=self._reconciler.watchers,
            metrics=metrics,
            installation=settings.probe.installation,
            most_nodes=settings.metric_nodes,
            clock=clock,
            jitter=jitter,
        )
        self._said = ""
        """Why nothing is written, as policies were last told."""
        self._clock_steps = 0
        self._failures: dict[str, int] = {}
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._run_ended_at: dict[str, float] = {}
        """When the pod event arrived that ended a run on the node, monotonic; until it is reconciled."""
        self._wakeup = asyncio.Event()
        self._list_schedule = ListSchedule(interval=settings.relist_interval, jitter=jitter)
        self._list_task = BackgroundTask("full list", on_end=self._wakeup.set)
        self._lease_task = BackgroundTask("lease", on_end=self._wakeup.set)
        self._status_task = BackgroundTask("policy status", on_end=self._wakeup.set)
        self._trust_task = BackgroundTask("readings policy", on_end=self._wakeup.set)
        self._histories = Histories(
            client=client,
            cache=cache,
            installation=settings.probe.installation,
            clock=clock,
            monotonic=time.monotonic,
        )
        self._histories_task = BackgroundTask("histories", on_end=self._wakeup.set)
        self._waiting_task = BackgroundTask("pods that wait", on_end=self._wakeup.set)
        self._restored: Restored | None = None
        """Seen by a reconcile; the loop ends with it."""
        self._first_listed_at = 0.0
        self._listed_uids: set[str] = set()
        """UIDs in the watches' own first lists."""
        self._list_beat = self._last_pass = time.monotonic()

    @property
    def may_write(self) -> bool:
        """Everything was listed, it is known whether readings count, and no other installation writes to the
        cluster."""
        return self.listed and self._trust.looked and self.installation.may_write

    def not_ready(self) -> str:
        """Why nothing is written; empty if something is."""
        if not self.listed:
            return "the first full list is not complete"
        if not self._trust.looked:
            return self._trust.problem
        if not self.installation.may_write:
            return self.installation.problem
        selected = self._budget.counters.selected(CLUSTER)
        return self._reconciler.obstacles.stops_everything(selected)

    def wake(self, *nodes: str) -> None:
        """Reconcile these nodes soon."""
        for name in nodes:
            self._queue.wake(name)
        if nodes:
            self._wakeup.set()

    def pod_seen(self, pod: PodView) -> None:
        """A pod changed: its node goes before nodes without news."""
        if pod.finished or pod.gone or pod.terminated is not None:
            self._run_ended_at.setdefault(pod.node, time.monotonic())
        if pod.probe in HOLDERS:
            self._waiting.changed()
        self._queue.wake(pod.node, priority=Priority.HIGH)
        self._wakeup.set()

    def watch_pod_seen(self, pod: WatchView) -> None:
        """A pod of a watch DaemonSet changed: a reading of its may wait for that, and so may health pods that
        read the node in its place."""
        if self._reconciler.watchers.put_pod(pod):
            self.wake(pod.node)
        self._counts_changed()

    def _counts_changed(self) -> None:
        """What policies show may differ now."""
        self._policy_status.dirty = True
        self._wakeup.set()

    def watch_set_seen(self, metadata: dict[str, Any], *, deleted: bool) -> None:
        """A watch DaemonSet changed: if somebody else changed it, it is made anew."""
        if self._watch_sets.seen(metadata, deleted=deleted):
            self._counts_changed()

    def reading_seen(self, name: str) -> None:
        """A probe has written: its node goes first."""
        self._run_ended_at.setdefault(name, time.monotonic())
        self._queue.wake(name, priority=Priority.HIGH)
        self._wakeup.set()

    def now(self) -> float:
        """Epoch seconds, by the clock of all decisions."""
        return self._clock()

    def policies_seen(self, *, changed: bool) -> None:
        """A policy was created, changed or deleted: count again, and wake every node if `changed`."""
        self._policy_status.dirty = True
        if changed:
            self.wake(*self.cache.known_names())
        self._wakeup.set()

    def listed_by_watch(self, uid: str) -> None:
        """kopf listed this object: that watch was interrupted, or this is its first list.

        Long after our first list, or for the second time, it was interrupted: take a full list soon.
        """
        now = time.monotonic()
        first = not self.listed or now < self._first_listed_at + FIRST_LISTS_SECONDS
        if not first:
            self._listed_uids.clear()
        elif uid not in self._listed_uids:
            self._listed_uids.add(uid)
            return
        self.interrupted()

    def interrupted(self) -> None:
        """The watches may have missed something: take a full list soon."""
        self._list_schedule.gap(time.monotonic())
        self._wakeup.set()

    def alive(self) -> bool:
        """Whether the last pass, and the last part of a full list under way, are recent."""
        oldest = min(self._last_pass, self._list_beat) if self._list_task.busy else self._last_pass
        return time.monotonic() - oldest < 3 * self._settings.sweep_interval + STUCK_SECONDS

    async def run(self) -> None:
        """Sweep until cancelled; then finish the writes in flight, and create no pod.  Raises `Restored` once
        etcd was seen to be restored: nothing here is worth anything then."""
        try:
            while True:
                self._wakeup.clear()
                await self._pass()
                if not self._has_work():
                    await self._sleep()
        finally:
            self._reconciler.stopping = True
            await asyncio.gather(
                self._list_task.stop(within=0),
                self._lease_task.stop(within=0),
                self._trust_task.stop(within=0),
                self._waiting_task.stop(within=0),
                self._histories_task.stop(within=0),
                self._status_task.stop(within=LAST_WRITES_SECONDS),
                self._watch_sets.task.stop(within=LAST_WRITES_SECONDS),
                self._finish_writes(),
            )

    async def _finish_writes(self) -> None:
        """Wait for the writes in flight, then cancel what is left."""
        if self._in_flight:
            _, late = await asyncio.wait(list(self._in_flight.values()), timeout=LAST_WRITES_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _trust_has_changed(self) -> None:
        self._policy_status.dirty = True
        self.wake(*self.cache.known_names())

    async def _pass(self) -> None:
        if self._restored is not None:
            raise self._restored
        await self._list_if_due()
        self._lease_task.check()
        self._trust_task.check()
        if not self._trust_task.busy and self._trust.due_in() <= 0:
            self._trust_task.start(self._trust.look(on_change=self._trust_has_changed))
        if self.listed and not self._lease_task.busy and self.installation.due_in() <= 0:
            self._lease_task.start(self.installation.renew())
        if self.may_write:
            self._said = ""
            self._look_at_clock()
            self.wake(*self._queue.fire(self._clock()), *self._reconciler.breaker.take_to_wake())
            self._give_way()
            self._grant()
            busy = self._in_flight.keys()
            devices = self._reconciler.device_budget
            for name in (*self._budget.offer(busy=busy), *devices.offer(busy=busy)):
                self._queue.wake(name, priority=Priority.HIGH)
            self._start_reconciles()
            self._histories_task.check()
            if not self._histories_task.busy and self._histories.due_in() <= 0:
                self._histories_task.start(self._histories.look())
            self._watch_sets.start_if_due(on_change=lambda: self.wake(*self.cache.known_names()))
            self._status_task.check()
            if not self._status_task.busy and self._clock() >= self._policy_status.due_at():
                self._status_task.start(self._policy_status.write())
        else:
            self._reconciler.gaps.idle()
            self._stand_by()
        self._last_pass = time.monotonic()
        self._metrics.last_pass.set(self._clock())

    def _give_way(self) -> None:
        """Wake nodes whose run ends for somebody, or may start now."""
        self._waiting_task.check()
        if self._waiting.gpu_names and not self._waiting_task.busy:
            self._waiting_task.start(self._waiting.follow())
        if self._waiting.due_in() <= 0:
            for name in self._waiting.look():
                self._queue.wake(name, priority=Priority.HIGH)

    def _stand_by(self) -> None:
        """Each policy says once why nothing is written."""
        problem = self.installation.blocked
        self._status_task.check()
        if self.listed and problem != self._said and not self._status_task.busy:
            self._said = problem
            if problem:
                self._status_task.start(self._policy_status.stand_by(problem))

    def _look_at_clock(self) -> None:
        """Once it has been set, every timer is made anew."""
        if (steps := self._reconciler.gaps.clock_steps()) != self._clock_steps:
            self._clock_steps = steps
            log.warning("the clock was set: every node is looked at, and none is stale before its next run")
            self._policy_status.clock_was_set()
            self.wake(*self.cache.known_names())

    async def _list_if_due(self) -> None:
        """Start a full list if one is due; wait only for the first one."""
        self._list_task.check()
        if not self._list_task.busy and time.monotonic() >= self._list_schedule.due_at():
            self._list_schedule.begin()
            self._beat()
            self._list_task.start(self._list())
        if not self.listed:
            await self._list_task.wait()

    def _beat(self) -> None:
        self._list_beat = time.monotonic()
        if not self.listed:
            self._last_pass = self._list_beat  # the loop is waiting for this list

    async def _list(self) -> None:
        """Take a full list; a failed one is tried again later and drops nothing from the cache."""
        settings, problem = self._settings, ""
        try:
            await list_all(
                self._client,
                self.cache,
                namespace=settings.probe.namespace,
                node_selector=settings.node_label_selector,
                bmc=settings.bmc,
                watch_pods=self._watch_sets.pods,
                beat=self._beat,
                wake=self.wake,
            )
        except NotFound:
            problem = missing(names.CRD_NAMES)
            self._client.outage.waiting(problem)
            self._list_schedule.missing(time.monotonic())
        except KubeError as error:
            problem = str(error)
            self._list_schedule.failed(time.monotonic())
            wait = self._list_schedule.due_at() - time.monotonic()
            log.log(error.log_level, "full list failed, next try in %.0f s: %s", wait, error)
        else:
            nodes, policies = len(self.cache.nodes), len(self.cache.policies)
            log.info("listed %d nodes, %d reports, %d policies", nodes, len(self.cache.reports), policies)
            self._list_schedule.done(time.monotonic())
            self._reconciler.gaps.answered()
            self._budget.warn_exceeded()
            await self._watch_sets.look()
            self.wake(*self._reconciler.watchers.starting())  # one may have ended meanwhile
            if not self.listed:
                self.listed, self._first_listed_at = True, time.monotonic()
                self.wake(*self.cache.known_names())
        finally:
            self._metrics.failed_lists.set(self._list_schedule.failures)
            alone = self._list_schedule.failures >= LISTS_FAIL and not self._client.outage.problem()
            self._reconciler.obstacles.lists = problem if alone else ""
            self._counts_changed()

    def _grant(self) -> None:
        """Give the free slots of each policy's budgets to the nodes that waited longest."""
        for name in self._concurrency.grant():
            self._queue.wake(name, priority=Priority.HIGH)  # its slot stays reserved until then

    def _start_reconciles(self) -> None:
        free = self._settings.workers - len(self._in_flight)
        for name in self._queue.take(free, busy=frozenset(self._in_flight)):
            task = asyncio.create_task(self._reconcile(name), name=f"node {name}")
            self._in_flight[name] = task

    def _has_work(self) -> bool:
        """Whether the next pass can start a reconcile at once."""
        free = len(self._in_flight) < self._settings.workers
        return self.may_write and free and self._queue.pending(busy=frozenset(self._in_flight))

    async def _sleep(self) -> None:
        waits = [self._settings.sweep_interval]
        if not self._trust_task.busy:
            waits.append(self._trust.due_in())
        if self.may_write:
            waits += [self._queue.next_timer() - self._clock(), self._watch_sets.due_in()]
            waits.append(self._waiting.due_in())
        if self.listed and not self._lease_task.busy:
            waits.append(self.installation.due_in())
        if not self._list_task.busy:
            waits.append(self._list_schedule.due_at() - time.monotonic())
        if self.may_write and not self._status_task.busy:
            waits.append(self._policy_status.due_at() - self._clock())
        alarm = asyncio.get_running_loop().call_later(max(0.02, min(waits)), self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            alarm.cancel()

    async def _reconcile(self, name: str) -> None:
        """Reconcile one node; an error is tried again later and affects no other node."""
        granted, run_ended_at = self._concurrency.granted(name), self._run_ended_at.get(name)
        try:
            reconciled = await self._reconciler.reconcile(
                name,
                granted=granted,
                since=run_ended_at,
                others_wait=lambda: self._queue.has_news(busy=frozenset(self._in_flight)),
            )
        except KubeError as error:
            if isinstance(error, Unreachable):
                self.interrupted()  # the API server may have restarted, which watches do not report
            self._failed(name, type(error).__name__, error, level=error.log_level)
        except Restored as error:
            self._restored = error
        except Exception as error:
            log.exception("unexpected error on node %s", name, extra={"node": name})
            self._failed(name, "Unexpected", error)
        else:
            if self._run_ended_at.get(name) == run_ended_at:
                self._run_ended_at.pop(name, None)
            if reconciled is None:
                self._queue.wake(name, priority=Priority.REST)
            else:
                if granted or not reconciled.waits:
                    self._failures.pop(name, None)  # else the failed write was only put off: keep its backoff
                self._concurrency.wait(name, reconciled.waits)
                self._queue.set_timer(name, reconciled.wake_at)
        finally:
            self._concurrency.done(name)
            self._in_flight.pop(name, None)
            self._budget.reconciled(name)
            self._policy_status.dirty = True
            self._wakeup.set()

    def _failed(self, name: str, kind: str, error: Exception, *, level: int = logging.WARNING) -> None:
        count = self._failures[name] = self._failures.get(name, 0) + 1
        wait = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2 ** min(count - 1, 10))
        self._metrics.failures.labels(kind).inc()
        log.log(level, "node %s: %s: %s; next try in %.1f s", name, kind, error, wait, extra={"node": name})
        self._queue.set_timer(name, self._clock() + wait)
