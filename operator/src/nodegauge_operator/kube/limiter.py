"""A token bucket that limits the rate of API calls."""

from __future__ import annotations

import asyncio
import time


class Limiter:
    """On average `rate` calls a second, at most `burst` at once; callers wait in order."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = time.monotonic()
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Return when one more call may be made."""
        async with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1
            if self._tokens < 0:
                await asyncio.sleep(-self._tokens / self._rate)
