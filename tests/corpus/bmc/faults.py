"""Faults that any BMC's tree can have.  What one part is called in several locations is changed in all of
them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

Resources = Mapping[str, Any]
Changed = dict[str, Any]
"""Path to the resource that stands there instead; None: the BMC does not give it."""
ROOT = "/redfish/v1"
WATTS = frozenset(
    {"PowerInputWatts", "PowerOutputWatts", "LastPowerOutputWatts", "PowerCapacityWatts", "OutputWattage"}
)
VOLTS = frozenset({"LineInputVoltage", "ReadingVolts"})
SPEEDS = frozenset({"Reading", "ReadingRPM", "SpeedRPM", "CurrentReading"})
HIGHEST_RAIL = 64.0
"""V; what reads more is the mains."""


class Location(NamedTuple):
    """One object: a resource, or a member of a list in it."""

    path: str
    keys: tuple[str | int, ...] = ()


class Part(NamedTuple):
    """A supply, a fan: the objects that describe it, and those that measure it."""

    name: str
    heads: list[Location]
    meters: list[Location]


class Tree:
    def __init__(self, resources: Resources) -> None:
        self.recorded, self.changed = resources, Changed()

    def at(self, location: Location | str) -> Any:
        """The object as recorded; an empty one if there is none."""
        location = Location(location) if isinstance(location, str) else location
        matches = self.recorded.get(location.path.partition("#")[0].rstrip("/"))
        for key in location.keys:
            matches = matches[key]
        return {} if matches is None else matches

    def edit(self, location: Location | str) -> Any:
        location = Location(location) if isinstance(location, str) else location
        path = location.path.rstrip("/")
        if path not in self.changed:
            self.changed[path] = msgspec.json.decode(msgspec.json.encode(self.recorded[path]))
        matches = self.changed[path]
        for key in location.keys:
            matches = matches[key]
        return matches

    def linked(self, body: Any, name: str) -> str:
        address = body.get(name, {}).get("@odata.id", "") if isinstance(body.get(name), dict) else ""
        return address.rstrip("/") if address.rstrip("/") in self.recorded else ""

    def members(self, address: str) -> list[str]:
        listed = self.at(address).get("Members", []) if address else []
        paths = [member["@odata.id"].rstrip("/") for member in listed]
        return [path for path in dict.fromkeys(paths) if path in self.recorded]

    @property
    def chassis(self) -> list[str]:
        return self.members(f"{ROOT}/Chassis")

    def parts(self, new: str, listed: str, old: str) -> list[Part]:
        """Parts of every chassis, e.g. `PowerSubsystem`, `PowerSupplies`, `Power`."""
        matches: dict[Location, Part] = {}
        for chassis in map(self.at, self.chassis):
            news = [
                Location(path)
                for path in self.members(self.linked(self.at(self.linked(chassis, new)), listed))
            ]
            address = self.linked(chassis, old)
            count = len(self.at(address).get(listed, [])) if address else 0
            olds = [Location(address, (listed, number)) for number in range(count)]
            for number, location in enumerate(news or olds):
                same = [other for other in olds if other != location and self._same(location, other)]
                if news and not same and len(news) == len(olds):
                    same = [olds[number]]
                heads = [location, *same]
                if self.at(location).get("Status", {}).get("State") != "Absent":
                    matches.setdefault(location, Part(self.name(location), heads, self._meters(heads)))
        return list(matches.values())

    def name(self, location: Location) -> str:
        body = self.at(location)
        return str(body.get("Name") or body.get("FanName") or body.get("MemberId") or location)

    def _same(self, one: Location, other: Location) -> bool:
        serials = {self.at(location).get("SerialNumber") or self.name(location) for location in (one, other)}
        return len(serials) == 1

    def _meters(self, heads: list[Location]) -> list[Location]:
        metrics = [path for location in heads if (path := self.linked(self.at(location), "Metrics"))]
        bodies = [self.at(location) for location in (*heads, *metrics)]
        sources = [source for body in bodies for source in _sources(body) if source in self.recorded]
        return [Location(path) for path in dict.fromkeys((*metrics, *sources))]

    @property
    def supplies(self) -> list[Part]:
        return self.parts("PowerSubsystem", "PowerSupplies", "Power")

    @property
    def fans(self) -> list[Part]:
        return self.parts("ThermalSubsystem", "Fans", "Thermal")

    def entries(self, resource: str, name: str) -> list[Location]:
        """Members of a list in a resource of every chassis, e.g. `Power`, `Voltages`."""
        addresses = dict.fromkeys(self.linked(self.at(path), resource) for path in self.chassis)
        return [
            Location(address, (name, number))
            for address in addresses
            if address
            for number in range(len(self.at(address).get(name) or []))
        ]

    @property
    def rails(self) -> list[tuple[Location, float]]:
        """Voltages behind the supplies that have a lower bound, and the bound."""
        sensors = [Location(path) for path in self.recorded if "/Sensors/" in path]
        matches = []
        for location in (*self.entries("Power", "Voltages"), *sensors):
            body = self.at(location)
            volts = body.get("ReadingVolts", body.get("Reading"))
            low = body.get("LowerThresholdCritical") or body.get("Thresholds", {}).get(
                "LowerCritical", {}
            ).get("Reading")
            is_volts = "ReadingVolts" in body or body.get("ReadingType") == "Voltage"
            if is_volts and isinstance(volts, int | float) and low and 0 < low < volts <= HIGHEST_RAIL:
                matches.append((location, float(low)))
        return matches

    def named(self, names: list[str]) -> list[Location]:
        excerpts = [
            Location(path, keys)
            for path in self.recorded
            if path.endswith("/ThermalMetrics")
            for keys in _excerpts(self.recorded[path])
            if self.at(Location(path, keys)).get("DataSourceUri", "").rpartition("/")[2] in names
        ]
        sensors = [Location(path) for path in self.recorded if path.rpartition("/Sensors/")[2] in names]
        olds = [
            location for location in self.entries("Thermal", "Temperatures") if self.name(location) in names
        ]
        return [*excerpts, *sensors, *olds]


def _sources(value: Any) -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "DataSourceUri" and isinstance(inner, str):
            yield inner.rstrip("/")
        elif isinstance(inner, dict | list):
            yield from _sources(inner)


def _excerpts(metrics: Any) -> Iterator[tuple[str | int, ...]]:
    for number in range(len(metrics.get("TemperatureReadingsCelsius") or [])):
        yield ("TemperatureReadingsCelsius", number)
    if metrics.get("TemperatureSummaryCelsius", {}).get("Intake"):
        yield ("TemperatureSummaryCelsius", "Intake")


def put(value: Any, keys: frozenset[str], number: float | None) -> None:
    """Write one number over all members of these names, but for bounds."""
    for key, inner in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
        if key in keys and not isinstance(inner, dict | list):
            value[key] = number
        elif isinstance(inner, dict | list) and key != "Thresholds":
            put(inner, keys, number)


def status(**members: str) -> Callable[[Tree, Part], None]:
    def apply(tree: Tree, part: Part) -> None:
        for location in part.heads:
            tree.edit(location)["Status"] = members

    return apply


def stand_still(tree: Tree, fan: Part) -> None:
    for location in (*fan.heads, *fan.meters):
        put(tree.edit(location), SPEEDS, 0)


def be_silent(tree: Tree, supply: Part, *, volts: float | None = None) -> None:
    """0 W in all fields, and a state that says that all is well."""
    for location in supply.heads:
        tree.edit(location).pop("LineInputStatus", None)
        put(tree.edit(location), WATTS, 0)
        put(tree.edit(location), VOLTS, volts)
    for location in supply.meters:
        put(tree.edit(location), frozenset({"Reading"}), 0 if volts is None else volts)


def lose_input(tree: Tree, supply: Part) -> None:
    capacity = [tree.at(location).get("PowerCapacityWatts") for location in supply.heads]
    be_silent(tree, supply, volts=0)
    for location, watts in zip(supply.heads, capacity, strict=True):
        tree.edit(location).update(
            {"LineInputStatus": "LossOfInput"} | ({"PowerCapacityWatts": watts} if watts else {})
        )


def leave(tree: Tree, part: Part) -> None:
    """The bay is empty, and the BMC still lists it."""
    for location in part.heads:
        put(tree.edit(location), WATTS | VOLTS | SPEEDS, None)
        tree.edit(location).pop("LineInputStatus", None)
        tree.edit(location)["Status"] = {"State": "Absent"}
    for location in part.meters:
        put(tree.edit(location), frozenset({"Reading"}), None)
