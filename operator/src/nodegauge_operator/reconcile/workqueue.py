"""Which nodes to reconcile, and when: woken names in three queues, and a heap of timers, one per node.

Nodes with news go before nodes of which the first write is made, and these before nodes that only have to be
checked: a full list or a changed policy wakes thousands of the latter.

`BackgroundTask` keeps a slow answer of the API server from delaying the nodes.  It runs at most one task at
a time and raises its error in the loop, so that the error is noticed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from itertools import chain

from nodegauge_operator.api.times import NEVER

STALE_ENTRIES = 64
"""The heap may hold so many replaced timers, plus as many as there are timers, before it is rebuilt."""


class Priority(Enum):
    """All nodes of a priority go before those of the next."""

    HIGH = auto()
    """Has news."""
    REST = auto()
    """Its labels, taints or rules are written, and its report is not."""
    LOW = auto()
    """To be checked."""


class WorkQueue:
    """Names of nodes to reconcile.  Times of timers are epoch seconds."""

    def __init__(self) -> None:
        self._queues: dict[Priority, dict[str, None]] = {priority: {} for priority in Priority}
        self._heap: list[tuple[float, str]] = []
        self._timer_of: dict[str, float] = {}

    def wake(self, name: str, *, priority: Priority = Priority.LOW) -> None:
        """Reconcile the node soon; a node that is woken twice keeps its position, or gets a higher one."""
        for queued, names in self._queues.items():
            if queued is priority:
                names.setdefault(name)
            elif queued.value > priority.value:
                names.pop(name, None)
            elif name in names:
                return

    def set_timer(self, name: str, at: float) -> None:
        """Wake the node at `at`, instead of at its earlier timer; infinity for no timer."""
        if self._timer_of.get(name, NEVER) == at:
            return
        self._timer_of.pop(name, None)
        if at != NEVER:
            self._timer_of[name] = at
            heapq.heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._timer_of) + STALE_ENTRIES:
            self._heap = [(when, name) for name, when in self._timer_of.items()]
            heapq.heapify(self._heap)

    def fire(self, now: float) -> list[str]:
        """Remove the timers that are due at `now`; the names of their nodes."""
        fired = []
        while self._heap and self._heap[0][0] <= now:
            at, name = heapq.heappop(self._heap)
            if self._timer_of.get(name) == at:
                del self._timer_of[name]
                fired.append(name)
        return fired

    def next_timer(self) -> float:
        """When the earliest timer is due; infinity for none.  A replaced timer may still count."""
        return self._heap[0][0] if self._heap else NEVER

    def take(self, count: int, *, busy: frozenset[str]) -> list[str]:
        """Remove up to `count` woken names that are not `busy`, by priority."""
        chosen: list[str] = []
        for name in chain(*self._queues.values()):
            if len(chosen) >= count:
                break
            if name not in busy:
                chosen.append(name)
        for names in self._queues.values():
            for name in chosen:
                names.pop(name, None)
        return chosen

    def has_news(self, *, busy: frozenset[str]) -> bool:
        """Whether a node of high priority waits that is not `busy`."""
        return any(name not in busy for name in self._queues[Priority.HIGH])

    def pending(self, *, busy: frozenset[str]) -> bool:
        """Whether `take` would return a name."""
        return any(name not in busy for name in chain(*self._queues.values()))


class BackgroundTask:
    """Runs one task at a time.  `on_end` is called when it ends, with or without an error."""

    def __init__(self, name: str, *, on_end: Callable[[], None]) -> None:
        self._name = name
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the task is still running."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Start a task; none may be running."""
        assert not self.busy
        self._task = asyncio.create_task(work, name=self._name)
        self._task.add_done_callback(lambda _: self._on_end())

    def check(self) -> None:
        """Raise the error of the last task, if it ended with one."""
        task = self._task
        if task is not None and task.done():
            self._task = None
            task.result()

    async def wait(self) -> None:
        """Wait for the task, and raise its error; cancelling the wait cancels the task."""
        if self._task is not None:
            await self._task

    async def stop(self, *, within: float) -> None:
        """Give the task so many seconds, then cancel it, whatever it ends with."""
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
