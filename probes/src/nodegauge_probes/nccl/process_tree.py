"""A child process with all its descendants: start, and kill.

An NCCL run hangs inside a driver, with threads and processes, and must not hold GPUs after its time.  So a
child leads a new session, the probe adopts its orphans (child subreaper), and `end` sends SIGKILL to group,
session and descendants until all are dead.  Processes from before the child are never touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from nodegauge_probes.nccl import pdeathsig_exec
from nodegauge_probes.nvml import library

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.01
PROC = Path("/proc")
"""The real one, even if hardware is read from another root."""

MARGIN_S, MARGIN_SHARE = 8.0, 1 / 4
"""Kept of the deadline for killing processes and writing the result; of a short deadline a share."""

DIES_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(pdeathsig_exec.__file__)))


class Watch(library.Watch, Protocol):
    """The runner: notified of calls into the driver, and of what to do before the process exits."""

    before_exit: list[Callable[[], None]]


class Process(Struct, frozen=True):
    """One line of the process table.  `started`: start time in ticks, to detect reused numbers."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    started: int


class ShutDown(Exception):
    """No more children are started: the run is ending."""


class ProcessTree:
    """One child at a time with its descendants; another thread may call `shutdown` at any moment."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._before: frozenset[tuple[int, int]] = frozenset()
        self.shut_down = False

    def start(
        self, program: Sequence[str], *, environment: Mapping[str, str], lines: int, output: int
    ) -> None:
        """Start `program`; it inherits `lines`, and `output` gets its standard output and error.

        Raises `ShutDown`, and OSError if no process can be created.
        """
        with self._lock:
            if self.shut_down:
                raise ShutDown
            self._before = frozenset((each.pid, each.started) for each in _descendants(table()))
            self._child = subprocess.Popen(
                [*DIES_WITH_PARENT, str(os.getpid()), *program],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(lines,),
                start_new_session=True,
                cwd="/",
            )

    def exited(self) -> bool:
        """Whether the child has ended.  It is not reaped: its number is still that of the group."""
        assert self._child is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._child.pid, flags) is not None

    def end(self, *, wait: float) -> tuple[int | None, int, int]:
        """Kill and reap all processes that are left.

        Returns the child's exit code as in Popen (None if it does not die), how many processes it left
        behind, and how many survived `wait` seconds of SIGKILL, which only happens inside a driver.
        """
        assert self._child is not None
        until = time.monotonic() + wait
        by_itself = self.exited()
        alive = self._living()
        left_behind = len(alive) if by_itself else 0
        while alive and time.monotonic() < until:
            self._kill(alive)
            time.sleep(POLL_S)
            alive = self._living()
        with self._lock:
            code = self._child.poll()
            self._child = None if code is not None else self._child
        return code, left_behind, len(alive)

    def shutdown(self) -> None:
        """Start no more children and kill the current one; for a process about to exit.  Does not wait."""
        locked = self._lock.acquire(timeout=1)
        self.shut_down = True
        if locked:
            self._lock.release()
        if self._child is not None:
            for _ in range(3):  # processes may be forked while the table is read
                self._kill(self._living())

    def _living(self) -> list[Process]:
        """Processes of the child that are alive; reaps our zombies, except the child."""
        assert self._child is not None
        leader, everyone = self._child.pid, table()
        members = {each.pid: each for each in everyone if leader in (each.pid, each.group, each.session)}
        members |= {each.pid: each for each in _descendants(everyone)}
        alive = []
        for each in members.values():
            if (each.pid, each.started) in self._before:
                continue
            if each.state not in "ZX":
                alive.append(each)
            elif each.parent == os.getpid() and each.pid != leader:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(each.pid, os.WNOHANG)
        return alive

    def _kill(self, alive: Sequence[Process]) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if alive:
                os.killpg(self._child.pid, signal.SIGKILL)
        for each in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each.pid, signal.SIGKILL)


def seconds_to_work(deadline: float) -> float:
    """Seconds until all processes have to be gone."""
    return deadline - min(MARGIN_S, deadline * MARGIN_SHARE)


def how_it_ended(code: int | None) -> str:
    """`signal 11`, `exit code 1`: what an exit code of Popen says."""
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def table(proc: Path = PROC) -> list[Process]:
    """Every process that is visible to this one."""
    processes = []
    for path in proc.iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                processes.append(parse_stat((path / "stat").read_text(errors="replace")))
    return processes


def parse_stat(text: str) -> Process:
    """A process from /proc/PID/stat; its name is in parentheses and may contain parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Process(
        pid=int(head.split(" ", 1)[0]),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


def _descendants(everyone: Sequence[Process]) -> list[Process]:
    """Children of this process, theirs, and so on."""
    children: dict[int, list[Process]] = {}
    for each in everyone:
        children.setdefault(each.parent, []).append(each)
    descendants, parents = [], [os.getpid()]
    while parents:
        direct = children.pop(parents.pop(), [])
        descendants += direct
        parents += [each.pid for each in direct]
    return descendants
