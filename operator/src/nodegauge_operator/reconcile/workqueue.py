"""Which nodes to look at, now and when: woken names in two queues, and a heap of timers, one per node.

Names with news that somebody waits for go before those that only want a look: a full list or another policy
wakes thousands of the latter.
"""

from __future__ import annotations

import heapq
from enum import Enum, auto
from itertools import chain

NEVER = float("inf")
STALE_ENTRIES = 64
"""So many replaced timers may lie in the heap beside as many again as are set."""


class Turn(Enum):
    """Whose turn it is: those who are `FIRST` go before all that are `LATER`."""

    FIRST = auto()
    LATER = auto()


class Agenda:
    """Names to look at.  Times of timers are epoch seconds."""

    def __init__(self) -> None:
        self._first: dict[str, None] = {}
        self._later: dict[str, None] = {}
        self._heap: list[tuple[float, str]] = []
        self._timer_of: dict[str, float] = {}

    def wake(self, name: str, *, turn: Turn = Turn.LATER) -> None:
        """Look at the node soon; who is woken twice keeps the earlier place."""
        if turn is Turn.FIRST:
            self._later.pop(name, None)
            self._first.setdefault(name)
        elif name not in self._first:
            self._later.setdefault(name)

    def set_timer(self, name: str, at: float) -> None:
        """Wake the node at `at`; replaces its earlier timer; infinity for none."""
        if self._timer_of.get(name, NEVER) == at:
            return
        self._timer_of.pop(name, None)
        if at != NEVER:
            self._timer_of[name] = at
            heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._timer_of) + STALE_ENTRIES:
            self._heap = [(when, whose) for whose, when in self._timer_of.items()]
            heapq.heapify(self._heap)

    def fire(self, now: float) -> list[str]:
        """The names whose timers are due at `now`; they are gone from the timers."""
        fired = []
        while self._heap and self._heap[0][0] <= now:
            at, name = heapq.heappop(self._heap)
            if self._timer_of.get(name) == at:
                del self._timer_of[name]
                fired.append(name)
        return fired

    def next_timer(self) -> float:
        """When the earliest timer is due; infinity for none.  A replaced one may still be named."""
        return self._heap[0][0] if self._heap else NEVER

    def take(self, places: int, *, busy: frozenset[str]) -> list[str]:
        """Up to `places` woken names that nobody is `busy` with, whose turn is first at the front."""
        chosen: list[str] = []
        for name in chain(self._first, self._later):
            if len(chosen) >= places:
                break
            if name not in busy:
                chosen.append(name)
        for name in chosen:
            self._first.pop(name, None)
            self._later.pop(name, None)
        return chosen

    def pending(self, *, busy: frozenset[str]) -> bool:
        """Whether `take` would give anything."""
        return any(name not in busy for name in chain(self._first, self._later))
