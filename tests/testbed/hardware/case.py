"""What is around the GPUs now.  Equal supplies share the load; one that must give more than it can switches
off; when none is left, the machine is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.hardware.machine import Machine

TAU_SECONDS = 20
"""Time constant of a heat sink.  Chosen by this project; published traces of H100 and RTX cards settle within
one to two minutes."""
SLOWEST_FAN = 0.35
"""Share of its revolutions at which a fan turns while all GPUs are idle.  Chosen by this project."""
RAIL_VOLTS = 12.2
"""At the outputs without load.  Chosen by this project: what server supplies are set to, as in profile
hgx-a100-4."""
DROOP = 0.015
"""Share of the volts that is missing at full load.  Chosen by this project, within the 5 % that Intel's ATX
3.0 guide (336521, table 3-5) allows."""
WEAK_DROOP = 0.16
"""The same of a supply that ages: below 11.4 V before its capacity is reached.  Chosen by this project."""
EFFICIENCY = 0.94
"""Output by input at half load: 80 PLUS Platinum, 230 V internal redundant."""


class Trouble(Enum):
    REMOVED = "removed"
    FAILED = "failed"
    NO_INPUT = "no-input"
    WEAK = "weak"


@dataclass(frozen=True)
class Supply:
    """One supply now: watts that it gives and takes, volts at its output (0 while it gives nothing)."""

    trouble: Trouble | None
    gave_up: bool
    output_watts: float
    input_watts: float
    volts: float


@dataclass
class Case:
    """What faults changed.  `blocked`: times the thermal resistance of a GPU.  `warmer`: K of the inlet air.
    `supplies`: what is wrong with some, and the share of their watts that is left.  `fans`: those that stand.
    `leaks`: detectors that see one.  `tau`: seconds in which heat sinks follow."""

    blocked: dict[int, float] = field(default_factory=dict)
    warmer: float = 0.0
    supplies: dict[int, tuple[Trouble, float]] = field(default_factory=dict)
    fans: set[int] = field(default_factory=set)
    leaks: set[int] = field(default_factory=set)
    tau: int = TAU_SECONDS


def draw_watts(machine: Machine, gpu_watts: Sequence[float]) -> float:
    chassis, model = machine.profile.chassis, machine.profile.model
    assert chassis is not None
    full = len(gpu_watts) * (model.power.full - model.power.idle) / 1000
    busy = min(1.0, (sum(gpu_watts) - len(gpu_watts) * model.power.idle / 1000) / full) if full else 0.0
    return sum(gpu_watts) + chassis.host_idle + (chassis.host_full - chassis.host_idle) * max(0.0, busy)


def supplies(machine: Machine, gpu_watts: Sequence[float]) -> list[Supply]:
    chassis = machine.profile.chassis
    if chassis is None or chassis.supplies is None:
        return []
    troubles = [machine.case.supplies.get(n, (None, 1.0)) for n in range(chassis.supplies.count)]
    capacity = [chassis.supplies.watts * left for _, left in troubles]
    giving = [n for n, watts in enumerate(capacity) if watts > 0]
    draw, gave_up = draw_watts(machine, gpu_watts), set[int]()
    while giving and draw / len(giving) > min(capacity[n] for n in giving):
        weakest = min(giving, key=lambda n: capacity[n])
        giving.remove(weakest)
        gave_up.add(weakest)
    result = []
    for n, (trouble, _) in enumerate(troubles):
        output = draw / len(giving) if n in giving else 0.0
        droop = WEAK_DROOP if trouble is Trouble.WEAK else DROOP
        volts = RAIL_VOLTS * (1 - droop * output / capacity[n]) if n in giving else 0.0
        result.append(Supply(trouble, n in gave_up, output, output / EFFICIENCY, volts))
    return result


def fan_rpm(machine: Machine, number: int, gpu_watts: Sequence[float]) -> int:
    """Revolutions of a fan: the more, the more the GPUs draw; the rest turns faster when one stands."""
    chassis, model = machine.profile.chassis, machine.profile.model
    assert chassis is not None
    if number in machine.case.fans:
        return 0
    heat = sum(gpu_watts) / (len(gpu_watts) * model.power.full / 1000)
    helping = chassis.fans / max(1, chassis.fans - len(machine.case.fans))
    return round(chassis.fan_rpm * min(1.0, (SLOWEST_FAN + (1 - SLOWEST_FAN) * heat) * helping))


def rail(supplies: Sequence[Supply]) -> float:
    """Volts of the common 12 V rail behind the supplies that give; 0 where the machine is off."""
    volts = [one.volts for one in supplies if one.volts > 0]
    return sum(volts) / len(volts) if volts else 0.0
