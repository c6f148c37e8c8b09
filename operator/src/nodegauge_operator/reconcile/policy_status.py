"""The status of policies: counts of nodes, and the conditions `Ready`, `GatesWithinBudget`,
`BreakerOpen`, `WatchersReady` and `RunsKeepUp`.

Written only when it differs from the current status.  Counts change with every run and are written every few
seconds; a change of the policy itself is answered at once.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nodegauge_judge import Verdict
from nodegauge_judge.nccl.measurement import Agreement
from nodegauge_operator.api.incident import incidents_of
from nodegauge_operator.api.policy import Mode
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.kube import policies
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.names import PROBE_HEALTH, Obstacle, PaceReason, PolicyReason
from nodegauge_operator.reconcile import node_series
from nodegauge_operator.reconcile.budget_condition import State, n_nodes, within_budget
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.concurrency import Concurrency
from nodegauge_operator.reconcile.device_budget import DeviceBudget
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.incident_status import IncidentStatus
from nodegauge_operator.reconcile.node_counts import CLUSTER, NOT_READY, UNREADABLE
from nodegauge_operator.reconcile.obstacles import Obstacles
from nodegauge_operator.reconcile.policies_with_nodes import PoliciesWithNodes
from nodegauge_operator.reconcile.reading_trust import Trust
from nodegauge_operator.reconcile.resync import Jitter, backoff
from nodegauge_operator.reconcile.watchers import WATCHERS_READY, Watchers
from nodegauge_operator.reconcile.watchers_condition import some_of

log = logging.getLogger("nodegauge.policy")

MAX_REFUSAL = 600
"""Characters of why runs could not be made in a condition's message."""
COMPARE_SECONDS = 1.0
"""Statuses are compared at most this often."""
COUNTS_SECONDS = 5.0
"""A status of which only the counts differ is written at most this often."""
READY = "Ready"
WITHIN_BUDGET = "GatesWithinBudget"
KEEP_UP = "RunsKeepUp"
BREAKER_OPEN = "BreakerOpen"
FOLLOWED: dict[str, tuple[str, ...]] = {WATCHERS_READY: (), KEEP_UP: (PaceReason.RUNS_REFUSED,)}
"""Conditions that `Ready` follows, and for which reasons, none for any: while one of them is False, the
policy does not do what it says."""
MAX_PROBLEM = 1000
REFUSED_SHARE = 0.1
"""`Ready` follows refused runs if more than this share of the nodes had one.  Chosen by this project: an
image that one node in a hundred cannot pull is that node's matter (docs/adr/0044)."""
KEEPS_UP_AGAIN = 0.9
"""Runs that could not keep up do so again once a round takes less than this share of the interval."""
Condition = dict[str, Any]


class PolicyStatus:
    """Counts and conditions of every policy.  Set `dirty` to have them compared again."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        gate_budget: GateBudget,
        device_budget: DeviceBudget,
        concurrency: Concurrency,
        incidents: IncidentStatus,
        obstacles: Obstacles,
        trust: Trust,
        watchers: Watchers,
        metrics: Metrics,
        installation: str,
        most_nodes: int,
        clock: Callable[[], float],
        jitter: Jitter = random.random,
    ) -> None:
        self.dirty = True
        self._client = client
        self._cache = cache
        self._metrics = metrics
        self._installation = installation
        self._most_nodes = most_nodes
        self._selecting = PoliciesWithNodes(cache)
        self._clock = clock
        self._jitter = jitter
        self._budget = gate_budget
        self._devices = device_budget
        self._concurrency = concurrency
        self._incidents = incidents
        self._obstacles = obstacles
        self._trust = trust
        self._watchers = watchers
        self._counters = gate_budget.counters
        self._series = node_series.Series()
        self._compared_at = 0.0
        self._written: dict[str, float] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        """Policies whose status could not be written: how often in a row, and when to try again."""

    def clock_was_set(self) -> None:
        """Times from before may lie days ahead: compare and try again at once."""
        self._compared_at, self.dirty = 0.0, True
        self._failed.clear()

    def due_at(self) -> float:
        """When `write` has something to compare; infinity for never."""
        return self._compared_at + COMPARE_SECONDS if self.dirty else NEVER

    async def write(self) -> None:
        """Write each status that differs and is due; compare the others again later."""
        now = self._clock()
        if not self.dirty or 0 <= now - self._compared_at < COMPARE_SECONDS:
            return
        self.dirty, self._compared_at = False, now
        self._export()
        self._incidents.export()
        self._watchers.export()
        self._forget_deleted()
        for name in [
            *self._cache.policies,
            *(self._cache.policy_errors.keys() - self._cache.policies.keys()),
        ]:
            if name not in self._cache.policies and name not in self._cache.policy_errors:
                continue  # deleted while the status of another policy was written
            before = conditions_by_type(self._cache.policy_status.get(name, {}))
            await self._watchers.announce(name, before.get(WATCHERS_READY, {}))
            wanted = self._wanted(name)
            if _same(self._cache.policy_status.get(name, {}), wanted):
                self._failed.pop(name, None)
            elif self._due(name, wanted, now):
                await self._incidents.announce(name)
                await self._patch(name, wanted)
            else:
                self.dirty = True

    def _due(self, name: str, wanted: dict[str, Any], now: float) -> bool:
        if name in self._failed:
            return now >= self._failed[name][1]
        counts_only = _without_counts(self._cache.policy_status.get(name, {})) == _without_counts(wanted)
        return not (counts_only and 0 <= now - self._written.get(name, 0.0) < COUNTS_SECONDS)

    async def _patch(self, name: str, wanted: dict[str, Any]) -> None:
        try:
            await policies.patch_status(self._client, name, wanted)
        except KubeError as error:
            tries = self._failed[name][0] if name in self._failed else 0
            self._failed[name] = tries + 1, self._clock() + backoff(tries, self._jitter)
            log.log(error.log_level, "status of policy %s not written: %s", name, error)
            self.dirty = True
            return
        self._failed.pop(name, None)
        self._written[name] = self._clock()
        if name in self._cache.policy_versions:
            self._cache.policy_status[name] = wanted

    def _export(self) -> None:
        metrics, series = self._metrics, self._series
        for name in self._failed:
            series.put(metrics.obstacles, name, Obstacle.STATUS, value=1)
        metrics.gate_slots.set(self._budget.slots(CLUSTER))
        for name, policy in self._cache.policies.items():
            for obstacle, nodes in self._obstacles.counts(name).items():
                series.put(metrics.obstacles, name, obstacle, value=nodes)
            series.put(metrics.health_interval, name, value=policy.interval_of(PROBE_HEALTH))
            series.put(metrics.unreadable, name, value=self._counters.unreadable(name))
            series.put(metrics.foreign, name, value=sum(self._foreign(name).values()))
            series.put(metrics.held_back, name, value=len(self._counters.waiting(name)))
            devices = self._counters.devices(name)
            series.put(metrics.gated_devices, name, value=devices.gated)
            series.put(metrics.held_back_devices, name, value=devices.waiting)
            series.put(metrics.newly_gated, name, value=self._budget.rate.count(name))
            for (taint, cause), count in self._counters.gates(name).items():
                series.put(metrics.gated, name, taint, cause, value=count)
            for why in () if policy.paused else (UNREADABLE, NOT_READY):
                series.put(metrics.silent, name, why, value=self._counters.silent(name)[why])
            for kind, count in self._counters.overrides(name).items():
                series.put(metrics.overrides, name, kind, value=count)
            for last_run, read in (("read", True), ("unread", False)):
                if at := self._counters.oldest_reading(name, last_run_read=read):
                    series.put(metrics.oldest_reading, name, last_run, value=partial(self._age, at))
            for verdict, count in self._counters.verdicts(name).items():
                series.put(metrics.nodes, name, verdict, value=count)
            for klass, count in self._counters.classes(name).items():
                series.put(metrics.interconnect, name, klass, value=count)
            for agreement, count in self._counters.agreements(name).items():
                series.put(metrics.measured, name, agreement, value=count)
            for (gauge_of_kind, label), amount in self._counters.amounts(name).items():
                labels = (name, label) if label else (name,)
                series.put(getattr(metrics, gauge_of_kind), *labels, value=amount)
        node_series.export(series, metrics, self._counters, self._cache.policies, most_nodes=self._most_nodes)
        series.show()

    def _age(self, at: float) -> float:
        return max(0.0, self._clock() - at)

    def _foreign(self, name: str) -> dict[str, int]:
        counts = self._counters.installations(name)
        return {other: count for other, count in counts.items() if other != self._installation}

    def _forget_deleted(self) -> None:
        for history in (self._written, self._failed):
            for name in history.keys() - self._cache.policy_versions.keys():
                history.pop(name, None)

    def _wanted(self, name: str) -> dict[str, Any]:
        counters = self._counters
        verdicts = counters.verdicts(name)
        good, selected = verdicts[Verdict.PASS] + verdicts[Verdict.WARN], sum(verdicts.values())
        return {
            "observedGeneration": observed_generation(self._cache, name),
            "nodes": {
                "selected": selected,
                "validated": good,
                "failing": verdicts[Verdict.FAIL],
                "unknown": selected - good - verdicts[Verdict.FAIL],
                "gated": len(counters.gated(name)),
                "heldBack": len(counters.waiting(name)),
                "measured": sum(counters.agreements(name).values()),
                "contradicted": counters.agreements(name)[Agreement.CONTRADICTED],
            },
            "incidents": self._incidents.wanted(name),
            "conditions": self._conditions(name),
        }

    def _conditions(self, name: str) -> list[Condition]:
        """The conditions of one policy, with the time at which each status last changed."""
        before = conditions_by_type(self._cache.policy_status.get(name, {}))
        states: dict[str, State | None] = {
            READY: _ready(
                self._cache,
                self._budget,
                self._selecting,
                name,
                foreign=self._foreign(name),
                distrust=self._trust.problem,
                refused=self._obstacles.state(name),
            )
        }
        if name in self._cache.policies:
            states[BREAKER_OPEN] = self._incidents.condition(name)
            states[WITHIN_BUDGET] = within_budget(self._cache, self._budget, self._devices, name)
            states[WATCHERS_READY] = self._watchers.condition(name)
            states[KEEP_UP] = self._keep_up(name, before.get(KEEP_UP))
        for kind, _ in _failed(states):
            self._metrics.obstacles.labels(name, kind).set(1)
        states[READY] = following(states)
        return [
            self._condition(name, kind, state, before.get(kind, {}))
            for kind, state in states.items()
            if state is not None
        ]

    def _condition(self, name: str, kind: str, state: State, before: Condition) -> Condition:
        return {
            "type": kind,
            "status": state[0],
            "reason": str(state[1]),
            "message": state[2],
            "observedGeneration": observed_generation(self._cache, name),
            "lastTransitionTime": _since(before, state[0], self._clock()),
        }

    async def stand_by(self, problem: str) -> None:
        """Say once that this installation writes nothing, and so does nothing of what a policy says.

        Another installation that is live answers for the policy, and is not contradicted (ADR 0044).
        """
        for name in list(self._cache.policies):
            self._metrics.obstacles.labels(name, Obstacle.LEASE).set(1)
            status = self._cache.policy_status.get(name, {})
            conditions = conditions_by_type(status)
            ready: State = ("False", PolicyReason.STANDING_BY, problem[:MAX_PROBLEM])
            conditions[READY] = self._condition(name, READY, ready, conditions.get(READY, {}))
            await self._patch(name, status | {"conditions": list(conditions.values())})
        self.dirty = True

    def _keep_up(self, name: str, before: Condition | None) -> State | None:
        """Whether the health runs of all nodes fit into an interval, by the time that they take now.

        None where no runs are made, and before the first; after a restart the condition stays until then.
        """
        policy, nodes = self._cache.policies[name], self._counters.selected(name)
        each = self._counters.held_seconds(name, PROBE_HEALTH)
        health = policy.spec.probes.health
        if not nodes or policy.paused or policy.watches or not health.enabled:
            return None
        if refused := self._counters.refused(name):
            why = refused[min(refused)][:MAX_REFUSAL]
            where = f"{n_nodes(len(refused))} of {nodes} ({some_of(refused)})"
            message = f"the last health run of {where} could not be made: {why}"
            many = len(refused) > REFUSED_SHARE * nodes
            return "False", PaceReason.RUNS_REFUSED if many else PaceReason.FEW_RUNS_REFUSED, message
        if each is None:
            return (before["status"], before["reason"], before["message"]) if before else None
        late = before is not None and before["status"] == "False"
        pace = self._concurrency.pace(name, PROBE_HEALTH)
        interval, takes = policy.interval_of(PROBE_HEALTH), nodes * each / pace.at_once
        if takes <= interval * (KEEPS_UP_AGAIN if late else 1):
            message = (
                f"a round of health runs over {n_nodes(nodes)} fits into the interval of {health.interval}"
            )
            return "True", PaceReason.KEEPING_UP, message
        setting = f"spec.budget.concurrentProbes ({policy.spec.budget.concurrent_probes})"
        limit = f"the chart's operator.maxConcurrentProbes ({pace.installation})"
        needed, at_once = math.ceil(nodes * each / interval), pace.at_once
        message = (
            f"{n_nodes(nodes)}, {at_once} at once, {each:.0f} s each: a round takes {takes / 60:.0f} min, "
            f"longer than the interval of {health.interval}. At least {needed} at once are needed: "
            f"raise {limit if pace.installation else setting}, or lengthen spec.probes.health.interval."
        )
        return "False", PaceReason.TOO_FEW_SLOTS, message


def following(states: dict[str, State | None]) -> State | None:
    """`Ready`, which is False while a condition is that it follows."""
    ready = states[READY]
    bad = next(_failed(states), None)
    if ready is None or ready[0] != "True" or bad is None:
        return ready
    kind, state = bad
    return "False", state[1], f"{kind} is False: {state[2]}"


def _failed(states: dict[str, State | None]) -> Iterator[tuple[str, State]]:
    for kind, reasons in FOLLOWED.items():
        state = states.get(kind)
        if state is not None and state[0] == "False" and (not reasons or state[1] in reasons):
            yield kind, state


def _same(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(current.get(key) == value for key, value in wanted.items())


def _without_counts(status: dict[str, Any]) -> tuple[object, ...]:
    """The status without its counts; the conditions' messages contain counts too."""
    kinds = sorted(conditions_by_type(status).items())
    incidents = [(incident.id, incident.group, incident.closed_at) for incident in incidents_of(status)]
    conditions = [(k, c.get("status"), c.get("reason")) for k, c in kinds]
    return status.get("observedGeneration"), conditions, incidents


def observed_generation(cache: Cache, name: str) -> int:
    """The generation of the policy that was last read, valid or not."""
    error, policy = cache.policy_errors.get(name), cache.policies.get(name)
    return error.generation if error else (policy.generation if policy else 0)


def conditions_by_type(status: dict[str, Any]) -> dict[str, Condition]:
    """The conditions in a status."""
    return {str(condition.get("type")): condition for condition in status.get("conditions") or ()}


def _since(before: Condition, status: str, now: float) -> str:
    at = before.get("lastTransitionTime") if before.get("status") == status else None
    return str(at or stamp(now))


def _ready(
    cache: Cache,
    budget: GateBudget,
    selecting: PoliciesWithNodes,
    name: str,
    *,
    foreign: dict[str, int],
    distrust: str,
    refused: State | None,
) -> State:
    policy, error = cache.policies.get(name), cache.policy_errors.get(name)
    if error is not None:
        kept = (
            " The last good version stays in force."
            if policy
            else " The policy is not in force; nodes that it selects stay as they are."
        )
        return "False", PolicyReason.INVALID, error.message[:800] + "." + kept
    if policy and (other := cache.selecting_by_its_key(policy)):
        key = policy.spec.labels.interconnect_key
        message = (
            f"spec.labels.interconnectKey: policy {other} selects nodes by the label {key}, which this one "
            "would write and remove: write another key, or leave it empty. It is in force without the label."
        )
        return "False", PolicyReason.INVALID, message
    selected = budget.counters.selected(name)
    if distrust:
        message = f"no reading counts, and {n_nodes(selected)} stay as they are: {distrust}"
        return "False", PolicyReason.READINGS_UNPROTECTED, message
    if foreign:
        other, count = max(foreign.items(), key=lambda item: item[1])
        namespace, _, release = other.partition("/")
        message = (
            f"{n_nodes(count)} of {selected} belong to installation {other} and are left alone; if it is "
            f"gone: nodegauge cleanup --namespace {namespace} --release {release}"
        )
        return "False", PolicyReason.OTHER_INSTALLATION, message
    if refused is not None:
        return refused
    if selected and policy and policy.paused:
        paused = policy.spec.mode is Mode.PAUSED
        why = "spec.mode is Paused" if paused else "spec.budget.concurrentProbes is 0"
        message = f"{why}: {selected} nodes keep their labels and taints, and none is read"
        return "True", PolicyReason.PAUSED, message
    if selected:
        return "True", PolicyReason.ACTIVE, f"in force on {selected} nodes"
    if policy and selecting.has_node(policy):
        return "True", PolicyReason.OVERRIDDEN, "every node it selects follows another policy"
    return "True", PolicyReason.NO_NODES, "spec.nodeSelector selects no node"
