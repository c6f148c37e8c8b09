"""The running programs of one control plane: started by name, awaited, ended in reverse order.

An end that nobody asked for is noticed wherever something is awaited, and told with the program's last words.
What the programs are and which flags they get is not known here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.errors import ControlPlaneError
from testbed.processes import Process

READY_SECONDS = 60.0
LOOK_SECONDS = 0.02


class Programs:
    """Programs that run in `directory`; `log` gives the log file of a name."""

    def __init__(self, directory: Path, log: Callable[[str], Path]) -> None:
        self._directory = directory
        self._log = log
        self._processes: dict[str, Process] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of those that run, by name."""
        return {name: process.pid for name, process in self._processes.items() if process.running}

    def start(self, name: str, program: Path, flags: Sequence[str]) -> None:
        """Start one, with an empty log."""
        log = self._log(name)
        log.write_bytes(b"")
        self._processes[name] = Process(name, [program, *flags], log=log, cwd=self._directory)

    def stop(self, name: str, *, grace: float) -> None:
        """End one and forget it; nothing happens when it is not there."""
        if process := self._processes.pop(name, None):
            process.stop(grace=grace)

    def stop_all(self, *, grace: float) -> None:
        """End all, the last started first, each with `grace` seconds before SIGKILL."""
        with contextlib.ExitStack() as stack:
            for name in list(self._processes):
                stack.callback(self.stop, name, grace=grace)

    def wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        """Poll; ControlPlaneError as soon as a program has ended, or after READY_SECONDS."""
        until = time.monotonic() + READY_SECONDS
        while not condition():
            for name, process in self._processes.items():
                if not process.running:
                    raise ControlPlaneError(
                        f"{name} ended with exit code {process.exit_code}; the end of {process.log}:\n"
                        f"{process.last_words()}"
                    )
            if time.monotonic() > until:
                logs = "\n".join(f"{one.log}:\n{one.last_words()}" for one in self._processes.values())
                raise ControlPlaneError(
                    f"{what}: not there after {READY_SECONDS:.0f} s; ends of logs:\n{logs}"
                )
            time.sleep(LOOK_SECONDS)
