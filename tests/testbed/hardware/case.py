"""What is around the GPUs now: supplies under the present load, fans, air.

From the profile's chassis and the faults.  Follows from a `Machine` alone and touches no files.
A machine without a chassis has air and no supplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testbed.hardware import power

if TYPE_CHECKING:
    from testbed.hardware.machine import Machine

TAU_SECONDS = 20
"""Time constant of a heat sink.  Chosen by this project; published traces of H100 and RTX cards settle within
one to two minutes."""
SLOWEST_FAN = 0.35
"""Share of its revolutions at which a fan turns while all GPUs are idle.  Chosen by this project."""


@dataclass
class Case:
    """What faults changed.  `blocked`: times the thermal resistance of a GPU.  `warmer`: K of the inlet air.
    `supplies`: what is wrong with some, and the share of their watts that is left.  `fans`: those that stand.
    `leaks`: detectors that see one.  `tau`: seconds in which heat sinks follow."""

    blocked: dict[int, float] = field(default_factory=dict)
    warmer: float = 0.0
    supplies: dict[int, tuple[power.Trouble, float]] = field(default_factory=dict)
    fans: set[int] = field(default_factory=set)
    leaks: set[int] = field(default_factory=set)
    tau: int = TAU_SECONDS


def draw_watts(machine: Machine, gpu_watts: Sequence[float]) -> float:
    """Watts (DC) of the whole machine; its host works as hard as its GPUs."""
    chassis, model = machine.profile.chassis, machine.profile.model
    assert chassis is not None
    full = len(gpu_watts) * (model.power.full - model.power.idle) / 1000
    busy = min(1.0, (sum(gpu_watts) - len(gpu_watts) * model.power.idle / 1000) / full) if full else 0.0
    return sum(gpu_watts) + chassis.host_idle + (chassis.host_full - chassis.host_idle) * max(0.0, busy)


def supplies(machine: Machine, gpu_watts: Sequence[float]) -> list[power.Supply]:
    """Every supply, under the load of now; none where a shelf feeds the machine."""
    chassis = machine.profile.chassis
    if chassis is None or chassis.supplies is None:
        return []
    return power.share(
        draw_watts(machine, gpu_watts),
        count=chassis.supplies.count,
        watts=chassis.supplies.watts,
        troubles=machine.case.supplies,
    )


def fan_rpm(machine: Machine, number: int, gpu_watts: Sequence[float]) -> int:
    """Revolutions of a fan: the more, the more the GPUs draw; the rest turns faster when one stands."""
    chassis, model = machine.profile.chassis, machine.profile.model
    assert chassis is not None
    if number in machine.case.fans:
        return 0
    heat = sum(gpu_watts) / (len(gpu_watts) * model.power.full / 1000)
    helping = chassis.fans / max(1, chassis.fans - len(machine.case.fans))
    return round(chassis.fan_rpm * min(1.0, (SLOWEST_FAN + (1 - SLOWEST_FAN) * heat) * helping))


def inlet_celsius(machine: Machine) -> float:
    """°C of the air that enters."""
    assert machine.profile.chassis is not None
    return machine.profile.chassis.inlet + machine.case.warmer
