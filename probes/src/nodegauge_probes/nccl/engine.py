"""One arm as an engine with GPUs of its own runs it: phases, cells in the order of their worth, pairs, end.

What a library can do with GPUs is behind `Gpus`; this decides what to do with them, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Protocol

from nodegauge_contract.nccl import Collective, Phase
from nodegauge_contract.values import NOT_READ, Int, Num, Unavailable
from nodegauge_probes.nccl import pattern, rounds
from nodegauge_probes.nccl.child import serve
from nodegauge_probes.nccl.emitter import NCCL_ERROR, OUT_OF_MEMORY, WRONG_ORDER, Failure, Speaker
from nodegauge_probes.nccl.protocol import About, CellOrder, Order

SAME, NO_PAIR = -1, "no copy"
PAIRS_GRACE = 1.5
"""Of the budget: when cells took longer than this share of it, there is no time for pairs."""


class Gpus(Protocol):
    """What a library can do with the GPUs of one order.  Every method may raise `Failure`."""

    held: int
    """Bytes of the buffer on each GPU."""

    def about(self, *, touch: bool) -> About:
        """Load the libraries and say who they are; without `touch` no GPU is looked for."""

    def open(self, uuids: Sequence[str]) -> None:
        """Take these GPUs, in rank order."""

    def connect(self) -> None:
        """Make the communicators."""

    def room(self, size: int) -> None:
        """Have a buffer of so many bytes on each GPU."""

    def batch(self, collective: str, size: int, calls: int) -> float:
        """So many calls in a row, in place; milliseconds on the slowest GPU."""

    def wrong(self, collective: str, size: int) -> int:
        """One call on known data; the elements that came out wrong."""

    def copies(self, source: int, target: int, size: int, number: int) -> list[float]:
        """Copies from rank to rank, one after the other; milliseconds of each."""

    def close(self) -> None:
        """Give everything back."""


def main(gpus: Callable[[], Gpus], arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The whole program of an engine; gives its exit code."""

    def work(order: Order, speaker: Speaker) -> None:
        run(order, gpus(), speaker, clock=time.monotonic)

    return serve(work, arguments, environment)


def run(order: Order, gpus: Gpus, speaker: Speaker, *, clock: Callable[[], float]) -> None:
    """Everything that was ordered.  Raises `Failure`."""
    speaker.about(gpus.about(touch=bool(order.uuids)))
    if not order.uuids:
        speaker.done()
        return
    if strange := [cell.collective for cell in order.cells if cell.collective not in set(Collective)]:
        raise Failure(WRONG_ORDER, f"no such collective: {', '.join(strange)}")
    speaker.phase(Phase.INIT)
    gpus.open(order.uuids)
    gpus.connect()
    speaker.phase(Phase.LOAD)
    cells = list(_load(order, gpus, speaker))
    speaker.phase(Phase.MEASURE)
    _measure(order, cells, gpus, speaker, clock=clock)
    speaker.phase(Phase.TEARDOWN)
    gpus.close()
    speaker.done()


def _load(order: Order, gpus: Gpus, speaker: Speaker) -> Iterator[CellOrder]:
    """The cells that there is memory for, each called once: kernels and connections are made at first use."""
    ranks = len(order.uuids)
    needed = {cell: pattern.total(cell.collective, cell.bytes, ranks) for cell in order.cells}
    for size in sorted({*needed.values(), order.pairs_bytes} - {0}, reverse=True):
        try:
            gpus.room(size)
            break
        except Failure as failure:
            if failure.what != OUT_OF_MEMORY or not any(other < size for other in needed.values()):
                raise
    for cell, size in needed.items():
        if size > gpus.held:
            speaker.cut(f"{cell.collective}/{cell.bytes}")
            continue
        gpus.batch(cell.collective, cell.bytes, 1)
        yield cell


def _measure(
    order: Order, cells: Sequence[CellOrder], gpus: Gpus, speaker: Speaker, *, clock: Callable[[], float]
) -> None:
    began = clock()
    _warm_up(order, cells, gpus, clock=clock)
    for number, cell in enumerate(cells):
        left = order.budget_ms / 1000 - (clock() - began)
        if number and left <= 0:
            speaker.cut(f"{cell.collective}/{cell.bytes}")
            continue
        wrong: Int = _check(cell, gpus, speaker) if cell.check else NOT_READ
        speaker.cell(
            rounds.measure(
                cell,
                partial(gpus.batch, cell.collective, cell.bytes),
                wrong=wrong,
                seconds_left=left,
                clock=clock,
            )
        )
    if order.pairs_bytes:
        late = clock() - began > order.budget_ms / 1000 * PAIRS_GRACE
        if late or order.pairs_bytes > gpus.held:
            speaker.cut(f"pairs/{order.pairs_bytes}")
        else:
            speaker.phase(Phase.PAIRS)
            speaker.pairs(_pairs(order, gpus))


def _warm_up(order: Order, cells: Sequence[CellOrder], gpus: Gpus, *, clock: Callable[[], float]) -> None:
    """Calls at the largest size, so that clocks are those of work and not of idling."""
    if not cells:
        raise Failure(WRONG_ORDER, "nothing to measure")
    largest = max(cells, key=lambda cell: cell.bytes)
    until = clock() + order.warm_up_ms / 1000
    while clock() < until:
        gpus.batch(largest.collective, largest.bytes, 1)


def _check(cell: CellOrder, gpus: Gpus, speaker: Speaker) -> int:
    speaker.phase(Phase.CHECK)
    wrong = gpus.wrong(cell.collective, cell.bytes)
    speaker.phase(Phase.MEASURE)
    return wrong


def _pairs(order: Order, gpus: Gpus) -> list[list[Num]]:
    """GB/s one way between every ordered pair; a pair that cannot be copied between says why."""
    ranks = range(len(order.uuids))
    return [[_pair(order, gpus, one, other) for other in ranks] for one in ranks]


def _pair(order: Order, gpus: Gpus, one: int, other: int) -> Num:
    if one == other:
        return SAME
    try:
        times = gpus.copies(one, other, order.pairs_bytes, order.pair_copies)
    except Failure as failure:
        if failure.what == NCCL_ERROR:
            raise
        return Unavailable(f"{NO_PAIR}: {failure.message}"[:200])
    taken = median(times)
    return order.pairs_bytes / taken / 1e6 if taken > 0 else Unavailable(f"{NO_PAIR}: it took no time")
