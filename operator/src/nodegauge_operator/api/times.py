"""Times as text (RFC 3339, UTC) and as epoch seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

NEVER = float("inf")
"""A time that never comes, where times are epoch seconds."""
LAST_SECOND = 253_402_300_799.0
"""The end of the year 9999, epoch seconds."""
SKEW_SECONDS = 300.0
"""Two operators' clocks may differ by this much; a time further in the future means a clock stepped back."""
SOME_TIMES = 1024
"""Times that are kept in both forms: one decision asks for each of its own many times."""


def stamp(now: float) -> str:
    """RFC 3339 of epoch seconds, UTC, whole seconds; empty for 0 and for what no calendar has."""
    return _stamp(int(now)) if 0 < now < LAST_SECOND else ""


@lru_cache(maxsize=SOME_TIMES)
def _stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=SOME_TIMES)
def unstamp(text: str) -> float:
    """Epoch seconds of an RFC 3339 text; 0.0 for an empty or unreadable one, and for a time before 1970."""
    try:
        return max(0.0, datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) if text else 0.0
    except (ValueError, OverflowError):
        return 0.0
