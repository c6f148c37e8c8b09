"""Writes the child's lines to its parent, and triggers the troubles of each phase.

Also keeps simulated time, of which only a share (the machine's pace) really passes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from nodegauge_contract.nccl import Phase
from nodegauge_probes.nccl.protocol import FD_VARIABLE, Failed, Line, encode_line
from testbed.simulated_nccl import trouble
from testbed.simulated_nccl.trouble import Troubles

MEASURING = (Phase.MEASURE, Phase.CHECK, Phase.PAIRS)


class Exit(Exception):
    """The arm ends here: `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Emitter:
    """Writes lines, and triggers the troubles of a phase."""

    def __init__(self, environment: Mapping[str, str], troubles: Troubles, *, pace: float) -> None:
        self._descriptor = int(environment[FD_VARIABLE])
        self._troubles = troubles
        self._pace = pace
        self.measured_seconds = 0.0

    def emit(self, line: Line) -> None:
        """One line; a parent that is gone ends the child with BrokenPipeError."""
        self.write(encode_line(line))

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        while data:
            data = data[os.write(self._descriptor, data) :]

    def phase(self, phase: Phase) -> None:
        """Open a phase."""
        self.emit(Line(phase=phase))
        if self._troubles.at(trouble.HANG, phase):
            trouble.hang()
        if self._troubles.at(trouble.CRASH, phase):
            trouble.crash(signal.SIGSEGV)
        if self._troubles.at(trouble.KILLED, phase):
            trouble.crash(signal.SIGKILL)
        if self._troubles.at(trouble.OUT_OF_MEMORY, phase):
            self.fail(trouble.OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        if failed := self._troubles.at(trouble.FAILED, phase):
            self.fail("nccl-error", failed.message or "ncclUnhandledCudaError: call to CUDA function failed")

    def fail(self, kind: str, message: str) -> None:
        """Report a failure and end; raises Exit."""
        self.emit(Line(failed=Failed(kind=kind, message=message)))
        raise Exit(1)

    def spend(self, seconds: float, *, measuring: bool = False) -> None:
        """Let simulated seconds pass."""
        if measuring:
            self.measured_seconds += seconds
        time.sleep(seconds * self._pace)

    def wait(self, seconds: float) -> None:
        """Let real seconds pass."""
        time.sleep(seconds)
