"""Retries for calls that the API server cannot answer right now, for a limited time.

A clean-up makes thousands of calls in a cluster that may be unhealthy.  One 503 must not end it, and an API
server that stays down must not delay it by 24 seconds per object.  Only `Unavailable` is retried; every other
answer goes to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from nodegauge_operator.kube.errors import KubeError, Unavailable

T = TypeVar("T")

FIRST_WAIT = 0.25
LONGEST_WAIT = 8.0
TRIES = 8
"""Tries per call: 24 s of waiting in all, enough to replace an API server behind a load balancer."""
OUTAGE_SECONDS = 60.0
"""After this long without an answer the API server counts as down, and no call is tried any more."""
GONE = 410
"""A list's continue token has expired (API servers keep them 5 to 15 minutes): start the list again."""


class Retry:
    """Shared by all calls of one clean-up.  Create it inside the running loop, whose clock it uses."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._answered_at = self._clock()
        self._outage = ""

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """The answer to `make()`, which is called again at every try.  Raises `KubeError`."""
        wait = FIRST_WAIT
        for tries_left in reversed(range(TRIES)):
            if self._outage:
                raise Unavailable(f"not tried, the API server is down: {self._outage}")
            try:
                answer = await make()
            except KubeError as error:
                if not isinstance(error, Unavailable):
                    self._answered_at = self._clock()
                if not _is_temporary(error) or not tries_left:
                    raise
                self._note_outage(error)
            else:
                self._answered_at = self._clock()
                return answer
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("the last try returns or raises")

    async def list(self, each: Callable[[], AsyncIterator[T]]) -> list[T]:
        """A complete list; one that breaks off is started again."""

        async def complete() -> list[T]:
            return [item async for item in each()]

        return await self.call(complete)

    def _note_outage(self, error: KubeError) -> None:
        if self._clock() - self._answered_at > OUTAGE_SECONDS:
            self._outage = str(error)


def _is_temporary(error: KubeError) -> bool:
    return isinstance(error, Unavailable) or error.status == GONE
