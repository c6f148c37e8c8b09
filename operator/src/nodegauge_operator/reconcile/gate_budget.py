"""The budgets of gated nodes: which nodes use a slot, and which waiting node gets the next free one.

A node needs a slot of its policy and one of the cluster: policies with a minimum of one slot each, or nodes
that are relabelled from one policy to another, would add up to any number of taints.  A gated node uses its
slots where it is now.  A node that is newly gated also needs room in the rate of new taints per hour of both
(`gate_rate`), unless it counts there already.  The worst fault goes first, then who waited longest; and where
no slot is free, one with a lesser fault (`core.gates.LESSER`) gives its slot to a worse one (ADR 0046).

A slot is used by a report that reserves a taint, by a node that still carries one, and by a write in flight.
A write reserves its slot before its first byte is sent, in the same step of the event loop that found the
slot free, so that two workers cannot take the last one.  An unanswered write keeps its slot until the report
shows whether it was made.

Reservations cover this process only.  What a second operator reserves is seen once its reports arrive: after
milliseconds by the watch, at worst after a full list.  Until then the two together can exceed the budget by
as many nodes as they gated meanwhile; `exceeded` reports that, and no node is added until it has passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Set
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core.budget import gated_slots, is_gated
from nodegauge_operator.core.gates import FIRST_OF_LESSER
from nodegauge_operator.reconcile.cache import Cache, version_of
from nodegauge_operator.reconcile.gate_rate import GateRate
from nodegauge_operator.reconcile.node_counts import CLUSTER, NodeCounters, is_tainted

log = logging.getLogger("nodegauge.sweep")

DOUBT_SECONDS = 90.0
"""An API server gives up a request after 60 s (its --request-timeout): a write that is unanswered after 90 s
and that no report shows was not made."""


class Reservation(Struct, frozen=True, kw_only=True):
    """A slot for a write in flight: its policy, and the version of the report that the write replaces.

    `new`: the node had no taint for a fault before it.  `unanswered_at`: since when it is unknown whether
    the write was made, or the report does not show it yet, by the budget's clock.
    """

    policy: str
    version: int
    new: bool
    unanswered_at: float | None = None


class Excess(NamedTuple):
    """More nodes are gated than may be, in a policy or the cluster; `hourly`: newly within an hour."""

    scope: str
    used: int
    slots: int
    hourly: bool = False


class GateBudget:
    """Slots in the budget of gated nodes of each policy, and of the cluster (scope `CLUSTER`).

    `clock` gives seconds and never goes back; `now` gives epoch seconds.  `cluster` and `per_hour`: the
    cluster's budget and rate, each a count or a percentage of all nodes that follow a policy.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        cluster: int | str,
        per_hour: int | str,
    ) -> None:
        self.counters = NodeCounters(cache)
        self.rate = GateRate(cache, self.counters, clock=clock, now=now, cluster=per_hour)
        self.cluster = cluster
        self._cache = cache
        self._clock = clock
        self._reserved: dict[str, Reservation] = {}
        self._offered: dict[str, str] = {}
        """Waiting nodes that were woken to use a slot of this policy: the slot is kept for them."""
        self._giving_way: dict[str, int] = {}
        """Nodes that were woken to give their slot up, with their report's version at that time."""
        self._declined: dict[str, int] = {}
        """Nodes that were woken and did not use their slot, with their report's version at that time: other
        nodes come first until the report changes."""

    def slots(self, scope: str) -> int:
        """Slots of the policy or of the cluster, used or free."""
        if scope == CLUSTER:
            return gated_slots(self.cluster, self.counters.selected(CLUSTER))
        known = self._cache.policies.get(scope)
        return gated_slots(known.spec.budget.gated_nodes, self.counters.selected(scope)) if known else 0

    def used(self, scope: str) -> int:
        """Used slots of the policy or of the cluster; more than it has after its budget shrank."""
        gated = self.counters.gated(scope)
        return len(gated) + sum(1 for name in self._writing(scope) if name not in gated)

    def has_slot(self, name: str) -> bool:
        """Whether the node may be gated now: it has its slots, or they are free for it.

        A report alone keeps no slot beyond the budget: more reports may ask for a taint than anybody gave
        slots to, if somebody edits them.
        """
        policy = self._policy_of(name)
        if not policy:
            return False
        gated = self.counters.gated(policy)
        if name in self._kept(policy, set()) or (
            self._reserves(name) and is_tainted(self._cache.nodes[name])
        ):
            return True
        if name in gated:
            least = 0 if self.rate.counts(name) else 1
            return all(
                self.used(scope) <= self.slots(scope) and self._free_this_hour(scope) >= least
                for scope in (policy, CLUSTER)
            )
        if any(free(scope) <= 0 for free, scope in self._needs(name, policy)):
            return False
        own = (self.counters.turn(name), self.counters.waiting(policy).get(name, NEVER), name)
        others = {*self._waiting()} - {own}
        return not others or name in self._first({*others, own})

    def _reserves(self, name: str) -> bool:
        """Whether the node's report reserves a taint, or is gone or new: then it adopts what stands."""
        report = self._cache.reports.get(name)
        return report is None or report.status == ReportStatus() or is_gated(report)

    def reserve(self, name: str) -> bool:
        """Reserve a slot for a write that is about to be made; False if there is none."""
        if not self.has_slot(name):
            return False
        known = self._reserved.get(name)
        new = self._is_new(name) or (known is not None and known.new)
        self._reserved[name] = Reservation(policy=self._policy_of(name), version=self._version(name), new=new)
        return True

    def is_reserved(self, name: str) -> bool:
        """Whether the node has a slot that its report does not show yet."""
        return name in self._reserved

    def confirm(self, name: str) -> None:
        """The write was answered: from now on the report shows whether the slot is used."""
        self._reserved.pop(name, None)
        self.rate.update()

    def unanswered(self, name: str) -> None:
        """It is unknown whether the write was made: the slot stays used until the report shows it."""
        if name in self._reserved:
            self._reserved[name] = replace(self._reserved[name], unanswered_at=self._clock())

    def offer(self, *, busy: Set[str]) -> list[str]:
        """The first nodes in the queue, one for each free slot, which is kept for them, and those that give
        their slot to a worse fault: wake them.

        A `busy` node gets no offer: it is being reconciled on the premise that no slot is free.
        """
        offered = [name for name in self._first(self._waiting()) if name not in busy]
        self._offered.update((name, self._policy_of(name)) for name in offered)
        giving = {name: self._version(name) for name in self._which_give_way() - busy}
        called = [name for name, version in giving.items() if self._giving_way.get(name) != version]
        self._giving_way = giving
        return offered + called

    def gives_way(self, name: str) -> bool:
        """Whether the node's taints are for lesser faults, and a worse one elsewhere takes its slot."""
        return name in self.counters.lesser(CLUSTER) and name in self._which_give_way()

    def reconciled(self, name: str) -> None:
        """The node has been reconciled; if it was offered a slot and still waits, others come next."""
        offered = self._offered.pop(name, None) is not None
        if name not in self.counters.waiting(self._policy_of(name)):
            self._declined.pop(name, None)
        elif offered:
            self._declined[name] = self._version(name)

    def exceeded(self) -> Iterator[Excess]:
        """Policies, and the cluster, with more gated nodes, or more newly gated ones, than they may have."""
        for scope in (*self._cache.policies, CLUSTER):
            used, slots = self.used(scope), self.slots(scope)
            if used > slots:
                yield Excess(scope, used, slots)
            count, limit = self.rate.count(scope), self.rate.limit(scope)
            if count > limit:
                yield Excess(scope, count, limit, hourly=True)

    def warn_exceeded(self) -> None:
        """Log where more nodes are gated than may be."""
        for excess in self.exceeded():
            where = f"policy {excess.scope}" if excess.scope else "all policies"
            what = "nodes newly gated within an hour" if excess.hourly else "nodes gated"
            log.warning("%s: %d %s, budget %d: no node is added", where, excess.used, what, excess.slots)

    def _needs(self, name: str, policy: str) -> list[tuple[Callable[[str], int], str]]:
        """What must be free for a node that is not gated: how to count it, and where."""
        counted = (self._free,) if self.rate.counts(name) else (self._free, self._free_this_hour)
        return [(free, scope) for free in counted for scope in (policy, CLUSTER)]

    def _free_this_hour(self, scope: str) -> int:
        """How many more nodes may newly be gated; those that are about to be count already."""
        coming = sum(1 for name in self._kept(scope, set()) if self._is_new(name))
        return self.rate.limit(scope) - self.rate.count(scope) - coming

    def _is_new(self, name: str) -> bool:
        """Whether a taint would be a new one there, or is one that its report does not show yet."""
        node, reserved = self._cache.nodes.get(name), self._reserved.get(name)
        if node is None or self.rate.counts(name):
            return False
        return not is_tainted(node) or (reserved is not None and reserved.new)

    def _free(self, scope: str) -> int:
        gated = self.counters.gated(scope)
        return self.slots(scope) - len(gated) - len(self._kept(scope, gated))

    def _which_give_way(self) -> set[str]:
        """Gated nodes with lesser faults, the least first, one for each worse fault that waits without a
        slot.

        Only for a node that may newly be gated within this hour, and that did not refuse a slot before: no
        taint is lifted in vain.
        """
        if not self.counters.lesser(CLUSTER):
            return set()
        giving: set[str] = set()
        free: dict[str, int] = {}
        hour: dict[str, int] = {}
        for turn, _, name in sorted(self._waiting()):
            policy = self._policy_of(name)
            scopes = (policy, CLUSTER)
            if turn >= FIRST_OF_LESSER or not policy or name in self._declined:
                continue
            if not all(hour.setdefault(scope, self._free_this_hour(scope)) > 0 for scope in scopes):
                continue
            full = [scope for scope in scopes if free.setdefault(scope, self._free(scope)) <= 0]
            if full:
                able = [n for n in sorted(self.counters.lesser(full[0]) - giving) if self._may_give(n)]
                if not able or min(free[scope] for scope in full) < 0:
                    continue
                giving.add(chosen := max(able, key=self.counters.turn))
                for scope in (self._policy_of(chosen), CLUSTER):
                    free[scope] = free.setdefault(scope, self._free(scope)) + 1
            for scope in scopes:
                free[scope], hour[scope] = free[scope] - 1, hour[scope] - 1
        return giving

    def _may_give(self, name: str) -> bool:
        """Whether its policy changes nodes now."""
        policy = self._policy_of(name)
        return bool(policy) and not self._cache.policies[policy].paused

    def _waiting(self) -> Iterator[tuple[int, float, str]]:
        """Nodes that would use a slot if it were offered: their place in the queue, and since when they
        wait."""
        for name, since in self.counters.waiting(CLUSTER).items():
            if since == NEVER or name in self._offered:
                continue
            if self._declined.get(name) != self._version(name):
                yield self.counters.turn(name), since, name

    def _first(self, waiting: Iterable[tuple[int, float, str]]) -> list[str]:
        """Of these nodes, those that get a free slot of policy and cluster: the worst, then the longest wait
        first."""
        queue = sorted(waiting)
        in_cluster = self._free(CLUSTER) if queue else 0
        left: dict[tuple[Callable[[str], int], str], int] = {}
        first: list[str] = []
        for _, _, name in queue:
            if len(first) >= in_cluster:
                break
            policy = self._policy_of(name)
            if not policy:
                continue
            needs = self._needs(name, policy)
            if all(left.setdefault(need, need[0](need[1])) > 0 for need in needs):
                left.update((need, left[need] - 1) for need in needs)
                first.append(name)
        return first

    def _kept(self, scope: str, gated: Set[str]) -> set[str]:
        """Nodes other than the gated ones for which a slot is kept."""
        if not (self._offered or self._reserved):
            return set()
        offered = (name for name, policy in self._offered.items() if scope in (policy, CLUSTER))
        return {*self._writing(scope), *offered} - gated

    def _writing(self, scope: str) -> Iterator[str]:
        for name in [n for n, r in self._reserved.items() if self._outcome_known(n, r)]:
            del self._reserved[name]
        return (name for name, reserved in self._reserved.items() if scope in (reserved.policy, CLUSTER))

    def _outcome_known(self, name: str, reserved: Reservation) -> bool:
        """Whether the cluster shows what became of an unanswered write, or enough time has passed."""
        if reserved.unanswered_at is None:
            return False
        late = self._clock() - reserved.unanswered_at >= DOUBT_SECONDS
        return late or name not in self._cache.nodes or self._version(name) > reserved.version

    def _version(self, name: str) -> int:
        report = self._cache.reports.get(name)
        return version_of(report.resource_version) if report else 0

    def _policy_of(self, name: str) -> str:
        node = self._cache.nodes.get(name)
        policy = self._cache.policy_of(node) if node else None
        return policy.name if policy else ""
