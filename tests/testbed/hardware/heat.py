"""What heat does to a GPU from now on: where its temperature goes, and when it slows down for that.

Nothing watches the simulated machine, so what will happen is written down when something changes: at most two
steps, now and when the temperature passes the slowdown threshold.  The next change replaces what is to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from testbed.hardware import case, cooling
from testbed.hardware.machine import Machine

NEAR = 5
"""Per mille below the threshold at which it counts as reached: a slowed GPU stays at it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """From `at` (CLOCK_BOOTTIME, ns) on: event reasons in per mille, draw, and where the temperature goes."""

    at: int
    holds: Mapping[str, int]
    power_mw: int
    warmth: int


def heated(machine: Machine, gpu: int, warmths: cooling.Points, *, now: int) -> list[Step]:
    """The steps of a GPU from now on; `warmths`: where its temperature went so far."""
    model, holds, draw = machine.profile.model, machine.holds_now(gpu), machine.power_mw(gpu)
    sink = case.sink(machine, gpu)
    if sink is None:
        return [Step(at=now, holds=holds, power_mw=draw, warmth=10 * machine.load[gpu])]
    target = cooling.warmth(model, sink.steady(draw / 1000))
    freely = Step(at=now, holds=holds, power_mw=draw, warmth=target)
    sw, hw = cooling.slowed(model, sink, watts=draw / 1000)
    threshold = cooling.slowdown_celsius(model)
    if threshold is None or not sw or not machine.load[gpu]:
        return [freely]
    limit = cooling.warmth(model, threshold) - NEAR
    reached = cooling.approach(warmths, now=now, tau=machine.case.tau)
    later = cooling.seconds_until(limit, reached=reached, target=target, tau=machine.case.tau)
    slowed = {name: n for name, n in (("sw_thermal", sw), ("hw_thermal", hw)) if n}
    slow = machine.power_mw(gpu, slowed=slowed)
    step = Step(
        at=now + round(later * 1e9),
        holds={**holds, **{name: max(n, holds.get(name, 0)) for name, n in slowed.items()}},
        power_mw=slow,
        warmth=cooling.warmth(model, sink.steady(slow / 1000)),
    )
    return [step] if later == 0 else [freely, step]
