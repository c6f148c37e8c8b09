"""The parent's side of `protocol`: a child's lines, bounded and checked, into its arm.

A child contains a driver that may be broken: its output must neither grow without bound nor become a number
that was never measured.  Invalid output raises `InvalidOutput`, and the lines before it are kept.  Of
anything else that it prints (NCCL's and Python's messages) only the end is kept.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from nodegauge_contract import Cell, Num, Phase, Unavailable
from nodegauge_contract.nccl import MAX_CELLS
from nodegauge_probes.nccl.protocol import MAX_LINE, EngineInfo, Failed, Line, decode_line
from nodegauge_probes.result_builder import ArmBuilder

MAX_OUTPUT = 1 << 20
"""Bytes of one child; a valid child with pairs of 64 GPUs needs 50 KB."""

TAIL_BYTES = 4096
MAX_MESSAGE = 240
"""Characters of a message.  Chosen by this project: three of them and all numbers share 14 KiB."""

LARGEST = 1e12
"""Microseconds (eleven days) or GB/s."""

_EMPTY = Line()


CHUNK = 64 * 1024


class InvalidOutput(Exception):
    """The child wrote a line that violates the protocol."""


class Receiver:
    """One child's lines.  `on_phase`, `on_engine` and `on_cut` are called with the members of that name."""

    def __init__(
        self,
        arm: ArmBuilder,
        *,
        ranks: int,
        on_phase: Callable[[Phase], None],
        on_engine: Callable[[EngineInfo], None],
        on_cut: Callable[[str], None],
    ) -> None:
        self._arm, self._ranks = arm, ranks
        self._on_phase, self._on_engine, self._on_cut = on_phase, on_engine, on_cut
        self._rest = b""
        self._bytes = 0
        self.received = self.done = False
        self.failed: Failed | None = None

    def feed(self, data: bytes) -> None:
        """Process bytes from the pipe; raises `InvalidOutput`."""
        self._bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > MAX_LINE or self._bytes > MAX_OUTPUT:
            raise InvalidOutput(f"more output than allowed: {_shown(self._rest)}")

    def close(self) -> None:
        """The child has ended; raises `InvalidOutput` if its last line is incomplete."""
        if self._rest.strip():
            self._take(self._rest)

    def _take(self, data: bytes) -> None:
        try:
            line = decode_line(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise InvalidOutput(f"not a protocol line: {_shown(data)}") from None
        members = [name for name in Line.__struct_fields__ if getattr(line, name) != getattr(_EMPTY, name)]
        if len(members) != 1:
            raise InvalidOutput(f"a line with {len(members)} members: {_shown(data)}")
        self.received = True
        getattr(self, f"_take_{members[0]}")(line)

    def _take_phase(self, line: Line) -> None:
        try:
            self._on_phase(Phase(line.phase))
        except ValueError:
            raise InvalidOutput(f"unknown phase: {line.phase[:40]!r}") from None

    def _take_engine(self, line: Line) -> None:
        assert line.engine is not None
        self._on_engine(line.engine)

    def _take_cell(self, line: Line) -> None:
        assert line.cell is not None
        if len(self._arm.cells) >= MAX_CELLS:
            raise InvalidOutput(f"more than {MAX_CELLS} cells")
        for name in ("us", "us_min", "us_max"):
            time = getattr(line.cell, name)
            if isinstance(time, int | float) and not time > 0:
                raise InvalidOutput(f"a cell without a time: {line.cell.collective}/{line.cell.bytes}")
        if line.cell.bytes <= 0:
            raise InvalidOutput(f"a cell of {line.cell.bytes} bytes")
        self._arm.cells.append(tidy(line.cell))

    def _take_pairs(self, line: Line) -> None:
        rows = line.pairs or []
        if len(rows) != self._ranks or any(len(row) != self._ranks for row in rows):
            raise InvalidOutput(f"a pair matrix that is not {self._ranks} by {self._ranks}")
        self._arm.pairs = [[_digits(value, keep=4, most=1) for value in row] for row in rows]

    def _take_failed(self, line: Line) -> None:
        self.failed = line.failed

    def _take_cut(self, line: Line) -> None:
        self._on_cut(line.cut)

    def _take_done(self, line: Line) -> None:
        self.done = True


class Tail:
    """The end of what a child prints."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-TAIL_BYTES:]

    def text(self, *, most: int) -> str:
        """The last lines as one, in at most so many characters."""
        return one_line(self._kept.decode("utf-8", "replace"), most=most)


def one_line(text: str, *, most: int = MAX_MESSAGE) -> str:
    """Printable text in one line; of a long one the end, which is the relevant part of a traceback."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else "…" + line[len(line) + 1 - most :]


def tidy(cell: Cell) -> Cell:
    """A cell with significant digits only: five of a time, three of a launch, three decimals of a share."""
    times = {name: _digits(getattr(cell, name), keep=5, most=3) for name in ("us", "us_min", "us_max")}
    launch = _digits(cell.launch_us, keep=3, most=1)
    return replace(cell, **times, launch_us=launch, spread=_digits(cell.spread, keep=5, most=3))


def _digits(value: Num, *, keep: int, most: int) -> Num:
    """`keep` significant digits, and at most `most` decimals: more digits are noise and need space."""
    if not isinstance(value, float):
        return value
    if abs(value) > LARGEST:
        return Unavailable("implausibly large")
    short = round(float(f"{value:.{keep}g}"), most)
    return int(short) if short.is_integer() else short


def _shown(data: bytes) -> str:
    return repr(data[:60].decode("utf-8", "replace"))


def poll(selector: selectors.BaseSelector, *, wait: float) -> bool:
    """Read each pipe once; returns whether there was any data."""
    if not selector.get_map():
        time.sleep(wait)
        return False
    received = False
    for key, _ in selector.select(wait):
        try:
            data = os.read(key.fd, CHUNK)
        except BlockingIOError:
            continue
        if not data:
            selector.unregister(key.fd)
        received = received or bool(data)
        key.data(data)
    return received
