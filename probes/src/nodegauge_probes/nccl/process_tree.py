"""A child with everything that it starts, and the end of them all.

A benchmark that hangs does so inside a driver, with threads and processes of its own, and must not keep GPUs
after its time.  So a child leads a session of its own, the probe adopts whatever it leaves behind (child
subreaper), and the end is SIGKILL for group, session and descendants, over and over until none is alive.
Processes that were there before are never touched.

It knows nothing of what the child does.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from nodegauge_probes.nccl import pdeathsig_exec

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.01
PROC = Path("/proc")
"""The kernel's own, whatever root the hardware is read from."""

LEASH = (sys.executable, "-I", "-S", str(Path(pdeathsig_exec.__file__)))


class Process(Struct, frozen=True):
    """One line of the process table.  `began`: start time in ticks, which tells a reused number apart."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    began: int


class Stopped(Exception):
    """No more children are started: the run is being left."""


class Family:
    """One child at a time and all that it starts; `stop` may come from another thread at any moment."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._before: frozenset[tuple[int, int]] = frozenset()
        self.stopped = False

    def start(
        self, program: Sequence[str], *, environment: Mapping[str, str], speech: int, output: int
    ) -> None:
        """Start `program` on the leash; `speech` is inherited, `output` takes standard output and error.

        Raises `Stopped`, and OSError where no process can be made.
        """
        with self._lock:
            if self.stopped:
                raise Stopped
            self._before = frozenset((each.pid, each.began) for each in _descendants(table()))
            self._child = subprocess.Popen(
                [*LEASH, str(os.getpid()), *program],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(speech,),
                start_new_session=True,
                cwd="/",
            )

    def exited(self) -> bool:
        """Whether the child itself has ended.  It is not reaped: its number stays that of the group."""
        assert self._child is not None
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._child.pid, flags) is not None

    def end(self, *, patience: float) -> tuple[int | None, int, int]:
        """Kill what is left of the family and reap it.

        Gives the child's exit code as Popen has it (None where it does not die), how many processes it left
        behind, and how many outlived `patience` seconds of SIGKILL, which is so inside a driver alone.
        """
        assert self._child is not None
        over = time.monotonic() + patience
        by_itself = self.exited()
        alive = self._living()
        left_behind = len(alive) if by_itself else 0
        while alive and time.monotonic() < over:
            self._kill(alive)
            time.sleep(POLL_S)
            alive = self._living()
        with self._lock:
            code = self._child.poll()
            self._child = None if code is not None else self._child
        return code, left_behind, len(alive)

    def stop(self) -> None:
        """Start nothing more and kill what runs; for a process that is about to be left.  Does not wait."""
        held = self._lock.acquire(timeout=1)
        self.stopped = True
        if held:
            self._lock.release()
        if self._child is not None:
            for _ in range(3):  # whoever was being forked while the table was read
                self._kill(self._living())

    def _living(self) -> list[Process]:
        """Members of the family that are not dead yet; zombies of ours are reaped, but for the child."""
        assert self._child is not None
        leader, everyone = self._child.pid, table()
        family = {each.pid: each for each in everyone if leader in (each.pid, each.group, each.session)}
        family |= {each.pid: each for each in _descendants(everyone)}
        alive = []
        for each in family.values():
            if (each.pid, each.began) in self._before:
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


def table(proc: Path = PROC) -> list[Process]:
    """Every process that this one may see."""
    found = []
    for path in proc.iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found.append(parse_stat((path / "stat").read_text(errors="replace")))
    return found


def parse_stat(text: str) -> Process:
    """A process from /proc/PID/stat; its name stands in parentheses and may hold anything, those too."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Process(
        pid=int(head.split(" ", 1)[0]),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        began=int(fields[19]),
    )


def _descendants(everyone: Sequence[Process]) -> list[Process]:
    """Children of this process, theirs, and so on."""
    children: dict[int, list[Process]] = {}
    for each in everyone:
        children.setdefault(each.parent, []).append(each)
    found, waiting = [], [os.getpid()]
    while waiting:
        of = children.pop(waiting.pop(), [])
        found += of
        waiting += [each.pid for each in of]
    return found
