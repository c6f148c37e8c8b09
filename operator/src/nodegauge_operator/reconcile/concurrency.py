"""Whose turn it is: nodes that wait for a place in a budget of pods, and those that were just given one.

There is one queue for health runs and one for benchmarks, so that neither takes the other's places.  A place
is taken by a node with such a pod, and by one that was given a place and has not been looked at since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from enum import Enum

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.core.budget import concurrent_probes, next_in_turn
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.counters import NodeCounters

NCCL = (names.PROBE_PULL, names.PROBE_NCCL)
"""Probes of which a benchmark is made; each takes a place."""

Setting = Callable[[Budget], int | str]


class Queue:
    """Nodes that wait for a run of one kind.  `setting` says which part of a policy's budget counts it."""

    def __init__(self, cache: Cache, counters: NodeCounters, *, setting: Setting) -> None:
        self.waiting: dict[str, float] = {}
        """Since when, epoch seconds: the last time that it was done there; 0.0 for never."""
        self.granted: set[str] = set()
        """Nodes for which a place is kept until they have been looked at."""
        self._cache = cache
        self._counters = counters
        self._setting = setting

    def wait(self, name: str, since: float | None) -> None:
        """The node waits, or no longer does where `since` is None."""
        self.waiting.pop(name, None)
        if since is not None:
            self.waiting[name] = since

    def grant(self, *, running: Set[str], barred: Callable[[str], bool] = lambda name: False) -> list[str]:
        """Give each free place to who waited longest; those that got one now.

        `running`: nodes that have such a pod.  Who is `barred` waits on, and holds up nobody.
        """
        free = self._free(running) if self.waiting else {}
        candidates: dict[str, list[tuple[float, str]]] = {policy: [] for policy in free}
        for name, since in self.waiting.items() if free else ():
            if (policy := self._policy_name(name)) in free and not barred(name):
                candidates[policy].append((since, name))
        chosen = [name for policy, some in candidates.items() for name in next_in_turn(some, free[policy])]
        for name in chosen:
            del self.waiting[name]
            self.granted.add(name)
        return chosen

    def _free(self, running: Set[str]) -> dict[str, int]:
        """The policies that have a place free, and how many: this is asked at every pass, mostly for none."""
        taken = Counter(map(self._policy_name, running | self.granted))
        places = {name: self._places(name) - taken[name] for name in self._cache.policies}
        return {name: count for name, count in places.items() if count > 0}

    def _places(self, policy_name: str) -> int:
        policy = self._cache.policies.get(policy_name)
        if policy is None:
            return 0
        return concurrent_probes(self._setting(policy.spec.budget), self._counters.selected(policy_name))

    def _policy_name(self, node: str) -> str:
        view = self._cache.nodes.get(node)
        policy = self._cache.policy_of(view) if view else None
        return policy.name if policy else ""


class Kind(Enum):
    """What a place is for."""

    HEALTH = names.PROBE_HEALTH
    NCCL = names.PROBE_NCCL


def _nccl_runs(budget: Budget) -> int | str:
    """None where the policy is paused: who asks for no pods means all of them."""
    return 0 if budget.concurrent_probes in (0, "0%") else budget.concurrent_nccl_probes


class Turns:
    """Both queues.  A health run never waits for a benchmark's place, nor behind a benchmark that waits."""

    def __init__(self, cache: Cache, counters: NodeCounters) -> None:
        self._health = Queue(cache, counters, setting=lambda budget: budget.concurrent_probes)
        self._nccl = Queue(cache, counters, setting=_nccl_runs)
        self._queues = {Kind.HEALTH: self._health, Kind.NCCL: self._nccl}
        self._cache = cache

    def wait(self, name: str, since: Mapping[Kind, float]) -> None:
        """What the node waits for, and since when; not for anything else any more."""
        for kind, queue in self._queues.items():
            queue.wait(name, since.get(kind))

    def grant(self) -> list[str]:
        """Give away the places that are free; the nodes to look at first.

        What GPUs are worth is only asked once they are known to be well: where a health run is due, goes on
        or is about to begin, no benchmark's place is given.
        """
        health = self._cache.nodes_with_pods(names.PROBE_HEALTH)
        nccl = self._cache.nodes_with_pods(*NCCL)
        granted = self._health.grant(running=health)
        first = (health, nccl, self._health.granted, self._health.waiting)
        return granted + self._nccl.grant(
            running=nccl, barred=lambda name: any(name in nodes for nodes in first)
        )

    def granted(self, name: str) -> frozenset[Kind]:
        """What a place is kept for on this node."""
        return frozenset(kind for kind, queue in self._queues.items() if name in queue.granted)

    def done(self, name: str) -> None:
        """The node has been looked at: what it was given it has used, or not."""
        for queue in self._queues.values():
            queue.granted.discard(name)

    def waiting(self) -> dict[str, int]:
        """How many nodes wait, by probe."""
        return {kind.value: len(queue.waiting) for kind, queue in self._queues.items()}
