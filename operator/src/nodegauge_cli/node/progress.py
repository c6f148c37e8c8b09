"""What is measured, for how long, and what that waits for: a line on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from nodegauge_cli.output import WIDTH, age

ERASE = "\r\x1b[K"
"""To the line's beginning, and erase it (ECMA-48: EL)."""


class Progress:
    """The line of one probe at a time: `health  3s  reads 8 GPUs`.  It has no colours."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_shown = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream, self._clock = stream, clock
        self._name, self._began, self._shown = "", 0.0, ""

    def begin(self, name: str) -> None:
        """Another probe begins."""
        self._name, self._began = name, self._clock()
        self.show("starts")

    def show(self, doing: str) -> None:
        """What it does now; the last words are kept for an empty text."""
        if not self.is_shown:
            return
        line = f"{self._name:<8}{age(self._clock() - self._began):>4}  {doing or 'starts'}"
        line = line[: min(WIDTH, shutil.get_terminal_size().columns) - 1]
        if line != self._shown:
            self._write(ERASE + line)
            self._shown = line

    def clear(self) -> None:
        """Nothing is measured any more."""
        if self._shown:
            self._write(ERASE)
            self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
