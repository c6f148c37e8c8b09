"""Reads a BMC by IPMI over LAN: the fallback for machines without Redfish, and trusted less.

IPMI has no certificate, so nobody knows who answers; its sensors say less than Redfish's resources, and its
vendors' sensors differ.  The reading is marked with its source.  What IPMI cannot say stays unread.
"""

from __future__ import annotations

import asyncio
import struct
import time
from datetime import UTC, datetime

from msgspec.structs import replace

from nodegauge_bmc import ipmi_supplies, sdr, sensors, values
from nodegauge_bmc.connection import Access, BmcError, Unreadable
from nodegauge_bmc.lan import Refused, Session
from nodegauge_bmc.power import believable_load
from nodegauge_bmc.redfish import DEADLINE
from nodegauge_bmc.repository import Inventory, inventory, records
from nodegauge_bmc.rmcp import BMC
from nodegauge_bmc.sdr import Entity, Locator, Sensor
from nodegauge_bmc.sensors import Measured
from nodegauge_contract.chassis import IPMI, BmcClock, ChassisReading, Unread
from nodegauge_contract.values import NOT_READ, Flag, Num, Unavailable

MAX_UNREAD = 64
"""Unread sensors that a reading names; the rest is a number."""
MAX_SUPPLIES = 16
"""Supplies whose inventories are read."""
SINCE_START = 0x20000000
"""Times below it count seconds since the BMC started (IPMI 2.0, section 37)."""
_ABSENT = 0xCB


async def read(access: Access, *, deadline: float = DEADLINE) -> ChassisReading:
    """Everything that the BMC gives within `deadline` seconds.  Raises `BmcError` if that is nothing, or if
    the BMC stops answering."""
    start = time.monotonic()
    session = Session(access)
    try:
        async with asyncio.timeout(deadline), session:
            reading = await read_session(session)
    except TimeoutError:
        raise BmcError(
            f"the BMC did not give its sensors within {deadline:g} s ({session.requests} commands): "
            "raise --deadline"
        ) from None
    return replace(reading, seconds=round(time.monotonic() - start, 3), requests=session.requests)


async def read_session(session: Session) -> ChassisReading:
    """What the BMC of an open session says.  Raises `BmcError` if it stops answering."""
    unread: dict[str, str] = {}
    power_on = await _power_on(session)
    try:
        stored, listed = await records(session), True
    except Unreadable as error:
        unread["sensor data records"] = str(error)
        stored, listed = [], False
    wanted = [sensor for record in stored for sensor in sdr.sensors(record) if sensors.is_wanted(sensor)]
    measured = [
        reading
        for reading in [await _measured(session, sensor, unread) for sensor in _limited(wanted, unread)]
        if reading
    ]
    locators = [locator for record in stored if (locator := sdr.locator(record)) is not None]
    inventories = await _inventories(session, locators)
    supplies = ipmi_supplies.supplies(measured, inventories)
    machine = await _inventory(session, 0) or Inventory()
    watts = await _dcmi_watts(session)
    return ChassisReading(
        source=IPMI,
        vendor=machine.vendor,
        product=machine.product,
        serial=machine.serial,
        power_on=power_on,
        watts=believable_load([watts, sensors.whole_watts(measured)], supplies),
        lists_supplies=listed,
        supplies=supplies,
        redundancy=ipmi_supplies.redundancy(
            measured, installed=sum(supply.present is not False for supply in supplies)
        ),
        rails=sensors.rails(measured),
        fans=sensors.fans(measured),
        air=sensors.air(measured),
        clocks=await _clocks(session),
        unread=_named(unread),
    )


def _limited(wanted: list[Sensor], unread: dict[str, str]) -> list[Sensor]:
    """Those that are asked; a sensor behind another controller than the BMC is named only."""
    own = [sensor for sensor in wanted if sensor.owner == BMC]
    for sensor in wanted:
        if sensor.owner != BMC:
            unread[f"sensor {sensor.name}"] = f"behind another controller ({sensor.owner:#04x})"
    if len(own) > sensors.MAX_READ:
        unread[f"{len(own) - sensors.MAX_READ} more sensors"] = f"this reading has {sensors.MAX_READ}"
    return own[: sensors.MAX_READ]


async def _measured(session: Session, sensor: Sensor, unread: dict[str, str]) -> Measured | None:
    """What a sensor says (Get Sensor Reading, section 35.14); None if it is not read at all."""
    try:
        got = await session.command(0x04, 0x2D, bytes((sensor.number,)), lun=sensor.lun)
    except Refused as error:
        if error.code == _ABSENT:
            return Measured(sensor=sensor, value=Unavailable("not present"), absent=True)
        unread[f"sensor {sensor.name}"] = str(error)
        return Measured(sensor=sensor, value=Unavailable(str(error)))
    except Unreadable as error:
        unread[f"sensor {sensor.name}"] = str(error)
        return Measured(sensor=sensor, value=Unavailable(str(error)))
    missing = _missing(got)
    if missing:
        if not sensors.is_rail(sensor):
            unread[f"sensor {sensor.name}"] = missing
        return Measured(sensor=sensor, value=Unavailable(missing))
    states = int.from_bytes(got[2:4], "little") & 0x7FFF if len(got) > 2 else 0
    reading = Measured(
        sensor=sensor,
        value=sdr.value(sensor, got[0]) if sensor.analog else NOT_READ,
        states=states,
    )
    return await _with_bounds(session, reading) if sensor.event == sdr.THRESHOLD else reading


def _missing(got: bytes) -> str:
    """Why there is no reading; empty if there is one."""
    if len(got) < 2:
        return "an answer without content"
    if got[1] & 0x20:
        return "not available: an empty place, or the BMC has not read it yet"
    return "" if got[1] & 0x40 else "the BMC does not watch it now"


async def _with_bounds(session: Session, reading: Measured) -> Measured:
    """With the thresholds that the BMC gives (section 35.9); all 0, or low above high, is none."""
    if reading.sensor.thresholds not in (1, 2):
        return reading
    try:
        got = await session.command(0x04, 0x27, bytes((reading.sensor.number,)), lun=reading.sensor.lun)
    except Unreadable:
        return reading
    if len(got) < 7 or not any(got[1:7]):
        return reading

    def bound(bit: int) -> Num:
        return sdr.value(reading.sensor, got[1 + bit]) if got[0] & 1 << bit else NOT_READ

    low, caution, high = bound(1), bound(3), bound(4)
    if values.is_number(low) and values.is_number(high) and low >= high:  # type: ignore[operator]
        return reading
    return replace(reading, low_critical=low, high_caution=caution, high_critical=high)


async def _power_on(session: Session) -> Flag:
    """Get Chassis Status (section 28.2)."""
    try:
        got = await session.command(0x00, 0x01)
    except Unreadable:
        return NOT_READ
    return bool(got[0] & 0x01) if got else NOT_READ


async def _dcmi_watts(session: Session) -> Num:
    """Get Power Reading (DCMI 1.5, section 6.6.1)."""
    try:
        got = await session.command(0x2C, 0x02, bytes((0xDC, 0x01, 0x00, 0x00)))
    except Unreadable as error:
        return Unavailable(f"DCMI: {error}")
    if len(got) < 18 or got[0] != 0xDC:
        return Unavailable("DCMI: an answer without content")
    if not got[17] & 0x40:
        return Unavailable("DCMI: power measurement is off")
    now = int.from_bytes(got[1:3], "little")
    return Unavailable("DCMI: no reading") if now == 0xFFFF else values.watts(now)


async def _inventories(session: Session, locators: list[Locator]) -> dict[Locator, Inventory | None]:
    supplies = [locator for locator in locators if locator.entity == Entity.POWER_SUPPLY]
    return {locator: await _inventory(session, locator.device) for locator in supplies[:MAX_SUPPLIES]}


async def _inventory(session: Session, device: int) -> Inventory | None:
    try:
        return await inventory(session, device)
    except Unreadable:
        return None


async def _clocks(session: Session) -> list[BmcClock]:
    """Get SEL Time (section 31.10)."""
    try:
        got = await session.command(0x0A, 0x48)
    except Unreadable:
        return []
    if len(got) < 4:
        return []
    (seconds,) = struct.unpack("<I", got[:4])
    if seconds in (0, 0xFFFFFFFF):
        never = Unavailable("the BMC has no time")
        return [BmcClock(name="BMC", time=never, skew_seconds=never)]
    if seconds < SINCE_START:
        since = Unavailable("its clock was never set: it counts from the BMC's start")
        return [BmcClock(name="BMC", time=since, skew_seconds=since)]
    stated = datetime.fromtimestamp(seconds, UTC)
    skew = round((stated - datetime.now(UTC)).total_seconds())
    return [BmcClock(name="BMC", time=stated.isoformat(), skew_seconds=skew)]


def _named(unread: dict[str, str]) -> list[Unread]:
    listed = [Unread(path=path[:512], reason=reason[:512]) for path, reason in unread.items()]
    rest = len(listed) - MAX_UNREAD
    return listed[:MAX_UNREAD] + ([Unread(path=f"{rest} more sensors", reason="")] if rest > 0 else [])
