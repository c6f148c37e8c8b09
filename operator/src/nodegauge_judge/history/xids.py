"""How often Xids came lately, over documents and reboots: those that a rule of the policy counts; and which
Xids of earlier reports of a watch container never arrived.

A document gives times in seconds since boot.  With the time at which it was read these are times of the wall
clock, which a reboot does not restart.  Within a boot all of them come from the first such time, because wall
clocks step.  Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Gpu, RepeatedXid, Result, WatchReport, XidCount
from nodegauge_judge.history.model import History, Reported
from nodegauge_judge.history.packing import to_digits
from nodegauge_judge.history.xid_times import XidHistory, newest
from nodegauge_judge.model import XidRule

MOST_XIDS = 48
"""Times of all Xids of a node together that are kept.  Chosen by this project: three on each of 16 GPUs."""
SAME_BOOT = 60
"""Seconds by which the start of one boot may seem to differ from result to result."""


class XidCounts(Struct, frozen=True, kw_only=True):
    """`now`: of the document, `booted`: of its boot, in the seconds of all times here: since the epoch, or
    since boot if nobody said when it was read.  `kept`: by GPU and code, this document's included; `fresh`:
    when the last one of each report in this document came.  `gpus`: each GPU's part of these keys, in the
    document's order.
    """

    booted: int = 0
    now: int = 0
    kept: dict[str, XidHistory] = {}
    fresh: dict[str, tuple[int, ...]] = {}
    gpus: tuple[str, ...] = ()


def up_to_date(result: Result, history: History) -> Result:
    """The document with the repeated Xids of those reports that never arrived, each before the GPU's own;
    what the history knows is left out, so that nothing is judged twice."""
    known, repeated = history.reported, result.watch.repeated if result.watch is not None else []
    since = known.at if known is not None and known.boot == _boot(result) else -1
    missed = [xid for xid in repeated if xid.last > since]
    if not missed:
        return result
    gpus = []
    for gpu in result.gpus:
        own = [xid for xid in missed if xid.gpu == gpu.index]
        seen = [*(xid.code for xid in own), *gpu.xids.seen]
        counts = [XidCount(count=xid.count, first=xid.first, last=xid.last) for xid in own]
        gpus.append(replace(gpu, xids=replace(gpu.xids, seen=seen, counts=[*counts, *gpu.xids.counts])))
    return replace(result, gpus=gpus)


def overtaking(result: Result, report: Result) -> Result:
    """The document of a single run as if it repeated the Xids of a watch container's report from before its
    end: that report itself is no longer judged.  A document without GPUs has none."""
    if report.watch is None or not result.gpus or report.host.boot_id != result.host.boot_id:
        return result
    index = {gpu.uuid: gpu.index for gpu in result.gpus if isinstance(gpu.uuid, str)}
    now = {gpu.index: index.get(str(gpu.uuid), gpu.index) for gpu in report.gpus}
    own = [
        RepeatedXid(gpu=gpu.index, code=code, count=counted.count, first=counted.first, last=counted.last)
        for gpu in report.gpus
        for code, counted in _counts(gpu, up=report.watch.at)
    ]
    repeated = [replace(xid, gpu=now.get(xid.gpu, xid.gpu)) for xid in [*report.watch.repeated, *own]]
    return replace(result, watch=WatchReport(at=report.watch.at, repeated=repeated, lost=report.watch.lost))


def reported(result: Result, history: History) -> Reported | None:
    """Up to when Xids are known after this document; one of a single run says nothing of the container's."""
    known, boot = history.reported, _boot(result)
    if result.watch is None:
        return known
    at = max(result.watch.at, known.at) if known is not None and known.boot == boot else result.watch.at
    return Reported(boot=boot, at=at)


def is_known(result: Result, history: History) -> bool:
    """Whether this report of a watch container was judged, or a later one of the same boot."""
    return result.watch is not None and reported(result, history) == history.reported


def has_news(result: Result, history: History) -> bool:
    """Whether this report of a watch container has Xids that are not known."""
    if result.watch is None or is_known(result, history):
        return False
    return any(gpu.xids.seen for gpu in up_to_date(result, history).gpus)


def ends_at(kept: Mapping[str, XidHistory], rules: Sequence[XidRule], *, after: float) -> float | None:
    """When the next finding of a rule ends without another Xid, if it stood at `after`: fewer than its count
    are left in its window on one GPU.  Both in the seconds of `kept`; None if none stands."""
    ends = []
    for rule in rules:
        by_gpu: dict[str, list[int]] = {}
        for key, history in kept.items():
            if _code(key) in rule.codes and rule.severity is not None:
                each = (at for at, came in history.times for _ in range(min(came, rule.count)))
                by_gpu.setdefault(key.rpartition(" ")[0], []).extend(each)
        ends += [sorted(at)[-rule.count] + rule.window for at in by_gpu.values() if len(at) >= rule.count]
    return min((at for at in ends if at > after), default=None)


def _boot(result: Result) -> str:
    """The boot's id, short and without a comma: its CRC-32 (RFC 1952)."""
    boot = result.host.boot_id
    return to_digits(crc32(boot.encode(errors="replace"))) if isinstance(boot, str) else ""


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
    now, kept, gpus = booted + up, dict(before), _named(result, keys, history)
    fresh: dict[str, tuple[int, ...]] = {}
    for name, gpu in zip(gpus, result.gpus, strict=True):
        for code, new in _counts(gpu, up=up):
            if code in windows:
                key, at = f"{name} {code}", booted + new.last
                shifted = XidCount(count=new.count, first=booted + new.first, last=at)
                kept[key] = kept.get(key, XidHistory()).plus(shifted)
                fresh[key] = (*fresh.get(key, ()), at)
    kept = {
        key: xid_history.after(min(now, *fresh.get(key, (now,))) - windows.get(_code(key), 0))
        for key, xid_history in kept.items()
    }
    return XidCounts(booted=booted, now=now, kept=newest(kept, MOST_XIDS), fresh=fresh, gpus=gpus)


def _counts(gpu: Gpu, *, up: int) -> Iterator[tuple[int, XidCount]]:
    """Of each code; one that came without a count or with an impossible one came once, now."""
    once = XidCount(count=1, first=up, last=up)
    for code, counted in zip(gpu.xids.seen, chain(gpu.xids.counts, repeat(once)), strict=False):
        possible = 0 < counted.count < 2**31 and 0 <= counted.first <= counted.last <= up + SAME_BOOT
        yield code, counted if possible else once


def _named(result: Result, keys: Sequence[str | None], history: History) -> tuple[str, ...]:
    """Each GPU's key in the history.  A GPU that is lost does not tell its UUID: it is the one that is
    missing, if only one is; else its index has to do."""
    missing = list(set(history.gpus) - set(keys))
    only = missing[0] if len(missing) == list(keys).count(None) == 1 else ""
    return tuple(key or only or f"index-{gpu.index}" for key, gpu in zip(keys, result.gpus, strict=True))


def _code(key: str) -> int:
    code = key.rpartition(" ")[2]
    return int(code) if code.isascii() and code.isdigit() else 0
