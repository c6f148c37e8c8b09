"""The kernel's log beside the watch probe: a thread of its own reads new lines.

A file that hangs delays nobody: then the log counts as unread, like one that is missing or refused.
"""

from __future__ import annotations

import threading
import time
from copy import copy
from pathlib import Path

from nodegauge_probes.host.kernel_log import KernelLog, Line, Position, clocks, look

EVERY_S, FIRST_WAIT_S = 5.0, 0.5
LATE_S = 60.0
"""Without a look for so many seconds the log counts as unread.  Chosen by this project: a file in /var/log
answers in milliseconds, and this machine may be busy."""
NEVER_READ = "it has not answered yet"


class LogWatch:
    """Lines that were read and not taken yet, and why the log cannot be read."""

    def __init__(self, path: Path, position: Position, *, every: float = EVERY_S) -> None:
        self._log = KernelLog(path, copy(position), clocks=clocks())
        self._position = position
        self._lines: list[Line] = []
        self._unread, self._looked = NEVER_READ, time.monotonic()
        self._every, self._lock = every, threading.Lock()
        self._once, self._never = threading.Event(), threading.Event()

    def start(self) -> None:
        """Read now and then from now on; returns after the first time, or without it if that is slow."""
        threading.Thread(target=self._work, daemon=True, name="kernel log").start()
        self._once.wait(FIRST_WAIT_S)

    def take(self) -> tuple[list[Line], Position]:
        """The lines since the last time, and where they end: what is kept of both belongs together."""
        with self._lock:
            taken, self._lines = self._lines, []
            return taken, self._position

    @property
    def unread(self) -> str:
        """Why the log cannot be read; empty if it can."""
        late = time.monotonic() - self._looked
        return self._unread or (f"it has not answered for {late:.0f} s" if late > LATE_S else "")

    def _work(self) -> None:
        while True:
            unread, lines = look(self._log)
            with self._lock:
                self._lines += lines
                self._position = copy(self._log.position)
                self._unread, self._looked = unread, time.monotonic()
            self._once.set()
            self._never.wait(self._every)
