"""Faults of supplies, fans, air and cooling: what a BMC sees, or what shows only under load."""

from __future__ import annotations

from testbed.hardware.fault import Parameter, fault, needs, whole
from testbed.hardware.faults_host import TWELVE
from testbed.hardware.machine import Machine
from testbed.hardware.power import Trouble
from testbed.profiles.chassismodel import Chassis
from testbed.profiles.hostmodel import HwmonSensor
from testbed.profiles.model import Profile

SAGGING = 88
"""Per cent of 12 V that a supply's own sensor reads while a weak one works."""


@fault("supply-failed")
def supply_failed(machine: Machine, *, supply: Parameter = 0) -> None:
    """A power supply has failed; the others carry its load (only a BMC sees it)."""
    machine.case.supplies[_supply(machine, supply)] = Trouble.FAILED, 0.0


@fault("supply-input-lost")
def supply_input_lost(machine: Machine, *, supply: Parameter = 0) -> None:
    """A power supply has no input: its cord is out, or its feed is off (only a BMC sees it)."""
    machine.case.supplies[_supply(machine, supply)] = Trouble.NO_INPUT, 0.0


@fault("supply-removed")
def supply_removed(machine: Machine, *, supply: Parameter = 0) -> None:
    """A power supply was pulled: its bay is empty (only a BMC sees it)."""
    machine.case.supplies[_supply(machine, supply)] = Trouble.REMOVED, 0.0


@fault("weak-supply")
def weak_supply(machine: Machine, *, supply: Parameter = 0, percent: Parameter = 60) -> None:
    """12 V sags under load; a supply of a chassis also gives only this share of its watts."""
    left = whole("percent", percent, least=1, most=100) / 100
    rails, chassis = twelve_volts(machine.profile), machine.profile.chassis
    has_supplies = chassis is not None and chassis.supplies is not None
    needs(machine, bool(rails) or has_supplies, "power supply that a BMC or hwmon shows")
    number = _supply(machine, supply) if has_supplies else whole("supply", supply, least=0)
    machine.case.supplies[number] = Trouble.WEAK, left
    for chip, sensor in rails:
        sag = (100 - SAGGING) * max(machine.load) // 100
        machine.sensors[chip, sensor.name, "value"] = sensor.value * (100 - sag) // 100


@fault("chassis-fan-stopped")
def chassis_fan_stopped(machine: Machine, *, fan: Parameter = 0) -> None:
    """A fan of the chassis stands; the others turn faster, and all GPUs become a little warmer."""
    machine.case.fans.add(whole("fan", fan, least=0, most=_chassis(machine).fans - 1))


@fault("airflow-blocked")
def airflow_blocked(
    machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 250, seconds: Parameter = ""
) -> None:
    """A GPU's air flow is blocked: this share of its thermal resistance, heat follows within `seconds`."""
    needs(machine, machine.profile.model.temperature is not None, "temperature sensor")
    machine.case.blocked[machine.gpu(gpu)] = whole("percent", percent, least=100) / 100
    if seconds != "":
        machine.case.tau = whole("seconds", seconds, least=1)


@fault("inlet-hot")
def inlet_hot(machine: Machine, *, kelvin: Parameter = 22) -> None:
    """The air that enters the machine is warmer by this much, and so are all GPUs."""
    _chassis(machine)
    machine.case.warmer += whole("kelvin", kelvin, least=1)


@fault("leak")
def leak(machine: Machine, *, detector: Parameter = 0) -> None:
    """A leak detector of the liquid cooling sees moisture (only a BMC sees it)."""
    count = _chassis(machine).leak_detectors
    needs(machine, count > 0, "leak detectors")
    machine.case.leaks.add(whole("detector", detector, least=0, most=count - 1))


def twelve_volts(profile: Profile) -> list[tuple[int, HwmonSensor]]:
    """hwmon's sensors that are called 12 V, with their chip's number."""
    return [
        (number, sensor)
        for number, chip in enumerate(profile.host.hwmon)
        for sensor in chip.sensors
        if sensor.label is not None and TWELVE.search(sensor.label)
    ]


def _chassis(machine: Machine) -> Chassis:
    chassis = machine.profile.chassis
    needs(machine, chassis is not None, "BMC")
    assert chassis is not None
    return chassis


def _supply(machine: Machine, supply: Parameter) -> int:
    supplies = _chassis(machine).supplies
    needs(machine, supplies is not None, "supplies of its own: a rack's shelf feeds it")
    assert supplies is not None
    return whole("supply", supply, least=0, most=supplies.count - 1)
