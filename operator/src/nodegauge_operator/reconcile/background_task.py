"""One job beside the loop: what waits for the API server for long must not hold up the nodes.

At most one task at a time; what it ends with is raised in the loop, so that no error goes unheard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class Beside:
    """A place for one task.  `ended` is called when it ends, however it ends."""

    def __init__(self, name: str, *, ended: Callable[[], None]) -> None:
        self._name = name
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the task is still at work."""
        return self._task is not None and not self._task.done()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Begin, where the place is free."""
        assert not self.busy
        self._task = asyncio.create_task(work, name=self._name)
        self._task.add_done_callback(lambda _: self._ended())

    def check(self) -> None:
        """Raise what the last task ended with, if that was an error."""
        task = self._task
        if task is not None and task.done():
            self._task = None
            task.result()

    async def wait(self) -> None:
        """Wait for the task, and raise what it ends with; cancelling the wait cancels it."""
        if self._task is not None:
            await self._task

    async def end(self, *, within: float) -> None:
        """Give the task so many seconds, then cancel it; what it ends with is of no more interest."""
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
