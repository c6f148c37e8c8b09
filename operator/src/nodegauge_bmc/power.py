"""Supplies, redundancy, rails and watts out of Redfish resources.

New: `PowerSubsystem` with `PowerSupplies`, their `Metrics`, and `EnvironmentMetrics`.  Old: `Power`.  Both
may be there and know different things: supplies come from the new one if it lists any, and each value that it
lacks from the old one, matched by serial number.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from nodegauge_bmc import values
from nodegauge_bmc.tree import Tree
from nodegauge_bmc.values import Resource, items, link, links, member
from nodegauge_contract.chassis import Rail, Redundancy, Supply
from nodegauge_contract.values import NOT_READ, Num, Text, Unavailable

_NO_RAIL = re.compile(r"\b(pg|pgood|power.?good|fault|fail|vshort|status|input|line|ac)\b", re.IGNORECASE)
_SUPPLY_INPUT = re.compile(r"^(ps|psu|power supply)[ _]?\d+[ _]?(voltage|vin|input)", re.IGNORECASE)
_VOLTAGE_SENSOR = re.compile(r"volt|(^|_)p?\d+(\.\d+)?v(_|$)", re.IGNORECASE)
MAX_SENSORS = 40
"""Single sensors that are asked for rails where no list has them."""
WHOLE = frozenset({None, "", "Chassis", "Intake", "PowerSupply", "PowerSubsystem", "System", "SystemBoard"})
"""Contexts of a meter that may be the machine's (Redfish `PhysicalContext`)."""
_OF_PART = re.compile(
    r"cpu|processor|memory|dimm|gpu|accelerator|fan|storage|drive|disk|pcie?\b|nic\b|riser|backplane",
    re.IGNORECASE,
)
_OF_WHOLE = re.compile(r"system|server|chassis|total|machine|platform|input", re.IGNORECASE)
"""Names of meters of a part, and of the whole machine."""
OVERLOAD = 1.25
"""Output above this share of a supply's size is a lie.  Chosen by this project: supplies give more than their
size for moments alone."""
LEAST_EFFICIENCY = 0.8
"""Output by input of the worst supply of a server (80 PLUS, white)."""
LEAST_LOAD = 0.9
"""A machine draws no less than this share of what its supplies give; both change from one reading to the
next.  Chosen by this project."""
INPUT_SLACK = 0.1
"""What mains are off their nominal voltage at most (EN 50160: a tenth)."""
OUTPUT_SLACK = 1.03
"""Output above input by more than this is a lie: both sensors have a tolerance of 1 to 2 %."""


async def read_power(
    tree: Tree, machines: list[Resource], *, metered: list[Resource], parts: list[Resource]
) -> dict[str, Any]:
    """`watts`, `capacity_watts`, `lists_supplies`, `supplies`, `redundancy` and `rails` of the machine.

    `metered` are the chassis whose meter is the machine's.  `parts` are asked for supplies only if no
    machine's chassis lists any.
    """
    read = list(await asyncio.gather(*(_chassis(tree, machine) for machine in machines)))
    supplies = once([chassis["supplies"] for chassis in read])
    if not supplies:
        supplies = once(await asyncio.gather(*(_supplies_of_part(tree, part) for part in parts)))
    drawn = await asyncio.gather(*(_watts(tree, machine) for machine in metered))
    return {
        "watts": believable_load([watts for listed in drawn for watts in listed], supplies),
        "capacity_watts": _first_number(chassis["capacity_watts"] for chassis in read),
        "lists_supplies": any(chassis["lists_supplies"] for chassis in read),
        "supplies": supplies,
        "redundancy": [group for chassis in read for group in chassis["redundancy"]],
        "rails": [rail for chassis in read for rail in chassis["rails"]],
    }


async def _chassis(tree: Tree, chassis: Resource) -> dict[str, Any]:
    subsystem, old = await asyncio.gather(
        tree.get(link(chassis, "PowerSubsystem")), tree.get(link(chassis, "Power"))
    )
    listed = await tree.members(link(subsystem, "PowerSupplies")) if subsystem is not None else None
    new_supplies, metrics_rails = await _new_supplies(tree, listed or [])
    old_supplies = [_old_supply(supply) for supply in items(old or {}, "PowerSupplies")]
    rails = _old_rails(old or {}) or await _sensor_rails(tree, chassis)
    return {
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
    volts = values.volts(input_volts, high=1000.0)
    return Supply(
        name=_name(resource),
        serial=values.text(resource.get("SerialNumber")),
        model=values.text(resource.get("Model")),
        present=values.present(resource),
        state=values.state(resource),
        health=values.health(resource),
        line_input=values.text(resource.get("LineInputStatus")),
        capacity_watts=_size(resource, volts),
        input_watts=input_watts,
        output_watts=output_watts,
        input_volts=volts,
    )


def _size(resource: Resource, volts: Num) -> Num:
    """Rated output: stated, or else the smallest of the input ranges that fit the voltage at the input; of
    all of them where that voltage is not known or fits none."""
    stated = values.watts(resource.get("PowerCapacityWatts"))
    if values.is_number(stated):
        return stated
    sizes: list[tuple[bool, Num]] = []
    for entry in items(resource, "InputRanges"):
        size = values.watts(entry.get("OutputWattage", entry.get("CapacityWatts")))
        if values.is_number(size):
            sizes.append((not _fits(entry, volts), size))
    best = [size for misfit, size in sizes if misfit == min(sizes)[0]] if sizes else []
    return min(best) if best else stated  # type: ignore[type-var]


def _fits(entry: Resource, volts: Num) -> bool:
    """Whether an input range takes this voltage.  Ranges stand as two numbers (some BMCs swap them), or as a
    word with the nominal voltages in it (`AC100To240V`), which may be a tenth off."""
    ends = [values.volts(entry.get(key), high=1000.0) for key in ("MinimumVoltage", "MaximumVoltage")]
    slack = 0.0
    if not all(values.is_number(end) for end in ends):
        word = entry.get("NominalVoltageType")
        ends = [float(digits) for digits in re.findall(r"\d{2,4}", word)] if isinstance(word, str) else []
        slack = INPUT_SLACK
    if not ends or not values.is_number(volts):
        return False
    return min(ends) * (1 - slack) <= volts <= max(ends) * (1 + slack)  # type: ignore[operator, type-var]


def _merged(new: list[Supply], old: list[Supply]) -> list[Supply]:
    """The new supplies, with what they lack taken from the old one of the same serial number; the old ones
    if there are no new ones."""
    if not new:
        return old
    by_serial = {supply.serial: supply for supply in old if _is_serial(supply.serial)}
    return [
        values.filled(supply, by_serial[supply.serial]) if supply.serial in by_serial else supply
        for supply in new
    ]


def once(lists: Sequence[list[Supply]]) -> list[Supply]:
    """The supplies of several chassis, each once by its serial number, or where nothing that was read of it
    differs."""
    known: dict[str, Supply] = {}
    kept: list[list[Supply]] = []
    for listed in lists:
        own = [supply for supply in listed if not (_is_serial(supply.serial) and supply.serial in known)]
        serials = [supply.serial for supply in listed]
        known |= {
            supply.serial: supply
            for supply in listed
            if isinstance(supply.serial, str) and serials.count(supply.serial) == 1
        }
        kept.append(own)
    return values.once(kept)


def _is_serial(serial: Text) -> bool:
    """Whether a text is a serial number, not a word or zeros in its place."""
    return isinstance(serial, str) and len(set(serial)) > 2 and any(char.isdigit() for char in serial)


def believable(supply: Supply) -> Supply:
    """Without two readings that exclude each other: a supply cannot give more than it takes, or far more than
    its size, and one that gives watts has an input voltage."""
    given, taken, size = supply.output_watts, supply.input_watts, supply.capacity_watts
    for name, watts, most in (("output", given, OVERLOAD), ("input", taken, OVERLOAD / LEAST_EFFICIENCY)):
        if values.is_number(watts) and values.is_number(size) and watts > most * size:  # type: ignore[operator]
            lie = Unavailable(f"{name} of {watts:g} W at a supply of {size:g} W cannot be")
            return believable(replace(supply, **{f"{name}_watts": lie}))
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


async def _watts(tree: Tree, chassis: Resource) -> list[Num]:
    """What the chassis' own meters say that it draws: the newest kind of resource first, and 0 W never."""
    environment, old = await asyncio.gather(
        tree.get(link(chassis, "EnvironmentMetrics")), tree.get(link(chassis, "Power"))
    )
    return [
        await _excerpt(tree, environment or {}, "PowerWatts"),
        _controlled(items(old or {}, "PowerControl")),
    ]


def _controlled(control: list[Resource]) -> Num:
    """The watts of the one entry that is the whole machine's, by its context and name.  Of several that may
    be it, the first, if no other draws more; parts are never added up."""
    whole = [
        (entry, watts)
        for entry in control
        if entry.get("PhysicalContext") in WHOLE and not _OF_PART.search(str(entry.get("Name") or ""))
        if values.is_number(watts := values.watts(entry.get("PowerConsumedWatts")))
    ]
    called = [watts for entry, watts in whole if _OF_WHOLE.search(str(entry.get("Name") or ""))]
    drawn = called or [watts for _, watts in whole]
    if len(drawn) > 1 and drawn[0] < max(drawn):  # type: ignore[type-var, operator]
        return Unavailable("several meters, and none is called the machine's")
    return drawn[0] if drawn else NOT_READ


def believable_load(candidates: Iterable[Num], supplies: list[Supply]) -> Num:
    """The first load that the supplies can carry and that is no less than what they give; else the reason."""
    there = [supply for supply in supplies if supply.present is not False]
    sizes = [supply.capacity_watts for supply in there if values.is_number(supply.capacity_watts)]
    given = sum(supply.output_watts for supply in there if values.is_number(supply.output_watts))  # type: ignore[misc]
    unsized = [supply for supply in there if isinstance(supply.capacity_watts, Unavailable)]
    # a module in an empty bay has a health and nothing else
    modules = all(
        isinstance(supply.health, str) and isinstance(supply.output_watts, Unavailable) for supply in unsized
    )
    most = sum(sizes) if sizes and modules else math.inf  # type: ignore[arg-type]
    checked: list[Num] = []
    for watts in candidates:
        if values.is_number(watts) and watts > OVERLOAD * most:  # type: ignore[operator]
            watts = Unavailable(f"{watts:g} W out of supplies of {most:g} W cannot be the machine's")
        elif values.is_number(watts) and watts < LEAST_LOAD * given:  # type: ignore[operator]
            watts = Unavailable(f"{watts:g} W cannot be the machine's: its supplies give {given:g} W")
        checked.append(watts)
    return _first_number(checked)


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
    reasons = (value for value in read if value != NOT_READ)
    return next((value for value in read if values.is_number(value)), next(reasons, NOT_READ))
