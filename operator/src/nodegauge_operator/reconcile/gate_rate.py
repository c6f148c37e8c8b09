"""How many nodes newly took a taint for a fault within the last hour, by policy and in the cluster.

The reports say when (`status.taintedAt`), so a restart forgets nothing.  A node whose report is edited or
deleted counts on for as long as this process lives.  A node that is deleted counts no more: it takes its
fault along, and a small cluster that replaces it must not wait for an hour (ADR 0046).  From when a time has
been read, the hour is counted by a clock that nobody sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from nodegauge_operator.api.times import NEVER, unstamp
from nodegauge_operator.core.budget import HOUR, gated_slots
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.node_counts import CLUSTER, NodeCounters


class NewlyGated(Struct, frozen=True, kw_only=True):
    """A node that counts `until` then, by the clock that never goes back, for the policy that it followed."""

    uid: str
    policy: str
    stamp: str
    until: float


class GateRate:
    """Nodes newly gated within the last hour, and how many may be.

    `clock` gives seconds and never goes back; `now`: epoch seconds, by which reports are read.  `cluster`:
    the cluster's limit, a count or a percentage of all nodes that follow a policy.
    """

    def __init__(
        self,
        cache: Cache,
        counters: NodeCounters,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        cluster: int | str,
    ) -> None:
        self.cluster = cluster
        self._cache = cache
        self._counters = counters
        self._clock = clock
        self._now = now
        self._changed = cache.subscribe()
        self._changed.update(cache.reports)
        self._counting: dict[str, NewlyGated] = {}
        """By the node's name."""
        self._by_scope: Counter[str] = Counter()
        self._next_end = NEVER

    def limit(self, scope: str) -> int:
        """Nodes of the policy, or of the cluster, that may newly be gated within an hour."""
        if scope == CLUSTER:
            return gated_slots(self.cluster, self._counters.selected(CLUSTER))
        known = self._cache.policies.get(scope)
        if known is None:
            return 0
        return gated_slots(known.spec.budget.gated_nodes_per_hour, self._counters.selected(scope))

    def count(self, scope: str) -> int:
        """Nodes that were newly gated within the last hour while they followed the policy, or in the cluster.

        More than the limit after that was lowered, or while two operators run.
        """
        self.update()
        return self._by_scope[scope]

    def counts(self, name: str) -> bool:
        """Whether the node itself counts now: gating it again adds none."""
        self.update()
        node = self._cache.nodes.get(name)
        return node is not None and name in self._counting

    def update(self) -> None:
        """Read the reports that changed, while the clock that they were written by still shows that time."""
        while self._changed:
            self._read(self._changed.pop())
        if self._clock() < self._next_end:
            return
        for name in [name for name, entry in self._counting.items() if entry.until <= self._clock()]:
            self._count(self._counting.pop(name), -1)
        self._next_end = min((entry.until for entry in self._counting.values()), default=NEVER)

    def _read(self, name: str) -> None:
        node, report, before = self._cache.nodes.get(name), self._cache.reports.get(name), None
        if name in self._counting:
            before = self._counting[name]
            if node is None or node.uid != before.uid:
                self._count(self._counting.pop(name), -1)
                before = None
        if node is None or report is None or report.node_uid != node.uid:
            return
        stamp = report.status.tainted_at
        if not stamp or (before is not None and before.stamp == stamp):
            return
        left = HOUR - max(0.0, self._now() - unstamp(stamp))
        until = max(self._clock() + left, before.until if before else 0.0)
        if until <= self._clock():
            return
        in_force = self._cache.policy_of(node)
        policy = before.policy if before else (in_force.name if in_force else report.status.policy)
        entry = NewlyGated(uid=node.uid, policy=policy, stamp=stamp, until=until)
        self._counting[name] = entry
        if before is None:
            self._count(entry, 1)
        self._next_end = min(self._next_end, until)

    def _count(self, entry: NewlyGated, by: int) -> None:
        for scope in {entry.policy, CLUSTER}:
            self._by_scope[scope] += by
