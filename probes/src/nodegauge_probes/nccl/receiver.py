"""What a child says, bounded and checked, into the draft of its arm.

A child is a program with a driver in it that may be broken: whatever it writes must neither grow without end
nor become a number that nobody measured.  What cannot be read is `Garbage`, and what was said before stays.
Output that is not speech (NCCL's and Python's words) is kept by its end alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from nodegauge_contract import Cell, Num, Phase, Unavailable
from nodegauge_contract.nccl import MAX_CELLS
from nodegauge_probes.nccl.protocol import MAX_LINE, About, Failed, Line, decode_line
from nodegauge_probes.result_builder import ArmDraft

MAX_SPEECH = 1 << 20
"""Bytes of one child altogether; the longest honest one, with pairs of 64 GPUs, needs 50 KB."""

TAIL = 4096
MAX_WORDS = 240
"""Characters of a message: three of them, and their numbers, share 4,096 bytes."""

MOST = 1e12
"""Of microseconds and of GB/s: eleven days."""

_SILENT = Line()


class Garbage(Exception):
    """The child said something that nobody can read."""


class Listener:
    """One child's speech.  `at_phase` hears of every phase, `at_about` who measures, `at_cut` what is not."""

    def __init__(
        self,
        arm: ArmDraft,
        *,
        ranks: int,
        at_phase: Callable[[Phase], None],
        at_about: Callable[[About], None],
        at_cut: Callable[[str], None],
    ) -> None:
        self._arm, self._ranks = arm, ranks
        self._at_phase, self._at_about, self._at_cut = at_phase, at_about, at_cut
        self._rest = b""
        self._bytes = 0
        self.spoke = self.done = False
        self.failed: Failed | None = None

    def feed(self, data: bytes) -> None:
        """Take what came through the pipe; raises `Garbage`."""
        self._bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > MAX_LINE or self._bytes > MAX_SPEECH:
            raise Garbage(f"it says more than anybody reads: {_shown(self._rest)}")

    def close(self) -> None:
        """The child has ended; raises `Garbage` where it did in the middle of a line that was no line."""
        if self._rest.strip():
            self._take(self._rest)

    def _take(self, data: bytes) -> None:
        try:
            line = decode_line(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Garbage(f"not a line of speech: {_shown(data)}") from None
        members = [name for name in Line.__struct_fields__ if getattr(line, name) != getattr(_SILENT, name)]
        if len(members) != 1:
            raise Garbage(f"a line with {len(members)} members: {_shown(data)}")
        self.spoke = True
        getattr(self, f"_on_{members[0]}")(line)

    def _on_phase(self, line: Line) -> None:
        try:
            self._at_phase(Phase(line.phase))
        except ValueError:
            raise Garbage(f"no phase: {line.phase[:40]!r}") from None

    def _on_about(self, line: Line) -> None:
        assert line.about is not None
        self._at_about(line.about)

    def _on_cell(self, line: Line) -> None:
        assert line.cell is not None
        if len(self._arm.cells) >= MAX_CELLS:
            raise Garbage(f"more than {MAX_CELLS} cells")
        for name in ("us", "us_min", "us_max"):
            time = getattr(line.cell, name)
            if isinstance(time, int | float) and not time > 0:
                raise Garbage(f"a cell that took no time: {line.cell.collective}/{line.cell.bytes}")
        if line.cell.bytes <= 0:
            raise Garbage(f"a cell of {line.cell.bytes} bytes")
        self._arm.cells.append(tidy(line.cell))

    def _on_pairs(self, line: Line) -> None:
        rows = line.pairs or []
        if len(rows) != self._ranks or any(len(row) != self._ranks for row in rows):
            raise Garbage(f"a pair matrix that is not {self._ranks} by {self._ranks}")
        self._arm.pairs = [[_digits(value, keep=4, most=1) for value in row] for row in rows]

    def _on_failed(self, line: Line) -> None:
        self.failed = line.failed

    def _on_cut(self, line: Line) -> None:
        self._at_cut(line.cut)

    def _on_done(self, line: Line) -> None:
        self.done = True


class Tail:
    """The end of what a child prints."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-TAIL:]

    def words(self, *, most: int) -> str:
        """The last lines as one, in at most so many characters."""
        return words(self._kept.decode("utf-8", "replace"), most=most)


def words(text: str, *, most: int = MAX_WORDS) -> str:
    """One line that can be printed anywhere; of a long one the end, where tracebacks say what it was."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else "…" + line[len(line) + 1 - most :]


def tidy(cell: Cell) -> Cell:
    """A cell in digits that mean something: five of a time, a share's thousandths."""
    times = {name: _digits(getattr(cell, name), keep=5, most=3) for name in ("us", "us_min", "us_max")}
    return replace(cell, **times, spread=_digits(cell.spread, keep=5, most=3))


def _digits(value: Num, *, keep: int, most: int) -> Num:
    """`keep` significant digits, and at most so many after the point: noise that takes room in a message."""
    if not isinstance(value, float):
        return value
    if abs(value) > MOST:
        return Unavailable("too large to be true")
    short = round(float(f"{value:.{keep}g}"), most)
    return int(short) if short.is_integer() else short


def _shown(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))
