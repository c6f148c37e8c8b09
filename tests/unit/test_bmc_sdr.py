"""Records, inventories and packets of IPMI: by the specification's examples, and with any bytes in them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from nodegauge_bmc import rmcp, sdr, sensors
from nodegauge_bmc.connection import BmcError
from nodegauge_bmc.ipmi import read_session
from nodegauge_bmc.lan import Refused, Session
from nodegauge_bmc.repository import of_bytes
from nodegauge_bmc.rmcp import SUITES, Malformed
from nodegauge_contract.values import Unavailable
from nodegauge_judge.chassis.judge import judge_chassis
from testbed.hardware.ipmibmc import Behaviour as Quirks
from testbed.hardware.ipmibmc import IpmiBmc
from testbed.hardware.ipmimachine import CELSIUS, TEMPERATURE, VOLTAGE, Sensor, inventory, server

SENSOR = Sensor("P12V", 1, VOLTAGE, unit=4)


def only(sensor: Sensor) -> sdr.Sensor:
    """The one sensor of its record."""
    [sensor_of_it] = sdr.sensors(sensor.record(1))
    return sensor_of_it


@pytest.mark.parametrize(
    ("form", "raw", "expected"),
    [
        (SENSOR, 12, 12),
        (replace(SENSOR, m=6, exponent=-2), 200, 12),
        (replace(SENSOR, m=-2, b=5, b_exponent=2), 100, 300),
        (replace(SENSOR, m=511, exponent=-7), 255, 0.013),
        (replace(SENSOR, form=1), 0xFE, -1),
        (replace(SENSOR, form=2), 0xFE, -2),
        (replace(SENSOR, linear=7), 4, 0.25),
        (replace(SENSOR, linear=8), 7, 49),
        (replace(SENSOR, kind=TEMPERATURE, unit=2), 212, 100),
        (replace(SENSOR, kind=TEMPERATURE, unit=3, b=273), 0, -0.15),
    ],
)
def test_formulas(form: Sensor, raw: int, expected: float) -> None:
    """Section 36.3: y = L[(m x + b 10^k1) 10^k2], x by its form; temperatures in °C."""
    assert sdr.value(only(form), raw) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("linear", [1, 2, 3, 7, 0x70, 0x7F, 12])
def test_a_formula_without_a_value_gives_none(linear: int) -> None:
    """A logarithm of 0, 1/0, and formulas that need factors for each reading."""
    assert isinstance(sdr.value(only(replace(SENSOR, linear=linear)), 0), Unavailable)


def test_names_in_every_encoding() -> None:
    """Section 43.15, with its own example of packed ASCII."""
    assert sdr.text(2, bytes((0x29, 0xDC, 0xA6))) == "IPMI"
    assert only(replace(SENSOR, name="FAN 12", packed=True)).name == "FAN 12"
    assert sdr.text(1, bytes((0x12, 0xA3, 0xBC))) == "12 3-."
    assert sdr.text(3, b"T\xe9mp\n 1") == "Témp 1"


def test_sensors_that_share_a_record() -> None:
    """Table 43-2: three fans with numbers of their own."""
    record = bytearray(replace(SENSOR, name="Fan ", kind=4, event=8, entity=29).record(1))
    record[23], record[24] = 0x03, 0x81
    sensors_of_it = sdr.sensors(bytes(record))
    assert [(one.name, one.number, one.instance) for one in sensors_of_it] == [
        ("Fan1", 1, 1), ("Fan2", 2, 2), ("Fan3", 3, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "entity", "inlet"),
    [
        ("T1", 55, True),
        ("T1", 64, True),
        ("Ambient", 7, True),
        ("Inlet Temp", 12, True),
        ("Exhaust", 7, False),
        ("Outlet", 55, False),
        ("PSU1 Inlet", 55, None),
        ("Inlet", 10, None),
        ("Coolant Inlet", 7, None),
        ("CPU1 Temp", 3, None),
        ("GPU3 Ambient", 7, None),
    ],
)
def test_air_is_chosen_by_entity_then_by_name(name: str, entity: int, inlet: bool | None) -> None:
    """Air of supplies, parts and liquids is not the machine's."""
    assert sensors.is_inlet(only(Sensor(name, 1, TEMPERATURE, unit=CELSIUS, entity=entity))) is inlet


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: str(suite.number))
@given(payload=st.binary(max_size=80), flip=st.integers(0, 10_000))
def test_a_packet_with_any_byte_changed_is_dropped(suite: rmcp.Suite, payload: bytes, flip: int) -> None:
    """Encrypted and authenticated as a whole; unchanged it is what was sent."""
    keys = rmcp.keys(suite, b"k" * 20)
    packet = rmcp.sealed(payload, keys=keys, session=7, sequence=9)
    assert rmcp.opened(packet, keys=keys, session=7) == (9, payload)
    index = flip % len(packet)
    broken = packet[:index] + bytes((packet[index] ^ 0x40,)) + packet[index + 1 :]
    with pytest.raises(Malformed):
        rmcp.opened(broken, keys=keys, session=7)


@given(data=st.binary(max_size=200))
def test_no_packet_breaks_the_reader_of_packets(data: bytes) -> None:
    """It is taken or dropped."""
    keys = rmcp.keys(SUITES[0], b"k" * 20)
    for take in (
        lambda: rmcp.opened(rmcp.RMCP + data, keys=keys, session=1),
        lambda: rmcp.answer(data, netfn=6, command=1, sequence=0),
        lambda: rmcp.from_outside(rmcp.RMCP + data),
        lambda: rmcp.from_setup(rmcp.RMCP + data, rmcp.RAKP2),
    ):
        try:
            take()
        except Malformed:
            continue


@given(data=st.binary(max_size=300), at=st.integers(0, 299), byte=st.integers(0, 255))
def test_no_inventory_breaks_its_reader(data: bytes, at: int, byte: int) -> None:
    """Any bytes, and a right inventory with one changed or cut."""
    right = bytearray(inventory("Maker", "Product", "Serial", watts=2700))
    assert of_bytes(bytes(right)).capacity_watts == 2700
    right[at % len(right)] = byte
    for one in (data, bytes(right), bytes(right)[:at]):
        of_bytes(one)


class Lying:
    """A session whose BMC answers any command with other bytes than it should, now and then."""

    def __init__(self, data: st.DataObject) -> None:
        self._bmc = IpmiBmc(server(2, 2), Quirks())
        self._data = data
        self.requests = 0

    async def command(self, netfn: int, command: int, data: bytes = b"", *, lun: int = 0) -> bytes:
        """As `Session.command`."""
        self.requests += 1
        code, answer = self._bmc._command(netfn, command, data)
        if self.requests < 300 and self._data.draw(st.integers(0, 15)) == 0:
            code, answer = (
                self._data.draw(st.sampled_from([0, 0, 0xC5, 0xCA, 0xCB, 0xFF])),
                self._data.draw(st.binary(max_size=80)),
            )
        if code:
            raise Refused(code)
        return answer


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
async def test_no_answer_breaks_the_reader(data: st.DataObject) -> None:
    """The reading ends, and a judgement follows."""
    lying: Any = Lying(data)
    try:
        async with asyncio.timeout(60):
            reading = await read_session(cast(Session, lying))
    except BmcError:
        return
    assert judge_chassis(reading).summary


def test_keys_are_in_no_representation() -> None:
    """A traceback shows arguments."""
    keys = rmcp.keys(SUITES[0], b"secret")
    assert repr(changed(keys)) == "Keys(suite=17)"
