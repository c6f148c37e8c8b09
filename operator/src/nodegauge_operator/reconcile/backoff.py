"""How long to wait before the next try of what burdens the whole API server: ever longer, never in step."""

from __future__ import annotations

from collections.abc import Callable

SHORTEST, LONGEST = 5.0, 300.0
SPREAD = 0.25
"""Jitter adds up to this part: operators that the same outage hit do not come back together."""

Jitter = Callable[[], float]
"""A number from 0 to 1, another one at each call: `random.random`."""


def backoff(tries: int, jitter: Jitter) -> float:
    """Seconds to wait after so many `tries` (from 0) that did not help: 5, 10, 20 ... 300, and the jitter."""
    wait: float = min(LONGEST, SHORTEST * 2 ** min(tries, 10))
    return wait * (1 + SPREAD * jitter())
