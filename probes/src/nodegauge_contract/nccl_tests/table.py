"""The table of nccl-tests: its header, and its rows by the header's names.

The table has changed over the years: `error` became `#wrong`, `root` was added, `-I` and bitwise checks add
columns, `-C` prints the CPU's time.  So a row is read by the header's names, and from the right: the columns
that may be empty are on the left.

Columns: nccl-tests src/util.cu and, before that file, src/common.cu and src/*.cu.
"""

from __future__ import annotations

import re

from msgspec import Struct, field

from nodegauge_contract.values import NOT_READ, Int, Unavailable

ELEMENT_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "double", "float64"), 8),
}
"""By nccl-tests' name of the type (test_typenames in src/common.cu)."""

_HEADER = re.compile(r"(?<![^\s#>:|\]])size\s+count\s.*")


def header_at(line: str) -> int | None:
    """Where a header begins in a line; None if the line is not one."""
    match = _HEADER.search(line)
    return match.start() if match is not None and Columns.from_header(line) is not None else None


class Timing(Struct, frozen=True, kw_only=True):
    """One half of a row: microseconds of one call and `busbw` (GB/s) as printed, each with the value of its
    last digit; `wrong` elements, or in old logs the largest `error` (null if nothing was checked)."""

    us: float
    us_unit: float
    busbw: float
    unit: float
    wrong: Int = NOT_READ
    error: float | None = None

    def factor(self, size: int) -> tuple[float, float]:
        """The least and the most that busbw can be of size / time, as far as the printed digits tell."""
        slowest = size / (self.us + self.us_unit / 2) / 1e3
        fastest = size / max(self.us - self.us_unit / 2, 1e-9) / 1e3
        return (self.busbw - self.unit / 2) / fastest, (self.busbw + self.unit / 2) / slowest


class Columns(Struct, frozen=True, kw_only=True):
    """A header: the names before the first time, and those of each half from its time on."""

    left: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    stamped: bool

    @classmethod
    def from_header(cls, line: str) -> Columns | None:
        """None if the line is not a header; a launcher may have put its own prefix before it."""
        match = _HEADER.search(line)
        names = match[0].split() if match is not None else []
        if "busbw" not in names:
            return None
        stamped = names[-1] == "timestamp"
        names = names[:-1] if stamped else names
        starts = [index for index, name in enumerate(names) if name in ("time", "cputime")]
        if not starts or len(starts) > 2:
            return None
        stops = [*starts[1:], len(names)]
        halves = tuple(tuple(names[a:b]) for a, b in zip(starts, stops, strict=True))
        return cls(left=tuple(names[: starts[0]]), halves=halves, stamped=stamped)

    @property
    def width(self) -> int:
        """Cells of all halves."""
        return sum(map(len, self.halves))

    def split(self, cells: list[str], size: int) -> tuple[list[str], list[Timing | None]]:
        """The cells left of the times, and the times of each half, the last (in place) first.

        `size`: bytes of the row, as printed.  The list is empty if the cells do not end like a row; a blank
        half is None.
        """
        left = cells[:-2] if self.stamped else cells
        timings: list[Timing | None] = []
        for names in reversed(self.halves):
            timing = _timing(names, left[-len(names) :], size)
            left = left[: -len(names)] if timing is not None else left
            timings.append(timing)
        begins = len(left) <= len(self.left) - len(("size", "count", "type"))
        return left, timings if timings[0] is not None and begins else []


def _timing(names: tuple[str, ...], cells: list[str], size: int) -> Timing | None:
    """One half of a row; None if the cells do not match the names."""
    if len(cells) != len(names):
        return None
    by_name = dict(zip(names, cells, strict=True))
    time = _time(by_name, size)
    busbw, wrong, error = (_number(by_name.get(name, "")) for name in ("busbw", "#wrong", "error"))
    if time is None or busbw is None or (wrong is not None and wrong % 1):
        return None
    return Timing(
        us=time[0],
        us_unit=time[1],
        busbw=busbw,
        unit=_unit(by_name["busbw"]),
        wrong=int(wrong) if wrong is not None else Unavailable("the data was not checked"),
        error=error,
    )


def _time(by_name: dict[str, str], size: int) -> tuple[float, float] | None:
    """Microseconds of one call, and how far they are certain.

    With `-C` the table has the CPU's time of the launch (`cputime`), and only its bandwidths tell how long
    the GPUs took.  Source: nccl-tests src/common.cu, BenchTime.
    """
    text, algbw = by_name.get("time", by_name.get("cputime", "")), _number(by_name.get("algbw", ""))
    us = _number(text)
    if us is None or algbw is None or us <= 0:
        return None
    if "cputime" not in by_name or not algbw:
        return us, _unit(text)
    us = size / algbw / 1e3
    return us, 2 * us * _unit(by_name["algbw"]) / algbw


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,18}(\.\d{1,9})?(e[+-]?\d{1,3})?", text) else None


def _unit(text: str) -> float:
    """The value of the last digit of `451.03` (0.01) or of `4.7e+03` (100)."""
    digits, _, power = text.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


class Row(Struct, frozen=True, kw_only=True):
    """One line of a table."""

    line: int
    """Its number in the log, from 1."""
    bytes: int
    """The size as printed."""
    count: int
    """Elements as printed."""
    element: int
    """Bytes of one element."""
    redop: bool
    """Whether it names a reduction."""
    root: bool
    """Whether it names a root rank."""
    in_place: Timing | None = None
    """The last half of its times; None if that is blank."""
    out_of_place: Timing | None = None
    """The first of two halves; None if it is blank, or there is one half."""


class Table(Struct, kw_only=True):
    """One sweep of one collective: `finished` once its average was printed, `wrong`: elements out of bounds
    according to its summary in line `summary`."""

    header: int
    rows: list[Row] = field(default_factory=list)
    finished: bool = False
    wrong: int | None = None
    summary: int = 0
