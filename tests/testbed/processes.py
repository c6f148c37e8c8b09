"""Processes that never outlive the Python process that started them, also when that gets SIGKILL.

`launch.py` says how; the thread below that forks for all is the half of it that lives here.  Must not know
what the processes are.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from testbed.errors import ProcessError

LAUNCHER = Path(__file__).with_name("launch.py")
LINE_LIMIT = 500
"""Characters of a log line that an error quotes."""
KILL_SECONDS = 10.0
"""How long a process may take to vanish after SIGKILL: only one in the kernel's hands takes any time."""


class Process:
    """A program that runs until it ends, is stopped, or its owner ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start `command` (its first word is a path) in a session of its own; output is appended to `log`."""
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        self.name = name
        self.log = log
        with open(log, "ab", opener=_private) as output:
            options = {"env": environ, "cwd": cwd, "stdout": output, "stderr": output}
            self._child = _spawner.popen([*launcher, *map(str, command)], **options)
        self.pid = self._child.pid

    @property
    def running(self) -> bool:
        """False as soon as it has ended."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it; None while it runs."""
        return self._child.returncode

    def wait(self, timeout: float) -> bool:
        """True when it has ended within `timeout` seconds."""
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, *, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds (0: at once); returns when it has ended."""
        if grace > 0:
            self._child.terminate()
        if self.wait(grace):
            return
        self._child.kill()
        if not self.wait(KILL_SECONDS):
            raise ProcessError(f"{self.name} (pid {self.pid}) still runs {KILL_SECONDS:.0f} s after SIGKILL")

    def send(self, number: int) -> None:
        """Send a signal, such as SIGSTOP; harmless once it has ended."""
        self._child.send_signal(number)

    def stop_group(self, *, grace: float) -> None:
        """SIGINT to it and its children, then SIGKILL: for a program that starts others."""
        if self._child.returncode is not None:
            return
        os.killpg(self.pid, signal.SIGINT)
        self.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(KILL_SECONDS)

    def last_words(self) -> str:
        """The last lines of its log, to be quoted."""
        return log_tail(self.log)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def log_tail(path: Path, *, lines: int = 20) -> str:
    """The last lines of a log, indented to be quoted in an error; says so when there is nothing."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    kept = [f"  | {line[:LINE_LIMIT]}" for line in text.splitlines()[-lines:]]
    return "\n".join(kept) or f"  | ({path} is empty)"


class _Spawner:
    """Forks from one thread that ends only with its process, because PDEATHSIG follows the forking thread."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._orders: queue.SimpleQueue[tuple[list[str], dict[str, Any], Future[subprocess.Popen[bytes]]]]
        self._orders = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def popen(self, arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="testbed-spawner", daemon=True)
                self._thread.start()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((arguments, options, done))
        try:
            return done.result()
        except KeyboardInterrupt:
            done.add_done_callback(_kill)  # nobody else will ever know this process
            raise

    def _serve(self) -> None:
        fixed: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        while True:
            arguments, options, done = self._orders.get()
            try:
                done.set_result(subprocess.Popen(arguments, **fixed, **options))
            except BaseException as error:
                done.set_exception(error)
            # A thread that waits must not keep the last process object alive.
            del arguments, options, done


def _kill(done: Future[subprocess.Popen[bytes]]) -> None:
    if done.exception() is None:
        done.result().kill()


_spawner = _Spawner()
