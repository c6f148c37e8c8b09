"""Which nodes may run a probe pod now: the slots of each pool, and the nodes that wait for one.

A slot is taken by a node with a pod of the pool, and by a node that was granted one and has not been
reconciled since.  Each pool has a budget and a queue of its own, so that no kind of probe takes another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

from nodegauge_operator.core.budget import concurrent_probes, longest_waiting
from nodegauge_operator.core.probes.kind import Pool
from nodegauge_operator.core.probes.registry import POOLS, kinds_of
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.node_counts import NodeCounters


class Queue:
    """Nodes that wait for a slot of one pool."""

    def __init__(self, cache: Cache, counters: NodeCounters, pool: Pool) -> None:
        self.waiting: dict[str, float] = {}
        """When such a run was last made on the node, epoch seconds; 0.0 for never."""
        self.granted: set[str] = set()
        """Nodes whose slot is reserved until they are reconciled."""
        self._cache = cache
        self._counters = counters
        self._pool = pool

    def wait(self, name: str, since: float | None) -> None:
        """The node waits, or no longer does if `since` is None."""
        self.waiting.pop(name, None)
        if since is not None:
            self.waiting[name] = since

    def running(self) -> Set[str]:
        """Nodes that have a pod of the pool."""
        return self._cache.nodes_with_pods(*kinds_of(self._pool))

    def grant(self, *, running: Set[str], busy: Set[str]) -> list[str]:
        """Grant the free slots to the nodes that waited longest, and return those.

        `running`: nodes with a pod of the pool; `busy` nodes stay in the queue, and do not block others.
        """
        free = self._free_slots(running) if self.waiting else {}
        candidates: dict[str, list[tuple[float, str]]] = {policy: [] for policy in free}
        for name, since in self.waiting.items() if free else ():
            if (policy := self._policy_name(name)) in free and name not in busy:
                candidates[policy].append((since, name))
        chosen = [n for policy, waiting in candidates.items() for n in longest_waiting(waiting, free[policy])]
        for name in chosen:
            del self.waiting[name]
            self.granted.add(name)
        return chosen

    def _free_slots(self, running: Set[str]) -> dict[str, int]:
        """Policies with free slots, and how many; mostly none, and asked at every pass."""
        taken = Counter(map(self._policy_name, running | self.granted))
        slots = {name: self._slots(name) - taken[name] for name in self._cache.policies}
        return {name: count for name, count in slots.items() if count > 0}

    def _slots(self, policy_name: str) -> int:
        policy = self._cache.policies[policy_name]
        return concurrent_probes(self._pool.setting(policy.spec.budget), self._counters.selected(policy_name))

    def _policy_name(self, node: str) -> str:
        view = self._cache.nodes.get(node)
        policy = self._cache.policy_of(view) if view else None
        return policy.name if policy else ""


class Concurrency:
    """The queues of all pools."""

    def __init__(self, cache: Cache, counters: NodeCounters) -> None:
        self._queues = {pool.name: Queue(cache, counters, pool) for pool in POOLS}

    def wait(self, name: str, since: Mapping[str, float]) -> None:
        """The pools that the node waits for, and since when; it waits for no other any more."""
        for pool, queue in self._queues.items():
            queue.wait(name, since.get(pool))

    def grant(self) -> list[str]:
        """Grant the free slots; the nodes to reconcile first.

        A node gets no slot of a pool while it runs, was granted or waits for a run of an earlier pool: GPUs
        are only measured once they are known to be well.
        """
        granted: list[str] = []
        busy: set[str] = set()
        for queue in self._queues.values():
            running = queue.running()
            granted += queue.grant(running=running, busy=busy | running)
            busy |= running | queue.granted | queue.waiting.keys()
        return granted

    def granted(self, name: str) -> frozenset[str]:
        """Pools in which a slot is reserved for this node."""
        return frozenset(pool for pool, queue in self._queues.items() if name in queue.granted)

    def done(self, name: str) -> None:
        """The node was reconciled: it has used its slots, or did not need them."""
        for queue in self._queues.values():
            queue.granted.discard(name)

    def waiting(self) -> dict[str, int]:
        """How many nodes wait, by pool."""
        return {pool: len(queue.waiting) for pool, queue in self._queues.items()}
