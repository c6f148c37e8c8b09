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
    """A program that runs until it ends, is stopped, or its owner ends.

    Keep it where it will be stopped before `start`: Ctrl-C may come at any moment of the start.
    """

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
        self.name = name
        self.log = log
        self._command = [str(word) for word in command]
        self._options = {"env": environ, "cwd": cwd}
        self._started: Future[subprocess.Popen[bytes]] = Future()

    def start(self) -> None:
        """In a session of its own; once."""
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        with open(self.log, "ab", opener=_private) as output:
            options = self._options | {"stdout": output, "stderr": output}
            _spawner.popen([*launcher, *self._command], options, self._started)

    @property
    def pid(self) -> int:
        """Of the program itself."""
        return self._child.pid

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
        """SIGTERM, and SIGKILL after `grace` seconds (0: at once); returns when it has ended.

        Harmless where it did not start.  A start that was interrupted is waited for.
        """
        if not self._has_started():
            return
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
        """SIGINT to it and its children, then SIGKILL: for a program that starts others.  See `stop`."""
        if not self._has_started() or self._child.returncode is not None:
            return
        os.killpg(self.pid, signal.SIGINT)
        self.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(KILL_SECONDS)

    def last_words(self) -> str:
        """The last lines of its log, to be quoted."""
        return log_tail(self.log)

    def _has_started(self) -> bool:
        """Waits for a start under way; without one there will be none."""
        return not self._started.cancel() and self._started.exception() is None

    @property
    def _child(self) -> subprocess.Popen[bytes]:
        return self._started.result()


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

    def popen(
        self, arguments: list[str], options: dict[str, Any], done: Future[subprocess.Popen[bytes]]
    ) -> None:
        """Returns when it is `done`.  Where that is interrupted, it is done later, unless it is cancelled."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="testbed-spawner", daemon=True)
                self._thread.start()
        self._orders.put((arguments, options, done))
        done.result()

    def _serve(self) -> None:
        fixed: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True}
        while True:
            arguments, options, done = self._orders.get()
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(subprocess.Popen(arguments, **fixed, **options))
                except BaseException as error:
                    done.set_exception(error)
            # A thread that waits must not keep the last process object alive.
            del arguments, options, done


_spawner = _Spawner()
