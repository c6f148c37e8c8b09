"""Processes that never outlive the Python process that started them."""

import contextlib
import os
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from testbed import forkserver
from testbed.errors import TestbedError

LINE_LIMIT = 500
LONGEST = 600.0
KILL_SECONDS = 10.0
"""How long a process may take to vanish after SIGKILL: only one in the kernel's hands takes any time."""


class Running(ABC):
    """What is started before a block of code and is gone after it, whatever happens in the block."""

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def stop(self) -> object:
        """End."""

    def leave(self) -> None:
        """How it ends with the block: as `stop` does it."""
        self.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Failed(TestbedError):
    """A program failed, or is not there; the message quotes it."""


def output_of(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, advice: str = ""
) -> str:
    run = partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST)
    try:
        done = run(command, cwd=cwd, env=env)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if done.returncode:
        output = f"{done.stdout}{done.stderr}".strip()
        raise Failed(f"{shlex.join(command)} failed ({done.returncode}):\n{output}{advice}")
    return done.stdout


class Process:
    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """`command`: its first word is a path.  Output is appended to `log`."""
        self.name, self.log = name, log
        self._command = [str(word) for word in command]
        self._environ, self._cwd = environ, cwd
        self._started: forkserver.Forked | None = None

    def start(self) -> None:
        with open(self.log, "ab", opener=partial(os.open, mode=0o600)) as output:
            self._started = forkserver.Forked(
                self._command,
                env=self._environ,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._child.returncode

    def wait(self, timeout: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout)
        return self._child.returncode is not None

    def stop(self, *, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds (0: at once); harmless where it did not start."""
        if self._started is None:
            return
        if grace > 0:
            self._started.terminate()
        if self.wait(grace):
            return
        self._started.kill()
        if not self.wait(KILL_SECONDS):
            raise TestbedError(f"{self.name} (pid {self.pid}) still runs {KILL_SECONDS:.0f} s after SIGKILL")

    def send(self, number: int) -> None:
        self._child.send_signal(number)

    def stop_group(self, *, grace: float) -> None:
        """SIGINT to it and its children, then SIGKILL: for a program that starts others.  See `stop`."""
        if self._started is None:
            return
        if self.running:
            os.killpg(self.pid, signal.SIGINT)
            self.wait(grace)
        with contextlib.suppress(ProcessLookupError):  # of what it started, something may be left
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(KILL_SECONDS)

    def last_words(self) -> str:
        return log_tail(self.log)

    @property
    def _child(self) -> forkserver.Forked:
        assert self._started is not None
        return self._started


def with_variable(variable: str, *, file: str = "environ") -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is not ours
            if variable.encode() in (entry / file).read_bytes().split(b"\0"):
                yield int(entry.name)


def with_argument(argument: str) -> list[int]:
    return [*with_variable(argument, file="cmdline")]


def log_tail(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    kept = [f"  | {line[:LINE_LIMIT]}" for line in text.splitlines()[-20:]]
    return "\n".join(kept) or f"  | ({path} is empty)"
