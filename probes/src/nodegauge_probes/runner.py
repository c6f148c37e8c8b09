"""Runs one probe so that it always ends in time, and always with a result.

The probe runs in a daemon thread; the main thread watches it and writes the result.  A call that hangs in the
driver cannot be interrupted, so the watchdog writes the readings so far, names the call, and exits with
`os._exit`.  Why a thread and not a child process: a ctypes call releases the interpreter lock, so the
watchdog continues; the readings are shared without a pipe that could break; the kubelet signals one process;
and a child stuck in the kernel would keep the container alive just like a thread.

Signals arrive in the main thread, which is never inside the driver: SIGTERM and SIGINT also write the result.
Exiting closes the driver's files at once.

Independent of probes and hardware.
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
from nodegauge_probes.nvml.results import NvmlUnusable
from nodegauge_probes.result_builder import ResultBuilder

TICK_SHARE, LONGEST_TICK_S = 0.05, 0.5
"""Between two looks at the current call: this share of what a call may take.  A probe that ends wakes the
watchdog at once; one that stays for an hour is looked at 120 times a minute, not 1,200 times."""
MOST_TICKS = 2
"""The most ticks that one look adds to the age of a call: a busy machine is late by less."""
CALL_LIMIT_S, OPENING_LIMIT_S = 10.0, 30.0
OPENING_CALLS = frozenset({"nvmlInit", "nvmlDeviceGetHandleByIndex"})
"""Without persistence mode these initialise every GPU, which takes seconds each."""

CLOSING_CALLS = frozenset({"nvmlShutdown", "nvmlEventSetFree", "nvmlEventSetWait_v2"})
"""What may still be called for a thread that was told to end: what closes, and the events that are queued."""

Measure = Callable[[ResultBuilder, "CallWatch"], None]
Write = Callable[[Result], int]


class Retired(Exception):
    """Another thread has taken over: this one is to end."""


class Call(Struct, frozen=True):
    """One call into the driver: its name, its GPU, and when it began (monotonic seconds)."""

    name: str
    subject: str
    since: float


class CallWatch:
    """The current call into the driver, the last one, and how long both the call and the probe may take.

    A call ages from look to look, and by at most `MOST_TICKS` a look: where the watchdog could not look, the
    process stood still (stopped, frozen, on a machine that did), which is no fault of the call.  Each look
    reads `clock` (monotonic seconds) once and compares with that.
    """

    def __init__(self, *, deadline: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self.began = self._looked = self._clock()
        self.now: Call | None = None
        self.last = ""
        self.before_exit: list[Callable[[], None]] = []
        """Called before the process exits at once, for example to kill children; must end within a second."""
        self._seen: Call | None = None
        """At the last look, and its age in seconds."""
        self._age = 0.0
        self._retired = False
        self._deadline = deadline
        self._limits = min(CALL_LIMIT_S, deadline / 3), min(OPENING_LIMIT_S, deadline * 2 / 3)

    def begin(self) -> None:
        """The deadline and the duration count from now on: for a probe that stays."""
        self.began = self._clock()

    def retire(self) -> None:
        """Let the thread that calls the driver end at its next call."""
        self._retired = True

    def check(self) -> None:
        """Raises `Retired` once this watch is retired."""
        if self._retired:
            raise Retired

    def enter(self, call: str, subject: str) -> None:
        """Raises `Retired`, unless the call is one that may end a thread."""
        if call not in CLOSING_CALLS:
            self.check()
        self.last = call
        self.now = Call(call, subject, self._clock())

    def leave(self) -> None:
        self.now = None

    @property
    def seconds(self) -> float:
        """Since the probe began."""
        return self._clock() - self.began

    def age(self, call: Call) -> float:
        """Seconds since the call began."""
        return self._clock() - call.since

    @property
    def call_limit(self) -> float:
        """Seconds after which a call counts as hung."""
        return min(self._limits)

    @property
    def tick(self) -> float:
        """Seconds between two looks at the current call."""
        return min(LONGEST_TICK_S, TICK_SHARE * self.call_limit)

    def look(self) -> Problem | None:
        """A problem if the current call takes longer than with any healthy driver, or the probe too long."""
        now, call = self._clock(), self.now
        passed, self._looked = min(now - self._looked, MOST_TICKS * self.tick), now
        if call is not None:
            self._age = self._age + passed if call is self._seen else min(passed, max(0.0, now - call.since))
            if self._age >= self._limits[call.name in OPENING_CALLS]:
                return _hung(call, self._age)
        self._seen = call
        if now - self.began < self._deadline:
            return None
        message = f"not done after {self._deadline:g} s; the result contains the readings until then"
        return Problem(kind=ProblemKind.DEADLINE, call=self.last, message=message)


def _hung(call: Call, seconds: float) -> Problem:
    about = f" for {call.subject}" if call.subject else ""
    message = f"did not return{about} within {seconds:.0f} s; the result contains the readings before it"
    return Problem(kind=ProblemKind.CALL_HUNG, call=call.name, message=message)


class Run:
    """One run of one probe, from the first call to the written result; `looked` is called at each look."""

    def __init__(
        self,
        *,
        result: ResultBuilder,
        deadline: float,
        write: Write,
        looked: Callable[[CallWatch], None] | None = None,
    ) -> None:
        self._result = result
        self._write = write
        self._looked = looked
        self._watch = CallWatch(deadline=deadline)
        self._done = threading.Event()
        self._problem: Problem | None = None

    def run(self, measure: Measure) -> int:
        """Measure, write the result, and return the exit code; may exit the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._work, args=(measure,), daemon=True, name="measure").start()
        while not self._done.wait(self._watch.tick):
            if (problem := self._watch.look()) is not None:
                self._exit(problem)
            if self._looked is not None:
                self._looked(self._watch)
        return self._finish(self._problem)

    def _work(self, measure: Measure) -> None:
        try:
            measure(self._result, self._watch)
        except NvmlUnusable as error:
            self._problem = error.problem
        except BaseException as error:
            self._problem = crash(error)
        finally:
            self._done.set()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._done.is_set():  # everything was read and is about to be written
            self._exit(self._problem)
        name, after = signal.Signals(number).name, self._watch.seconds
        message = f"{name} after {after:.1f} s; the result contains the readings until then"
        self._exit(Problem(kind=ProblemKind.TERMINATED, call=self._watch.last, message=message))

    def _exit(self, problem: Problem | None) -> None:
        """Write the result and exit without the driver library's exit handlers, which may hang like the
        call."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._result.problem = problem or self._result.problem
        for do in list(self._watch.before_exit):
            with contextlib.suppress(Exception):
                do()
        code = self._finish(problem)
        sys.stderr.flush()
        os._exit(code)

    def _finish(self, problem: Problem | None) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        duration = round(self._watch.seconds * 1000)
        try:
            result = self._result.build(duration_ms=duration, problem=problem)
        except Exception as error:
            bare = ResultBuilder(probe=self._result.probe, run=self._result.run, node=self._result.node)
            result = bare.build(duration_ms=duration, problem=crash(error))
        return self._write(result)


def crash(error: BaseException) -> Problem:
    """A bug of the probe: its type and location."""
    frames = traceback.extract_tb(error.__traceback__)
    location = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"
    name = frames[-1].name if frames else ""
    message = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    return Problem(kind=ProblemKind.CRASHED, call=f"{location} {name}".strip()[:128], message=message)
