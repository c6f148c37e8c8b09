"""Data that shows when a collective went wrong: what each rank puts in, and what must come out.

Element i of rank r is (r + 1) x (i mod 251 + 1), in float32.  251 is a prime, so a block that arrives at
another place, or another rank's, shows; and all sums of 64 ranks are whole numbers below 2^24, so float32 has
them exactly in whatever order they are added.  Pure, and without numpy: bytes are compared as bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from nodegauge_contract.nccl import Collective

ELEMENT = 4
ALIGNED = 4
"""Elements of 16 bytes, the most that a thread moves at once."""
PERIOD = 251
POISON = 0xFF
"""Each byte of what nobody has written yet: not a number in float32."""
WHOLE = 16 << 20
"""Bytes up to which all of a result is compared; of a larger one three windows are."""
WINDOW = 1 << 20


def elements(collective: str, size: int, ranks: int) -> int:
    """Elements that one rank puts in (all_reduce, reduce_scatter) or gives (all_gather), for a cell of so
    many bytes; a size that the ranks do not divide is rounded down, to one element each at least.

    Blocks of ranks are rounded to `ALIGNED` elements where they have as many: NCCL moves 16 bytes at a time
    only where every rank's block begins at a multiple of them.  With 3, 5, 6 or 7 ranks none but the first
    would, and all_gather and reduce_scatter would be slow on a node that is not.  nccl-tests does the same
    (src/all_gather.cu, src/reduce_scatter.cu).
    """
    if collective == Collective.ALL_REDUCE:
        return max(1, size // ELEMENT)
    count = max(1, size // ELEMENT // ranks)
    return count - count % ALIGNED if count >= ALIGNED else count


def total(collective: str, size: int, ranks: int) -> int:
    """Bytes of the buffer that each rank needs for it, in place."""
    count = elements(collective, size, ranks)
    return ELEMENT * (count if collective == Collective.ALL_REDUCE else count * ranks)


def values(scale: int, *, start: int, stop: int) -> bytes:
    """Elements `start` to `stop` of the pattern, times `scale`."""
    one = array("f", [scale * (place + 1) for place in range(PERIOD)]).tobytes()
    first = start % PERIOD
    repeats = (first + stop - start) // PERIOD + 1
    return (one * repeats)[first * ELEMENT : (first + stop - start) * ELEMENT]


def expected(collective: str, *, ranks: int, rank: int, count: int, start: int, stop: int) -> bytes:
    """Elements `start` to `stop` of what must stand in the result of `rank`; `count` as `elements` says.

    The result is the whole buffer, for reduce_scatter the rank's own block alone.
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
    """First and last byte (not included) of each piece of a result that is compared."""
    if size <= WHOLE:
        yield 0, size
        return
    for start in (0, (size - WINDOW) // 2 // ELEMENT * ELEMENT, size - WINDOW):
        yield start, start + WINDOW


def wrong(found: bytes, wanted: bytes) -> int:
    """Elements that are not what they must be."""
    if found == wanted:
        return 0
    pairs = zip(array("f", found), array("f", wanted), strict=True)
    return sum(one != other for one, other in pairs)
