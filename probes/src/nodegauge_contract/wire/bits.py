"""Whole numbers as bits: the part of a packed message that holds what no compression makes smaller.

The digits of a busy node are close to random, and deflate pays six bytes of text for a number that needs
four; sixteen GPUs have two thousand of them.  Here each column of numbers stands in as many bits as its
largest distance from its smallest number needs.

`Source` reads what strangers wrote: past the end it raises `BadColumns`.  Pure; knows no schema.
"""

from __future__ import annotations

from collections.abc import Sequence

ROWS, WIDTH, BASE_WIDTH = 14, 8, 7
"""Bits of a column's header: how many numbers it has, unless it is as long as the column before it; how wide
they are; how wide its smallest number is."""

MAX_ROWS = (1 << ROWS) - 1


class BadColumns(ValueError):
    """A packed document that does not unfold: the message says what is wrong."""


class Sink:
    """Bits while they are being written, the most significant first."""

    def __init__(self) -> None:
        self._digits: list[str] = []
        self._rows = 0

    def put(self, number: int, *, width: int) -> None:
        if width:
            self._digits.append(format(number, f"0{width}b"))

    def column(self, numbers: Sequence[int]) -> None:
        """A header, then the distance of every number from the smallest one (or from 0, where that is less).

        Raises `OverflowError` where the smallest number has more than 127 bits, or the distances 255.
        """
        low, most = min(numbers), max(numbers)
        if low >= 0 and len(numbers) * (most.bit_length() - (most - low).bit_length()) <= low.bit_length():
            low = 0
        width, base = (most - low).bit_length(), abs(low).bit_length()
        if width >= 1 << WIDTH or base >= 1 << BASE_WIDTH:
            raise OverflowError("a number too wide for a column")
        self.put(len(numbers) != self._rows, width=1)
        if len(numbers) != self._rows:
            self.put(len(numbers), width=ROWS)
            self._rows = len(numbers)
        self.put(width, width=WIDTH)
        self.put(low < 0, width=1)
        self.put(base, width=BASE_WIDTH)
        self.put(abs(low), width=base)
        for number in numbers:
            self.put(number - low, width=width)

    def to_bytes(self) -> bytes:
        """Everything put in so far, filled up with zeros."""
        digits = "".join(self._digits)
        size = (len(digits) + 7) // 8
        return int(digits.ljust(size * 8, "0") or "0", 2).to_bytes(size, "big")


class Source:
    """Bits while they are being read, in the order in which they were put."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._rows = 0

    def take(self, *, width: int) -> int:
        end = self._at + width
        if end > len(self._data) * 8:
            raise BadColumns("the numbers end too early")
        window = int.from_bytes(self._data[self._at // 8 : (end + 7) // 8], "big")
        self._at = end
        return window >> (-end % 8) & ((1 << width) - 1)

    def column(self, rows: int) -> list[int]:
        """The next column, which must have `rows` numbers."""
        width, low = self._header()
        if self._rows != rows:
            raise BadColumns(f"a column of {self._rows} numbers among those of {rows}")
        return [low + self.take(width=width) for _ in range(rows)]

    def skip(self) -> None:
        """Pass over the next column."""
        width, _ = self._header()
        self._at += width * self._rows

    def _header(self) -> tuple[int, int]:
        if self.take(width=1):
            self._rows = self.take(width=ROWS)
        width = self.take(width=WIDTH)
        sign = -1 if self.take(width=1) else 1
        return width, sign * self.take(width=self.take(width=BASE_WIDTH))
