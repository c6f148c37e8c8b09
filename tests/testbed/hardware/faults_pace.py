"""Faults that slow a GPU down, or would: heat, the power brake, caps, a narrow PCIe link, a stopped fan."""

from __future__ import annotations

from testbed.hardware.fault import Parameter, choice, fault, needs, whole
from testbed.hardware.machine import Machine, When

THERMAL = {"sw": "sw_thermal", "hw": "hw_thermal"}
MEMORY_MAX_UNKNOWN = 100
"""°C of hot memory where no limit of it is known."""


@fault("thermal-slowdown")
def thermal_slowdown(
    machine: Machine,
    *,
    kind: str = "sw",
    gpu: Parameter = 0,
    percent: Parameter = 100,
    celsius: Parameter = "",
) -> None:
    """Heat slows a GPU down while it works (kind: sw, hw; percent of the time; celsius it reads then)."""
    number = machine.gpu(gpu)
    _hold(machine, number, choice("kind", kind, THERMAL), percent=percent, when=When.LOADED)
    if celsius != "" and machine.load[number]:
        machine.values[number, "temperature.now"] = str(whole("celsius", celsius))


@fault("power-brake")
def power_brake(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 100) -> None:
    """The external power brake is asserted, also while the GPU is idle (percent of the time)."""
    _hold(machine, machine.gpu(gpu), "power_brake", percent=percent, when=When.ALWAYS)


@fault("hw-slowdown")
def hw_slowdown(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 100) -> None:
    """The hardware slowdown bit is set, without a cause and without a counter."""
    _hold(machine, machine.gpu(gpu), "hw_slowdown", percent=percent, when=When.ALWAYS)


@fault("sw-power-cap")
def sw_power_cap(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 100) -> None:
    """The driver holds clocks at the power limit while the GPU works, as it does on healthy ones."""
    _hold(machine, machine.gpu(gpu), "sw_power_cap", percent=percent, when=When.LOADED)


@fault("power-cap-low")
def power_cap_low(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """Somebody set the power limit to this share of the default; the cap shows while the GPU works."""
    number, power = machine.gpu(gpu), machine.profile.model.power
    needs(machine, power.default is not None, "power limit")
    assert power.default is not None
    limit = power.default * whole("percent", percent, least=1, most=100) // 100
    for key in ("power.enforced", "power.limit"):
        machine.values[number, key] = str(limit)
    if power.full > limit:
        machine.holds[number, "sw_power_cap"] = 1000, When.LOADED


@fault("slow-clock")
def slow_clock(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """A GPU works at this share of its clock, and no reason is reported."""
    share = 10 * whole("percent", percent, least=1, most=100)
    machine.values[machine.gpu(gpu), "clock.share"] = str(share)


@fault("application-clocks")
def application_clocks(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """Somebody set a GPU's application clock to this share of its clock at work; no reason is reported."""
    number, clock = machine.gpu(gpu), machine.profile.model.clocks.sm
    share = whole("percent", percent, least=1, most=100)
    machine.values[number, "clock.sm.app"] = str(clock.loaded * share // 100)
    machine.values[number, "clock.share"] = str(10 * share)


@fault("hot")
def hot(machine: Machine, *, gpu: Parameter = 0, celsius: Parameter = 95) -> None:
    """A GPU's core has this temperature at any load."""
    needs(machine, machine.profile.model.temperature is not None, "temperature sensor")
    machine.values[machine.gpu(gpu), "temperature.now"] = str(whole("celsius", celsius))


@fault("hot-memory")
def hot_memory(machine: Machine, *, gpu: Parameter = 0, celsius: Parameter = "") -> None:
    """A GPU's memory has this temperature (default: its limit) at any load."""
    model = machine.profile.model
    needs(machine, model.memory_temperature is not None, "memory temperature sensor")
    limit = model.thresholds.memory_max if model.thresholds else None
    shown = (limit or MEMORY_MAX_UNKNOWN) if celsius == "" else whole("celsius", celsius)
    machine.values[machine.gpu(gpu), "memory_temperature.now"] = str(shown)


@fault("fan-stopped")
def fan_stopped(machine: Machine, *, gpu: Parameter = 0, fan: Parameter = 0) -> None:
    """A fan of the card does not turn, although it is told to."""
    fans = machine.profile.model.fans
    needs(machine, fans is not None, "fans on its cards: they are cooled from outside")
    assert fans is not None
    machine.values[machine.gpu(gpu), f"fan.{whole('fan', fan, least=0, most=fans.count - 1)}.stopped"] = "1"


@fault("pcie-width-halved")
def pcie_width_halved(machine: Machine, *, gpu: Parameter = 0) -> None:
    """Half of the PCIe lanes of a GPU are gone."""
    lanes = machine.profile.model.pcie.max_width
    needs(machine, lanes > 1, "more than one PCIe lane")
    machine.values[machine.gpu(gpu), "pcie.width"] = str(lanes // 2)


def _hold(machine: Machine, gpu: int, reason: str, *, percent: Parameter, when: When) -> None:
    machine.holds[gpu, reason] = 10 * whole("percent", percent, least=0, most=100), when
