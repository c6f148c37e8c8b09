"""A token bucket for API calls, so that an operator of thousands of nodes stays a polite client."""

from __future__ import annotations

import asyncio
import time


class Limiter:
    """At most `rate` calls a second over time, `burst` at once; waiting callers go in order."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = time.monotonic()
        self._turn = asyncio.Lock()

    async def wait(self) -> None:
        """Return when one more call may be made."""
        async with self._turn:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1
            if self._tokens < 0:
                await asyncio.sleep(-self._tokens / self._rate)
