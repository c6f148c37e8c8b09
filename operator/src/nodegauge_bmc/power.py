"""Supplies, redundancy, rails and watts out of Redfish resources.

New: `PowerSubsystem` with `PowerSupplies`, their `Metrics`, and `EnvironmentMetrics`.  Old: `Power`.  Both
may be there and know different things: supplies come from the new one if it lists any, and each value that it
lacks from the old one, matched by serial number.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from msgspec.structs import asdict, replace

from nodegauge_bmc import values
from nodegauge_bmc.tree import Tree
from nodegauge_bmc.values import Resource, items, link, links, member
from nodegauge_contract.chassis import Rail, Redundancy, Supply
from nodegauge_contract.values import NOT_READ, Num, Unavailable

_NO_RAIL = re.compile(r"\b(pg|pgood|power.?good|fault|fail|vshort|status|input|line|ac)\b", re.IGNORECASE)
_SUPPLY_INPUT = re.compile(r"^(ps|psu|power supply)[ _]?\d+[ _]?(voltage|vin|input)", re.IGNORECASE)
_VOLTAGE_SENSOR = re.compile(r"volt|(^|_)p?\d+(\.\d+)?v(_|$)", re.IGNORECASE)
MAX_SENSORS = 40
"""Single sensors that are asked for rails where no list has them."""
OUTPUT_SLACK = 1.03
"""Output above input by more than this is a lie: both sensors have a tolerance of 1 to 2 %."""


async def read_power(tree: Tree, machines: list[Resource], *, parts: list[Resource]) -> dict[str, Any]:
    """`watts`, `capacity_watts`, `lists_supplies`, `supplies`, `redundancy` and `rails` of the machine.

    `parts` are asked for supplies only if no machine's chassis lists any.
    """
    read = list(await asyncio.gather(*(_chassis(tree, machine) for machine in machines)))
    supplies = [supply for chassis in read for supply in chassis["supplies"]]
    if not supplies:
        listed = await asyncio.gather(*(_supplies_of_part(tree, part) for part in parts))
        supplies = [supply for part_supplies in listed for supply in part_supplies]
    return {
        "watts": _first_number(chassis["watts"] for chassis in read),
        "capacity_watts": _first_number(chassis["capacity_watts"] for chassis in read),
        "lists_supplies": any(chassis["lists_supplies"] for chassis in read),
        "supplies": supplies,
        "redundancy": [group for chassis in read for group in chassis["redundancy"]],
        "rails": [rail for chassis in read for rail in chassis["rails"]],
    }


async def _chassis(tree: Tree, chassis: Resource) -> dict[str, Any]:
    subsystem, old, environment = await asyncio.gather(
        tree.get(link(chassis, "PowerSubsystem")),
        tree.get(link(chassis, "Power")),
        tree.get(link(chassis, "EnvironmentMetrics")),
    )
    listed = await tree.members(link(subsystem, "PowerSupplies")) if subsystem is not None else None
    new_supplies, metrics_rails = await _new_supplies(tree, listed or [])
    old_supplies = [_old_supply(supply) for supply in items(old or {}, "PowerSupplies")]
    rails = _old_rails(old or {}) or await _sensor_rails(tree, chassis)
    return {
        "watts": _watts(environment or {}, old or {}),
        "capacity_watts": _capacity(subsystem or {}, old or {}),
        "lists_supplies": listed is not None or "PowerSupplies" in (old or {}),
        "supplies": [believable(supply) for supply in _merged(new_supplies, old_supplies)],
        "redundancy": _groups(subsystem or {}, "PowerSupplyRedundancy") or _groups(old or {}, "Redundancy"),
        "rails": rails + metrics_rails,
    }


async def _supplies_of_part(tree: Tree, part: Resource) -> list[Supply]:
    subsystem = await tree.get(link(part, "PowerSubsystem")) or {}
    supplies, _ = await _new_supplies(tree, await tree.members(link(subsystem, "PowerSupplies")) or [])
    return [believable(supply) for supply in supplies]


async def _new_supplies(
    tree: Tree, listed: list[tuple[str, Resource | None]]
) -> tuple[list[Supply], list[Rail]]:
    """The supplies, also those that are listed and not given, and the rails at their outputs."""
    metrics = await asyncio.gather(*(tree.get(link(resource or {}, "Metrics")) for _, resource in listed))
    supplies, rails = [], []
    for (address, resource), metric in zip(listed, metrics, strict=True):
        if resource is None:
            supplies.append(Supply(name=address.rpartition("/")[2][:128]))
            continue
        measured = metric or {}
        supply = _supply(
            resource,
            input_watts=await _excerpt(tree, measured, "InputPowerWatts"),
            output_watts=await _excerpt(tree, measured, "OutputPowerWatts"),
            input_volts=member(measured, "InputVoltage", "Reading"),
        )
        supplies.append(supply)
        rails += _outputs(supply.name, resource, measured)
    return supplies, rails


def _outputs(supply: str, resource: Resource, metrics: Resource) -> list[Rail]:
    """The rails at a supply's outputs, with the voltage that it should have there."""
    stated = items(resource, "OutputRails")
    return [
        Rail(
            name=f"{supply} output {number}",
            volts=values.volts(rail.get("Reading"), high=64.0),
            nominal_volts=values.volts(member(stated[number - 1], "NominalVoltage"), high=64.0)
            if number <= len(stated)
            else NOT_READ,
        )
        for number, rail in enumerate(items(metrics, "RailVoltage"), 1)
    ]


async def _excerpt(tree: Tree, metrics: Resource, key: str) -> Num:
    """Watts of an excerpt; of the sensor that it names, if it carries no reading itself."""
    reading = member(metrics, key, "Reading")
    source = member(metrics, key, "DataSourceUri")
    if reading is None and isinstance(source, str) and source.startswith("/"):
        reading = member(await tree.get(source) or {}, "Reading")
    return values.watts(reading)


def _old_supply(resource: Resource) -> Supply:
    return _supply(
        resource,
        input_watts=values.watts(resource.get("PowerInputWatts")),
        output_watts=values.watts(resource.get("PowerOutputWatts", resource.get("LastPowerOutputWatts"))),
        input_volts=resource.get("LineInputVoltage"),
    )


def _supply(resource: Resource, *, input_watts: Num, output_watts: Num, input_volts: Any) -> Supply:
    """What new and old resources say alike, and the numbers that they have in different places."""
    return Supply(
        name=_name(resource),
        serial=values.text(resource.get("SerialNumber")),
        model=values.text(resource.get("Model")),
        present=values.present(resource),
        state=values.state(resource),
        health=values.health(resource),
        line_input=values.text(resource.get("LineInputStatus")),
        capacity_watts=values.watts(resource.get("PowerCapacityWatts")),
        input_watts=input_watts,
        output_watts=output_watts,
        input_volts=values.volts(input_volts, high=1000.0),
    )


def _merged(new: list[Supply], old: list[Supply]) -> list[Supply]:
    """The new supplies, with what they lack taken from the old one of the same serial number; the old ones
    if there are no new ones."""
    if not new:
        return old
    by_serial = {supply.serial: supply for supply in old if isinstance(supply.serial, str)}
    return [
        _filled(supply, by_serial.get(supply.serial)) if isinstance(supply.serial, str) else supply
        for supply in new
    ]


def _filled(supply: Supply, other: Supply | None) -> Supply:
    if other is None:
        return supply
    both = zip(asdict(supply).items(), asdict(other).values(), strict=True)
    lacking = {name: more for (name, value), more in both if isinstance(value, Unavailable)}
    return replace(
        supply, **{name: more for name, more in lacking.items() if not isinstance(more, Unavailable)}
    )


def believable(supply: Supply) -> Supply:
    """Without two readings that exclude each other: a supply cannot give more than it takes, and one that
    gives watts has an input voltage."""
    given, taken = supply.output_watts, supply.input_watts
    if values.is_number(given) and values.is_number(taken) and given > OUTPUT_SLACK * taken:  # type: ignore[operator]
        lie = Unavailable(f"output of {given:g} W above input of {taken:g} W cannot be")
        return replace(supply, output_watts=lie, input_watts=lie)
    if supply.input_volts == 0 and values.is_number(given):
        lie = Unavailable(f"0 V at an output of {given:g} W cannot be")
        return replace(supply, input_volts=lie)
    return supply


def _groups(resource: Resource, key: str) -> list[Redundancy]:
    """Redundancy as stated; names of members are the last part of their address."""
    groups = []
    for number, group in enumerate(items(resource, key)):
        members = links(group, "RedundancyGroup") or links(group, "RedundancySet")
        needed = group.get("MinNeededInGroup", group.get("MinNumNeeded"))
        name = values.text(group.get("Name"))
        groups.append(
            Redundancy(
                name=name if isinstance(name, str) else f"group {number}",
                members=[address.rstrip("/").rpartition("/")[2] for address in members],
                needed=values.number(needed, low=0, high=64, unit="supplies"),
                state=values.state(group),
                health=values.health(group),
            )
        )
    return groups


def _watts(environment: Resource, old: Resource) -> Num:
    """What the machine draws: the newest kind of resource first, and 0 W never."""
    draws = [member(environment, "PowerWatts", "Reading")]
    control = items(old, "PowerControl")
    whole = [entry for entry in control if entry.get("PhysicalContext") in (None, "Chassis", "Intake")]
    draws += [entry.get("PowerConsumedWatts") for entry in whole[:1]]
    return _first_number(values.watts(draw) for draw in draws)


def _capacity(subsystem: Resource, old: Resource) -> Num:
    stated = [subsystem.get("CapacityWatts")]
    stated += [entry.get("PowerCapacityWatts") for entry in items(old, "PowerControl")[:1]]
    return _first_number(values.watts(watts) for watts in stated)


def _old_rails(old: Resource) -> list[Rail]:
    rails = []
    for voltage in items(old, "Voltages"):
        name = values.text(voltage.get("Name"))
        if isinstance(name, str) and _is_rail(name) and not _is_absent(voltage):
            rails.append(
                Rail(
                    name=name,
                    volts=values.volts(voltage.get("ReadingVolts"), high=64.0),
                    low_critical_volts=values.volts(voltage.get("LowerThresholdCritical"), high=64.0),
                    high_critical_volts=values.volts(voltage.get("UpperThresholdCritical"), high=64.0),
                    health=values.health(voltage),
                )
            )
    return [rail for rail in rails if not isinstance(rail.volts, Unavailable) or rail.health != NOT_READ]


async def _sensor_rails(tree: Tree, chassis: Resource) -> list[Rail]:
    """Rails out of single sensors, chosen by their name where the list cannot be fetched as a whole."""
    listed = await tree.get(link(chassis, "Sensors"))
    addresses = [
        address
        for address in links(listed or {}, "Members")
        if _VOLTAGE_SENSOR.search(address.rpartition("/")[2])
    ]
    rails = []
    for sensor in await tree.all(addresses[:MAX_SENSORS]):
        name = values.text(sensor.get("Name", sensor.get("Id")))
        if (
            sensor.get("ReadingType") not in (None, "Voltage")
            or not isinstance(name, str)
            or not _is_rail(name)
        ):
            continue
        rails.append(
            Rail(
                name=name,
                volts=values.volts(sensor.get("Reading"), high=64.0),
                low_critical_volts=values.volts(
                    member(sensor, "Thresholds", "LowerCritical", "Reading"), high=64.0
                ),
                high_critical_volts=values.volts(
                    member(sensor, "Thresholds", "UpperCritical", "Reading"), high=64.0
                ),
                health=values.health(sensor),
            )
        )
    return rails


def _is_rail(name: str) -> bool:
    """Not a flag that power is good, and not the mains."""
    plain = name.replace("_", " ")
    return _NO_RAIL.search(plain) is None and _SUPPLY_INPUT.search(plain) is None


def _is_absent(resource: Resource) -> bool:
    return values.state(resource) in ("Absent", "Disabled")


def _name(resource: Resource) -> str:
    """The name that people know: the machine's label or the name, if it numbers the supply; else the id."""
    label = member(resource, "Location", "PartLocation", "ServiceLabel")
    for candidate in (label, resource.get("Name")):
        read = values.text(candidate)
        if isinstance(read, str) and re.search(r"\d", read):
            return read
    for key in ("MemberId", "Id"):
        if isinstance(read := values.text(resource.get(key)), str):
            return read if re.search(r"[a-z]", read, re.IGNORECASE) else f"supply {read}"
    return "supply"


def _first_number(candidates: Any) -> Num:
    """The first number; else the first reason why there is none."""
    read = list(candidates)
    return next((value for value in read if values.is_number(value)), next(iter(read), NOT_READ))
