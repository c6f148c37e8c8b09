"""Values of Redfish resources, and the sentinels that vendors write in their place.

A BMC answers with 0 W for "not measured", revolutions in a field for per cent, a flag as 1 V, text where a
number belongs, or null.  A value that cannot be true becomes `Unavailable` with the reason; nothing is
corrected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from nodegauge_contract.chassis import ZERO_WATTS
from nodegauge_contract.values import NOT_READ, Flag, Num, Text, Unavailable

Resource = Mapping[str, Any]
_Part = TypeVar("_Part", bound=Struct)

MAX_WATTS = 200_000.0
"""Watts above which a number is an error: a rack of 72 GPUs draws 120 to 140 kW."""
MAX_RPM = 60_000.0
MAX_CELSIUS, MIN_CELSIUS = 150.0, -40.0
MAX_SECONDS = 20 * 365 * 86400.0
"""Longest sum of time that can be: twenty years."""
MAX_TEXT = 128
ALIKE = 0.1
"""Share by which two readings of one fan or sensor differ at most, a second apart.  Chosen by this
project."""
INLET, EXHAUST = frozenset({"inlet", "intake", "ambient", "front", "fp"}), frozenset({"exhaust", "outlet"})
"""Words in the names of sensors in the air that enters the machine (`fp`: front panel), or leaves it."""
# fmt: off
PARTS = frozenset({
    "asic", "battery", "bmc", "coolant", "cpu", "dimm", "disk", "dpu", "drive", "fpga", "gpu", "hba", "hbm",
    "hd", "hdd", "lan", "liquid", "lom", "mem", "memory", "mezz", "nic", "nvme", "nvswitch", "ocp", "pch",
    "pci", "pcie", "ps", "psu", "raid", "retimer", "riser", "soc", "ssd", "supply", "vr", "vrd", "vrm",
    "water",
})
# fmt: on
"""Words in the names of parts: what they breathe is not the machine's air."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
DURATION = re.compile(
    r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,8})H)?(?:(\d{1,10})M)?(?:(\d{1,12}(?:\.\d{1,20})?)S)?)?", re.ASCII
)


def member(resource: Resource, *path: str) -> Any:
    """The value at a path of member names; None where a name is missing or holds no object."""
    value: Any = resource
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def items(resource: Resource, name: str) -> list[Resource]:
    """The objects in a list member, each once by its identity; empty if there is no such list."""
    value = resource.get(name)
    listed = [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
    named = [(str(_identity(item, resource) or ""), item) for item in listed]
    own = {identity: item for identity, item in reversed(named) if identity}
    return [item for identity, item in named if own.get(identity, item) is item]


def _identity(item: Resource, resource: Resource) -> tuple[Any, ...]:
    """What tells an object in a list from the others; empty if nothing does.  Some BMCs give all of them the
    address of the resource, so that names and serial numbers count, too."""
    address = item.get("@odata.id")
    address = None if address == resource.get("@odata.id") else address
    if address is None and item.get("MemberId") is None:
        return ()
    return (address, *(item.get(key) for key in ("MemberId", "Name", "FanName", "SerialNumber")))


def once(lists: Iterable[list[_Part]], *, slack: float = 0.0) -> list[_Part]:
    """The parts of several lists, each once: two chassis of one machine list the same fans.

    Parts of different lists are one if their names are the same and nothing that was read of both differs
    (numbers: by more than the share `slack`, for they were read one after the other).  What one list lacks
    comes from the other.
    """
    merged: list[_Part] = []
    for listed in lists:
        older = len(merged)
        for part in listed:
            same = next((at for at, other in enumerate(merged[:older]) if _agree(part, other, slack)), None)
            if same is None:
                merged.append(part)
            else:
                merged[same] = filled(merged[same], part)
    return merged


def filled(part: _Part, other: _Part) -> _Part:
    """The part, with what was not read of it taken from the other."""
    more = asdict(other)
    lacking = [name for name, value in asdict(part).items() if isinstance(value, Unavailable)]
    return replace(part, **{name: more[name] for name in lacking if not isinstance(more[name], Unavailable)})


def _agree(part: Struct, other: Struct, slack: float) -> bool:
    pairs = zip(asdict(part).values(), asdict(other).values(), strict=True)
    read = [pair for pair in pairs if not any(isinstance(value, Unavailable) for value in pair)]
    return all(
        one == two
        or (is_number(one) and is_number(two) and abs(one - two) <= slack * max(abs(one), abs(two)))
        for one, two in read
    )


def text(value: Any) -> Text:
    """A text on one line; a number is a text too (a serial number without quotes)."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return NOT_READ
    line = " ".join(str(value).split())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else "?" for char in line)
    return line[:MAX_TEXT] or NOT_READ


def number(value: Any, *, low: float, high: float, unit: str) -> Num:
    """A number within what is possible.  Digits in quotes are a number; a flag is none."""
    if value is None:
        return NOT_READ
    if isinstance(value, bool):
        return Unavailable(f"a flag instead of a number of {unit}")
    try:
        read = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        read = math.nan
    if not math.isfinite(read):
        return Unavailable(f"{str(value)[:32]!r} instead of a number of {unit}")
    if not low <= read <= high:
        return Unavailable(f"{read:g} {unit} cannot be")
    return int(read) if read.is_integer() else round(read, 3)


def watts(value: Any) -> Num:
    """Power.  0 W is what a BMC says that has no reading: a part that is on draws more."""
    read = number(value, low=0.0, high=MAX_WATTS, unit="W")
    return ZERO_WATTS if read == 0 else read


def rpm(value: Any) -> Num:
    """Revolutions per minute; 0 is a fan that stands still."""
    return number(value, low=0.0, high=MAX_RPM, unit="rpm")


def percent(value: Any) -> Num:
    """Per cent; revolutions in its place cannot be."""
    return number(value, low=0.0, high=100.0, unit="%")


def celsius(value: Any) -> Num:
    """A temperature of air or a part."""
    return number(value, low=MIN_CELSIUS, high=MAX_CELSIUS, unit="°C")


def volts(value: Any, *, high: float = 400.0) -> Num:
    """A voltage; a flag that says whether power is good is none."""
    return number(value, low=0.0, high=high, unit="V")


def name_words(name: str) -> frozenset[str]:
    """The words of a sensor's name in small letters, with neither digits nor signs: `Fan1InletTemp`,
    `TEMP_SENS_FRONT`."""
    lower = (*_WORD.findall(name), *re.findall("[a-z]+", name.lower()))
    return frozenset(word.lower() for word in lower)


def air_side(name: str, *, enters: bool = False, leaves: bool = False) -> bool | None:
    """Whether a sensor of temperature is in air that enters the machine (True) or leaves it (False); None for
    a part's, or of neither.  `enters`, `leaves`: what the BMC says beside the name."""
    in_name = name_words(name)
    if in_name & PARTS or "p/s" in name.lower():
        return None
    if in_name & EXHAUST:
        return False
    if in_name & INLET or enters:
        return True
    return False if leaves else None


def duration(value: Any) -> Num:
    """Seconds of a duration as Redfish writes it (ISO 8601: `P1DT2H3M4.5S`)."""
    if value is None:
        return NOT_READ
    read = DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= MAX_TEXT else None
    if read is None or not any(read.groups()):
        return Unavailable(f"{str(value)[:32]!r} instead of a duration")
    days, hours, minutes, seconds = (float(part or 0) for part in read.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return number(total, low=0.0, high=MAX_SECONDS, unit="s")


def is_number(value: object) -> bool:
    """Whether a value was read and is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def state(resource: Resource) -> Text:
    """`Status.State`, the BMC's word."""
    return text(member(resource, "Status", "State"))


def health(resource: Resource) -> Text:
    """`Status.Health`, the BMC's word."""
    return text(member(resource, "Status", "Health"))


def present(resource: Resource) -> Flag:
    """Whether the part is there: only the state `Absent` says that it is not, and only a state says that it
    is."""
    word = state(resource)
    return word != "Absent" if isinstance(word, str) else NOT_READ


def link(resource: Resource, *path: str) -> str:
    """The address that a member refers to, absolute if it is on another host; empty without one."""
    address = member(resource, *path, "@odata.id")
    return address if isinstance(address, str) and (address.startswith("/") or "://" in address) else ""


def links(resource: Resource, name: str) -> list[str]:
    """The addresses in a list member, each once (with or without a slash at its end)."""
    addresses = [address for item in items(resource, name) if (address := link(item))]
    return list({address.rstrip("/"): address for address in reversed(addresses)}.values())[::-1]
