"""One arm: a child started, listened to, watched by the clock, and gone when this returns.

Everything that a child can do is an outcome, and none of them is an exception: it hangs, dies, fails, floods,
stops half-way, leaves processes behind.  What it said until then stays in the draft of its arm, which is
complete at any moment, because the run itself can be ended at any moment.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from nodegauge_contract import ArmOutcome, Int
from nodegauge_probes.nccl.clock import Limits, PhaseClock
from nodegauge_probes.nccl.pdeathsig_exec import CANNOT_START
from nodegauge_probes.nccl.process_tree import Family, Stopped
from nodegauge_probes.nccl.protocol import FD_VARIABLE, About, Failed
from nodegauge_probes.nccl.receiver import MAX_WORDS, Garbage, Listener, Tail, words
from nodegauge_probes.result_builder import ArmDraft

TICK_S = 0.02
CHUNK = 64 * 1024
KILLED, SIGNALLED = 9, 128
NO_ENGINE, NO_MEMORY = "no-engine", "out-of-memory"


class Child(Struct, frozen=True, kw_only=True):
    """What to start and how long to bear it.  `until`: when the run's own time is up (monotonic seconds);
    `kills`: how often the kernel has killed for memory in this container, as `Int`."""

    program: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: int
    limits: Limits
    until: float
    kills: Callable[[], Int]
    at_about: Callable[[About], None]
    at_cut: Callable[[str], None]


class Ended(Struct, frozen=True, kw_only=True):
    """Why the watch over a child ended: `why` is None where it ended by itself."""

    why: ArmOutcome | None = None
    message: str = ""


def run(child: Child, arm: ArmDraft, family: Family) -> Failed | None:
    """Run one child to its end, into `arm`; gives what it said of its failure, where it said so."""
    speech, speaking = os.pipe()
    output, printing = os.pipe()
    try:
        environment = {**child.environment, FD_VARIABLE: str(speaking)}
        clock = PhaseClock(child.limits, now=time.monotonic())
        kills = child.kills()
        try:
            family.start(child.program, environment=environment, speech=speaking, output=printing)
        except Stopped:
            return None
        except OSError as error:
            arm.parts |= {"outcome": ArmOutcome.FAILED, "message": words(f"no process: {error}")}
            return None
        finally:
            os.close(speaking)
            os.close(printing)
        watch = _Watch(child, arm, family, clock)
        ended = watch.listen(speech, output)
        watch.finish(ended, kills_before=kills)
        return watch.listener.failed
    finally:
        os.close(speech)
        os.close(output)


class _Watch:
    """Clock, ears and judgement over one child."""

    def __init__(self, child: Child, arm: ArmDraft, family: Family, clock: PhaseClock) -> None:
        self._child, self._arm, self._family, self._clock = child, arm, family, clock
        self._tail = Tail()
        arm.parts |= {"phase": clock.phase, "message": ""}
        self.listener = Listener(
            arm,
            ranks=child.ranks,
            at_phase=self._enter,
            at_about=child.at_about,
            at_cut=child.at_cut,
        )

    def _enter(self, phase: str) -> None:
        self._clock.enter(type(self._clock.phase)(phase), now=time.monotonic())
        self._arm.parts |= {"phase": phase, **self._clock.report(now=time.monotonic())}

    def listen(self, speech: int, output: int) -> Ended:
        """Until the child ends, has had its time, or says what nobody can read."""
        with selectors.DefaultSelector() as ears:
            for pipe, take in ((speech, self.listener.feed), (output, self._tail.feed)):
                os.set_blocking(pipe, False)
                ears.register(pipe, selectors.EVENT_READ, take)
            try:
                while True:
                    exited = self._family.exited()
                    heard = self._hear(ears, wait=0 if exited else TICK_S)
                    if exited and not heard:
                        self.listener.close()
                        return Ended()
                    if (over := self._over()) is not None:
                        return over
            except Garbage as error:
                return Ended(why=ArmOutcome.GARBAGE, message=str(error))
            finally:
                self._hear_output(output)

    def _hear(self, ears: selectors.BaseSelector, *, wait: float) -> bool:
        """One round over the pipes; whether anything was in them."""
        if not ears.get_map():
            time.sleep(wait)
            return False
        heard = False
        for key, _ in ears.select(wait):
            try:
                data = os.read(key.fd, CHUNK)
            except BlockingIOError:
                continue
            if not data:
                ears.unregister(key.fd)
            heard = heard or bool(data)
            key.data(data)
        return heard

    def _hear_output(self, output: int) -> None:
        with suppress(OSError):
            self._tail.feed(os.read(output, CHUNK))

    def _over(self) -> Ended | None:
        now = time.monotonic()
        if self._clock.left(now=now) < 0:
            return Ended(why=ArmOutcome.HUNG, message=f"{self._clock.phase} took longer than it may")
        if now > self._child.until:
            return Ended(why=ArmOutcome.CUT, message="the run's own time was up")
        return None

    def finish(self, ended: Ended, *, kills_before: Int) -> None:
        """End the family and say how the arm ended."""
        times = self._clock.report(now=time.monotonic())
        code, left_behind, immortal = self._family.end(patience=self._child.limits.dying)
        if self._family.stopped:
            ended = Ended(why=ArmOutcome.CUT, message="the run was ended")
        outcome, message = ended.why, ended.message
        if outcome is None:
            outcome, message = self._outcome(code, kills_before)
        remarks = [message]
        if left_behind:
            remarks.append(f"it left {left_behind} processes behind, killed")
        if immortal:
            remarks.append(f"{immortal} processes outlived SIGKILL: they are stuck in the driver")
        said = "; ".join(remark for remark in remarks if remark)
        self._arm.parts |= {**times, "outcome": outcome, "message": self._with_print(said, outcome)}
        if code is not None:
            self._arm.parts["exit_code"] = code if code >= 0 else SIGNALLED - code
        if outcome is ArmOutcome.DONE:
            self._arm.parts["phase"] = ""

    def _outcome(self, code: int | None, kills_before: Int) -> tuple[ArmOutcome, str]:
        """How a child ended that nobody ended."""
        if code == CANNOT_START and not self.listener.spoke:
            self.listener.failed = Failed(what=NO_ENGINE, message=self._tail.words(most=MAX_WORDS))
        failed = self.listener.failed
        if failed is not None:
            outcome = ArmOutcome.OUT_OF_MEMORY if failed.what == NO_MEMORY else ArmOutcome.FAILED
            return outcome, f"{failed.what}: {failed.message}"
        if code == 0:
            if self.listener.done:
                return ArmOutcome.DONE, ""
            return ArmOutcome.PARTIAL, f"it ended {'half-way' if self.listener.spoke else 'without a word'}"
        if code in (-KILLED, SIGNALLED + KILLED) and self._no_memory(kills_before):
            return ArmOutcome.OUT_OF_MEMORY, "killed by the kernel: the pod's memory was used up"
        died = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return ArmOutcome.CRASHED, died

    def _no_memory(self, kills_before: Int) -> bool:
        """SIGKILL from nobody of ours: the kernel, unless its own count says that it was not."""
        kills = self._child.kills()
        if isinstance(kills, int) and isinstance(kills_before, int):
            return kills > kills_before
        return True

    def _with_print(self, said: str, outcome: ArmOutcome) -> str:
        """With what it printed last, where it ended badly and did not say why itself."""
        explained = outcome in (ArmOutcome.DONE, ArmOutcome.CUT, ArmOutcome.OUT_OF_MEMORY)
        said = words(said)
        if explained or self.listener.failed is not None:
            return said
        printed = self._tail.words(most=max(MAX_WORDS - len(said) - 2, 1))
        return f"{said}: {printed}" if said and printed else said or printed


def program(command: Sequence[str], order: str) -> tuple[str, ...]:
    """The argument list of a child."""
    return (*command, "--order", order)
