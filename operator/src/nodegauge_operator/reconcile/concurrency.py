"""Which nodes may run a probe pod now: the slots of each pool, and the nodes that wait for one.

A slot is taken by a node with a pod of the pool, and by a node that was granted one and has not been
reconciled since.  Each pool has a budget and a queue of its own, so that no kind of probe takes another's.

Runs that hold GPUs start slowly: after an installation, or with another image, on one node, and on as many
more as ended well.

Nodes whose last run read nothing have a lane of their own: such a run may hold its slot for minutes, and some
sixty of them would hold every slot of a fleet.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Set

from msgspec import Struct

from nodegauge_operator.core.budget import concurrent_probes, retry_slots
from nodegauge_operator.core.probes.kind import Pool, Wait
from nodegauge_operator.core.probes.registry import KINDS, kinds_of, pools
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.node_counts import NodeCounters


class Slots(Struct, kw_only=True):
    """Slots of one policy that are free: for any node, and within these for nodes whose last run read
    nothing."""

    free: int
    retry: int

    def take(self, *, unread: bool) -> bool:
        """Take one for such a node, if there is one."""
        if self.free <= 0 or (unread and self.retry <= 0):
            return False
        self.free -= 1
        self.retry -= unread
        return True


class Pace(Struct, frozen=True, kw_only=True):
    """Runs at a time; `installation`: the installation's limit if that bounds them, else 0."""

    at_once: int
    installation: int


class Queue:
    """Nodes that wait for a slot of one pool.  `most`: slots of all policies together."""

    def __init__(self, cache: Cache, counters: NodeCounters, pool: Pool, *, most: int) -> None:
        self.waiting: dict[str, Wait] = {}
        self.granted: dict[str, Wait] = {}
        """Nodes whose slot is reserved until they are reconciled, and for which run."""
        self._cache = cache
        self._counters = counters
        self._pool = pool
        self._kinds = kinds_of(pool)
        self.most = most

    def wait(self, name: str, wait: Wait | None) -> None:
        """The node waits, or no longer does if `wait` is None."""
        self.waiting.pop(name, None)
        if wait is not None:
            self.waiting[name] = wait

    def count(self) -> int:
        """Nodes that wait; where a policy has no slots at all, nobody waits for one."""
        if all(map(self.slots, self._cache.policies)):
            return len(self.waiting)
        return sum(
            1 for node in self.waiting if (policy := self._policy_name(node)) and self.slots(policy) > 0
        )

    def running(self) -> Set[str]:
        """Nodes that have a pod of the pool."""
        return self._cache.nodes_with_pods(*self._kinds)

    def grant(self, *, running: Set[str], busy: Set[str]) -> list[str]:
        """Grant the free slots to the nodes that waited longest, and return those.

        `running`: nodes with a pod of the pool; `busy` nodes stay in the queue, and do not block others.
        """
        if not self.waiting:
            return []
        taken = running | self.granted.keys()
        left = self.most - len(taken)
        if left <= 0:
            return []
        free, starts = self._free_slots(taken), self._slow_starts(running)
        candidates = [
            (wait.since, name, policy)
            for name, wait in self.waiting.items()
            if name not in busy and (policy := self._policy_name(name)) in free
            if starts.get((wait.probe, wait.image), 1) > 0
        ]
        heapq.heapify(candidates)
        chosen: list[str] = []
        while candidates and len(chosen) < left and free:
            _, name, policy = heapq.heappop(candidates)
            run = (self.waiting[name].probe, self.waiting[name].image)
            if starts.get(run, 1) <= 0 or policy not in free:
                continue
            if free[policy].take(unread=self._unread(name)):
                chosen.append(name)
                self.granted[name] = self.waiting.pop(name)
                if run in starts:
                    starts[run] -= 1
                if not free[policy].free:
                    del free[policy]
        return chosen

    def _slow_starts(self, running: Set[str]) -> dict[tuple[str, str], int]:
        """By probe and image, for those that start slowly: how many more runs may start now."""
        wanted = {(wait.probe, wait.image) for wait in self.waiting.values() if wait.probe}
        begun = Counter((wait.probe, wait.image) for wait in self.granted.values())
        if wanted:
            begun.update(
                (pod.probe, pod.image)
                for name in running - self.granted.keys()
                for pod in self._cache.pods_of(name)
            )
        return {run: self._counters.slow_start(*run) - begun[run] for run in wanted}

    def _free_slots(self, taken: Set[str]) -> dict[str, Slots]:
        """Policies with free slots, and how many."""
        used = Counter(map(self._policy_name, taken))
        retrying = Counter(self._policy_name(name) for name in taken if self._unread(name))
        free = {}
        for name in self._cache.policies:
            slots = self.slots(name)
            if slots > used[name]:
                retry = self.retry_slots(name, slots) - retrying[name]
                free[name] = Slots(free=slots - used[name], retry=retry)
        return free

    def slots(self, policy_name: str) -> int:
        """How many slots the policy has; all policies together have `most`."""
        policy = self._cache.policies[policy_name]
        setting = 0 if policy.paused else self._pool.setting(policy.spec.budget)
        return concurrent_probes(setting, self._counters.selected(policy_name), most=self.most)

    def retry_slots(self, policy_name: str, slots: int) -> int:
        """How many of these slots nodes may hold whose last run read nothing."""
        unread = self._counters.unread(policy_name)[self._pool.name]
        return retry_slots(slots, unread=unread, nodes=self._counters.selected(policy_name))

    def pace(self, policy: str) -> Pace:
        """How many runs of the policy's nodes that can be read go on at a time."""
        own, together = self.slots(policy), sum(map(self.slots, self._cache.policies))
        share = min(own, own * self.most // together)
        unread = self._counters.unread(policy)[self._pool.name]
        at_once = max(1, share - min(self.retry_slots(policy, share), unread))
        return Pace(at_once=at_once, installation=self.most if together >= self.most else 0)

    def _unread(self, node: str) -> bool:
        return self._counters.is_unread(node, self._pool.name)

    def _policy_name(self, node: str) -> str:
        view = self._cache.nodes.get(node)
        policy = self._cache.policy_of(view) if view else None
        return policy.name if policy else ""


class Concurrency:
    """The queues of all pools.  `limits`: slots of all policies together, by pool."""

    def __init__(self, cache: Cache, counters: NodeCounters, *, limits: Mapping[str, int]) -> None:
        self._cache = cache
        self._queues = {pool.name: Queue(cache, counters, pool, most=limits[pool.name]) for pool in pools()}

    def wait(self, name: str, waits: Mapping[str, Wait]) -> None:
        """The pools that the node waits for, and for which run; it waits for no other any more."""
        for pool, queue in self._queues.items():
            queue.wait(name, waits.get(pool))

    def grant(self) -> list[str]:
        """Grant the free slots; the nodes to reconcile first.

        A node gets no slot of a pool while it runs, was granted or waits for a run of an earlier pool: GPUs
        are only measured once they are known to be well.
        """
        granted: list[str] = []
        busy: set[str] = set()
        if not any(queue.waiting for queue in self._queues.values()):
            return granted
        for queue in self._queues.values():
            running = queue.running()
            granted += queue.grant(running=running, busy=busy | running)
            busy |= running | queue.granted.keys() | queue.waiting.keys()
        return granted

    def granted(self, name: str) -> frozenset[str]:
        """Pools in which a slot is reserved for this node."""
        return frozenset(pool for pool, queue in self._queues.items() if name in queue.granted)

    def done(self, name: str) -> None:
        """The node was reconciled: it has used its slots, or did not need them."""
        for queue in self._queues.values():
            queue.granted.pop(name, None)

    def pace(self, policy: str, pool: str) -> Pace:
        """How many runs of the policy's nodes that can be read go on at a time."""
        return self._queues[pool].pace(policy)

    def running(self) -> dict[str, int]:
        """How many nodes have a pod, by probe."""
        return {probe: len(self._cache.nodes_with_pods(probe)) for probe in KINDS}

    def waiting(self) -> dict[str, int]:
        """How many nodes wait, by pool, for a slot that there is."""
        return {pool: queue.count() for pool, queue in self._queues.items()}
