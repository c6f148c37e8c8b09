"""One task in the background: a slow answer of the API server must not delay the nodes.

At most one task at a time; an error of the task is raised in the loop, so that it cannot go unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


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
