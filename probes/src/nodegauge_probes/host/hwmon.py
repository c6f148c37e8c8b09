"""Power supplies and fans in the kernel's hardware monitor: volts, amperes, watts, rpm, alarms.

Readable without privilege in the host's /sys, which a pod sees.  Chips with only temperatures (CPUs, disks,
memory, network cards) say nothing about supplies and are skipped, like graphics drivers, whose regulators
belong to the card.  Nothing is converted: a mainboard chip's inputs need multipliers that are unknown here,
and its alarms use limits that may never have been set.

A sensor may be slow (I2C, PMBus, ACPI), so sensors are read in a thread of their own during the sampling
window (`health`).  Source: Documentation/hwmon/sysfs-interface.rst of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from nodegauge_contract import Int, Sensor, Unavailable
from nodegauge_contract.model import MAX_SENSORS
from nodegauge_probes.host.kernel import listing, natural, text_of

GRAPHICS = frozenset({"amdgpu", "i915", "nouveau", "nvidia", "radeon", "xe"})
SUPPLY_KINDS = frozenset({"in", "power", "curr"})

_SENSOR = re.compile(r"^((in|power|curr|fan|temp)\d{1,3})_(input|average|alarm|fault)$")
_ALARMS = (
    "alarm",
    "fault",
    "crit_alarm",
    "lcrit_alarm",
    "max_alarm",
    "min_alarm",
    "cap_alarm",
    "emergency_alarm",
    "rated_max_alarm",
)
_LOW, _HIGH = ("min", "lcrit"), ("max", "crit", "cap")
NO_ALARM, NO_LIMIT = Unavailable("the chip has no alarm for it"), Unavailable("the chip has no such limit")
_ORDER = {"power": 0, "in": 1, "curr": 2, "fan": 3, "temp": 4}


def sensors(root: Path, add: Callable[[Sensor], None]) -> None:
    """Call `add` with every relevant sensor up to the document's limit, volts and watts first."""
    chips = [(chip, names) for chip in _chips(root) if (names := _relevant(chip))]
    ranked = [(_rank(name), chip, name) for chip, names in chips for name in names]
    for _, chip, name in sorted(ranked, key=lambda entry: entry[0][:1])[:MAX_SENSORS]:
        add(_sensor(chip, name))


def _chips(root: Path) -> list[Path]:
    """Folders with the chips' files, in the kernel's order; some old drivers keep them under `device`."""
    chips = []
    for name in sorted(listing(root / "class/hwmon"), key=natural):
        folder = root / "class/hwmon" / name
        chips.append(folder if (folder / "name").exists() else folder / "device")
    return chips


def _relevant(chip: Path) -> list[str]:
    """`in1`, `power1`, ...: everything of a chip with volts, amperes or watts; else its fans."""
    if _text(chip / "name") in GRAPHICS:
        return []
    kinds = {match[1]: match[2] for name in listing(chip) if (match := _SENSOR.match(name))}
    supplies = not SUPPLY_KINDS.isdisjoint(kinds.values())
    return sorted((n for n, kind in kinds.items() if supplies or kind == "fan"), key=_rank)


def _rank(name: str) -> tuple[int, list[tuple[int, str]]]:
    return _ORDER[name.rstrip("0123456789")], natural(name)


def _sensor(chip: Path, name: str) -> Sensor:
    value = _number(chip / f"{name}_input")
    if isinstance(value, Unavailable) and (chip / f"{name}_average").exists():
        value = _number(chip / f"{name}_average")
    return Sensor(
        chip=_text(chip / "name") or chip.name[:128],
        name=name,
        label=_text(chip / f"{name}_label"),
        value=value,
        alarm=_alarm(chip, name),
        low=_first(chip, name, _LOW),
        high=_first(chip, name, _HIGH),
    )


def _alarm(chip: Path, name: str) -> Int:
    """1 while any alarm of the sensor is raised, 0 while none is; else why that is unknown."""
    readings = [_number(chip / f"{name}_{kind}") for kind in _ALARMS if (chip / f"{name}_{kind}").exists()]
    numbers = [int(reading != 0) for reading in readings if isinstance(reading, int)]
    if numbers and (any(numbers) or len(numbers) == len(readings)):
        return max(numbers)
    return next((reading for reading in readings if isinstance(reading, Unavailable)), NO_ALARM)


def _first(chip: Path, name: str, kinds: tuple[str, ...]) -> Int:
    """The first of these limits that the chip has."""
    paths = [chip / f"{name}_{kind}" for kind in kinds]
    return next((_number(path) for path in paths if path.exists()), NO_LIMIT)


def _text(path: Path) -> str:
    text = text_of(path)
    return "" if isinstance(text, Unavailable) else text


def _number(path: Path) -> Int:
    text = text_of(path)
    if isinstance(text, Unavailable):
        return text
    try:
        value = int(text)
    except ValueError:
        return Unavailable("not a number")
    return value if -(2**63) <= value < 2**63 else Unavailable("not a number")
