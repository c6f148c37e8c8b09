"""Sensor data records of IPMI: which sensors a machine has, and what their raw bytes mean.

Pure decoding of the records and formulas in sections 36 and 43 of the IPMI specification 2.0; a record that
is cut short or of an unknown kind is no sensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract.values import Num, Unavailable

FULL, COMPACT, FRU_LOCATOR = 0x01, 0x02, 0x11
THRESHOLD, SPECIFIC = 0x01, 0x6F
"""Event types: a number with thresholds; states of the sensor's own type (table 42-1)."""


class Kind(IntEnum):
    """Sensor types that are read (table 42-3)."""

    TEMPERATURE = 0x01
    VOLTAGE = 0x02
    FAN = 0x04
    POWER_SUPPLY = 0x08
    POWER_UNIT = 0x09


class Unit(IntEnum):
    """Units that are read (table 43-15)."""

    CELSIUS = 1
    FAHRENHEIT = 2
    KELVIN = 3
    VOLT = 4
    WATT = 6
    RPM = 18


class Entity(IntEnum):
    """What a sensor watches (table 43-13)."""

    PROCESSOR = 3
    DISK = 4
    MEMORY_MODULE = 8
    POWER_SUPPLY = 10
    ADD_IN_CARD = 11
    MEMORY_DEVICE = 32
    AIR_INLET = 55
    AIR_INLET_DCMI = 64
    PROCESSOR_DCMI = 65
    OUTSIDE = 39


class Sensor(Struct, frozen=True, kw_only=True):
    """One sensor: its address, what it watches, and how a raw byte of it becomes a value (section 43)."""

    name: str
    """Its text in the record; `sensor NUMBER` for none."""
    owner: int
    """Address of the controller that answers for it; the BMC is 0x20."""
    lun: int
    """Unit (LUN) of that controller, 0 to 3."""
    number: int
    """Its number there, 0 to 255."""
    entity: int
    """What it watches, an `Entity` or another number."""
    instance: int
    """Which of several such entities."""
    kind: int
    """Its type, a `Kind` or another number."""
    event: int
    """Its event type: `THRESHOLD`, `SPECIFIC` or another (table 42-1)."""
    states: int
    """States that it can report, as bits 0 to 14; 0 where its record lists none."""
    thresholds: int
    """Access to its thresholds: 0 none, 1 and 2 readable, 3 fixed and unreadable."""
    form: int = 3
    """Form of the raw byte: 0 unsigned, 1 ones' complement, 2 two's complement, 3 no number."""
    percent: bool = False
    """Whether its number is per cent."""
    per: bool = False
    """Whether a rate or a second unit belongs to `unit`."""
    unit: int = 0
    """Unit of its number, a `Unit` or another number."""
    linear: int = 0
    """Linearization L, a key of `_LINEAR` or an unknown one."""
    m: int = 1
    """Factor of the raw byte, 10 bits signed (`value`)."""
    b: int = 0
    """What is added to the product, 10 bits signed."""
    b_exponent: int = 0
    """Power of ten of `b` (k1), -8 to 7."""
    exponent: int = 0
    """Power of ten of the sum (k2), -8 to 7."""

    @property
    def analog(self) -> bool:
        """Whether its reading is a number."""
        return self.form != 3

    def is_a(self, unit: Unit) -> bool:
        """Whether its number is in this unit, not in one per another."""
        return self.analog and self.unit == unit and not self.percent and not self.per


class Locator(Struct, frozen=True, kw_only=True):
    """Where the inventory (FRU) of an entity is: the number of a device behind the BMC."""

    name: str
    device: int
    entity: int
    instance: int


_LINEAR: dict[int, Callable[[float], float]] = {
    0: lambda x: x,
    1: math.log,
    2: math.log10,
    3: math.log2,
    4: math.exp,
    5: lambda x: math.pow(10, x),
    6: lambda x: math.pow(2, x),
    7: lambda x: 1 / x,
    8: lambda x: x * x,
    9: lambda x: x * x * x,
    10: math.sqrt,
    11: math.cbrt,
}
"""Linearizations (table 43-1, byte 24); sensors of type 0x70 and above need factors for every reading."""


def value(sensor: Sensor, raw: int) -> Num:
    """The number that a raw byte means: y = L[(m x + b 10^k1) 10^k2] (section 36.3)."""
    x = raw
    if sensor.form == 1 and raw & 0x80:
        x = -(~raw & 0x7F)
    elif sensor.form == 2 and raw & 0x80:
        x = raw - 256
    if sensor.linear not in _LINEAR:
        return Unavailable(f"formula {sensor.linear:#04x} of this sensor is not known")
    try:
        line = (sensor.m * x + sensor.b * 10.0**sensor.b_exponent) * 10.0**sensor.exponent
        read = _LINEAR[sensor.linear](line)
    except (ValueError, OverflowError, ZeroDivisionError):
        return Unavailable("its formula has no value here")
    if sensor.unit == Unit.FAHRENHEIT:
        read = (read - 32) / 1.8
    elif sensor.unit == Unit.KELVIN:
        read -= 273.15
    return round(read, 4) if math.isfinite(read) else Unavailable("its formula has no value here")


def sensors(record: bytes) -> list[Sensor]:
    """The sensors of a record: one, those that share a compact one, or none."""
    if len(record) < 32 or record[3] not in (FULL, COMPACT):
        return []
    full = record[3] == FULL
    if full and len(record) < 48:
        return []
    sensor = Sensor(
        name=name(record, 47 if full else 31) or f"sensor {record[7]}",
        owner=record[5],
        lun=record[6] & 0x03,
        number=record[7],
        entity=record[8],
        instance=record[9] & 0x7F,
        kind=record[12],
        event=record[13],
        states=int.from_bytes(record[18:20], "little") & 0x7FFF,
        thresholds=record[11] >> 2 & 0x03,
    )
    if full:
        return [_with_formula(sensor, record)]
    return _shared(sensor, record)


def _with_formula(sensor: Sensor, record: bytes) -> Sensor:
    return replace(
        sensor,
        form=record[20] >> 6,
        percent=bool(record[20] & 0x01),
        per=bool(record[20] & 0x3E),
        unit=record[21],
        linear=record[23] & 0x7F,
        m=_signed(record[24] | (record[25] & 0xC0) << 2, 10),
        b=_signed(record[26] | (record[27] & 0xC0) << 2, 10),
        exponent=_signed(record[29] >> 4, 4),
        b_exponent=_signed(record[29] & 0x0F, 4),
    )


def _shared(sensor: Sensor, record: bytes) -> list[Sensor]:
    """The sensors that share a compact record (table 43-2, bytes 24 and 25)."""
    count = record[23] & 0x0F
    if count < 2:
        return [sensor]
    alphabetic, start = record[23] >> 4 & 0x03 == 1, record[24] & 0x7F
    own_instances = bool(record[24] & 0x80)
    listed = []
    for index in range(count):
        suffix = chr(65 + (start + index) % 26) if alphabetic else str(start + index)
        listed.append(
            replace(
                sensor,
                name=sensor.name + suffix,
                number=(sensor.number + index) & 0xFF,
                instance=sensor.instance + index if own_instances else sensor.instance,
            )
        )
    return listed


def locator(record: bytes) -> Locator | None:
    """The inventory of an entity, if a record locates one that the BMC itself reads."""
    if len(record) < 16 or record[3] != FRU_LOCATOR or not record[7] & 0x80:
        return None
    if record[5] >> 1 != 0x20 >> 1 or record[8] >> 4:
        return None
    return Locator(name=name(record, 15), device=record[6], entity=record[12], instance=record[13] & 0x7F)


def name(record: bytes, at: int) -> str:
    """The text behind the type and length byte at `at` (section 43.15), on one line."""
    if at >= len(record):
        return ""
    return text(record[at] >> 6, record[at + 1 : at + 1 + (record[at] & 0x1F)])


def text(form: int, data: bytes) -> str:
    """A text of a record or an inventory: 3 Latin 1, 2 packed ASCII, 1 BCD plus, 0 Unicode."""
    if form == 3:
        read = data.decode("latin-1")
    elif form == 2:
        bits = int.from_bytes(data, "little")
        read = "".join(chr((bits >> 6 * index & 0x3F) + 0x20) for index in range(len(data) * 8 // 6))
    elif form == 1:
        read = "".join("0123456789 -.:,_"[half] for byte in data for half in (byte >> 4, byte & 0x0F))
    else:
        read = data.decode("utf-8", errors="replace")
    plain = "".join(char if char.isprintable() else " " for char in read)
    return " ".join(plain.split())


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number
