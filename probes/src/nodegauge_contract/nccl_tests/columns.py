"""The header of a table of nccl-tests, and how a row below it is read.

By the header's names, and from the right: what may be empty or missing stands on the left.  Columns over the
years: nccl-tests src/util.cu and, before that file, src/common.cu and src/*.cu.
"""

from __future__ import annotations

import re

from msgspec import Struct

from nodegauge_contract.values import NOT_READ, Int, Unavailable

HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"


class Timing(Struct, frozen=True, kw_only=True):
    """One half of a row: microseconds of one call, `busbw` as printed (GB/s) with `unit`, the worth of its
    last printed digit; `wrong` elements, or in old logs the largest `error` (null where nothing was
    checked)."""

    us: float
    busbw: float
    unit: float
    wrong: Int = NOT_READ
    error: float | None = None


class Columns(Struct, frozen=True, kw_only=True):
    """A header: the names before the first time, and those of each half from its time on."""

    left: tuple[str, ...]
    halves: tuple[tuple[str, ...], ...]
    stamped: bool

    @classmethod
    def of(cls, line: str) -> Columns | None:
        """Null where the line is no header."""
        names = line.lstrip("# \t").split()
        if names[:2] != ["size", "count"] or "busbw" not in names:
            return None
        stamped = names[-1] == "timestamp"
        names = names[:-1] if stamped else names
        starts = [place for place, name in enumerate(names) if name in ("time", "cputime")]
        if not starts or len(starts) > 2:
            return None
        ends = [*starts[1:], len(names)]
        halves = tuple(tuple(names[a:b]) for a, b in zip(starts, ends, strict=True))
        return cls(left=tuple(names[: starts[0]]), halves=halves, stamped=stamped)

    @property
    def width(self) -> int:
        """Cells of all halves."""
        return sum(map(len, self.halves))

    def split(self, cells: list[str]) -> tuple[list[str], list[Timing | None]]:
        """What stands left of the times, and the times of each half, the last (in place) first.

        No times at all where the cells do not end in those of a row; null for a half that is blank.
        """
        left = cells[:-2] if self.stamped else cells
        found: list[Timing | None] = []
        for names in reversed(self.halves):
            timing = _timing(names, left[-len(names) :])
            left = left[: -len(names)] if timing is not None else left
            found.append(timing)
        return left, found if found[0] is not None else []


def _timing(names: tuple[str, ...], cells: list[str]) -> Timing | None:
    """One half of a row; null where the cells are not what the names ask for."""
    if len(cells) != len(names):
        return None
    by_name = dict(zip(names, cells, strict=True))
    us, busbw = _number(by_name.get("time", by_name.get("cputime", ""))), _number(by_name["busbw"])
    if us is None or busbw is None or us <= 0:
        return None
    wrong, error = _number(by_name.get("#wrong", "")), _number(by_name.get("error", ""))
    return Timing(
        us=us,
        busbw=busbw,
        unit=_unit(by_name["busbw"]),
        wrong=int(wrong) if wrong is not None else Unavailable("the data was not checked"),
        error=error,
    )


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,18}(\.\d{1,9})?(e[+-]?\d{1,3})?", text) else None


def _unit(text: str) -> float:
    """The worth of the last digit of `451.03` (0.01) or of `4.7e+03` (100)."""
    digits, _, power = text.partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
