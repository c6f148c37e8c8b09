"""One column of plain values (numbers, texts, flags, reasons) in the shortest of several forms.

| JSON | every row of the column |
|---|---|
| `null` | has the member's default, most often "not read" |
| `5`, `"x"`, `true` | has this value |
| `[3]` | is unavailable for reason 3 of the message's table of reasons |
| `[]` | is a whole number; they are in the bits |
| `{"": 1000}` | is a number; its thousandfold is in the bits |
| `{"": [0, 1]}` | is a number: 0, 1, 2, ... |
| `{"GPU-????": 16}` | is this text; the digits for its marks, of base 16 (or 10), are in the bits |
| `[5, null, [3], "x"]` | a cell per row: a value, the default, a reason |
| `{"-": [[], 3, null]}` | the first member is the column without the exceptions: row 3 has the default |

"The bits" are a part of the message of its own, after the deflated text: the digits of a busy node are close
to random, and deflate pays six bytes of text for a number that needs four; sixteen GPUs have two thousand of
them.  There each column of numbers takes as many bits per number as its largest distance from its smallest
number needs (`BitWriter`, `BitReader`).

Reading is bounded: by `Unfolding.spend`, because a short text must not unfold into a large object, and by
`BitReader`, which raises `BadColumns` past the end.  Pure; knows no schema.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

ROWS, WIDTH, BASE_WIDTH = 14, 8, 7
"""Bits of a column's header: its length, unless it is that of the column before it; the width of its numbers;
the width of its smallest number."""

MAX_ROWS = (1 << ROWS) - 1


class BadColumns(ValueError):
    """A packed document that cannot be unfolded: the message says what is wrong."""


class BitWriter:
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
        """All bits so far, padded with zeros."""
        digits = "".join(self._digits)
        size = (len(digits) + 7) // 8
        return int(digits.ljust(size * 8, "0") or "0", 2).to_bytes(size, "big")


class BitReader:
    """Reads bits in the order in which they were written."""

    def __init__(self, data: bytes) -> None:
        self._digits = format(int.from_bytes(data, "big"), f"0{len(data) * 8}b") if data else ""
        self._at = 0
        self._rows = 0

    def take(self, *, width: int) -> int:
        return int(self._next(width), 2) if width else 0

    def column(self, rows: int) -> list[int]:
        """The next column, which must have `rows` numbers."""
        width, low = self._header()
        if self._rows != rows:
            raise BadColumns(f"a column of {self._rows} numbers among those of {rows}")
        if not width:
            return [low] * rows
        digits = self._next(width * rows)
        return [low + int(digits[at : at + width], 2) for at in range(0, width * rows, width)]

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

    def _next(self, width: int) -> str:
        """So many digits."""
        start, self._at = self._at, self._at + width
        if self._at > len(self._digits):
            raise BadColumns("the numbers end too early")
        return self._digits[start : self._at]


MAX_CELLS = 65_536
"""Sixteen GPUs with everything need about 8,000."""

MARK, EXCEPT = "?", "-"
FEWEST = 4
"""Rows from which a column may go into the bits: below, the header costs more than it saves."""

SCALES = (2, 1000)
"""Medians of an even number of samples end in .5; a window's length has three decimals."""

_DIGITS = ((10, frozenset("0123456789")), (16, frozenset("0123456789abcdef")))
_FORMAT = {10: "d", 16: "x"}


class _Absent:
    """The default of a member, which is not written: the reader uses its own."""


ABSENT: Final = _Absent()


class Folding:
    """What a document is being packed into: reasons in order of appearance, and bits."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}
        self.bits = BitWriter()


class Unfolding:
    """What a document is unpacked from, and how many cells it may still unfold into."""

    def __init__(self, *, reasons: list[str], bits: bytes) -> None:
        self._reasons = reasons
        self.bits = BitReader(bits)
        self._left = MAX_CELLS

    def spend(self, cells: int) -> None:
        self._left -= cells
        if self._left < 0:
            raise BadColumns(f"unfolds into more than {MAX_CELLS} values")

    def reason(self, cell: list[Any]) -> dict[str, str]:
        if len(cell) != 1 or type(cell[0]) is not int or not 0 <= cell[0] < len(self._reasons):
            raise BadColumns("a reason that is not in the table")
        return {"unavailable": self._reasons[cell[0]]}


def fold(values: list[Any], into: Folding, *, default: Any) -> Any:
    """The column of `values`, which must not be empty; `default` is not written."""
    cells = [_cell(value, into, default=default) for value in values]
    distinct = {(type(cell), repr(cell)) for cell in cells}
    if len(distinct) == 1:
        return cells[0]
    if len(cells) < FEWEST or len(distinct) * 4 <= len(cells):
        return cells
    values = [cell for cell in cells if cell is not None and type(cell) is not list]
    short = _short(values, into) if len(values) * 2 > len(cells) else None
    if short is None:
        return cells
    others = [(row, cell) for row, cell in enumerate(cells) if cell is None or type(cell) is list]
    return {EXCEPT: [short, *(part for other in others for part in other)]} if others else short


def unfold(column: Any, rows: int, source: Unfolding) -> list[Any]:
    """The inverse of `fold`, with `ABSENT` for the default; raises `BadColumns`."""
    source.spend(rows)
    if type(column) is dict:
        return _restored(column, rows, source)
    if type(column) is not list:
        return [ABSENT if column is None else column] * rows
    if not column:
        return source.bits.column(rows)
    if len(column) == 1:
        return [source.reason(column)] * rows
    if len(column) != rows:
        raise BadColumns(f"a column of {len(column)} rows among those of {rows}")
    return [_cell_of(cell, source) if cell is None or type(cell) is list else cell for cell in column]


def skip(column: Any, source: Unfolding) -> None:
    """Skip a column of any kind that a newer probe wrote, with its part of the bits."""
    if type(column) is dict:
        in_bits = any(type(how) is int for how in column.values())
        for usual, *_ in filter(None, (column.get(EXCEPT),)):
            skip(usual, source)
    else:
        in_bits = column == []
        for inner in column if type(column) is list else ():
            skip(inner, source)
    if in_bits:
        source.bits.skip()


def _cell(value: Any, into: Folding, *, default: Any) -> Any:
    if type(value) is type(default) and value == default:
        return None
    if type(value) is dict:
        return [into.reasons.setdefault(value["unavailable"], len(into.reasons))]
    return value


def _short(values: list[Any], into: Folding) -> Any:
    """The form of a column that goes into the bits, or None if it has to be written out."""
    if len(values) < FEWEST:
        return None
    return _numbers(values, into) if all(type(v) in (int, float) for v in values) else _texts(values, into)


def _numbers(cells: list[Any], into: Folding) -> Any:
    """The form of a column of numbers, or None if it has to be written out."""
    if all(type(cell) is int for cell in cells):
        step = cells[1] - cells[0]
        if cells == [cells[0] + n * step for n in range(len(cells))]:
            return {"": [cells[0], step]}
        into.bits.column(cells)
        return []
    if not all(math.isfinite(cell * max(SCALES)) for cell in cells):
        return None
    for scale in SCALES:
        scaled = [round(cell * scale) for cell in cells]
        if [number / scale for number in scaled] == cells and max(map(abs, scaled)) < 1 << 52:
            into.bits.column(scaled)
            return {"": scale}
    return None


def _texts(cells: list[Any], into: Folding) -> Any:
    """The form of texts that differ in digits alone, or None."""
    first = cells[0]
    if not all(type(cell) is str and len(cell) == len(first) and MARK not in cell for cell in cells):
        return None
    differ = [n for n, letters in enumerate(zip(*cells, strict=True)) if len(set(letters)) > 1]
    if not differ:  # one text, between cells that have none
        return None
    letters = {cell[n] for cell in cells for n in differ}
    base = next((base for base, digits in _DIGITS if letters <= digits), None)
    if base is None:
        return None
    try:
        into.bits.column([int("".join(cell[n] for n in differ), base) for cell in cells])
    except OverflowError:
        return None
    return {"".join(MARK if n in differ else letter for n, letter in enumerate(first)): base}


def _restored(form: dict[str, Any], rows: int, source: Unfolding) -> list[Any]:
    if len(form) != 1:
        raise BadColumns("a column of no known form")
    [(template, how)] = form.items()
    if template == EXCEPT:
        return _with_others(how, rows, source)
    if template:
        return _filled(template, how, rows, source)
    if type(how) is list and list(map(type, how)) == [int, int]:
        return [how[0] + n * how[1] for n in range(rows)]
    if how not in SCALES:
        raise BadColumns("numbers of no known form")
    return [number // how if number % how == 0 else number / how for number in source.bits.column(rows)]


def _with_others(form: Any, rows: int, source: Unfolding) -> list[Any]:
    """Most rows from the first member of `form`, and the exceptions as listed."""
    if type(form) is not list or len(form) % 2 == 0 or (type(form[0]) is dict and EXCEPT in form[0]):
        raise BadColumns("exceptions of no known form")
    others = dict(zip(form[1::2], form[2::2], strict=True)) if set(map(type, form[1::2])) <= {int} else {}
    if len(others) * 2 + 1 != len(form) or not all(0 <= row < rows for row in others):
        raise BadColumns("exceptions that are no rows")
    usual = iter(unfold(form[0], rows - len(others), source))
    return [_cell_of(others[row], source) if row in others else next(usual) for row in range(rows)]


def _cell_of(cell: Any, source: Unfolding) -> Any:
    return ABSENT if cell is None else source.reason(cell) if type(cell) is list else cell


def _filled(template: str, base: Any, rows: int, source: Unfolding) -> list[str]:
    digits = template.count(MARK)
    if type(base) is not int or base not in _FORMAT or not digits:
        raise BadColumns("texts of no known form")
    source.spend(rows * len(template) // 16)
    text = template.replace("%", "%%").replace(MARK, "%s")
    fillings = [format(number, f"0{digits}{_FORMAT[base]}") for number in source.bits.column(rows)]
    if any(len(filling) != digits for filling in fillings):
        raise BadColumns("digits that do not fit their template")
    return [text % tuple(filling) for filling in fillings]
