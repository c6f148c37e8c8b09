"""Pressure stall information of the machine or of a control group (Documentation/accounting/psi.rst)."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import NOT_READ, FeedPressure, Int, Num, Unavailable
from nodegauge_probes.feed.files import content, share

_TOTAL = re.compile(r"^(some|full) .*\btotal=(\d{1,18})\b", re.M)
MICROSECONDS = 1e6


class Stalls(Struct, frozen=True, kw_only=True):
    """Totals in microseconds since boot."""

    cpu: Int = NOT_READ
    io: Int = NOT_READ
    io_full: Int = NOT_READ
    memory: Int = NOT_READ
    memory_full: Int = NOT_READ


def read(folder: Path, *, suffix: str = "") -> Stalls:
    """Of /proc/pressure, or with `.pressure` of a control group."""
    some, full = {}, {}
    for resource in ("cpu", "io", "memory"):
        some[resource], full[resource] = _totals(folder / f"{resource}{suffix}")
    return Stalls(
        cpu=some["cpu"],
        io=some["io"],
        io_full=full["io"],
        memory=some["memory"],
        memory_full=full["memory"],
    )


def _totals(path: Path) -> tuple[Int, Int]:
    text = content(path)
    if isinstance(text, Unavailable):  # a kernel with psi=0 has the files, and refuses to read them
        missing = Unavailable(f"no pressure stall information: {text.unavailable}"[:128])
        return missing, missing
    totals = {kind: int(total) for kind, total in _TOTAL.findall(text)}
    missing = Unavailable(f"no total in {path.name}"[:128])
    return totals.get("some", missing), totals.get("full", missing)


def over(before: Stalls, after: Stalls, *, seconds: float) -> FeedPressure:
    """Shares of the window."""

    def of(name: str) -> Num:
        return share(getattr(before, name), getattr(after, name), of=seconds * MICROSECONDS)

    return FeedPressure(
        cpu=of("cpu"),
        io=of("io"),
        io_full=of("io_full"),
        memory=of("memory"),
        memory_full=of("memory_full"),
    )
