"""A program of this repository as somebody runs it, in a session of its own like a terminal's.

What it prints is kept in a file; what it should print or leave behind is for the tests to say.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from testbed.wait import wait_for

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


class Program:
    """`python -m COMMAND`, with a new folder for its temporary files.  `within`: how long text may take."""

    def __init__(
        self, directory: Path, *command: str, within: float, environ: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.directory.mkdir()
        self._within = within
        self._output = directory.with_suffix(".txt")
        own = {"PYTHONPATH": str(TESTS), "TMPDIR": str(directory)}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env={**os.environ, **own, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def wait_for_output(self, text: str) -> None:
        """Until it has printed them; at once with its output when it ends without."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            assert text in self.output or not ended, self.output
            return text in self.output

        wait_for(printed, seconds=self._within, what=f"{text!r} in:\n{self.output}")

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends SIGINT to every process of the foreground's group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL; what it started is on its own. Harmless when it has ended."""
        self.process.kill()
        self.process.wait()


def processes_of(directory: Path) -> list[str]:
    """Command lines of the other processes of ours with the folder in their arguments, environment or cwd."""
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            command, needle = (entry / "cmdline").read_bytes(), os.fsencode(directory)
            inside = (entry / "cwd").readlink().is_relative_to(directory)
            named = inside or needle in command + (entry / "environ").read_bytes()
            if named and entry.name != str(os.getpid()):
                result.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return result
