"""Machines read by IPMI, from Debian's `ipmi_sim`, if it can be had, and the testbed's own BMC."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodegauge_bmc.connection import Access
from nodegauge_bmc.ipmi import read
from nodegauge_contract.chassis import ChassisReading
from nodegauge_contract.values import Unavailable
from nodegauge_judge import Psu, Verdict
from nodegauge_judge.chassis.judge import judge_chassis
from support.bmc_access import codes
from support.virtual_time import in_virtual_time
from testbed.hardware import ipmimachine as ipmi
from testbed.hardware import ipmisim
from testbed.hardware.ipmibmc import PASSWORD, USER, Behaviour, answering


@asynccontextmanager
async def served(machine: ipmi.Machine, by: str, folder: Path) -> AsyncIterator[str]:
    """The address of a BMC that shows this machine."""
    if by == "ipmi_sim":
        if await asyncio.to_thread(ipmisim.program) is None:
            pytest.skip(ipmisim.WAY_OUT)
        async with ipmisim.simulating(machine, folder) as simulator:
            yield simulator.url
    else:
        async with answering(machine) as bmc:
            yield bmc.url


async def reading_of(url: str) -> ChassisReading:
    return await read(Access(url=url, user=USER, password=PASSWORD))


async def reading(machine: ipmi.Machine, behaviour: Behaviour | None = None) -> ChassisReading:
    async with answering(machine, behaviour) as bmc:
        return await reading_of(bmc.url)


BOTH = pytest.mark.parametrize("by", ["ipmi_sim", "python"])


@BOTH
async def test_a_healthy_machine(by: str, tmp_path: Path) -> None:
    """Its supplies are sound, and it is told by vendor, product and serial."""
    async with served(ipmi.server(), by, tmp_path) as url:
        got = await reading_of(url)
    judgement = judge_chassis(got)
    assert (judgement.verdict, codes(judgement), judgement.psu) == (Verdict.PASS, set(), Psu.OK)
    assert (got.source, got.vendor, got.product, got.serial) == ("ipmi", "Example", "GX-8000", "SN-0815")
    assert [(one.name, one.serial, one.capacity_watts) for one in got.supplies] == [
        (f"PS{number}", f"P-{number:04}", 3000) for number in (1, 2, 3, 4)
    ]
    assert {(one.input_watts, one.output_watts, one.input_volts) for one in got.supplies} == {(528, 496, 230)}
    assert {(one.rpm, one.low_critical_rpm) for one in got.fans} == {(8400, 500)}
    [rail] = [one for one in got.rails if one.name == "12V"]
    assert (rail.volts, rail.low_critical_volts, rail.high_critical_volts) == (12.12, 10.8, 13.2)
    air = [(one.inlet, one.celsius, one.high_critical_celsius) for one in got.air]
    assert air == [(True, 24, 42), (False, 41, 75)]
    assert (len(got.fans), len(got.rails), got.unread) == (6, 3, [])


def states(*each: int) -> dict[str, int]:
    return {"states": sum(1 << state for state in each)}


LOST, FAULT = Psu.REDUNDANCY_LOST, Psu.FAULT
EMPTY_BAY = {f"PS2 {number}": {"raw": 0} for number in ("Input Power", "Output Power", "Input Volts")}
EMPTY_BAY |= {"PS2 Status": states()}


@BOTH
@pytest.mark.parametrize(
    ("changed", "expected", "psu"),
    [
        ({"PS2 Status": states(ipmi.THERE, ipmi.FAILED)}, {"supply-failed"}, LOST),
        ({"PS2 Status": states(ipmi.THERE, ipmi.NO_INPUT)}, {"supply-no-input"}, LOST),
        ({"PS2 Status": states(ipmi.THERE, ipmi.PREDICTED)}, {"supply-warning"}, None),
        ({"PS2 Status": states(ipmi.THERE, ipmi.CONFIGURATION)}, {"supply-warning"}, None),
        ({"PS2 Status": states(ipmi.THERE, ipmi.RESTING)}, set(), Psu.OK),
        (EMPTY_BAY, set(), Psu.OK),
        ({"PS Redundancy": states(1)}, {"redundancy-lost"}, LOST),
        ({"PS Redundancy": states(5)}, {"redundancy-lost"}, LOST),
        ({"FAN3": {"raw": 0}}, {"fan-failed"}, Psu.OK),
        ({"FAN3": {"raw": 4}}, {"fan-failed"}, Psu.OK),
        ({"Inlet Temp": {"raw": 44}}, {"inlet-hot"}, Psu.OK),
        ({"Inlet Temp": {"raw": 2}}, set(), Psu.OK),
        ({"Exhaust Temp": {"raw": 90}}, set(), Psu.OK),
        ({"12V": {"raw": 175}}, {"chassis-rail"}, FAULT),
        ({"12V": {"raw": 225}}, {"chassis-rail"}, FAULT),
        ({"5V": {"raw": 160}}, {"chassis-rail"}, Psu.OK),
        ({"CPU1 Temp": {"raw": 120}}, set(), Psu.OK),
    ],
    ids=str,
)
async def test_what_a_sensor_shows_is_judged(
    changed: dict[str, dict[str, int]], expected: set[str], psu: Psu, by: str, tmp_path: Path
) -> None:
    """States of a supply and of its group, where a spare at rest is no fault; and numbers beyond bounds."""
    machine = ipmi.server()
    for name, values in changed.items():
        vars(machine.sensor(name)).update(values)
    async with served(machine, by, tmp_path) as url:
        judgement = judge_chassis(await reading_of(url))
    assert (codes(judgement), judgement.psu) == (expected, psu), judgement.findings
    assert judgement.installed == 4 - (changed is EMPTY_BAY)


@BOTH
async def test_a_machine_with_one_supply(by: str, tmp_path: Path) -> None:
    machine = ipmi.server(supplies=1)
    machine.sensors.append(ipmi.Sensor("Redundancy", 0xA1, 0x09, event=0x0B, entity=19, states=1 << 3))
    async with served(machine, by, tmp_path) as url:
        judgement = judge_chassis(await reading_of(url))
    assert (judgement.verdict, judgement.psu, judgement.installed) == (Verdict.PASS, Psu.OK, 1)


@BOTH
async def test_a_machine_without_sensors_of_supplies(by: str, tmp_path: Path) -> None:
    async with served(ipmi.server(supplies=0), by, tmp_path) as url:
        judgement = judge_chassis(await reading_of(url))
    assert (judgement.verdict, judgement.psu, judgement.installed) == (Verdict.UNKNOWN, None, 0)
    assert "the BMC has no sensor of a power supply" in judgement.findings[0].message
    assert "by IPMI, trusted less" in judgement.summary


@BOTH
async def test_a_machine_with_hundreds_of_sensors(by: str, tmp_path: Path) -> None:
    machine = ipmi.crowded()
    async with served(machine, by, tmp_path) as url:
        got = await reading_of(url)
    assert judge_chassis(got).verdict is Verdict.PASS
    a_record = {"ipmi_sim": 3, "python": 1}[by]  # ipmi_sim gives records in pieces
    assert got.requests < (a_record + 1) * len(machine.sensors) + 100


async def test_the_power_meter_and_the_clock() -> None:
    machine = ipmi.server()
    machine.seconds_off = -2 * 86_400
    got = await reading(machine)
    judgement = judge_chassis(got)
    assert (got.watts, got.power_on, judgement.load_watts) == (2050, True, 2050)
    assert [one.code for one in judgement.findings] == ["bmc-clock"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"watts": 0}, "0 W"),
        ({"watts": 0xFFFF}, "no reading"),
        ({"watts": 900, "metering": False}, "is off"),
        ({"watts": None}, "no such command"),
    ],
)
async def test_a_power_meter_without_a_reading(changed: dict[str, int], reason: str) -> None:
    machine = ipmi.server()
    for name, value in changed.items():
        setattr(machine, name, value)
    got = await reading(machine)
    assert isinstance(got.watts, Unavailable)
    assert reason in got.watts.unavailable
    assert judge_chassis(got).load_watts == 4 * 496


@pytest.mark.parametrize("clock", [0, 0xFFFFFFFF, 86_400])
async def test_a_clock_that_was_never_set_is_no_clock(clock: int) -> None:
    """Seconds since the BMC's start are no date in 1970."""
    machine = ipmi.server()
    machine.clock = clock
    got = await reading(machine)
    assert isinstance(got.clocks[0].skew_seconds, Unavailable)
    assert judge_chassis(got).findings == []


SILENT = [("available", False), ("scanned", False)]


def quiet(attribute: str, value: bool, **numbers: bool) -> ipmi.Machine:
    machine = ipmi.server()
    setattr(machine.sensor("PS4 Status"), attribute, value)
    for name in ("PS4 Input Power", "PS4 Output Power", "PS4 Input Volts"):
        vars(machine.sensor(name)).update(numbers)
    return machine


@pytest.mark.parametrize(("attribute", "value"), SILENT)
@in_virtual_time
async def test_a_supply_that_says_nothing_is_unread(attribute: str, value: bool) -> None:
    got = await reading(quiet(attribute, value, available=False))
    judgement = judge_chassis(got)
    assert (judgement.psu, judgement.verdict) == (None, Verdict.UNKNOWN)
    assert "sensor PS4 Status" in {one.path for one in got.unread}


@pytest.mark.parametrize(("attribute", "value"), [*SILENT, ("absent", True)])
@in_virtual_time
async def test_a_bay_whose_inventory_is_silent_too_is_empty(attribute: str, value: bool) -> None:
    machine = quiet(attribute, value, absent=True)
    del machine.inventories[4]
    got = await reading(machine)
    judgement = judge_chassis(got)
    assert (judgement.psu, judgement.installed, codes(judgement)) == (Psu.OK, 3, set())
    assert got.supplies[3].present is False


async def test_supplies_that_share_an_entity_are_told_apart_by_their_names() -> None:
    machine = ipmi.server()
    for one in machine.sensors:
        if one.entity == 10:
            one.instance = 1
    machine.sensor("PS3 Status").states = 1 << ipmi.THERE | 1 << ipmi.FAILED
    got = await reading(machine)
    assert [one.health for one in got.supplies] == ["OK", "OK", "Critical", "OK"]
    assert judge_chassis(got).installed == 4


async def test_sentinels_of_supplies_are_no_values() -> None:
    """0 W of a supply that is there, output above input, 0 V at an input that the status calls good."""
    machine = ipmi.server()
    machine.sensor("PS1 Output Power").raw = 0
    machine.sensor("PS2 Output Power").raw = 200
    machine.sensor("PS3 Input Volts").raw = 0
    machine.sensor("PS4 Input Power").form, machine.sensor("PS4 Input Power").raw = 2, 0x90
    machine.inventories[1] = ipmi.inventory("Supplier", "To be filled by O.E.M.", "0000000", watts=0)
    got = await reading(machine)
    first, second, third, fourth = got.supplies
    lies = [first.output_watts, second.output_watts, second.input_watts, third.input_volts]
    lies += [fourth.input_watts, first.serial, first.capacity_watts]
    assert all(isinstance(one, Unavailable) for one in lies)
    assert first.model == "part"
    assert codes(judge_chassis(got)) == set()


async def test_a_presence_sensor_says_no_more_than_that() -> None:
    machine = ipmi.server(supplies=0)
    machine.sensors += [
        ipmi.Sensor(f"PSU{n}", n, ipmi.SUPPLY, event=ipmi.PRESENCE, entity=10, instance=n, states=0b10)
        for n in (0x61, 0x62)
    ]
    got = await reading(machine)
    judgement = judge_chassis(got)
    assert ([one.present for one in got.supplies], judgement.psu) == ([True, True], None)


async def test_watts_of_a_supply_that_name_no_direction_are_neither() -> None:
    machine = ipmi.server(supplies=1)
    machine.sensors = [one for one in machine.sensors if "put P" not in one.name]
    machine.sensors.append(ipmi.Sensor("PS1 Power", 0x71, 0x0B, entity=10, unit=ipmi.WATT, m=16, raw=33))
    [supply] = (await reading(machine)).supplies
    assert isinstance(supply.input_watts, Unavailable)
    assert isinstance(supply.output_watts, Unavailable)


async def test_fans_in_per_cent_and_fans_that_are_not_there() -> None:
    machine = ipmi.server()
    machine.sensor("FAN1").percent, machine.sensor("FAN1").m, machine.sensor("FAN1").raw = True, 1, 60
    machine.sensor("FAN2").raw = 0
    presence = ipmi.Sensor("F2 Prsnt", 0x42, 4, event=ipmi.PRESENCE, entity=29, instance=2, states=0b01)
    machine.sensors.append(presence)
    machine.sensor("FAN3").absent = True
    machine.sensor("FAN4").unit, machine.sensor("FAN4").available = ipmi.RPM, False
    got = await reading(machine)
    assert (got.fans[0].percent, isinstance(got.fans[0].rpm, Unavailable)) == (60, True)
    assert [one.present for one in got.fans[1:3]] == [False, False]
    assert isinstance(got.fans[3].rpm, Unavailable)
    assert codes(judge_chassis(got)) == set()


async def test_bounds_that_cannot_be_are_none() -> None:
    machine = ipmi.server()
    machine.sensor("12V").bounds = (None, 220, None, None, 180, None)
    machine.sensor("FAN1").bounds = (0, 0, 0, None, None, None)
    got = await reading(machine)
    assert isinstance(got.rails[0].low_critical_volts, Unavailable)
    assert isinstance(got.fans[0].low_critical_rpm, Unavailable)


async def test_a_sensor_behind_another_controller_is_named() -> None:
    machine = ipmi.server()
    machine.sensor("PS Redundancy").owner = 0x2C
    got = await reading(machine)
    assert (got.redundancy, [one.path for one in got.unread]) == ([], ["sensor PS Redundancy"])


@pytest.mark.parametrize(
    "quirk",
    [
        *({"loses": 5}, {"most": 20}, {"most": 8}, {"cancels": 3}, {"busy": 1}, {"endless": True}),
        *({"repository": False}, {"suites": (3,)}, {"suites": (17,)}),
    ],
    ids=str,
)
@in_virtual_time
async def test_bmcs_with_quirks_are_read_whole(quirk: dict[str, Any]) -> None:
    got = await reading(ipmi.server(fans=2), Behaviour(**quirk))
    assert (len(got.supplies), len(got.fans), judge_chassis(got).psu) == (4, 2, Psu.OK)
    assert got.supplies[0].capacity_watts == 3000
