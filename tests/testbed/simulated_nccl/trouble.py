"""What goes wrong with the simulated NCCL.  A hang ignores SIGTERM and leaves a process behind."""

import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NoReturn

from nodegauge_contract.nccl import Phase
from nodegauge_probes.nccl.protocol import FD_VARIABLE, Failed, Line, encode_line
from testbed.simulated_nccl.machine import Trouble

HANG, COLD_INIT, CRASH, KILLED, OUT_OF_MEMORY, FAILED = (
    *("hang", "cold-init", "crash", "killed", "out-of-memory", "failed"),
)
NVLS_BROKEN, WRONG_DATA, GARBAGE, PARTIAL = "nvls-broken", "wrong-data", "garbage", "partial"
NO_ENGINE = "no-engine"
SLOW_LINK, LINKS_DEAD, SLOW, UNSTEADY, PACE = "slow-link", "links-dead", "slow", "unsteady", "pace"
WRONG_ELEMENTS = 512
GIVE_UP_SECONDS = 900
RUN_VARIABLE = "NODEGAUGE_RUN"


class Troubles:
    def __init__(self, troubles: Sequence[Trouble], *, arm: str, environment: Mapping[str, str]) -> None:
        self._mine = [trouble for trouble in troubles if trouble.arm in ("", arm)]
        self._run = environment.get(RUN_VARIABLE, "")

    def of(self, *kinds: str) -> Iterator[Trouble]:
        return (trouble for trouble in self._mine if trouble.kind in kinds)

    def has(self, kind: str) -> bool:
        return any(self.of(kind))

    def at(self, kind: str, phase: str) -> Trouble | None:
        return next((trouble for trouble in self.of(kind) if trouble.phase == phase), None)

    def share(self) -> float:
        """What is left of the usual bandwidth; where runs differ, about every second has less."""
        left = 1.0
        for trouble in self.of(SLOW):
            left *= trouble.percent / 100
        for trouble in self.of(UNSTEADY):
            left *= trouble.percent / 100 if Random(self._run).random() < 0.5 else 1.0
        return left


def hang() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    time.sleep(GIVE_UP_SECONDS)
    os._exit(1)


def crash(number: signal.Signals) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    time.sleep(GIVE_UP_SECONDS)
    os._exit(1)


class Exit(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Emitter:
    def __init__(self, environment: Mapping[str, str], troubles: Troubles, *, pace: float) -> None:
        self._descriptor = int(environment[FD_VARIABLE])
        self._troubles = troubles
        self._pace = pace
        self.measured_seconds = 0.0

    def emit(self, line: Line) -> None:
        self.write(encode_line(line))

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def phase(self, phase: Phase) -> None:
        self.emit(Line(phase=phase))
        if self._troubles.at(HANG, phase):
            hang()
        if self._troubles.at(CRASH, phase):
            crash(signal.SIGSEGV)
        if self._troubles.at(KILLED, phase):
            crash(signal.SIGKILL)
        if self._troubles.at(OUT_OF_MEMORY, phase):
            self.fail(OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        if failed := self._troubles.at(FAILED, phase):
            self.fail("nccl-error", failed.message or "ncclUnhandledCudaError: call to CUDA function failed")

    def fail(self, kind: str, message: str) -> None:
        self.emit(Line(failed=Failed(kind=kind, message=message)))
        raise Exit(1)

    def spend(self, seconds: float, *, measuring: bool = False) -> None:
        if measuring:
            self.measured_seconds += seconds
        time.sleep(seconds * self._pace)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
