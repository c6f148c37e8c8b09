"""What parent and child of the benchmark say to each other: an order there, lines of JSON back.

A child is one arm: a process of its own, because NCCL reads its environment once.  It gets its `Order` as the
argument `--order JSON` and writes one `Line` per line to the file descriptor that `NODEGAUGE_SPEECH_FD`
names, never to standard output, which libraries write to as well.  Whatever it says is kept, so that an arm
that hangs or dies later still has its cells.  Another program can take an engine's place
(`NODEGAUGE_NCCL_CHILD`, an absolute path): this module is all that it has to know.

Each line has exactly one member besides the default ones: `phase` opens a phase (and ends the one before),
`about` says who measures, `cell` and `pairs` are results, `failed` ends the arm with words, `done` ends it
well.

`CellOrder.bytes` and `Cell.bytes` are the same number, also where the ranks do not divide it: an engine then
moves a few elements less.  An order without GPUs asks only who would measure: the child loads its libraries,
says `about` and `done`, and touches no GPU; or `failed` with `no-engine`, as it does for any order where
they cannot be loaded.  A cell that is left out for lack of time or memory is `cut`, as COLLECTIVE/BYTES;
`pairs/BYTES` is the pair matrix.  No I/O here beyond encoding.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract.nccl import Cell
from nodegauge_contract.values import NOT_READ, Num, Short, Str, Text

FD_VARIABLE = "NODEGAUGE_SPEECH_FD"
CHILD_VARIABLE = "NODEGAUGE_NCCL_CHILD"
MAX_LINE = 64 * 1024
"""Bytes of one line; a pair matrix of 64 GPUs needs 30 KB."""


class CellOrder(Struct, frozen=True, kw_only=True):
    """One cell to measure: batches of at least `batch_ms`, at least `batches` of them, done when their
    coefficient of variation is below `spread` (0 never stops early) or `max_ms` are over; or, with `calls`
    above 0, one batch of so many calls.  `check`: verify the data first."""

    collective: str
    bytes: int
    calls: int = 0
    batch_ms: float = 20.0
    batches: int = 5
    spread: float = 0.02
    max_ms: float = 3000.0
    check: bool = False


class Order(Struct, frozen=True, kw_only=True):
    """What one child shall do.  `uuids`: the GPUs in rank order; `cells` in the order of their worth;
    `warm_up_ms`: of calls at a large size before anything is timed; `budget_ms`: of measuring altogether:
    cells that begin after it are left out; `pairs_bytes`: copy so much between every ordered pair, 0 for no
    pair matrix; `pair_copies`: copies per event pair."""

    arm: str
    uuids: tuple[str, ...]
    cells: tuple[CellOrder, ...]
    warm_up_ms: float = 300.0
    budget_ms: float = 45_000.0
    pairs_bytes: int = 0
    pair_copies: int = 5


class About(Struct, frozen=True, kw_only=True):
    """Who measures: engine, versions, and the ranks' GPUs as the child sees them."""

    engine: Short
    engine_version: Text = NOT_READ
    nccl: Text = NOT_READ
    cuda: Text = NOT_READ
    uuids: Annotated[list[Short], Meta(max_length=64)] = []


class Failed(Struct, frozen=True, kw_only=True):
    """`what`: nccl-error, cuda-error, out-of-memory, wrong-order, no-engine; `message`: its words."""

    what: Short
    message: Str = ""


class Line(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of a child."""

    phase: Short = ""
    about: About | None = None
    cell: Cell | None = None
    pairs: Annotated[list[list[Num]], Meta(max_length=64)] | None = None
    failed: Failed | None = None
    cut: Short = ""
    done: bool = False


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(Line)
_orders = msgspec.json.Decoder(Order)


def encode_line(line: Line) -> bytes:
    """The line with its newline."""
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """Raises msgspec.MsgspecError (a ValueError) on what is none."""
    return _lines.decode(data)


def encode_order(order: Order) -> str:
    """The order as an argument."""
    return _encoder.encode(order).decode()


def decode_order(text: str) -> Order:
    """Raises msgspec.MsgspecError (a ValueError) on what is none."""
    return _orders.decode(text)
