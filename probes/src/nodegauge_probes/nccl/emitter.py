"""The mouth of a child: lines of speech to the file descriptor that its parent gave it.

Only what `speech` describes goes there; libraries print to standard output, which is somebody else's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from nodegauge_contract.nccl import Cell, Phase
from nodegauge_contract.values import Num
from nodegauge_probes.nccl.protocol import FD_VARIABLE, About, Failed, Line, encode_line

OUT_OF_MEMORY, NO_ENGINE, WRONG_ORDER = "out-of-memory", "no-engine", "wrong-order"
NCCL_ERROR, CUDA_ERROR = "nccl-error", "cuda-error"
MAX_WORDS = 500


class Failure(Exception):
    """The arm cannot go on: `what` as `speech.Failed` has it, and the library's words."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what, self.message = what, " ".join(message.split())[:MAX_WORDS]


class Speaker:
    """Says lines.  A parent that is gone ends the child with BrokenPipeError."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Speaker:
        """To where the environment says.  Raises KeyError or ValueError without that."""
        return cls(int(environment[FD_VARIABLE]))

    def about(self, about: About) -> None:
        """Who measures."""
        self._say(Line(about=about))

    def phase(self, phase: Phase) -> None:
        """A phase begins, and the one before it ends."""
        self._say(Line(phase=phase))

    def cell(self, cell: Cell) -> None:
        """One cell was measured."""
        self._say(Line(cell=cell))

    def pairs(self, rows: list[list[Num]]) -> None:
        """The pair matrix."""
        self._say(Line(pairs=rows))

    def cut(self, name: str) -> None:
        """There was no time, or no memory, for this."""
        self._say(Line(cut=name))

    def failed(self, failure: Failure) -> None:
        """The last line of an arm that failed."""
        self._say(Line(failed=Failed(what=failure.what, message=failure.message)))

    def done(self) -> None:
        """The last line of an arm that ended well."""
        self._say(Line(done=True))

    def _say(self, line: Line) -> None:
        data = encode_line(line)
        while data:
            data = data[os.write(self._descriptor, data) :]
