"""The budget of gated devices: how many GPUs of its node a report may have gated by DeviceTaintRules.

It counts devices as `gate_budget` counts nodes, and apart from them: a rule takes one GPU of a node that goes
on to work.  A device uses a slot while its report asks for its rule, while that rule stands, and while it is
written.  A write reserves its slots before its first byte is sent.  Slots that become free go to the worst
fault first; existing rules stay when the budget shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from msgspec import Struct

from nodegauge_operator.core.budget import gated_slots
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.gate_budget import DOUBT_SECONDS
from nodegauge_operator.reconcile.node_counts import CLUSTER, NodeCounters


class Reserved(Struct, frozen=True, kw_only=True):
    """Slots for writes in flight: `devices` of the node are gated once they are made; `at`: when the last one
    began, by the budget's clock."""

    devices: int
    at: float


class DeviceBudget:
    """Slots of devices by policy, and in the cluster.

    `clock` gives seconds and never goes back.  `cluster`: the cluster's limit, a count or a percentage of all
    devices of nodes that follow a policy (the setting that limits its gated nodes).
    """

    def __init__(
        self, cache: Cache, counters: NodeCounters, *, clock: Callable[[], float], cluster: int | str
    ) -> None:
        self._cache = cache
        self._counters = counters
        self._clock = clock
        self._cluster = cluster
        self._reserved: dict[str, Reserved] = {}

    def slots(self, scope: str) -> int:
        """Devices of the policy, or of the cluster, that may be gated at a time."""
        if scope == CLUSTER:
            return gated_slots(self._cluster, self._counters.devices(CLUSTER).all)
        known = self._cache.policies.get(scope)
        if known is None:
            return 0
        return gated_slots(known.spec.budget.gated_devices, self._counters.devices(scope).all)

    def used(self, scope: str) -> int:
        """Devices that use a slot; more than there are after the budget shrank."""
        in_flight = 0
        for name in list(self._reserved):
            more = self._in_flight(name) - self._counters.gated_devices(name)
            if more <= 0:
                self.confirm(name)  # rules or report show it; in a storm, reports come long after rules
            elif scope in (CLUSTER, self._policy_of(name)):
                in_flight += more
        return self._counters.devices(scope).gated + in_flight

    def allowance(self, name: str) -> int:
        """How many devices of the node may be gated, those that are gated among them."""
        policy = self._policy_of(name)
        if not policy:
            return 0
        free = min(self.slots(scope) - self.used(scope) for scope in (policy, CLUSTER))
        return max(self._counters.gated_devices(name), self._in_flight(name)) + max(0, free)

    def reserve(self, name: str, devices: int) -> bool:
        """Reserve slots for a write after which so many devices of the node are gated; False if there are too
        few."""
        if devices > self.allowance(name):
            return False
        self._reserved[name] = Reserved(devices=devices, at=self._clock())
        return True

    def confirm(self, name: str) -> None:
        """Report and rules show what is used from now on."""
        self._reserved.pop(name, None)

    def offer(self, *, busy: Set[str]) -> list[str]:
        """Waiting nodes to wake, the worst fault first, while a slot is free for each."""
        waiting = self._counters.waiting_devices(CLUSTER)
        if not waiting or self.slots(CLUSTER) <= self.used(CLUSTER):
            return []
        left = {CLUSTER: self.slots(CLUSTER) - self.used(CLUSTER)}
        offered = []
        for name in sorted(waiting - busy, key=lambda name: (self._counters.turn_of_devices(name), name)):
            policy = self._policy_of(name)
            left.setdefault(policy, self.slots(policy) - self.used(policy))
            if policy and left[policy] > 0 and left[CLUSTER] > 0:
                offered.append(name)
                left = left | {policy: left[policy] - 1, CLUSTER: left[CLUSTER] - 1}
        return offered

    def _in_flight(self, name: str) -> int:
        known = self._reserved.get(name)
        if known is not None and self._clock() - known.at >= DOUBT_SECONDS:
            del self._reserved[name]  # its report would show it by now
            return 0
        return known.devices if known is not None else 0

    def _policy_of(self, name: str) -> str:
        node = self._cache.nodes.get(name)
        policy = self._cache.policy_of(node) if node else None
        return policy.name if policy else ""
