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

With one process per GPU, `ranks` starts the engine once per rank and combines what the processes say: the
same lines in the same order from each.

A child exits with 0 after `done`, 1 after `failed`, 2 for an invalid order.  Anything else is a crash, with a
traceback in the output that the parent keeps.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract.nccl import Cell, Phase
from nodegauge_contract.values import NOT_READ, Num, Short, Str, Text

FD_VARIABLE = "NODEGAUGE_PROTOCOL_FD"
CHILD_VARIABLE = "NODEGAUGE_NCCL_CHILD"
MAX_LINE = 64 * 1024
"""Bytes of one line; a pair matrix of 64 GPUs needs 30 KB."""


class CellOrder(Struct, frozen=True, kw_only=True):
    """One cell to measure: one batch of `calls`, or batches until they agree or their time is up."""

    collective: str
    """A `Collective`."""
    bytes: int
    """The size as nccl-tests prints it: for all_gather and reduce_scatter the total over all ranks."""
    calls: int = 0
    """Calls of the only batch; 0 for batches by time."""
    batch_ms: float = 20.0
    """ms that a batch is to take."""
    batches: int = 5
    """The last so many batches have to agree."""
    spread: float = 0.02
    """Coefficient of variation below which they agree; 0 never stops early."""
    max_ms: float = 3000.0
    """ms after which no further batch begins."""
    check: bool = False
    """Whether to verify the data first."""


class Order(Struct, frozen=True, kw_only=True):
    """The work of one child."""

    arm: str
    """An `ArmName`."""
    uuids: tuple[str, ...]
    """The GPUs in rank order; empty to ask for the engine alone."""
    cells: tuple[CellOrder, ...]
    """What to measure, by decreasing value."""
    warm_up_ms: float = 300.0
    """ms of calls at a large size before anything is timed."""
    budget_ms: float = 45_000.0
    """ms for all measuring: cells that would begin later are left out, but the first."""
    pairs_bytes: int = 0
    """Bytes to copy between every ordered pair; 0 for no pair matrix."""
    pair_copies: int = 5
    """Copies per event pair."""
    rank: int = -1
    """The only rank of this process if each GPU has one of its own; -1 if it drives all GPUs."""
    meeting: str = ""
    """A path in a private folder, by which processes of one GPU each find each other; else empty."""


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


OUT_OF_MEMORY, NO_ENGINE, WRONG_ORDER = "out-of-memory", "no-engine", "wrong-order"
NCCL_ERROR, CUDA_ERROR = "nccl-error", "cuda-error"
MAX_MESSAGE = 500
FAILED, BAD_ORDER = 1, 2


class Failure(Exception):
    """The arm cannot go on: `kind` as in `protocol.Failed`, and the library's message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, " ".join(message.split())[:MAX_MESSAGE]


class Emitter:
    """Writes lines to the parent's pipe.  If the parent is gone, BrokenPipeError ends the child."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Emitter:
        """For the descriptor in the environment.  Raises KeyError or ValueError without one."""
        return cls(int(environment[FD_VARIABLE]))

    def engine(self, engine: EngineInfo) -> None:
        """The engine and its versions."""
        self.emit(Line(engine=engine))

    def phase(self, phase: Phase) -> None:
        """A phase begins, and the previous one ends."""
        self.emit(Line(phase=phase))

    def cell(self, cell: Cell) -> None:
        """One cell was measured."""
        self.emit(Line(cell=cell))

    def pairs(self, rows: list[list[Num]]) -> None:
        """The pair matrix."""
        self.emit(Line(pairs=rows))

    def cut(self, name: str) -> None:
        """This was left out for lack of time or memory."""
        self.emit(Line(cut=name))

    def failed(self, failure: Failure) -> None:
        """The last line of an arm that failed."""
        self.emit(Line(failed=Failed(kind=failure.kind, message=failure.message)))

    def done(self) -> None:
        """The last line of an arm that succeeded."""
        self.emit(Line(done=True))

    def emit(self, line: Line) -> None:
        """One line, whole."""
        data = encode_line(line)
        while data:
            data = data[os.write(self._descriptor, data) :]


def serve(
    work: Callable[[Order, Emitter], None], arguments: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Run `work` on the order in `arguments`; returns the exit code of the module's docstring."""
    parser = argparse.ArgumentParser(description="One arm of an NCCL run; started by the probe.")
    parser.add_argument("--order", required=True)
    try:
        order = decode_order(parser.parse_args(arguments).order)
        emitter = Emitter.from_environment(environment)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        print(f"invalid order, or no {FD_VARIABLE}: {error!r}", file=sys.stderr)
        return BAD_ORDER
    try:
        work(order, emitter)
    except Failure as failure:
        emitter.failed(failure)
        return FAILED
    return 0
