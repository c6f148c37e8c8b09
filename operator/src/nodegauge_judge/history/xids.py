"""How often Xids came lately, over documents and reboots: those that a rule of the policy counts.

A document gives times in seconds since boot.  With the time at which it was read these are times of the wall
clock, which a reboot does not restart.  Within a boot all of them come from the first such time, because wall
clocks step.  Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from nodegauge_contract import Gpu, Result, XidCount
from nodegauge_judge.history.model import History, XidHistory, newest

MOST_XIDS = 48
"""Times of all Xids of a node together that are kept.  Chosen by this project: three on each of 16 GPUs."""
SAME_BOOT = 60
"""Seconds by which the start of one boot may seem to differ from result to result."""


class XidCounts(Struct, frozen=True, kw_only=True):
    """`now`: of the document, `booted`: of its boot, in the seconds of all times here: since the epoch, or
    since boot if nobody said when it was read.  `kept`: by GPU and code, this document's included; `fresh`:
    when the last one in this document came.  `gpus`: each GPU's part of these keys, in the document's order.
    """

    booted: int = 0
    now: int = 0
    kept: dict[str, XidHistory] = {}
    fresh: dict[str, int] = {}
    gpus: tuple[str, ...] = ()


def count(
    result: Result,
    *,
    keys: Sequence[str | None],
    history: History,
    windows: Mapping[int, float],
    read_at: float = 0.0,
) -> XidCounts:
    """The Xids of this document and of earlier ones; `windows`: seconds for which each code is counted.

    `keys`: of the GPUs in `history.gpus`; `read_at`: seconds since the epoch, 0 if unknown: then those of
    earlier boots are left out.
    """
    if not windows:
        return XidCounts()
    uptime = result.host.boottime_ms
    up = uptime // 1000 if isinstance(uptime, int) and uptime >= 0 else 0
    booted, before = history.booted, history.xids
    if read_at and abs(booted - (read_at - up)) > SAME_BOOT:
        booted = max(0, round(read_at) - up)
    elif not read_at and result.host.boot_id != history.boot:
        booted, before = 0, {}
    now, kept, fresh, gpus = booted + up, dict(before), {}, _named(result, keys, history)
    for name, gpu in zip(gpus, result.gpus, strict=True):
        for code, new in _counts(gpu, up=up).items():
            if code in windows:
                key, at = f"{name} {code}", booted + new.last
                shifted = XidCount(count=new.count, first=booted + new.first, last=at)
                kept[key], fresh[key] = kept.get(key, XidHistory()).plus(shifted), at
    kept = {
        key: one.after(min(now, fresh.get(key, now)) - windows.get(_code(key), 0))
        for key, one in kept.items()
    }
    return XidCounts(booted=booted, now=now, kept=newest(kept, MOST_XIDS), fresh=fresh, gpus=gpus)


def _counts(gpu: Gpu, *, up: int) -> dict[int, XidCount]:
    """By code; one that came without a count or with an impossible one came once, now."""
    once = XidCount(count=1, first=up, last=up)
    counts = dict.fromkeys(gpu.xids.seen, once) | dict(zip(gpu.xids.seen, gpu.xids.counts, strict=False))
    return {
        code: one if 0 < one.count < 2**31 and 0 <= one.first <= one.last <= up + SAME_BOOT else once
        for code, one in counts.items()
    }


def _named(result: Result, keys: Sequence[str | None], history: History) -> tuple[str, ...]:
    """Each GPU's key in the history.  A GPU that is lost does not tell its UUID: it is the one that is
    missing, if only one is; else its index has to do."""
    missing = list(set(history.gpus) - set(keys))
    only = missing[0] if len(missing) == list(keys).count(None) == 1 else ""
    return tuple(key or only or f"index-{gpu.index}" for key, gpu in zip(keys, result.gpus, strict=True))


def _code(key: str) -> int:
    code = key.rpartition(" ")[2]
    return int(code) if code.isascii() and code.isdigit() else 0
