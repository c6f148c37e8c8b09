"""Which nodes to look at, now and when: a set of woken names and a heap of timers, one timer per node."""

from __future__ import annotations

import heapq


class Agenda:
    """Names to look at.  Times of `wake` are monotonic seconds, times of timers epoch seconds."""

    def __init__(self) -> None:
        self._dirty: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._timer_of: dict[str, float] = {}

    def wake(self, name: str, *, since: float) -> None:
        """Look at the node soon; the first wake's time is kept, for the metric."""
        self._dirty.setdefault(name, since)

    def set_timer(self, name: str, at: float) -> None:
        """Wake the node at `at`; replaces its earlier timer; infinity for none."""
        self._timer_of.pop(name, None)
        if at != float("inf"):
            self._timer_of[name] = at
            heapq.heappush(self._heap, (at, name))

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
        return self._heap[0][0] if self._heap else float("inf")

    def take(self, places: int, *, busy: frozenset[str]) -> list[tuple[str, float]]:
        """Up to `places` woken names that nobody is `busy` with, with the time of their first wake."""
        chosen: list[str] = []
        for name in self._dirty:
            if len(chosen) >= places:
                break
            if name not in busy:
                chosen.append(name)
        return [(name, self._dirty.pop(name)) for name in chosen]

    def pending(self, *, busy: frozenset[str]) -> bool:
        """Whether `take` would give anything."""
        return any(name not in busy for name in self._dirty)
