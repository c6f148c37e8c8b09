"""Runs one probe so that it always ends in time, and always with a result.

The measuring happens in a daemon thread; this, the main thread, watches it and writes.  A call that is stuck
in the driver cannot be interrupted by anything, so the watchdog writes what was read, names the call, and
leaves by `os._exit`.  Why a thread and not a child process: a ctypes call releases the interpreter, so the
watchdog runs on; the readings are shared without a pipe that could break; there is one process for a kubelet
to signal; and a child that is stuck in the kernel would keep the container alive as a thread does.

Signals arrive in the main thread, which is never inside the driver: SIGTERM and SIGINT end in the same last
words.  Leaving closes the driver's files at once.

It knows no probe, no NVML call and no hardware.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from msgspec import Struct

from nodegauge_contract import Problem, ProblemKind, Result
from nodegauge_probes.nvml.library import NvmlUnusable
from nodegauge_probes.result_builder import Draft

TICK_S = 0.05
CALL_LIMIT_S, OPENING_LIMIT_S = 10.0, 30.0
OPENING_CALLS = frozenset({"nvmlInit", "nvmlDeviceGetHandleByIndex"})
"""Without persistence mode these wake every GPU up, which takes seconds each."""

Measure = Callable[[Draft, "CallWatch"], None]
Write = Callable[[Result], int]


class Call(Struct, frozen=True):
    """One call into the driver: its name, what it is about, and when it began (monotonic seconds)."""

    name: str
    subject: str
    since: float


class CallWatch:
    """What the driver is being asked right now, and what it was asked last."""

    def __init__(self, *, deadline: float) -> None:
        self.now: Call | None = None
        self.last = ""
        self.before_leaving: list[Callable[[], None]] = []
        """What must be done before the process is left at once, as ending children; it must not wait."""
        self._limits = min(CALL_LIMIT_S, deadline / 3), min(OPENING_LIMIT_S, deadline * 2 / 3)

    def enter(self, call: str, subject: str) -> None:
        self.last = call
        self.now = Call(call, subject, time.monotonic())

    def leave(self) -> None:
        self.now = None

    def hung(self) -> Problem | None:
        """The problem that the present call is, if it takes longer than any healthy driver."""
        call = self.now
        if call is None:
            return None
        limit = self._limits[call.name in OPENING_CALLS]
        taken = time.monotonic() - call.since
        if taken < limit:
            return None
        about = f" for {call.subject}" if call.subject else ""
        message = f"did not return{about} within {taken:.0f} s; what was read before it is in the result"
        return Problem(kind=ProblemKind.CALL_HUNG, call=call.name, message=message)


class Run:
    """One run of one probe, from the first call to the last word."""

    def __init__(self, *, draft: Draft, deadline: float, write: Write) -> None:
        self._draft = draft
        self._deadline = deadline
        self._write = write
        self._watch = CallWatch(deadline=deadline)
        self._began = time.monotonic()
        self._done = threading.Event()
        self._problem: Problem | None = None

    def to_the_end(self, measure: Measure) -> int:
        """Measure, write the result, and give the exit code; may leave the process by itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._work, args=(measure,), daemon=True, name="measure").start()
        while not self._done.wait(TICK_S):
            problem = self._watch.hung() or self._late()
            if problem is not None:
                self._leave(problem)
        return self._finish(self._problem)

    def _work(self, measure: Measure) -> None:
        try:
            measure(self._draft, self._watch)
        except NvmlUnusable as error:
            self._problem = error.problem
        except BaseException as error:
            self._problem = _crash(error)
        finally:
            self._done.set()

    def _late(self) -> Problem | None:
        if time.monotonic() - self._began < self._deadline:
            return None
        message = f"not done after {self._deadline:g} s; what was read until then is in the result"
        return Problem(kind=ProblemKind.DEADLINE, call=self._watch.last, message=message)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._done.is_set():  # everything is read and about to be written
            self._leave(self._problem)
        after = time.monotonic() - self._began
        message = (
            f"{signal.Signals(number).name} after {after:.1f} s; what was read until then is in the result"
        )
        self._leave(Problem(kind=ProblemKind.TERMINATED, call=self._watch.last, message=message))

    def _leave(self, problem: Problem | None) -> None:
        """Last words, then out, past the driver library's exit handlers: they may hang as the call does."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for do in list(self._watch.before_leaving):
            with contextlib.suppress(Exception):
                do()
        code = self._finish(problem)
        sys.stderr.flush()
        os._exit(code)

    def _finish(self, problem: Problem | None) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        duration = round((time.monotonic() - self._began) * 1000)
        try:
            result = self._draft.result(duration_ms=duration, problem=problem)
        except Exception as error:
            bare = Draft(probe=self._draft.probe, run=self._draft.run, node=self._draft.node)
            result = bare.result(duration_ms=duration, problem=_crash(error))
        return self._write(result)


def _crash(error: BaseException) -> Problem:
    """A defect of ours: its type and place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"
    name = frames[-1].name if frames else ""
    words = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return Problem(kind=ProblemKind.CRASHED, call=f"{place} {name}".strip()[:128], message=words)
