"""One arm: starts a child, receives its lines, enforces its time limits, and ends it with all its processes.

Whatever a child does becomes an outcome, never an exception: it hangs, dies, fails, floods, stops half-way,
leaves processes behind.  Its lines until then stay in its arm, which is complete at any moment, because the
run itself can be ended at any moment.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from nodegauge_contract import NOT_READ, ArmOutcome, Int, Phase
from nodegauge_probes.nccl.pdeathsig_exec import CANNOT_START
from nodegauge_probes.nccl.process_tree import ProcessTree, ShutDown, how_it_ended
from nodegauge_probes.nccl.protocol import FD_VARIABLE, EngineInfo, Failed
from nodegauge_probes.nccl.receiver import CHUNK, MAX_MESSAGE, InvalidOutput, Receiver, Tail, one_line, poll
from nodegauge_probes.result_builder import ArmBuilder

TICK_S = 0.02
LONGEST_LOOK_S = 1.0
"""The most that one look adds to the child's time.  Chosen by this project: a busy machine is late by
less."""
KILLED, SIGNALLED = 9, 128
NO_ENGINE, NO_MEMORY = "no-engine", "out-of-memory"
"""Of `protocol.Failed.kind`."""

LOAD_S = 90.0
"""Chosen by this project: kernels are in memory by then, so the first calls take seconds."""


class Limits(Struct, frozen=True, kw_only=True):
    """Seconds.  `startup`: processes, contexts, libraries and communicators, null for
    `Child.startup`; `load`: the first calls; `measure`: with checks and pairs; `teardown`; `dying`: from
    SIGKILL to the end."""

    startup: float | None = None
    load: float = LOAD_S
    measure: float = 45.0
    teardown: float = 10.0
    dying: float = 5.0


STARTUP = frozenset({Phase.SPAWN, Phase.INIT})
LOAD = frozenset({Phase.LOAD})
MEASURE = frozenset({Phase.MEASURE, Phase.CHECK, Phase.PAIRS})
TEARDOWN = frozenset({Phase.TEARDOWN})


class Awake:
    """Seconds of a steady clock, without those in which this process stood still (stopped, frozen, on a
    machine that did): nobody could follow the child, which probably stood still as well."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read = self._now = clock()

    def __call__(self) -> float:
        now = self._clock()
        self._now, self._read = self._now + min(now - self._read, LONGEST_LOOK_S), now
        return self._now


class PhaseClock:
    """The phase of a child, and the time spent in each; `now` is in seconds of a steady clock.

    Phases of one kind share a limit, so a child cannot gain time by switching between them.
    """

    def __init__(self, limits: Limits, *, startup: float, now: float) -> None:
        self.phase = Phase.SPAWN
        self._since = now
        self._spent: dict[Phase, float] = {}
        self._limits = {
            STARTUP: startup if limits.startup is None else limits.startup,
            LOAD: limits.load,
            MEASURE: limits.measure,
            TEARDOWN: limits.teardown,
        }

    def enter(self, phase: Phase, *, now: float) -> None:
        self._spent[self.phase] = self._spent.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def seconds(self, phases: frozenset[Phase], *, now: float) -> float:
        """Spent in these phases until now."""
        running = now - self._since if self.phase in phases else 0.0
        return running + sum(spent for phase, spent in self._spent.items() if phase in phases)

    def left(self, *, now: float) -> float:
        """Until the current kind of phase reaches its limit; negative afterwards."""
        group, limit = self._current()
        return limit - self.seconds(group, now=now)

    def exceeded(self) -> End:
        """The end of a child that has exceeded the limit of its phase.

        A start waits for disks, drivers and first contexts as well as for a broken link, so it is no hang.
        """
        group, limit = self._current()
        if group is STARTUP:
            message = f"not started after {limit:g} s, while in {self.phase}"
            return End(outcome=ArmOutcome.START_SLOW, message=message)
        return End(outcome=ArmOutcome.HUNG, message=f"{self.phase} exceeded its time limit")

    def _current(self) -> tuple[frozenset[Phase], float]:
        return next((group, limit) for group, limit in self._limits.items() if self.phase in group)

    def report(self, arm: ArmBuilder, *, now: float) -> None:
        """Write the milliseconds of the phases that were entered."""

        def milliseconds(phases: frozenset[Phase]) -> Int:
            entered = phases & {self.phase, *self._spent}
            return round(self.seconds(phases, now=now) * 1000) if entered else NOT_READ

        arm.spawn_ms = milliseconds(frozenset({Phase.SPAWN}))
        arm.init_ms = milliseconds(frozenset({Phase.INIT}))
        arm.load_ms = milliseconds(frozenset({Phase.LOAD}))
        arm.measure_ms = milliseconds(MEASURE)
        arm.teardown_ms = milliseconds(TEARDOWN)


class Child(Struct, frozen=True, kw_only=True):
    """A program to run, and its limits."""

    program: tuple[str, ...]
    """Its argument list."""
    environment: Mapping[str, str]
    """All of its environment but the descriptor for its lines."""
    ranks: int
    """GPUs that it drives."""
    limits: Limits
    """Seconds of its phases."""
    startup: float
    """Seconds that its start may take, unless `limits` has its own."""
    until: float
    """End of the whole run, monotonic seconds."""
    oom_kills: Callable[[], Int]
    """How often the kernel has killed for lack of memory in this container."""
    on_engine: Callable[[EngineInfo], None]
    """Called with the engine that it reports."""
    on_cut: Callable[[str], None]
    """Called with the name of what it left out."""


class End(Struct, frozen=True, kw_only=True):
    """How supervision ended: `outcome` is None if the child ended by itself."""

    outcome: ArmOutcome | None = None
    message: str = ""


def run(child: Child, arm: ArmBuilder, processes: ProcessTree) -> Failed | None:
    """Run one child to its end, into `arm`; returns the failure that it reported, if any."""
    lines, lines_in = os.pipe()
    output, output_in = os.pipe()
    try:
        environment = {**child.environment, FD_VARIABLE: str(lines_in)}
        awake = Awake(time.monotonic)
        clock = PhaseClock(child.limits, startup=child.startup, now=awake())
        kills = child.oom_kills()
        try:
            processes.start(child.program, environment=environment, lines=lines_in, output=output_in)
        except ShutDown:
            return None
        except OSError as error:
            arm.outcome, arm.message = ArmOutcome.FAILED, one_line(f"no process: {error}")
            return None
        finally:
            os.close(lines_in)
            os.close(output_in)
        supervision = _Supervision(child, arm, processes, clock, awake)
        end = supervision.receive(lines, output)
        supervision.finish(end, kills_before=kills)
        return supervision.receiver.failed
    finally:
        os.close(lines)
        os.close(output)


class _Supervision:
    """Clock and pipes of one child, and how it ended."""

    def __init__(
        self, child: Child, arm: ArmBuilder, processes: ProcessTree, clock: PhaseClock, awake: Awake
    ) -> None:
        self._child, self._arm, self._processes, self._clock = child, arm, processes, clock
        self._awake = awake
        self._tail = Tail()
        arm.phase, arm.message = clock.phase, ""
        self.receiver = Receiver(
            arm,
            ranks=child.ranks,
            on_phase=self._enter,
            on_engine=child.on_engine,
            on_cut=child.on_cut,
        )

    def _enter(self, phase: Phase) -> None:
        now = self._awake()
        self._clock.enter(phase, now=now)
        self._arm.phase = phase
        self._clock.report(self._arm, now=now)

    def receive(self, lines: int, output: int) -> End:
        """Until the child ends, exceeds its time, or writes invalid output."""
        with selectors.DefaultSelector() as selector:
            for pipe, feed in ((lines, self.receiver.feed), (output, self._tail.feed)):
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ, feed)
            try:
                while True:
                    exited = self._processes.exited()
                    received = poll(selector, wait=0 if exited else TICK_S)
                    if exited and not received:
                        self.receiver.close()
                        return End()
                    if (end := self._limit_exceeded()) is not None:
                        return end
            except InvalidOutput as error:
                return End(outcome=ArmOutcome.GARBAGE, message=str(error))
            finally:
                self._read_rest(output)

    def _read_rest(self, output: int) -> None:
        with suppress(OSError):
            self._tail.feed(os.read(output, CHUNK))

    def _limit_exceeded(self) -> End | None:
        if self._clock.left(now=self._awake()) < 0:
            return self._clock.exceeded()
        if time.monotonic() > self._child.until:
            return End(outcome=ArmOutcome.CUT, message="the run's time was up")
        return None

    def finish(self, end: End, *, kills_before: Int) -> None:
        """Kill all processes and set the outcome of the arm."""
        self._clock.report(self._arm, now=self._awake())
        code, left_behind, unkillable = self._processes.end(wait=self._child.limits.dying)
        if self._processes.shut_down:
            end = End(outcome=ArmOutcome.CUT, message="the run was ended")
        outcome, message = end.outcome, end.message
        if outcome is None:
            outcome, message = self._outcome(code, kills_before)
        remarks = [message]
        if left_behind:
            remarks.append(f"killed {left_behind} processes that it left behind")
        if unkillable:
            remarks.append(f"{unkillable} processes survived SIGKILL: they are stuck in the driver")
        message = "; ".join(remark for remark in remarks if remark)
        self._arm.outcome, self._arm.message = outcome, self._with_output(message, outcome)
        if code is not None:
            self._arm.exit_code = code if code >= 0 else SIGNALLED - code
        if outcome is ArmOutcome.DONE:
            self._arm.phase = ""

    def _outcome(self, code: int | None, kills_before: Int) -> tuple[ArmOutcome, str]:
        """The outcome of a child that ended by itself."""
        if code == CANNOT_START and not self.receiver.received:
            self.receiver.failed = Failed(kind=NO_ENGINE, message=self._tail.text(most=MAX_MESSAGE))
        failed = self.receiver.failed
        if failed is not None:
            outcome = ArmOutcome.OUT_OF_MEMORY if failed.kind == NO_MEMORY else ArmOutcome.FAILED
            return outcome, f"{failed.kind}: {failed.message}"
        if code == 0:
            if self.receiver.done:
                return ArmOutcome.DONE, ""
            how = "before it was done" if self.receiver.received else "without any output"
            return ArmOutcome.PARTIAL, f"it exited {how}"
        if code in (-KILLED, SIGNALLED + KILLED) and self._killed_for_memory(kills_before):
            return ArmOutcome.OUT_OF_MEMORY, "killed by the kernel: the pod was out of memory"
        return ArmOutcome.CRASHED, how_it_ended(code)

    def _killed_for_memory(self, kills_before: Int) -> bool:
        """Whether SIGKILL came from the kernel: yes, unless its count of kills has not grown."""
        kills = self._child.oom_kills()
        if isinstance(kills, int) and isinstance(kills_before, int):
            return kills > kills_before
        return True

    def _with_output(self, message: str, outcome: ArmOutcome) -> str:
        """With the end of its output, if it failed without reporting why."""
        explained = outcome in (ArmOutcome.DONE, ArmOutcome.CUT, ArmOutcome.OUT_OF_MEMORY)
        message = one_line(message)
        if explained or self.receiver.failed is not None:
            return message
        printed = self._tail.text(most=max(MAX_MESSAGE - len(message) - 2, 1))
        return f"{message}: {printed}" if message and printed else message or printed


def program(command: Sequence[str], order: str) -> tuple[str, ...]:
    """The argument list of a child."""
    return (*command, "--order", order)
