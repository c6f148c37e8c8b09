"""When a cell has been measured well enough: batches, their spread, and the time there is.

A batch is many calls between two CUDA events, so that neither the clock nor the launch of one call counts.
What is kept are times per call; the median of the batches speaks, because the first ones may still be slow.
Pure: the batch and the clock come in as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from statistics import fmean, median, pstdev

from nodegauge_contract.nccl import Cell
from nodegauge_contract.values import NOT_READ, Int
from nodegauge_probes.nccl.protocol import CellOrder

MOST_CALLS = 4096
"""Of one batch: beyond it launches are queued no faster."""
MOST_BATCHES = 512
TRIES = 4
"""Batches that only find out how many calls make one."""

Batch = Callable[[int], float]
"""So many calls; gives the milliseconds that they took on the slowest GPU."""


def measure(
    order: CellOrder, batch: Batch, *, wrong: Int, seconds_left: float, clock: Callable[[], float]
) -> Cell:
    """The cell that was ordered.  At least one batch is timed, whatever `seconds_left`."""
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
    """Calls that take `batch_ms`; never by one try alone, because the first call of a size may be slow."""
    calls = 1
    for attempt in range(TRIES):
        taken = batch(calls)
        wanted = min(MOST_CALLS, max(1, ceil(calls * order.batch_ms / max(taken, 1e-3))))
        if attempt and wanted <= 2 * calls:
            break
        calls = wanted
    return calls


def _enough(order: CellOrder, times: Sequence[float]) -> bool:
    if len(times) < order.batches:
        return False
    return _spread(times[-order.batches :]) < order.spread or len(times) >= MOST_BATCHES


def _spread(times: Sequence[float]) -> float:
    """The coefficient of variation: a share of the mean."""
    mean = fmean(times)
    return pstdev(times, mean) / mean if mean > 0 else 0.0
