"""Test data for collectives: each rank's input, and the expected result.

Element i of rank r is (r + 1) x (i mod 251 + 1), in float32.  251 is a prime, so a block at the wrong offset
or of the wrong rank is detected; and all sums of 64 ranks are integers below 2^24, which float32 represents
exactly in any order of addition.  Pure, and without numpy: bytes are compared as bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from nodegauge_contract.nccl import Collective

ELEMENT = 4
ALIGNED = 4
"""Elements in 16 bytes, the maximum that a thread moves at once."""
PERIOD = 251
POISON = 0xFF
"""Every byte of memory that was not written yet: NaN in float32."""
FULL_CHECK = 16 << 20
"""Bytes up to which a result is compared completely; of a larger one three windows are."""
WINDOW = 1 << 20


def elements(collective: str, size: int, ranks: int) -> int:
    """Elements per rank for a cell of so many bytes: of all_reduce the whole buffer, else the rank's block;
    rounded down to a multiple of the ranks, at least one element each.

    Blocks are rounded to `ALIGNED` elements if they have as many: NCCL moves 16 bytes at a time only if every
    rank's block begins at a multiple of 16 bytes.  With 3, 5, 6 or 7 ranks only the first would, and
    all_gather and reduce_scatter would be slow on a healthy node.  nccl-tests does the same
    (src/all_gather.cu, src/reduce_scatter.cu).
    """
    if collective == Collective.ALL_REDUCE:
        return max(1, size // ELEMENT)
    count = max(1, size // ELEMENT // ranks)
    return count - count % ALIGNED if count >= ALIGNED else count


def total(collective: str, size: int, ranks: int) -> int:
    """Bytes of the buffer that each rank needs, in place."""
    count = elements(collective, size, ranks)
    return ELEMENT * (count if collective == Collective.ALL_REDUCE else count * ranks)


def values(scale: int, *, start: int, stop: int) -> bytes:
    """Elements `start` to `stop` of the pattern, times `scale`."""
    period = array("f", [scale * (i + 1) for i in range(PERIOD)]).tobytes()
    first = start % PERIOD
    repeats = (first + stop - start) // PERIOD + 1
    return (period * repeats)[first * ELEMENT : (first + stop - start) * ELEMENT]


def expected(collective: str, *, ranks: int, rank: int, count: int, start: int, stop: int) -> bytes:
    """Elements `start` to `stop` of the expected result of `rank`; `count` as from `elements`.

    The result is the whole buffer; for reduce_scatter only the rank's block.
    """
    summed = ranks * (ranks + 1) // 2
    if collective == Collective.ALL_REDUCE:
        return values(summed, start=start, stop=stop)
    if collective == Collective.REDUCE_SCATTER:
        return values(summed, start=rank * count + start, stop=rank * count + stop)
    parts = []
    for block in range(start // count, (stop - 1) // count + 1):
        low, high = max(start, block * count), min(stop, (block + 1) * count)
        parts.append(values(block + 1, start=low - block * count, stop=high - block * count))
    return b"".join(parts)


def windows(size: int) -> Iterator[tuple[int, int]]:
    """First and last byte (exclusive) of each part of a result that is compared."""
    if size <= FULL_CHECK:
        yield 0, size
        return
    for start in (0, (size - WINDOW) // 2 // ELEMENT * ELEMENT, size - WINDOW):
        yield start, start + WINDOW


def wrong(actual: bytes, correct: bytes) -> int:
    """Number of wrong elements."""
    if actual == correct:
        return 0
    pairs = zip(array("f", actual), array("f", correct), strict=True)
    return sum(element != expected for element, expected in pairs)
