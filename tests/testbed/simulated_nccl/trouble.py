"""What goes wrong with the simulated NCCL: which troubles concern this arm, and the ends that they bring
about.

A hang leaves a process of its own behind it and ignores SIGTERM, as a thread inside a driver call does: only
who kills the whole process group is rid of it.  Both give up by themselves after a while, so that a parent
that forgot them leaves nothing for ever.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NoReturn

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
    """Those of one child: the arm is the one that the environment makes, the run the one that it names."""

    def __init__(self, troubles: Sequence[Trouble], *, arm: str, environment: Mapping[str, str]) -> None:
        self._mine = [trouble for trouble in troubles if trouble.arm in ("", arm)]
        self._run = environment.get(RUN_VARIABLE, "")

    def of(self, *kinds: str) -> Iterator[Trouble]:
        """Those of these kinds."""
        return (trouble for trouble in self._mine if trouble.kind in kinds)

    def has(self, kind: str) -> bool:
        """Whether there is one of this kind."""
        return any(self.of(kind))

    def at(self, kind: str, phase: str) -> Trouble | None:
        """The one of this kind in a phase."""
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
    """Never come back, and leave a child that does not either."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    time.sleep(GIVE_UP_SECONDS)
    os._exit(1)


def crash(number: signal.Signals) -> NoReturn:
    """End as a program does that made a mistake, without a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    time.sleep(GIVE_UP_SECONDS)
    os._exit(1)
