"""The protocol between the load probe and the process that drives the GPUs: an order in, lines of JSON out.

The order is the argument `--order JSON`; lines go to the file descriptor in `NODEGAUGE_PROTOCOL_FD`, as with
the NCCL probe's children.  A line has exactly one member.  `gpu` is the position in `Order.uuids`.

`phase`: `copies`, `memory`, `burn` begin, for all GPUs.  `ready`: a GPU was set up.  `copies`, `memory` and
`interval` are results; every line is kept, so that a run that is ended in the middle keeps what it has.
`failed`: this GPU cannot go on (`hung`: a call did not return); the others do.  `no_cuda` ends a run that
cannot begin.  `done` is the last line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract.load import MAX_LOADED
from nodegauge_contract.values import Short, Str

MAX_LINE = 8 * 1024
MAX_OUTPUT = 16 << 20
"""Bytes of one process; 64 GPUs that report every second for an hour need 40 % of it."""

Index = Annotated[int, Meta(ge=0, lt=MAX_LOADED)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]


class Phase(StrEnum):
    """What all GPUs do: being set up, copying, copying within their memory, computing."""

    SETUP = "setup"
    COPIES = "copies"
    MEMORY = "memory"
    BURN = "burn"


class Order(Struct, frozen=True, kw_only=True):
    """`uuids`: the GPUs; `cpus`: the CPUs near each, as a list of ranges, empty if unknown; `seconds` of
    computing; `copy_seconds` per direction, for one GPU alone and for all at once."""

    uuids: tuple[str, ...]
    cpus: tuple[str, ...]
    seconds: float
    copy_seconds: float = 0.25
    all_seconds: float = 1.0


class Ready(Struct, frozen=True, kw_only=True):
    """A GPU was set up.  `checksum`: of what most of its warps compute in a launch that is the same on every
    GPU, `expected`: of what the CPU computes."""

    gpu: Index
    kernel: Short
    checksum: Short
    expected: Short


class Copies(Struct, frozen=True, kw_only=True):
    """GB/s from and to the host; `alone`: while the other GPUs copied nothing."""

    gpu: Index
    alone: bool
    h2d: Rate
    d2h: Rate


class Memory(Struct, frozen=True, kw_only=True):
    """GB/s of a copy within the GPU's memory, read plus written."""

    gpu: Index
    gbps: Rate


class Interval(Struct, frozen=True, kw_only=True):
    """About a second of computing.  `tflops` in its median launch; the rest since the beginning: launches
    that were checked, results and words of memory that were wrong."""

    gpu: Index
    tflops: Rate
    checks: Count
    mismatches: Count
    memory_mismatches: Count


class Failed(Struct, frozen=True, kw_only=True):
    """This GPU ended: CUDA's message."""

    gpu: Index
    message: Str
    hung: bool = False


class Line(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line; exactly one member is set."""

    phase: Phase | None = None
    """All GPUs begin this phase."""
    ready: Ready | None = None
    """A GPU was set up."""
    copies: Copies | None = None
    """A GPU's copies from and to the host."""
    memory: Memory | None = None
    """A GPU's copies within its memory."""
    interval: Interval | None = None
    """About a second of a GPU's computing."""
    finished: Index | None = None
    """This GPU has computed for the whole time."""
    failed: Failed | None = None
    """A GPU cannot go on; the others do."""
    no_cuda: Str = ""
    """Why no GPU can be loaded at all; empty if they can."""
    done: bool = False
    """The last line of a run."""


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(Line)
_orders = msgspec.json.Decoder(Order)


def encode_line(line: Line) -> bytes:
    """The line with its newline, at most 4,096 bytes: a pipe takes it in one piece."""
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """Raises msgspec.MsgspecError (a ValueError) for invalid data."""
    return _lines.decode(data)


def encode_order(order: Order) -> str:
    return _encoder.encode(order).decode()


def decode_order(text: str) -> Order:
    """Raises msgspec.MsgspecError (a ValueError) for invalid data."""
    return _orders.decode(text)
