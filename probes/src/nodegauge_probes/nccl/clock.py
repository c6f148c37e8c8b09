"""How long a child may take: every phase has its time, and silence is no excuse.

Phases of one kind share a limit, added up however often they are entered, so that going back and forth gains
nothing.  Pure: the time comes in.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import Phase


class Limits(Struct, frozen=True, kw_only=True):
    """Seconds.  `startup`: of starting, initialisation and loading kernels together (a cold B200 took 55 s
    in NCCL issue 1646); `measure`: with checks and pairs; `teardown`; `dying`: from SIGKILL to the end."""

    startup: float = 90.0
    measure: float = 45.0
    teardown: float = 10.0
    dying: float = 5.0


STARTUP = frozenset({Phase.SPAWN, Phase.INIT, Phase.LOAD})
MEASURE = frozenset({Phase.MEASURE, Phase.CHECK, Phase.PAIRS})
TEARDOWN = frozenset({Phase.TEARDOWN})
REPORTED = {
    "spawn_ms": frozenset({Phase.SPAWN}),
    "init_ms": frozenset({Phase.INIT}),
    "load_ms": frozenset({Phase.LOAD}),
    "measure_ms": MEASURE,
    "teardown_ms": TEARDOWN,
}


class PhaseClock:
    """Where a child is, and what it has taken so far; times are seconds of any steady clock."""

    def __init__(self, limits: Limits, *, now: float) -> None:
        self.phase = Phase.SPAWN
        self._since = now
        self._spent: dict[Phase, float] = {}
        self._limits = {STARTUP: limits.startup, MEASURE: limits.measure, TEARDOWN: limits.teardown}

    def enter(self, phase: Phase, *, now: float) -> None:
        self._spent[self.phase] = self._spent.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def seconds(self, phases: frozenset[Phase], *, now: float) -> float:
        """Spent in these phases until now."""
        running = now - self._since if self.phase in phases else 0.0
        return running + sum(spent for phase, spent in self._spent.items() if phase in phases)

    def left(self, *, now: float) -> float:
        """Until the present kind of phase has had its time; negative afterwards."""
        group, limit = next((g, s) for g, s in self._limits.items() if self.phase in g)
        return limit - self.seconds(group, now=now)

    def report(self, *, now: float) -> dict[str, int]:
        """Milliseconds by member of `Arm`, of the phases that were entered."""
        entered = {self.phase, *self._spent}
        return {
            name: round(self.seconds(phases, now=now) * 1000)
            for name, phases in REPORTED.items()
            if entered & phases
        }
