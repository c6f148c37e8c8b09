"""Calls that outlast a blip: what the API server cannot answer now is asked again, for a bounded time.

A clean-up makes thousands of calls while its cluster may be in trouble: one 503 must not end it, and an API
server that is away for good must not hold it for a quarter of a minute per object.  Only `Unavailable` is
tried again: every other answer is one, and the caller's to judge.
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
"""Of one call: 24 s of waiting in between, enough for an API server behind a load balancer to be replaced."""
OUTAGE_SECONDS = 60.0
"""No call has been answered for so long: the API server is away, and nothing more is tried."""
GONE = 410
"""A list's continue token has expired (the API server keeps them 5 to 15 minutes): list from the start."""


class Patience:
    """Shared by all calls of one clean-up.  Make it inside the running loop, whose clock it uses."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._answered_at = self._clock()
        self._away = ""

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """The answer to the call that `make` makes anew at each try.  Raises `KubeError`."""
        wait = FIRST_WAIT
        for left in reversed(range(TRIES)):
            if self._away:
                raise Unavailable(f"not tried, the API server is away: {self._away}")
            try:
                answer = await make()
            except KubeError as error:
                if not isinstance(error, Unavailable):
                    self._answered_at = self._clock()
                if not _worth_another_try(error) or not left:
                    raise
                self._note_outage(error)
            else:
                self._answered_at = self._clock()
                return answer
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("the last try returns or raises")

    async def list(self, each: Callable[[], AsyncIterator[T]]) -> list[T]:
        """All of a list; one that broke off is taken from its start again, so that nothing is missing."""

        async def whole() -> list[T]:
            return [item async for item in each()]

        return await self.call(whole)

    def _note_outage(self, error: KubeError) -> None:
        if self._clock() - self._answered_at > OUTAGE_SECONDS:
            self._away = str(error)


def _worth_another_try(error: KubeError) -> bool:
    return isinstance(error, Unavailable) or error.status == GONE
