"""The ledger of gated nodes: who has a place in a policy's budget, who is next, who is about to take one.

A place is taken by a report that reserves a taint, by a node that still carries one, and by a write that is
on its way: it is noted here before the first byte of it leaves, in the same turn of the event loop in which
the place was found free, so that no two workers can take the last one.  A write that was not answered keeps
its place until the report tells what became of it.

Only this process is counted by turns.  What a second operator reserves is seen once its reports are: after
milliseconds by the watch, after a full list at worst.  The two together can exceed the budget by as many
nodes as they entered meanwhile; `exceeded` tells of it, and nothing is entered before it has passed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Set

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator.core.budget import gated_places
from nodegauge_operator.reconcile.cache import Store, version_of
from nodegauge_operator.reconcile.counters import Tally

NEVER = float("inf")
DOUBT_SECONDS = 90.0
"""An API server gives a request up after 60 s (its --request-timeout); what was not answered by then, and
shows in no report, was not written."""


class Reservation(Struct, frozen=True, kw_only=True):
    """A place for a write under way: the report's version that it replaces.

    `unanswered_at`: when it turned out that nobody knows whether it was written, by the ledger's clock.
    """

    policy: str
    version: int
    unanswered_at: float | None = None


class Places:
    """Places in each policy's budget of gated nodes.  `clock` gives seconds and never goes back."""

    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self.tally = Tally(store)
        self._store = store
        self._clock = clock
        self._reserved: dict[str, Reservation] = {}
        self._called: dict[str, str] = {}
        """Nodes that waited, and were woken to take a place of this policy: it is kept for them."""
        self._passed: dict[str, int] = {}
        """Nodes that were woken and did not take it, with their report's version then: others come first
        until there is another one."""

    def of(self, policy: str) -> int:
        """Places that the policy has, taken or not."""
        known = self._store.policies.get(policy)
        return gated_places(known.spec.budget.gated_nodes, self.tally.selected(policy)) if known else 0

    def taken(self, policy: str) -> int:
        """Places of the policy that are taken; more than there are, where its budget shrank."""
        gated = self.tally.gated(policy)
        return len(gated) + sum(1 for name in self._writing(policy) if name not in gated)

    def room(self, name: str) -> bool:
        """Whether the node may be gated now: it has a place, or there is one and its turn has come."""
        policy = self._policy_of(name)
        if not policy:
            return False
        gated = self.tally.gated(policy)
        if name in gated or name in self._holders(policy, gated):
            return True
        free = self._free(policy)
        queue = list(self._queue(policy)) if free > 0 else []
        own = (self.tally.waiting(policy).get(name, NEVER), name)
        return free > sum(1 for one in queue if one < own)

    def take(self, name: str) -> bool:
        """Take a place for a write that is about to be made; False where there is none."""
        if not self.room(name):
            return False
        self._reserved[name] = Reservation(policy=self._policy_of(name), version=self._version(name))
        return True

    def written(self, name: str) -> None:
        """The write was answered: the report tells now whether the place is taken."""
        self._reserved.pop(name, None)

    def unanswered(self, name: str) -> None:
        """Nobody knows whether the write was made: the place stays taken until the report tells."""
        if name in self._reserved:
            self._reserved[name] = replace(self._reserved[name], unanswered_at=self._clock())

    def call(self, *, busy: Set[str]) -> list[str]:
        """Nodes that waited longest, one for each free place: to be woken; the places are kept for them.

        Nobody is called who is `busy`: that look at the node began before there was a place.
        """
        called: list[str] = []
        for policy in self._store.policies:
            free = self._free(policy) if self.tally.waiting(policy) else 0
            if free <= 0:
                continue
            first = heapq.nsmallest(free, self._queue(policy))
            chosen = [name for _, name in first if name not in busy]
            self._called.update(dict.fromkeys(chosen, policy))
            called += chosen
        return called

    def answered(self, name: str) -> None:
        """The node has been looked at; where it still waits, the next one is called before it."""
        self._called.pop(name, None)
        if name in self.tally.waiting(self._policy_of(name)):
            self._passed[name] = self._version(name)
        else:
            self._passed.pop(name, None)

    def exceeded(self) -> Iterator[tuple[str, int, int]]:
        """Policies with more places taken than there are: name, taken, places."""
        for policy in self._store.policies:
            taken, places = self.taken(policy), self.of(policy)
            if taken > places:
                yield policy, taken, places

    def _free(self, policy: str) -> int:
        gated = self.tally.gated(policy)
        return self.of(policy) - len(gated) - len(self._holders(policy, gated))

    def _queue(self, policy: str) -> Iterator[tuple[float, str]]:
        """Nodes that wait and would take a place if they were called, with the time since when."""
        for name, since in self.tally.waiting(policy).items():
            if name not in self._called and self._passed.get(name) != self._version(name):
                yield since, name

    def _holders(self, policy: str, gated: Set[str]) -> set[str]:
        """Nodes beside the gated ones for which a place is kept."""
        called = (name for name, whose in self._called.items() if whose == policy)
        return {*self._writing(policy), *called} - gated

    def _writing(self, policy: str) -> Iterator[str]:
        for name in [n for n, r in self._reserved.items() if self._settled(n, r)]:
            del self._reserved[name]
        return (name for name, held in self._reserved.items() if held.policy == policy)

    def _settled(self, name: str, held: Reservation) -> bool:
        """Whether it is known, or has become certain with time, what became of an unanswered write."""
        if held.unanswered_at is None:
            return False
        late = self._clock() - held.unanswered_at >= DOUBT_SECONDS
        return late or name not in self._store.nodes or self._version(name) > held.version

    def _version(self, name: str) -> int:
        report = self._store.reports.get(name)
        return version_of(report.resource_version) if report else 0

    def _policy_of(self, name: str) -> str:
        node = self._store.nodes.get(name)
        policy = self._store.policy_of(node) if node else None
        return policy.name if policy else ""
