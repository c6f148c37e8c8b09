"""Counts or percentages of nodes, and whose turn it is when there is not room for everybody."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

MAX_CONCURRENT = 50
"""Probe pods at a time, whatever the policy says (measurement: defaults of section 5)."""


def concurrent_probes(setting: int | str, nodes: int) -> int:
    """Probe pods that may run at a time on `nodes` nodes: a count, or per cent rounded down, 1 at least.

    Never more than 50.  A count of 0 pauses the policy.
    """
    if isinstance(setting, int):
        return min(setting, MAX_CONCURRENT)
    percent = int(setting.removesuffix("%"))
    return min(max(1, nodes * percent // 100), MAX_CONCURRENT) if percent else 0


def next_in_turn(waiting: Iterable[tuple[float, str]], places: int) -> list[str]:
    """Names of those who waited longest; `waiting` holds (last run in epoch seconds, name), 0.0 for never."""
    return [name for _, name in heapq.nsmallest(places, waiting)] if places > 0 else []
