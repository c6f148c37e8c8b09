"""Faults that any BMC's tree can have: which parts it shows, and what becomes of a part.

Trees are those of Redfish, with the new resources, the old ones, or both.  What one part is called in several
places is changed in all of them: a BMC that contradicts itself is another matter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

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


class Place(NamedTuple):
    """One object: a resource, or a member of a list in it."""

    path: str
    keys: tuple[str | int, ...] = ()


class Part(NamedTuple):
    """A supply, a fan: the objects that describe it, and those that measure it."""

    name: str
    heads: list[Place]
    meters: list[Place]


class Tree:
    """A recorded tree, and what is changed in it."""

    def __init__(self, resources: Resources) -> None:
        self.recorded, self.changed = resources, Changed()

    def at(self, place: Place | str) -> Any:
        """The object as recorded; an empty one if there is none."""
        place = Place(place) if isinstance(place, str) else place
        found = self.recorded.get(place.path.partition("#")[0].rstrip("/"))
        for key in place.keys:
            found = found[key]
        return {} if found is None else found

    def edit(self, place: Place | str) -> Any:
        """The object in a copy of its resource, to be changed."""
        place = Place(place) if isinstance(place, str) else place
        path = place.path.rstrip("/")
        found = self.changed.setdefault(path, copy.deepcopy(self.recorded[path]))
        for key in place.keys:
            found = found[key]
        return found

    def linked(self, body: Any, name: str) -> str:
        """The address of a resource that is there."""
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
        found: dict[Place, Part] = {}
        for chassis in map(self.at, self.chassis):
            news = [
                Place(path) for path in self.members(self.linked(self.at(self.linked(chassis, new)), listed))
            ]
            address = self.linked(chassis, old)
            count = len(self.at(address).get(listed, [])) if address else 0
            olds = [Place(address, (listed, number)) for number in range(count)]
            for number, place in enumerate(news or olds):
                same = [other for other in olds if other != place and self._same(place, other)]
                if news and not same and len(news) == len(olds):
                    same = [olds[number]]
                heads = [place, *same]
                if self.at(place).get("Status", {}).get("State") != "Absent":
                    found.setdefault(place, Part(self.name(place), heads, self._meters(heads)))
        return list(found.values())

    def name(self, place: Place) -> str:
        body = self.at(place)
        return str(body.get("Name") or body.get("FanName") or body.get("MemberId") or place)

    def _same(self, one: Place, other: Place) -> bool:
        serials = {self.at(place).get("SerialNumber") or self.name(place) for place in (one, other)}
        return len(serials) == 1

    def _meters(self, heads: list[Place]) -> list[Place]:
        metrics = [path for place in heads if (path := self.linked(self.at(place), "Metrics"))]
        bodies = [self.at(place) for place in (*heads, *metrics)]
        sources = [source for body in bodies for source in _sources(body) if source in self.recorded]
        return [Place(path) for path in dict.fromkeys((*metrics, *sources))]

    @property
    def supplies(self) -> list[Part]:
        return self.parts("PowerSubsystem", "PowerSupplies", "Power")

    @property
    def fans(self) -> list[Part]:
        return self.parts("ThermalSubsystem", "Fans", "Thermal")

    def entries(self, resource: str, name: str) -> list[Place]:
        """Members of a list in a resource of every chassis, e.g. `Power`, `Voltages`."""
        addresses = dict.fromkeys(self.linked(self.at(path), resource) for path in self.chassis)
        return [
            Place(address, (name, number))
            for address in addresses
            if address
            for number in range(len(self.at(address).get(name) or []))
        ]

    @property
    def rails(self) -> list[tuple[Place, float]]:
        """Voltages behind the supplies that have a lower bound, and the bound."""
        sensors = [Place(path) for path in self.recorded if "/Sensors/" in path]
        found = []
        for place in (*self.entries("Power", "Voltages"), *sensors):
            body = self.at(place)
            volts = body.get("ReadingVolts", body.get("Reading"))
            low = body.get("LowerThresholdCritical") or body.get("Thresholds", {}).get(
                "LowerCritical", {}
            ).get("Reading")
            is_volts = "ReadingVolts" in body or body.get("ReadingType") == "Voltage"
            if is_volts and isinstance(volts, int | float) and low and 0 < low < volts <= HIGHEST_RAIL:
                found.append((place, float(low)))
        return found

    def named(self, names: list[str]) -> list[Place]:
        """Everything that a temperature sensor with these names is read from."""
        excerpts = [
            Place(path, keys)
            for path in self.recorded
            if path.endswith("/ThermalMetrics")
            for keys in _excerpts(self.recorded[path])
            if self.at(Place(path, keys)).get("DataSourceUri", "").rpartition("/")[2] in names
        ]
        sensors = [Place(path) for path in self.recorded if path.rpartition("/Sensors/")[2] in names]
        olds = [place for place in self.entries("Thermal", "Temperatures") if self.name(place) in names]
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


def status(**words: str) -> Callable[[Tree, Part], None]:
    def apply(tree: Tree, part: Part) -> None:
        for place in part.heads:
            tree.edit(place)["Status"] = words

    return apply


def stand_still(tree: Tree, fan: Part) -> None:
    for place in (*fan.heads, *fan.meters):
        put(tree.edit(place), SPEEDS, 0)


def be_silent(tree: Tree, supply: Part, *, volts: float | None = None) -> None:
    """0 W in all fields, and a state that says that all is well."""
    for place in supply.heads:
        tree.edit(place).pop("LineInputStatus", None)
        put(tree.edit(place), WATTS, 0)
        put(tree.edit(place), VOLTS, volts)
    for place in supply.meters:
        put(tree.edit(place), frozenset({"Reading"}), 0 if volts is None else volts)


def lose_input(tree: Tree, supply: Part) -> None:
    capacity = [tree.at(place).get("PowerCapacityWatts") for place in supply.heads]
    be_silent(tree, supply, volts=0)
    for place, watts in zip(supply.heads, capacity, strict=True):
        tree.edit(place).update(
            {"LineInputStatus": "LossOfInput"} | ({"PowerCapacityWatts": watts} if watts else {})
        )


def leave(tree: Tree, part: Part) -> None:
    """The bay is empty, and the BMC still lists it."""
    for place in part.heads:
        put(tree.edit(place), WATTS | VOLTS | SPEEDS, None)
        tree.edit(place).pop("LineInputStatus", None)
        tree.edit(place)["Status"] = {"State": "Absent"}
    for place in part.meters:
        put(tree.edit(place), frozenset({"Reading"}), None)
