"""Power supplies and their redundancy out of IPMI's sensors and inventories.

Pure.  A supply is what its status sensors, its numbers and its inventory say together; they belong together
by the instance of their entity.  A sensor that says nothing is an empty bay only if its inventory does not
answer either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_

from nodegauge_bmc import sensors, values
from nodegauge_bmc.power import believable
from nodegauge_bmc.repository import Inventory
from nodegauge_bmc.sdr import SPECIFIC, Entity, Locator, Sensor, Unit
from nodegauge_bmc.sensors import PRESENCE, Measured
from nodegauge_contract.chassis import Redundancy, Supply
from nodegauge_contract.values import NOT_READ, Flag, Num, Text, Unavailable

Key = int | str
Inventories = Mapping[Locator, Inventory | None]
"""What the inventory of each supply said; None if it did not answer."""
REDUNDANCY = (
    ("fully redundant", "OK"),
    ("redundancy lost", "Critical"),
    ("redundancy degraded", "Warning"),
    ("non-redundant, sufficient", "Warning"),
    ("non-redundant, sufficient", "Warning"),
    ("non-redundant, insufficient", "Critical"),
    ("redundancy degraded", "Warning"),
    ("redundancy degraded", "Warning"),
)
"""States of event type 0Bh by their bit (table 42-2), and the health that each is."""
_ALONE = frozenset({3, 4})
"""States that a machine with one supply is always in."""
_WORST = ("Critical", "Warning", "OK")
_NUMBER = re.compile(r"(?:ps|psu|p/s|supply|bay)[ _#-]*(\d+)|(\d+)", re.IGNORECASE)
_TAIL = re.compile(r"[ _-]*(status|state|stat|presence|present|prsnt)$", re.IGNORECASE)


def supplies(measured: list[Measured], inventories: Inventories) -> list[Supply]:
    """Every bay that the sensors speak of."""
    status = [reading for reading in measured if sensors.is_status(reading.sensor)]
    numbers = [reading for reading in measured if sensors.is_of_supply(reading.sensor)]
    by_name = _by_name([reading.sensor for reading in status])
    bays: dict[Key, list[Measured]] = {}
    for reading in status or numbers:
        bays.setdefault(_key(reading.sensor, by_name), []).append(reading)
    listed = []
    for key, own in bays.items():
        answers = [answer for at, answer in inventories.items() if _key(at, by_name) == key]
        belonging = [reading for reading in numbers if _key(reading.sensor, by_name) == key]
        listed.append(_supply(own, belonging, answers))
    return listed


def _by_name(status: list[Sensor]) -> bool:
    """Whether instances do not tell supplies apart: another entity, or one instance for several numbers."""
    by_instance: dict[int, set[str]] = {}
    for sensor in status:
        by_instance.setdefault(sensor.instance, set()).add(_number(sensor.name) or "")
    return any(sensor.entity != Entity.POWER_SUPPLY for sensor in status) or any(
        len(numbers) > 1 for numbers in by_instance.values()
    )


def _key(part: Sensor | Locator, by_name: bool) -> Key:
    return (_number(part.name) or part.name) if by_name else part.instance


def _number(name: str) -> str | None:
    match = _NUMBER.search(name)
    return None if match is None else match[1] or match[2]


def _supply(own: list[Measured], numbers: list[Measured], answers: list[Inventory | None]) -> Supply:
    """One bay: its status sensors (or its numbers, where there are none), its numbers, its inventories."""
    inventory = next((answer for answer in answers if answer is not None), Inventory())
    into = _watts(numbers, sensors.is_into)
    out_of = _watts(numbers, sensors.is_out_of)
    present = _present(own, gives=values.is_number(into) or values.is_number(out_of))
    silent = all(reading.states is None for reading in own) and not isinstance(present, bool)
    if silent and answers and not any(answers):
        present = False
    line_input = _line_input(own)
    supply = Supply(
        name=_TAIL.sub("", own[0].name) or own[0].name,
        serial=inventory.serial,
        model=inventory.product,
        present=present,
        state="Absent" if present is False else _state(own),
        health=NOT_READ if present is False else _health(own),
        line_input=NOT_READ if present is False else line_input,
        # The size of a supply of which nothing else is known says nothing about how it is.
        capacity_watts=NOT_READ if silent else inventory.capacity_watts,
        input_watts=into,
        output_watts=out_of,
        input_volts=_input_volts(numbers, line_input),
    )
    return believable(supply)


def _bits(own: list[Measured], event: int) -> int | None:
    """States of all sensors of one event type together; None if none of them said anything."""
    read = [reading.states for reading in own if reading.sensor.event == event and reading.states is not None]
    return reduce(or_, read) if read else None


def _can(own: list[Measured], mask: int) -> bool:
    """Whether a sensor of the supply can say one of these states; a record without a list can say all."""
    return any(
        reading.sensor.event == SPECIFIC and (reading.sensor.states & mask or not reading.sensor.states)
        for reading in own
    )


def _present(own: list[Measured], *, gives: bool) -> Flag:
    if own and all(reading.absent for reading in own):
        return False
    bits, presence = _bits(own, SPECIFIC), _bits(own, PRESENCE)
    if presence is not None and presence & 0b11 in (0b01, 0b10):
        return presence & 0b11 == 0b10
    if bits is not None and bits & 0xFF:
        return True
    if gives:
        return True
    return False if bits is not None and _can(own, 0x01) else NOT_READ


def _health(own: list[Measured]) -> Text:
    """The worst that its sensors say; not read if none can say that the supply failed."""
    healths: list[str] = []
    bits = _bits(own, SPECIFIC)
    if bits is not None:
        if bits & 0x02:
            healths.append("Critical")
        if bits & 0x44:
            healths.append("Warning")
        if _can(own, 0x02):
            healths.append("OK")
    if (predicted := _bits(own, 0x04)) is not None:
        healths.append("Warning" if predicted & 0b10 else "OK")
    if (severity := _bits(own, 0x07)) is not None:
        healths.append("Critical" if severity & 0x6C else "Warning" if severity & 0x12 else "OK")
    if (running := _bits(own, 0x0A)) is not None:
        healths.append("Warning" if running & 0x140 else "OK")
    return next((word for word in _WORST if word in healths), NOT_READ)


def _state(own: list[Measured]) -> Text:
    """Redfish's word for a supply that is there."""
    enabled, running, bits = _bits(own, 0x09), _bits(own, 0x0A), _bits(own, SPECIFIC)
    if (enabled is not None and enabled & 0b11 == 0b01) or (running is not None and running & 0x14):
        return "UnavailableOffline"
    if bits is not None and bits & 0x80:
        return "StandbySpare"
    return NOT_READ if all(reading.states is None for reading in own) else "Enabled"


def _line_input(own: list[Measured]) -> Text:
    bits = _bits(own, SPECIFIC)
    if bits is None:
        return NOT_READ
    if bits & 0x18:
        return "LossOfInput"
    if bits & 0x20:
        return "OutOfRange"
    return "Normal" if bits & 0x01 and _can(own, 0x38) else NOT_READ


def _watts(numbers: list[Measured], direction: Callable[[Sensor], bool]) -> Num:
    """Watts of the one sensor whose name says this direction."""
    read = [
        sensors.watts(reading)
        for reading in numbers
        if reading.sensor.is_a(Unit.WATT) and direction(reading.sensor)
    ]
    return read[0] if len(read) == 1 else NOT_READ


def _input_volts(numbers: list[Measured], line_input: Text) -> Num:
    """Volts at the input: by name, or because no rail has as many."""
    for reading in numbers:
        read = sensors.volts(reading) if reading.sensor.is_a(Unit.VOLT) else NOT_READ
        if isinstance(read, Unavailable):
            continue
        if read > sensors.HIGHEST_RAIL or sensors.is_into(reading.sensor):
            lie = read == 0 and line_input == "Normal"
            return Unavailable("0 V, and the supply's status says that it has input") if lie else read
    return NOT_READ


def redundancy(measured: list[Measured], *, installed: int) -> list[Redundancy]:
    """The groups as the BMC states them.  One supply alone is never redundant, and nothing is lost there."""
    groups = []
    for reading in measured:
        if not sensors.is_redundancy(reading.sensor) or not reading.states:
            continue
        bit = (reading.states & -reading.states).bit_length() - 1
        if bit >= len(REDUNDANCY):
            continue
        state, health = REDUNDANCY[bit]
        alone = bit in _ALONE and installed < 2
        groups.append(
            Redundancy(
                name=reading.name,
                state=state,
                health=Unavailable("one supply cannot be redundant") if alone else health,
            )
        )
    return groups
