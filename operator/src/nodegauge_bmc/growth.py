"""How much of the sums in a reading is new since the reading before.

Boards count throttling since an unknown time, so that only a difference says anything.  A sum that fell was
reset, and one that grew by more than the time that went by cannot be: neither has a difference.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from nodegauge_bmc.connection import Access
from nodegauge_contract.chassis import BoardGpu, ChassisReading

Read = Callable[[Access, float], Awaitable[ChassisReading]]
"""Reads one BMC within a deadline in seconds; raises `BmcError`."""

SLACK_SECONDS = 10.0
"""A sum may be older or newer than its reading by this much: boards renew them every few seconds."""


def remembering(read: Read) -> Read:
    """`read` for one BMC, whose readings say what is new since the one before."""
    before: ChassisReading | None = None
    read_at = 0.0

    async def again(access: Access, deadline: float) -> ChassisReading:
        nonlocal before, read_at
        started = time.monotonic()
        reading = since(before, await read(access, deadline), seconds=started - read_at)
        before, read_at = reading, started
        return reading

    return again


def since(before: ChassisReading | None, now: ChassisReading, *, seconds: float) -> ChassisReading:
    """`now`, with what its GPUs were slowed down since `before`, which was read `seconds` earlier."""
    if before is None or not now.gpus:
        return now
    older = {_key(gpu): gpu.throttled_seconds for gpu in before.gpus}
    gpus = [
        replace(
            gpu, throttled_lately_seconds=_grown(older.get(_key(gpu), {}), gpu.throttled_seconds, seconds)
        )
        for gpu in now.gpus
    ]
    return replace(now, gpus=gpus, since_seconds=round(seconds, 1))


def _grown(before: dict[str, float], now: dict[str, float], seconds: float) -> dict[str, float]:
    grown = {cause: now[cause] - before[cause] for cause in now.keys() & before.keys()}
    return {
        cause: round(min(value, seconds), 3)
        for cause, value in sorted(grown.items())
        if 0 <= value <= seconds + SLACK_SECONDS
    }


def _key(gpu: BoardGpu) -> tuple[str, ...]:
    """What tells one GPU from another: a board in its place has another serial number."""
    return tuple(value if isinstance(value, str) else "" for value in (gpu.name, gpu.serial, gpu.uuid))
