"""A child's side of `protocol`: it reads its order, does the work, and emits lines.

Exit codes: 0 after `done`, 1 after `failed`, 2 for an invalid order.  Anything else is a crash, with a
traceback in the output that the parent keeps.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from nodegauge_contract.nccl import Cell, Phase
from nodegauge_contract.values import Num
from nodegauge_probes.nccl.protocol import (
    FD_VARIABLE,
    EngineInfo,
    Failed,
    Line,
    Order,
    decode_order,
    encode_line,
)

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
    def of(cls, environment: Mapping[str, str]) -> Emitter:
        """For the descriptor in the environment.  Raises KeyError or ValueError without one."""
        return cls(int(environment[FD_VARIABLE]))

    def engine(self, engine: EngineInfo) -> None:
        """The engine and its versions."""
        self._emit(Line(engine=engine))

    def phase(self, phase: Phase) -> None:
        """A phase begins, and the previous one ends."""
        self._emit(Line(phase=phase))

    def cell(self, cell: Cell) -> None:
        """One cell was measured."""
        self._emit(Line(cell=cell))

    def pairs(self, rows: list[list[Num]]) -> None:
        """The pair matrix."""
        self._emit(Line(pairs=rows))

    def cut(self, name: str) -> None:
        """This was left out for lack of time or memory."""
        self._emit(Line(cut=name))

    def failed(self, failure: Failure) -> None:
        """The last line of an arm that failed."""
        self._emit(Line(failed=Failed(kind=failure.kind, message=failure.message)))

    def done(self) -> None:
        """The last line of an arm that succeeded."""
        self._emit(Line(done=True))

    def _emit(self, line: Line) -> None:
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
        emitter = Emitter.of(environment)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        print(f"invalid order, or no {FD_VARIABLE}: {error!r}", file=sys.stderr)
        return BAD_ORDER
    try:
        work(order, emitter)
    except Failure as failure:
        emitter.failed(failure)
        return FAILED
    return 0
