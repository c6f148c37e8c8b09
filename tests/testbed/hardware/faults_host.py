"""Faults around the GPUs: network ports, power supplies, rails, as sysfs shows them."""

from __future__ import annotations

import re

from testbed.hardware.fault import Parameter, choice, fault, needs, whole
from testbed.hardware.machine import HardwareError, Machine
from testbed.hardware.sysfs import PORT_COUNTERS
from testbed.profiles.hostmodel import HwmonSensor

PHYSICAL = {"polling": "2: Polling", "disabled": "3: Disabled"}
RATE = re.compile(r"^(\d+) Gb/sec \((\d)X (.*)\)$")
TWELVE = re.compile(r"12 ?V", re.IGNORECASE)


@fault("nic-down")
def nic_down(machine: Machine, *, nic: Parameter = 0, physical: str = "polling") -> None:
    """A network port has lost its link (physical: polling for a partner, or disabled)."""
    number = _nic(machine, nic)
    machine.ports |= {
        (number, "state"): "1: DOWN",
        (number, "phys_state"): choice("physical", physical, PHYSICAL),
    }
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
def nic_errors(
    machine: Machine, *, nic: Parameter = 0, counter: str = "symbol_error", count: Parameter = 1000
) -> None:
    """A network port has made this many errors (counters in sysfs do not grow)."""
    name = choice("counter", counter, {name: name for name in PORT_COUNTERS})
    machine.port_steps[_nic(machine, nic), name] = whole("count", count, least=1)


@fault("psu-alarm")
def psu_alarm(machine: Machine, *, chip: str = "", sensor: str = "") -> None:
    """A power supply raises an alarm (default: the first sensor that has one, watts before volts)."""
    result = [(n, s) for n, s in _sensors(machine, chip=chip, sensor=sensor) if s.alarm is not None]
    needs(machine, bool(result), "hwmon sensor with an alarm" + _named(chip, sensor))
    number, first = min(
        result, key=lambda entry: ("power", "in", "curr", "fan", "temp").index(_kind(entry[1]))
    )
    machine.sensors[number, first.name, "alarm"] = 1


@fault("rail-out-of-range")
def rail_out_of_range(machine: Machine, *, chip: str = "", sensor: str = "", percent: Parameter = 88) -> None:
    """A voltage reads this share of its normal value (default: 12 V if one is named so, else the first)."""
    volts = [(n, s) for n, s in _sensors(machine, chip=chip, sensor=sensor) if _kind(s) == "in"]
    needs(machine, bool(volts), "hwmon sensor of a voltage" + _named(chip, sensor))
    twelve = [(n, s) for n, s in volts if s.label is not None and TWELVE.search(s.label)]
    number, rail = (twelve or volts)[0]
    value = rail.value * whole("percent", percent, least=0, most=200) // 100
    machine.sensors[number, rail.name, "value"] = value
    low, high = rail.min if rail.min is not None else value, rail.max if rail.max is not None else value
    if rail.alarm is not None and not low <= value <= high:
        machine.sensors[number, rail.name, "alarm"] = 1


def _nic(machine: Machine, nic: Parameter) -> int:
    """A NIC's number from its number or name."""
    names = [one.name for one in machine.profile.host.nics]
    needs(machine, bool(names), "network cards")
    if str(nic) in names:
        return names.index(str(nic))
    if str(nic).isdecimal() and int(nic) < len(names):
        return int(nic)
    raise HardwareError(f"{machine.profile.name} has no NIC {nic}: they are {', '.join(names)}")


def _sensors(machine: Machine, *, chip: str, sensor: str) -> list[tuple[int, HwmonSensor]]:
    """The sensors of all chips, with their chip's number; of one chip or name where asked for."""
    return [
        (number, one)
        for number, result in enumerate(machine.profile.host.hwmon)
        for one in result.sensors
        if chip in ("", result.name) and sensor in ("", one.name)
    ]


def _named(chip: str, sensor: str) -> str:
    wanted = " ".join(filter(None, (chip, sensor)))
    return f" called {wanted}" if wanted else ""


def _kind(sensor: HwmonSensor) -> str:
    return sensor.name.rstrip("0123456789")
