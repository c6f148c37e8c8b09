"""How warm GPUs become: inlet air + thermal resistance x watts, reached exponentially; and the slowdown.
What will happen is written down when something changes: at most two steps, now and at the slowdown
threshold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.hardware.machine import Machine
from testbed.profiles.model import Model

SW_SHARE, HW_SHARE = 0.75, 0.5
"""Clock that is left while software or hardware slows a GPU down for heat (`machine.CLOCK_SHARE`)."""

NEAR = 5
"""Per mille below the threshold at which it counts as reached: a slowed GPU stays at it."""

Points = Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Sink:
    air: float
    resistance: float

    def steady(self, watts: float) -> float:
        return self.air + self.resistance * watts


def _sink(machine: Machine, gpu: int) -> Sink | None:
    case, chassis, model = machine.case, machine.profile.chassis, machine.profile.model
    if model.temperature is None or model.power.full <= model.power.idle:
        return None
    blocked = case.blocked.get(gpu, 1.0)
    if chassis is not None and case.fans:
        blocked *= chassis.fans / max(1, chassis.fans - len(case.fans))
    idle, full = model.power.idle / 1000, model.power.full / 1000
    resistance = (model.temperature.full - model.temperature.idle) / (full - idle)
    air = model.temperature.idle - resistance * idle
    return Sink(air=air + case.warmer, resistance=resistance * blocked)


def slowdown_celsius(model: Model) -> int | None:
    """°C above which software lowers the clocks; None where no threshold is known."""
    if model.thresholds is not None:
        return model.thresholds.gpu_max
    return model.tlimits.max_operating - model.tlimits.gpu_max if model.tlimits is not None else None


def slowed(model: Model, cooling: Sink, *, watts: float) -> tuple[int, int]:
    """Per mille of the time for which heat slows a GPU down that would draw `watts`."""
    limit = slowdown_celsius(model)
    if limit is None or cooling.steady(watts) <= limit or watts <= model.power.idle / 1000:
        return 0, 0
    idle = model.power.idle / 1000
    kept = max(0.0, ((limit - cooling.air) / cooling.resistance - idle) / (watts - idle))
    if kept >= SW_SHARE:
        return round(1000 * (1 - kept) / (1 - SW_SHARE)), 0
    return 1000, min(1000, round(1000 * (1 - kept) / (1 - HW_SHARE)))


def warmth(model: Model, celsius: float) -> int:
    """A temperature as per mille of the way from idle to full load, as the driver's state has it."""
    assert model.temperature is not None
    idle, full = model.temperature.idle, model.temperature.full
    return round(1000 * (celsius - idle) / max(1, full - idle))


def approach(points: Points, *, now: int, tau: float) -> float:
    """The per mille reached by now; `points`: since when (ns) which per mille is the target."""
    reached, target, since = 0.0, 0.0, 0
    for at, value in [*(point for point in points if point[0] <= now), (now, 0)]:
        reached = target + (reached - target) * math.exp(-(at - since) / 1e9 / tau)
        target, since = float(value), at
    return reached


@dataclass(frozen=True, kw_only=True)
class Step:
    """From `at` (CLOCK_BOOTTIME, ns) on: event reasons in per mille, draw, and where the temperature goes."""

    at: int
    holds: Mapping[str, int]
    power_mw: int
    warmth: int


def heated(machine: Machine, gpu: int, warmths: Points, *, now: int) -> list[Step]:
    model, holds, draw = machine.profile.model, machine.holds_now(gpu), machine.power_mw(gpu)
    sink = _sink(machine, gpu)
    if sink is None:
        return [Step(at=now, holds=holds, power_mw=draw, warmth=10 * machine.load[gpu])]
    target = warmth(model, sink.steady(draw / 1000))
    freely = Step(at=now, holds=holds, power_mw=draw, warmth=target)
    sw, hw = slowed(model, sink, watts=draw / 1000)
    threshold = slowdown_celsius(model)
    if threshold is None or not sw or not machine.load[gpu]:
        return [freely]
    limit = warmth(model, threshold) - NEAR
    reached, tau = approach(warmths, now=now, tau=machine.case.tau), machine.case.tau
    later = 0.0 if reached >= limit else tau * math.log((target - reached) / (target - limit))
    reasons = {name: n for name, n in (("sw_thermal", sw), ("hw_thermal", hw)) if n}
    slow = machine.power_mw(gpu, slowed=reasons)
    step = Step(
        at=now + round(later * 1e9),
        holds={**holds, **{name: max(n, holds.get(name, 0)) for name, n in reasons.items()}},
        power_mw=slow,
        warmth=warmth(model, sink.steady(slow / 1000)),
    )
    return [step] if later == 0 else [freely, step]
