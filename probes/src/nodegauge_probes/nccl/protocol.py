"""The protocol between the NCCL probe and its children: an order in, lines of JSON out.

A child is one arm: a separate process, because NCCL reads its environment once.  It gets its `Order` as the
argument `--order JSON` and writes one `Line` per line to the file descriptor in `NODEGAUGE_PROTOCOL_FD`,
never to standard output, which libraries also use.  Every line is kept, so that an arm that hangs or dies
later still has its cells.  Another program can replace an engine (`NODEGAUGE_NCCL_CHILD`, an absolute path):
it needs nothing but this module.

A line has exactly one member: `phase` begins a phase (and ends the previous one), `engine` names the engine
and its versions, `cell` and `pairs` are results, `cut` names what was left out for lack of time or memory
(COLLECTIVE/BYTES, or `pairs/BYTES` for the pair matrix), `failed` ends the arm with a message, `done` ends it
successfully.

`CellOrder.bytes` and `Cell.bytes` are the same number even if it is no multiple of the ranks: an engine then
moves a few elements less.  An order without GPUs only asks for the engine: the child loads its libraries,
emits `engine` and `done`, and touches no GPU.  A child that cannot load its libraries emits `failed` with
`no-engine`, for any order.  No I/O here beyond encoding.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract.nccl import Cell
from nodegauge_contract.values import NOT_READ, Num, Short, Str, Text

FD_VARIABLE = "NODEGAUGE_PROTOCOL_FD"
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
    """The work of one child.  `uuids`: the GPUs in rank order; `cells` by decreasing value;
    `warm_up_ms`: calls at a large size before anything is timed; `budget_ms`: for all measuring: cells that
    would begin later are left out; `pairs_bytes`: bytes to copy between every ordered pair, 0 for no pair
    matrix; `pair_copies`: copies per event pair."""

    arm: str
    uuids: tuple[str, ...]
    cells: tuple[CellOrder, ...]
    warm_up_ms: float = 300.0
    budget_ms: float = 45_000.0
    pairs_bytes: int = 0
    pair_copies: int = 5


class EngineInfo(Struct, frozen=True, kw_only=True):
    """The engine, its versions, and the ranks' GPUs as the child sees them."""

    name: Short
    version: Text = NOT_READ
    nccl: Text = NOT_READ
    cuda: Text = NOT_READ
    uuids: Annotated[list[Short], Meta(max_length=64)] = []


class Failed(Struct, frozen=True, kw_only=True):
    """`kind`: nccl-error, cuda-error, out-of-memory, wrong-order, no-engine; `message`: the library's."""

    kind: Short
    message: Str = ""


class Line(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of a child."""

    phase: Short = ""
    engine: EngineInfo | None = None
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
    """Raises msgspec.MsgspecError (a ValueError) for invalid data."""
    return _lines.decode(data)


def encode_order(order: Order) -> str:
    """The order as an argument."""
    return _encoder.encode(order).decode()


def decode_order(text: str) -> Order:
    """Raises msgspec.MsgspecError (a ValueError) for invalid data."""
    return _orders.decode(text)
