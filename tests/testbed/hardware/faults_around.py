"""Faults around the GPUs: network ports and rails as sysfs shows them; supplies, fans, air and leaks, which a
BMC sees or which show only under load."""

import re

from testbed.hardware.case import Trouble
from testbed.hardware.fault import Parameter, fault, needs, share, whole
from testbed.hardware.machine import HardwareError, Machine
from testbed.profiles.hostmodel import Chassis, HwmonSensor
from testbed.profiles.model import Profile

RATE = re.compile(r"^(\d+) Gb/sec \((\d)X (.*)\)$")
TWELVE = re.compile(r"12 ?V", re.IGNORECASE)
SAGGING = 88
"""Per cent of 12 V that a supply's own sensor reads while a weak one works."""


@fault("nic-down")
def nic_down(machine: Machine, *, nic: Parameter = 0) -> None:
    """A network port has lost its link, and polls for a partner."""
    number = _nic(machine, nic)
    machine.ports |= {(number, "state"): "1: DOWN", (number, "phys_state"): "2: Polling"}
    machine.port_steps[number, "link_downed"] = 1


@fault("nic-slow")
def nic_slow(machine: Machine, *, nic: Parameter = 0) -> None:
    """A network port runs on one lane of its cable."""
    number = _nic(machine, nic)
    rate = machine.profile.host.nics[number].rate
    match = RATE.match(rate)
    if match is None or int(match[2]) < 2:
        raise HardwareError(f"{machine.profile.name}: {rate!r} has no lanes to lose")
    machine.ports[number, "rate"] = f"{int(match[1]) // int(match[2])} Gb/sec (1X {match[3]})"


@fault("nic-errors")
def nic_errors(machine: Machine, *, nic: Parameter = 0, count: Parameter = 1000) -> None:
    """A network port has made this many symbol errors (counters in sysfs do not grow)."""
    machine.port_steps[_nic(machine, nic), "symbol_error"] = whole("count", count, least=1)


@fault("psu-alarm")
def psu_alarm(machine: Machine) -> None:
    """A power supply raises an alarm: the first sensor that has one, watts before volts."""
    alarms = [(number, one) for number, one in _sensors(machine.profile) if one.alarm is not None]
    needs(machine, bool(alarms), "hwmon sensor with an alarm")
    kinds = ("power", "in", "curr", "fan", "temp")
    number, first = min(alarms, key=lambda entry: kinds.index(_kind(entry[1])))
    machine.sensors[number, first.name, "alarm"] = 1


@fault("rail-out-of-range")
def rail_out_of_range(machine: Machine, *, percent: Parameter = 88) -> None:
    """A voltage reads this share of its normal value: 12 V if one is named so, else the first."""
    volts = [(number, one) for number, one in _sensors(machine.profile) if _kind(one) == "in"]
    needs(machine, bool(volts), "hwmon sensor of a voltage")
    number, rail = [*(entry for entry in volts if _is_twelve(entry[1])), *volts][0]
    value = rail.value * whole("percent", percent, least=0, most=200) // 100
    machine.sensors[number, rail.name, "value"] = value
    low, high = rail.min if rail.min is not None else value, rail.max if rail.max is not None else value
    if rail.alarm is not None and not low <= value <= high:
        machine.sensors[number, rail.name, "alarm"] = 1


def _without(name: str, trouble: Trouble, does: str) -> None:
    """A supply that gives nothing: the others carry its load, and only a BMC sees it."""

    @fault(name, f"{does} (only a BMC sees it).")
    def apply(machine: Machine, *, supply: Parameter = 0) -> None:
        machine.case.supplies[_supply(machine, supply)] = trouble, 0.0


_without("supply-failed", Trouble.FAILED, "A power supply has failed; the others carry its load")
_without("supply-input-lost", Trouble.NO_INPUT, "The cord of a power supply is out, or its feed is off")
_without("supply-removed", Trouble.REMOVED, "A power supply was pulled: its bay is empty")


@fault("weak-supply")
def weak_supply(machine: Machine, *, supply: Parameter = 0, percent: Parameter = 60) -> None:
    """12 V sags under load; a supply of a chassis also gives only this share of its watts."""
    rails, chassis = twelve_volts(machine.profile), machine.profile.chassis
    has_supplies = chassis is not None and chassis.supplies is not None
    needs(machine, bool(rails) or has_supplies, "power supply that a BMC or hwmon shows")
    number = _supply(machine, supply) if has_supplies else whole("supply", supply, least=0)
    machine.case.supplies[number] = Trouble.WEAK, share(percent) / 100
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
    needs(machine, machine.profile.model.temperature, "temperature sensor")
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
    return [entry for entry in _sensors(profile) if _is_twelve(entry[1])]


def _sensors(profile: Profile) -> list[tuple[int, HwmonSensor]]:
    return [(number, one) for number, chip in enumerate(profile.host.hwmon) for one in chip.sensors]


def _is_twelve(sensor: HwmonSensor) -> bool:
    return sensor.label is not None and TWELVE.search(sensor.label) is not None


def _kind(sensor: HwmonSensor) -> str:
    return sensor.name.rstrip("0123456789")


def _nic(machine: Machine, nic: Parameter) -> int:
    count = len(machine.profile.host.nics)
    needs(machine, count > 0, "network cards")
    return whole("nic", nic, least=0, most=count - 1)


def _chassis(machine: Machine) -> Chassis:
    chassis = machine.profile.chassis
    needs(machine, chassis, "BMC")
    assert chassis is not None
    return chassis


def _supply(machine: Machine, supply: Parameter) -> int:
    supplies = _chassis(machine).supplies
    needs(machine, supplies, "supplies of its own: a rack's shelf feeds it")
    assert supplies is not None
    return whole("supply", supply, least=0, most=supplies.count - 1)
