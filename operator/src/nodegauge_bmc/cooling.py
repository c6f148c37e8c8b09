"""Fans, the air that enters and leaves, leak detectors and pumps out of Redfish resources.

New: `ThermalSubsystem` with `Fans`, `Pumps`, `ThermalMetrics` and `LeakDetection`.  Old: `Thermal`.  Only
sensors of the machine's air count here: a word of the name says so, or the context `Intake`, `Front` or
`Exhaust`, unless a BMC calls everything so.
"""

from __future__ import annotations

import asyncio
from typing import Any

from nodegauge_bmc import values
from nodegauge_bmc.tree import Tree
from nodegauge_bmc.values import Resource, items, link, links, member
from nodegauge_contract.chassis import AirTemperature, Fan, LeakDetector, Pump
from nodegauge_contract.values import NOT_READ, Flag, Num

ENTERS = frozenset({"Intake", "Front"})
"""Redfish `PhysicalContext` of a sensor in the air that enters."""
MANY = 4
"""Sensors with one of these contexts above which a BMC calls everything so.  Chosen by this project: machines
have one to four."""


async def read_cooling(tree: Tree, machines: list[Resource]) -> dict[str, Any]:
    """`fans`, `air`, `leaks` and `pumps` of the machine."""
    read = await asyncio.gather(*(_chassis(tree, machine) for machine in machines))
    keys = ("fans", "air", "leaks", "pumps")
    return {key: values.once([chassis[key] for chassis in read], slack=values.ALIKE) for key in keys}


async def _chassis(tree: Tree, chassis: Resource) -> dict[str, Any]:
    subsystem, old, environment = await asyncio.gather(
        tree.get(link(chassis, "ThermalSubsystem")),
        tree.get(link(chassis, "Thermal")),
        tree.get(link(chassis, "EnvironmentMetrics")),
    )
    listed, pumps, metrics, leaks = await asyncio.gather(
        tree.collection(link(subsystem or {}, "Fans")),
        tree.collection(link(subsystem or {}, "Pumps")),
        tree.get(link(subsystem or {}, "ThermalMetrics")),
        _leaks(tree, subsystem or {}),
    )
    new_fans = list(await asyncio.gather(*(_new_fan(tree, fan) for fan in listed or [])))
    temperatures = items(old or {}, "Temperatures")
    trusted = _tells_intakes(temperatures)
    old_air = [
        air for temperature in temperatures if (air := _old_air(temperature, trusted=trusted)) is not None
    ]
    fans = new_fans or [_old_fan(fan) for fan in items(old or {}, "Fans")]
    return {
        "fans": fans or _speeds(environment or {}),
        "air": old_air or await _new_air(tree, metrics or {}),
        "leaks": leaks,
        # some BMCs have the pumps themselves in the list, others a link to it
        "pumps": [_pump(pump) for pump in pumps or items(subsystem or {}, "Pumps")],
    }


async def _new_fan(tree: Tree, resource: Resource) -> Fan:
    """One fan; its sensor is asked for bounds only if it stands still or says nothing."""
    speed = member(resource, "SpeedPercent") or {}
    turning, share = values.rpm(member(speed, "SpeedRPM")), values.percent(member(speed, "Reading"))
    low: Num = NOT_READ
    source = member(speed, "DataSourceUri")
    silent = not values.is_number(turning) and not values.is_number(share)
    if isinstance(source, str) and source.startswith("/") and (turning == 0 or silent):
        sensor = await tree.get(source) or {}
        low = values.rpm(member(sensor, "Thresholds", "LowerCritical", "Reading"))
        if silent and sensor.get("ReadingUnits") in ("RPM", "{rev}/min"):
            turning = values.rpm(sensor.get("Reading"))
    return Fan(
        name=_name(resource),
        rpm=turning,
        percent=share,
        low_critical_rpm=low,
        present=values.present(resource),
        state=values.state(resource),
        health=values.health(resource),
    )


def _speeds(environment: Resource) -> list[Fan]:
    """Fans of `EnvironmentMetrics`, for a BMC that lists none elsewhere: names and speeds alone.  What is
    called PWM is the signal to a fan, not its speed."""
    listed = items(environment, "FanSpeedsPercent")
    named = [
        (values.text(excerpt.get("DeviceName")), values.rpm(excerpt.get("SpeedRPM"))) for excerpt in listed
    ]
    return [
        Fan(name=name, rpm=speed)
        for name, speed in named
        if isinstance(name, str) and values.is_number(speed) and "PWM" not in name.upper()
    ]


def _old_fan(resource: Resource) -> Fan:
    """One fan of `Thermal`; only `RPM` and `Percent` are units of its reading (iLO 4: `CurrentReading`)."""
    unit = resource.get("ReadingUnits", resource.get("Units"))
    reading = next(
        (resource[key] for key in ("Reading", "ReadingRPM", "CurrentReading") if key in resource), None
    )
    in_rpm = unit == "RPM" or (unit is None and "ReadingRPM" in resource)
    return Fan(
        name=_name(resource),
        rpm=values.rpm(reading) if in_rpm else NOT_READ,
        percent=values.percent(reading) if unit == "Percent" else NOT_READ,
        low_critical_rpm=values.rpm(resource.get("LowerThresholdCritical")) if in_rpm else NOT_READ,
        present=values.present(resource),
        state=values.state(resource),
        health=values.health(resource),
    )


def _old_air(resource: Resource, *, trusted: bool) -> AirTemperature | None:
    name = _name(resource)
    inlet = _side(name, resource.get("PhysicalContext") if trusted else None)
    if inlet is None or values.state(resource) in ("Absent", "Disabled"):
        return None
    return AirTemperature(
        name=name,
        inlet=inlet,
        celsius=values.celsius(resource.get("ReadingCelsius")),
        high_caution_celsius=values.celsius(resource.get("UpperThresholdNonCritical")),
        high_critical_celsius=values.celsius(resource.get("UpperThresholdCritical")),
        health=values.health(resource),
    )


async def _new_air(tree: Tree, metrics: Resource) -> list[AirTemperature]:
    """Air out of `ThermalMetrics`, with the bounds of its sensors."""
    listed = items(metrics, "TemperatureReadingsCelsius")
    trusted = _tells_intakes(listed)
    chosen: dict[str, tuple[bool, Resource]] = {}
    for side, inlet in (("Intake", True), ("Exhaust", False)):
        summary = member(metrics, "TemperatureSummaryCelsius", side)
        if isinstance(summary, dict):
            chosen[_source(summary) or side] = (bool(inlet), summary)
    for number, excerpt in enumerate(listed):
        name = f"{excerpt.get('DeviceName') or ''} {_source(excerpt).rpartition('/')[2]}"
        is_inlet = _side(name, excerpt.get("PhysicalContext") if trusted else None)
        if is_inlet is not None:
            chosen.setdefault(_source(excerpt) or str(number), (is_inlet, excerpt))
    return list(await asyncio.gather(*(_air(tree, inlet, excerpt) for inlet, excerpt in chosen.values())))


async def _air(tree: Tree, inlet: bool, excerpt: Resource) -> AirTemperature:
    sensor = await tree.get(_source(excerpt)) or {}
    candidates = (sensor.get("Name"), _source(excerpt).rpartition("/")[2], excerpt.get("DeviceName"))
    names = [name for candidate in candidates if isinstance(name := values.text(candidate), str)]
    reading = excerpt.get("Reading")
    return AirTemperature(
        name=names[0] if names else ("inlet" if inlet else "exhaust"),
        inlet=inlet,
        celsius=values.celsius(sensor.get("Reading") if reading is None else reading),
        high_caution_celsius=values.celsius(member(sensor, "Thresholds", "UpperCaution", "Reading")),
        high_critical_celsius=values.celsius(member(sensor, "Thresholds", "UpperCritical", "Reading")),
        health=values.health(sensor),
    )


def _tells_intakes(readings: list[Resource]) -> bool:
    """Whether the context means what it says."""
    return len([reading for reading in readings if reading.get("PhysicalContext") in ENTERS]) <= MANY


def _source(excerpt: Resource) -> str:
    source = excerpt.get("DataSourceUri")
    return source if isinstance(source, str) and source.startswith("/") else ""


def _side(name: str, context: Any) -> bool | None:
    """Whether a sensor is of inlet air (True) or of exhaust (False); None for neither."""
    return values.air_side(name, enters=context in ENTERS, leaves=context == "Exhaust")


async def _leaks(tree: Tree, subsystem: Resource) -> list[LeakDetector]:
    """Detectors of the one `LeakDetection` resource, or of each in a list of them."""
    addresses = [link(subsystem, "LeakDetection"), *links(subsystem, "LeakDetection")]
    detections = await tree.all(address for address in addresses if address)
    listed = await asyncio.gather(
        *(tree.collection(link(detection, "LeakDetectors")) for detection in detections)
    )
    return [_leak(detector) for detectors in listed for detector in detectors or []]


def _leak(resource: Resource) -> LeakDetector:
    state = values.state(resource)
    enabled: Flag = state == "Enabled" if isinstance(state, str) else NOT_READ
    return LeakDetector(
        name=_name(resource), state=values.text(resource.get("DetectorState")), enabled=enabled
    )


def _pump(resource: Resource) -> Pump:
    speed = member(resource, "PumpSpeedPercent") or {}
    return Pump(
        name=_name(resource),
        rpm=values.rpm(member(speed, "SpeedRPM")),
        percent=values.percent(member(speed, "Reading")),
        present=values.present(resource),
        state=values.state(resource),
        health=values.health(resource),
    )


def _name(resource: Resource) -> str:
    for key in ("Name", "FanName", "MemberId", "Id"):
        if isinstance(read := values.text(resource.get(key)), str):
            return read
    return "unnamed"
