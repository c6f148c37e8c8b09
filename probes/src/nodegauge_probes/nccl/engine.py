"""One arm of an engine that drives the GPUs itself: phases, cells in the order of their value, pairs, end.

`Gpus` is the interface to the library; this module decides what to run, and when a cell was measured well
enough.  A batch is many calls between two CUDA events, so that neither the clock nor the launch of one call
matters; times are per call, and the median over batches counts, because the first ones may be slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from statistics import fmean, median, pstdev
from typing import Protocol

from msgspec.structs import replace

from nodegauge_contract.nccl import GRADED, Cell, Phase
from nodegauge_contract.values import NOT_READ, Int, Num, Unavailable
from nodegauge_probes.nccl import pattern
from nodegauge_probes.nccl.protocol import (
    NCCL_ERROR,
    OUT_OF_MEMORY,
    WRONG_ORDER,
    CellOrder,
    Emitter,
    EngineInfo,
    Failure,
    Order,
    serve,
)

LAUNCH_BELOW = 1 << 20
"""Bytes below which a cell says how long its launch took: larger ones are limited by their transfer."""
SAME, NO_PAIR = -1, "no copy"
PAIRS_GRACE = 1.5
"""Share of the budget: if the cells took longer, pairs are left out."""

MAX_CALLS = 4096
"""Per batch: with more, launches are queued no faster."""
MAX_BATCHES = 512
TRIES = 4
"""Batches that only find out how many calls make a batch."""

Batch = Callable[[int], float]
"""Runs so many calls; returns the milliseconds that they took on the slowest GPU."""


class Gpus(Protocol):
    """A library's interface to the GPUs of one order.  Every method may raise `Failure`."""

    buffer_bytes: int
    """Size of the buffer on each GPU."""
    launch_ms: float
    """Host time to launch one call of the last batch on all GPUs of this process."""

    def load(self, *, find_gpus: bool) -> EngineInfo:
        """Load the libraries and return their versions; without `find_gpus` no GPU is touched."""

    def open(self, uuids: Sequence[str], *, rank: int) -> None:
        """Use these GPUs, in rank order; only that of `rank` unless it is negative."""

    def connect(self, meeting: str) -> None:
        """Make the communicators; processes of one GPU each find each other by the file `meeting`."""

    def agree(self, *values: float) -> tuple[float, ...]:
        """The largest of each value over all processes, which all call this at the same point."""

    def allocate(self, size: int) -> None:
        """Allocate a buffer of so many bytes on each GPU."""

    def batch(self, collective: str, size: int, calls: int) -> float:
        """Run so many calls in a row, in place; returns milliseconds on the slowest GPU."""

    def wrong(self, collective: str, size: int) -> int:
        """One call on known data; returns the number of wrong elements."""

    def copies(self, source: int, target: int, size: int, number: int) -> list[float]:
        """Copies from rank to rank, one after the other; returns milliseconds of each."""

    def close(self) -> None:
        """Release everything."""


def main(gpus: Callable[[], Gpus], arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The program of an engine; returns its exit code."""

    def work(order: Order, emitter: Emitter) -> None:
        run(order, gpus(), emitter, clock=time.monotonic)

    return serve(work, arguments, environment)


def run(order: Order, gpus: Gpus, emitter: Emitter, *, clock: Callable[[], float]) -> None:
    """Do the whole order.  Raises `Failure`."""
    emitter.engine(gpus.load(find_gpus=bool(order.uuids)))
    if not order.uuids:
        emitter.done()
        return
    if unknown := [cell.collective for cell in order.cells if cell.collective not in GRADED]:
        raise Failure(WRONG_ORDER, f"unknown collective: {', '.join(unknown)}")
    emitter.phase(Phase.INIT)
    gpus.open(order.uuids, rank=order.rank)
    gpus.connect(order.meeting)
    if order.rank >= 0:
        # What to call next depends on the time: all processes have to see the same.
        clock = partial(_agreed, clock, gpus)
    emitter.phase(Phase.LOAD)
    cells = list(_load(order, gpus, emitter))
    emitter.phase(Phase.MEASURE)
    _measure(order, cells, gpus, emitter, clock=clock)
    emitter.phase(Phase.TEARDOWN)
    gpus.close()
    emitter.done()


def _agreed(clock: Callable[[], float], gpus: Gpus) -> float:
    return gpus.agree(clock())[0]


def _load(order: Order, gpus: Gpus, emitter: Emitter) -> Iterator[CellOrder]:
    """The cells that fit into memory, each called once: the first call loads kernels and connects."""
    ranks = len(order.uuids)
    needed = {cell: pattern.total(cell.collective, cell.bytes, ranks) for cell in order.cells}
    for size in sorted({*needed.values(), order.pairs_bytes} - {0}, reverse=True):
        try:
            gpus.allocate(size)
            break
        except Failure as failure:
            if failure.kind != OUT_OF_MEMORY or not any(other < size for other in needed.values()):
                raise
    for cell, size in needed.items():
        if size > gpus.buffer_bytes:
            emitter.cut(f"{cell.collective}/{cell.bytes}")
            continue
        gpus.batch(cell.collective, cell.bytes, 1)
        yield cell


def _measure(
    order: Order, cells: Sequence[CellOrder], gpus: Gpus, emitter: Emitter, *, clock: Callable[[], float]
) -> None:
    began = clock()
    _warm_up(order, cells, gpus, clock=clock)
    for number, cell in enumerate(cells):
        left = order.budget_ms / 1000 - (clock() - began)
        if number and left <= 0:
            emitter.cut(f"{cell.collective}/{cell.bytes}")
            continue
        wrong: Int = _check(cell, gpus, emitter) if cell.check else NOT_READ
        batch = partial(gpus.batch, cell.collective, cell.bytes)
        measured = measure_cell(cell, batch, wrong=wrong, seconds_left=left, clock=clock)
        if cell.bytes < LAUNCH_BELOW:
            measured = replace(measured, launch_us=gpus.launch_ms * 1000)
        emitter.cell(measured)
    if order.pairs_bytes:
        late = clock() - began > order.budget_ms / 1000 * PAIRS_GRACE
        if late or order.pairs_bytes > gpus.buffer_bytes:
            emitter.cut(f"pairs/{order.pairs_bytes}")
        else:
            emitter.phase(Phase.PAIRS)
            emitter.pairs(_pairs(order, gpus))


def _warm_up(order: Order, cells: Sequence[CellOrder], gpus: Gpus, *, clock: Callable[[], float]) -> None:
    """Calls at the largest size, so that the GPUs' clocks rise."""
    if not cells:
        raise Failure(WRONG_ORDER, "nothing to measure")
    largest = max(cells, key=lambda cell: cell.bytes)
    until = clock() + order.warm_up_ms / 1000
    while clock() < until:
        gpus.batch(largest.collective, largest.bytes, 1)


def _check(cell: CellOrder, gpus: Gpus, emitter: Emitter) -> int:
    emitter.phase(Phase.CHECK)
    wrong = gpus.wrong(cell.collective, cell.bytes)
    emitter.phase(Phase.MEASURE)
    return wrong


def _pairs(order: Order, gpus: Gpus) -> list[list[Num]]:
    """GB/s one way between every ordered pair, or why the copy failed."""
    ranks = range(len(order.uuids))
    return [[_pair(order, gpus, source, target) for target in ranks] for source in ranks]


def _pair(order: Order, gpus: Gpus, source: int, target: int) -> Num:
    if source == target:
        return SAME
    try:
        times = gpus.copies(source, target, order.pairs_bytes, order.pair_copies)
    except Failure as failure:
        if failure.kind == NCCL_ERROR:
            raise
        return Unavailable(f"{NO_PAIR}: {failure.message}"[:200])
    duration = median(times)
    return order.pairs_bytes / duration / 1e6 if duration > 0 else Unavailable(f"{NO_PAIR}: it took no time")


def measure_cell(
    order: CellOrder, batch: Batch, *, wrong: Int, seconds_left: float, clock: Callable[[], float]
) -> Cell:
    """Measure one cell; at least one batch is timed, whatever `seconds_left`."""
    if order.calls:
        calls, times = order.calls, [batch(order.calls) / order.calls]
    else:
        until = clock() + min(order.max_ms / 1000, max(seconds_left, 0.0))
        calls = _calls(order, batch)
        times = []
        while not times or (clock() < until and not _enough(order, times)):
            times.append(batch(calls) / calls)
    us = [time * 1000 for time in times]
    return Cell(
        collective=order.collective,
        bytes=order.bytes,
        us=median(us),
        us_min=min(us),
        us_max=max(us),
        spread=_spread(us) if len(us) > 1 else NOT_READ,
        batches=len(us),
        calls=calls * len(us),
        wrong=wrong,
    )


def _calls(order: CellOrder, batch: Batch) -> int:
    """Calls that take `batch_ms`; needs two tries, because the first call of a size may be slow."""
    calls = 1
    for attempt in range(TRIES):
        duration = batch(calls)
        needed = min(MAX_CALLS, max(1, ceil(calls * order.batch_ms / max(duration, 1e-3))))
        if attempt and needed <= 2 * calls:
            break
        calls = needed
    return calls


def _enough(order: CellOrder, times: Sequence[float]) -> bool:
    if len(times) < order.batches:
        return False
    return _spread(times[-order.batches :]) < order.spread or len(times) >= MAX_BATCHES


def _spread(times: Sequence[float]) -> float:
    """The coefficient of variation: a share of the mean."""
    mean = fmean(times)
    return pstdev(times, mean) / mean if mean > 0 else 0.0
