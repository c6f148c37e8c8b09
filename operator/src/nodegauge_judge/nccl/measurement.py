"""What is kept of a benchmark: enough to grade it again, small enough for a report.

A report keeps it as text, so it must survive being cut, edited or written by another version: what cannot be
read counts as nothing.  What does not fit is left out in a fixed order (`fitting`): words first, then small
sizes, then pairs; what labels and floors are made of goes last.  No rules here: `measure` fills it, `grade`
reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.nccl.formulas import busbw_gbps
from nodegauge_judge.nccl.model import MEMORY_LIMIT

VERSION = 1
GIB = 1 << 30
MIB = 1 << 20
MOST_GBPS = 1e6
"""GB/s above which a number is no bandwidth: a thousand times what anything carries."""
_READ_LIMIT = 4 * MEMORY_LIMIT

_Word = Annotated[str, Meta(max_length=128)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Small = Annotated[int, Meta(ge=0, le=4096)]
_Gbps = Annotated[float, Meta(ge=0, le=MOST_GBPS)]


class CellSeen(Struct, frozen=True, array_like=True):
    """One collective at one size: microseconds a call (above 0), wrong elements (null: not checked), and the
    algorithm that NCCL named (empty: it did not say)."""

    collective: Collective
    bytes: Annotated[int, Meta(ge=1, le=2**53)]
    us: Annotated[float, Meta(gt=0, le=1e12)]
    wrong: _Count | None = None
    algorithm: _Word = ""


class ArmSeen(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One NCCL configuration and how its process ended; null or empty is what could not be read."""

    name: _Word
    outcome: _Word = "done"
    phase: _Word = ""
    message: Annotated[str, Meta(max_length=512)] = ""
    start_ms: _Count | None = None
    """Communicators and kernels."""
    measure_ms: _Count | None = None
    transport: _Word = ""
    nvls: bool | None = None
    cells: Annotated[tuple[CellSeen, ...], Meta(max_length=64)] = ()


class PairSeen(Struct, frozen=True, array_like=True):
    """Copies from one GPU to another, GB/s."""

    source: _Word
    target: _Word
    gbps: _Gbps


class PairKind(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All pairs with `nvlinks` NVLinks: `count` directions read, their `typical` GB/s (the median), the
    `slowest` of them, and what such a pair's NVLinks carry one way (GB/s, null for a rate not read)."""

    nvlinks: _Small
    count: _Small
    typical: _Gbps
    wire: _Gbps | None = None
    slowest: Annotated[tuple[PairSeen, ...], Meta(max_length=16)] = ()


class Measured(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One benchmark on one node.

    `gpu`: the product name, `count` GPUs were in the document, `ranks` took part; `sm`: compute capability as
    NCCL counts it (90 is 9.0).  `klass`, `wire`: the interconnect class and `nvlink-gbps` that NVML reported
    beside the benchmark; `links`: histogram of link sums ("18x8": eight GPUs with 18); `pcie`: GB/s one way
    of the slowest GPU's PCIe link; `through_cpu`: two of the GPUs are joined by no PCIe switch, or nobody
    knows what joins them.  `told_off`: the policy's own environment switches peer access off.
    `missing`: names of GPUs that did not take part; `set`: digest of those that did.  `runs`: by
    "collective/bytes" bus bandwidths in GB/s: one that stands, two that disagree, or three whose median
    counts.  `bad`: codes that the run before answered bad.
    """

    version: int = msgspec.field(default=0, name="v")
    engine: _Word = ""
    nccl: _Word = ""
    driver: _Word = ""
    gpu: _Word = ""
    set: _Word = ""
    sm: _Small | None = None
    ranks: _Small = 0
    expected: _Small = 0
    nodes: _Count = 1
    klass: _Word = ""
    wire: _Gbps | None = None
    links: _Word = ""
    switched: bool = False
    pcie: _Gbps | None = None
    through_cpu: bool = False
    told_off: bool = False
    missing: Annotated[tuple[_Word, ...], Meta(max_length=64)] = ()
    arms: Annotated[tuple[ArmSeen, ...], Meta(max_length=8)] = ()
    pairs: Annotated[tuple[PairKind, ...], Meta(max_length=64)] = ()
    omitted: Annotated[tuple[_Word, ...], Meta(max_length=16)] = ()
    cut: Annotated[tuple[_Word, ...], Meta(max_length=64)] = ()
    throttled: _Count = 0
    problem: Annotated[str, Meta(max_length=512)] = ""
    runs: Annotated[
        dict[str, Annotated[tuple[_Gbps, ...], Meta(min_length=1, max_length=3)]], Meta(max_length=16)
    ] = {}
    bad: Annotated[tuple[_Word, ...], Meta(max_length=16)] = ()

    def arm(self, name: ArmName) -> ArmSeen | None:
        """The arm of that name, where it ran."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def busbw(self, cell: CellSeen) -> float | None:
        """GB/s of bus bandwidth; None where the numbers cannot be true."""
        if self.ranks < 2:
            return None
        found = busbw_gbps(cell.collective, bytes=cell.bytes, us=cell.us, ranks=self.ranks)
        return found if isfinite(found) and found <= MOST_GBPS else None

    @property
    def fingerprint(self) -> str:
        """What makes nodes comparable: GPU, count, link sums, driver branch, NCCL."""
        return "|".join((self.gpu, str(self.ranks), self.links, self.driver, self.nccl))

    def encode(self) -> str:
        """JSON of at most `MEMORY_LIMIT` bytes."""
        return msgspec.json.encode(fitting(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Measured | None:
        """What `encode` wrote; None for anything else, which is then as if nothing had been measured."""
        try:
            if not text or len(text.encode()) > _READ_LIMIT:
                return None
            found = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            return None
        return found if found.version == VERSION and _printable(msgspec.to_builtins(found)) else None


def _printable(value: object) -> bool:
    """Whether no text in it could speak to a terminal: what we write never could."""
    if isinstance(value, str):
        return value.isprintable()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    keys = value if isinstance(value, dict) else ()
    return all(_printable(part) for part in (*keys, *inner))


def fitting(measured: Measured) -> Measured:
    """As much of it as a report keeps."""
    for less in _less(measured):
        if len(msgspec.json.encode(less)) <= MEMORY_LIMIT:
            return less
    return Measured(version=VERSION)


def _less(whole: Measured) -> Iterator[Measured]:
    """Ever less of it."""
    yield whole
    for room in (96, 32):
        arms = tuple(replace(arm, message=arm.message[:room]) for arm in whole.arms)
        whole = replace(whole, arms=arms, problem=whole.problem[: 2 * room])
        yield whole
    whole = _without_cells_below(whole, MIB)
    yield replace(whole, cut=whole.cut[:4], missing=whole.missing[:4])
    whole = replace(whole, cut=whole.cut[:4], missing=whole.missing[:4])
    for keep in (3, 1):
        kinds = tuple(replace(kind, slowest=kind.slowest[:keep]) for kind in whole.pairs)
        whole = replace(whole, pairs=kinds)
        yield whole
    yield replace(whole, pairs=whole.pairs[:2])
    whole = replace(
        _without_cells_below(whole, 64 * MIB), pairs=(), cut=(), missing=(), problem="", omitted=()
    )
    yield whole
    yield replace(whole, arms=tuple(replace(arm, message="", cells=arm.cells[:4]) for arm in whole.arms))


def _without_cells_below(whole: Measured, size: int) -> Measured:
    """Small sizes tell of latency, which nothing grades; a cell with wrong data stays whatever its size."""
    arms = (
        replace(arm, cells=tuple(cell for cell in arm.cells if cell.bytes >= size or cell.wrong))
        for arm in whole.arms
    )
    return replace(whole, arms=tuple(arms))
