"""What an IPMI machine's sensors say, as parts of the contract's reading.

Pure.  A sensor is chosen by its type, its entity and its unit, which the specification fixes; by its name
only where these do not say enough: whether watts go into a supply or come out of it, which air leaves the
machine, what draws the watts of the whole machine, and which supply a vendor means that gives all of them
one entity.
"""

from __future__ import annotations

import re

from msgspec import Struct

from nodegauge_bmc import values
from nodegauge_bmc.sdr import SPECIFIC, THRESHOLD, Entity, Kind, Sensor, Unit
from nodegauge_contract.chassis import AirTemperature, Fan, Rail
from nodegauge_contract.values import NOT_READ, Flag, Num, Text, Unavailable

PRESENCE, REDUNDANCY = 0x08, 0x0B
SUPPLY_EVENTS = frozenset({SPECIFIC, 0x04, 0x07, PRESENCE, 0x09, 0x0A})
"""Event types whose states say how a supply is (tables 42-1 to 42-3)."""
MAX_READ = 500
"""Sensors of one machine that are asked for a reading; the largest servers have 100 to 200 such."""
HIGHEST_RAIL = 64.0
"""Volts above which a voltage is the mains or a busbar's, not a rail."""
_INLETS = frozenset({Entity.AIR_INLET, Entity.AIR_INLET_DCMI, Entity.OUTSIDE})
_PARTS = frozenset(
    {
        Entity.PROCESSOR,
        Entity.PROCESSOR_DCMI,
        Entity.MEMORY_MODULE,
        Entity.MEMORY_DEVICE,
        Entity.DISK,
        Entity.ADD_IN_CARD,
        Entity.POWER_SUPPLY,
    }
)
"""Entities that are no machine: their watts and their air are their own."""
_INTO = re.compile(r"input|(?<![a-z])(p|v)?in(?![a-z])|(?<![a-z])ac(?![a-z])", re.IGNORECASE)
_OUT_OF = re.compile(r"output|(?<![a-z])(p|v)?out(?![a-z])|(?<![a-z])dc(?![a-z])", re.IGNORECASE)
_WHOLE = re.compile(
    r"(pwr|power).?(consumption|meter)|(total|sys(tem)?|chassis|node|server).?(level|power|pwr|watts)",
    re.IGNORECASE,
)
_LOWER, _UPPER, _CAUTION = 0b000111, 0b111000, 0b001001


class Measured(Struct, frozen=True, kw_only=True):
    """One sensor and what it said.

    `value`: its number, in its unit (temperatures in °C).  `states`: bits of its states or crossed
    thresholds; None if it said nothing.  `absent`: what it watches is not there.  Bounds are unavailable
    where the BMC has none or nonsense.
    """

    sensor: Sensor
    value: Num = NOT_READ
    states: int | None = None
    absent: bool = False
    low_critical: Num = NOT_READ
    high_caution: Num = NOT_READ
    high_critical: Num = NOT_READ

    @property
    def name(self) -> str:
        """As the BMC calls it."""
        return self.sensor.name


def is_wanted(sensor: Sensor) -> bool:
    """Whether a reading needs this sensor; a machine has many more."""
    return (
        is_status(sensor)
        or is_redundancy(sensor)
        or is_of_supply(sensor)
        or is_fan(sensor)
        or is_fan_presence(sensor)
        or is_rail(sensor)
        or is_inlet(sensor) is not None
        or is_whole(sensor)
    )


def is_status(sensor: Sensor) -> bool:
    """Says how a supply is: type Power Supply with states."""
    return sensor.kind == Kind.POWER_SUPPLY and sensor.event in SUPPLY_EVENTS


def is_redundancy(sensor: Sensor) -> bool:
    """Says whether the supplies are redundant."""
    return sensor.kind in (Kind.POWER_SUPPLY, Kind.POWER_UNIT) and sensor.event == REDUNDANCY


def is_of_supply(sensor: Sensor) -> bool:
    """A supply's watts or volts."""
    owned = sensor.entity == Entity.POWER_SUPPLY or sensor.kind == Kind.POWER_SUPPLY
    return owned and (sensor.is_a(Unit.WATT) or sensor.is_a(Unit.VOLT))


def is_fan(sensor: Sensor) -> bool:
    """A fan's speed."""
    return sensor.kind == Kind.FAN and sensor.analog and (sensor.is_a(Unit.RPM) or sensor.percent)


def is_fan_presence(sensor: Sensor) -> bool:
    """Says whether a fan is there."""
    return sensor.kind == Kind.FAN and sensor.event == PRESENCE


def is_rail(sensor: Sensor) -> bool:
    """A voltage inside the machine."""
    inside = sensor.kind == Kind.VOLTAGE and sensor.is_a(Unit.VOLT)
    return inside and sensor.event == THRESHOLD and not is_into(sensor)


def is_into(sensor: Sensor) -> bool:
    """Whether its name says that it is about what a supply takes."""
    return _INTO.search(sensor.name) is not None


def is_out_of(sensor: Sensor) -> bool:
    """Whether its name says that it is about what a supply gives."""
    return _OUT_OF.search(sensor.name) is not None


def is_inlet(sensor: Sensor) -> bool | None:
    """True for air that enters, False for air that leaves, None for no air.  An entity says the first; only a
    name says the second, and which part's air it is."""
    temperature = sensor.unit in (Unit.CELSIUS, Unit.FAHRENHEIT, Unit.KELVIN)
    if sensor.kind != Kind.TEMPERATURE or not sensor.analog or not temperature or sensor.entity in _PARTS:
        return None
    return values.air_side(sensor.name, enters=sensor.entity in _INLETS)


def is_whole(sensor: Sensor) -> bool:
    """Watts of the whole machine, by name: no entity says it."""
    return sensor.is_a(Unit.WATT) and sensor.entity not in _PARTS and bool(_WHOLE.search(sensor.name))


def fans(measured: list[Measured]) -> list[Fan]:
    """All fans; whether one is there says a sensor of the same entity."""
    there = {
        (reading.sensor.entity, reading.sensor.instance): present
        for reading in measured
        if is_fan_presence(reading.sensor) and isinstance(present := _present(reading), bool)
    }
    return [
        Fan(
            name=reading.name,
            rpm=NOT_READ if reading.sensor.percent else _checked(values.rpm, reading.value),
            percent=_checked(values.percent, reading.value) if reading.sensor.percent else NOT_READ,
            low_critical_rpm=NOT_READ
            if reading.sensor.percent
            else _checked(values.rpm, reading.low_critical),
            present=False
            if reading.absent
            else there.get((reading.sensor.entity, reading.sensor.instance), NOT_READ),
            health=crossed(reading, _LOWER),
        )
        for reading in measured
        if is_fan(reading.sensor)
    ]


def rails(measured: list[Measured]) -> list[Rail]:
    """All voltages inside the machine that were read."""
    return [
        Rail(
            name=reading.name,
            volts=volts,
            low_critical_volts=_checked(values.volts, reading.low_critical),
            high_critical_volts=_checked(values.volts, reading.high_critical),
            health=crossed(reading, _LOWER | _UPPER),
        )
        for reading in measured
        if is_rail(reading.sensor)
        and not isinstance(volts := _checked(values.volts, reading.value), Unavailable)
        and volts <= HIGHEST_RAIL
    ]


def air(measured: list[Measured]) -> list[AirTemperature]:
    """Air that enters and leaves; too cold is no fault of a machine's air."""
    return [
        AirTemperature(
            name=reading.name,
            inlet=inlet,
            celsius=_checked(values.celsius, reading.value),
            high_caution_celsius=_checked(values.celsius, reading.high_caution),
            high_critical_celsius=_checked(values.celsius, reading.high_critical),
            health=crossed(reading, _UPPER),
        )
        for reading in measured
        if (inlet := is_inlet(reading.sensor)) is not None and not reading.absent
    ]


def whole_watts(measured: list[Measured]) -> Num:
    """Watts of the machine, if exactly one sensor has them."""
    read = [watts(reading) for reading in measured if is_whole(reading.sensor)]
    numbers = [number for number in read if values.is_number(number)]
    return numbers[0] if len(numbers) == 1 else NOT_READ


def watts(measured: Measured) -> Num:
    """Power; 0 W is what a BMC says without a reading, too."""
    return _checked(values.watts, measured.value)


def volts(measured: Measured) -> Num:
    """A voltage, also that of the mains."""
    return measured.value if isinstance(measured.value, Unavailable) else _mains(measured.value)


def crossed(measured: Measured, sides: int) -> Text:
    """Health by the thresholds that the BMC says are crossed on these sides; not read if it says nothing, or
    that a value is too low and too high at once."""
    bits = measured.states
    if bits is None or not measured.sensor.thresholds or measured.sensor.event != THRESHOLD:
        return NOT_READ
    if bits & _LOWER and bits & _UPPER:
        return Unavailable("too low and too high at once")
    if not bits & sides:
        return "OK"
    return "Critical" if bits & sides & ~_CAUTION else "Warning"


def _present(measured: Measured) -> Flag:
    """Presence by a sensor of states absent (bit 0) and present (bit 1)."""
    if measured.absent:
        return False
    if measured.states is None or measured.states & 0b11 in (0b00, 0b11):
        return NOT_READ
    return bool(measured.states & 0b10)


def _mains(read: float) -> Num:
    return values.volts(read, high=1000.0)


def _checked(check: object, read: Num) -> Num:
    """A number within what is possible, or the reason why there is none."""
    return read if isinstance(read, Unavailable) else check(read)  # type: ignore[operator]
