"""Sessions, records and packets of IPMI: who is refused, what hangs, the standard's examples, any bytes."""

import asyncio
import socket
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from nodegauge_bmc import lan, protocols, rmcp, sdr, sensors
from nodegauge_bmc.connection import Access, BmcError
from nodegauge_bmc.ipmi import read, read_session
from nodegauge_bmc.lan import Refused, Session, address
from nodegauge_bmc.repository import of_bytes
from nodegauge_bmc.rmcp import SUITES, Malformed
from nodegauge_contract.chassis import IPMI, REDFISH
from nodegauge_contract.values import Unavailable
from nodegauge_judge.chassis.judge import judge_chassis
from support.bmc_access import Bmcs
from support.virtual_time import in_virtual_time
from testbed.hardware import bmc as redfish_bmc
from testbed.hardware.ipmibmc import PASSWORD, USER, Behaviour, IpmiBmc, answering
from testbed.hardware.ipmimachine import CELSIUS, TEMPERATURE, VOLTAGE, Sensor, crowded, inventory, server


def access(url: str, **changed: Any) -> Access:
    return Access(**({"url": url, "user": USER, "password": PASSWORD, "timeout": 5.0} | changed))


async def error_of(behaviour: Behaviour | None = None, *, deadline: float = 30.0, **changed: Any) -> str:
    async with answering(server(), behaviour) as bmc:
        with pytest.raises(BmcError) as caught:
            await read(access(bmc.url, **changed), deadline=deadline)
    return str(caught.value)


@pytest.mark.parametrize("changed", [{"user": "nobody"}, {"password": "wrong"}])
@pytest.mark.parametrize("suite", [17, 3])
async def test_wrong_credentials_are_named(changed: dict[str, str], suite: int) -> None:
    message = await error_of(Behaviour(suites=(suite,)), **changed)
    assert "refuses the user or the password" in message
    assert "--password-file" in message
    assert PASSWORD not in message


@pytest.mark.parametrize(
    ("behaviour", "part"),
    [
        (Behaviour(suites=()), "neither cipher suite 17 nor 3"),
        (Behaviour(suites=(), downgrades=True), "neither cipher suite 17 nor 3"),
        (Behaviour(version=1.5), "IPMI 1.5 alone"),
        (Behaviour(role=False), "privilege level USER"),
        (Behaviour(own_key=b"another key"), "Kg"),
    ],
    ids=["no suite", "algorithms none", "IPMI 1.5", "no LAN", "Kg"],
)
async def test_a_bmc_that_wants_less_is_refused(behaviour: Behaviour, part: str) -> None:
    """No session without authentication, integrity and encryption, by mutual proof of the password."""
    assert part in await error_of(behaviour)


async def test_who_does_not_know_the_password_gets_no_proof_of_it() -> None:
    """A false BMC could guess at it; the true one's proof comes first."""
    async with answering(server()) as bmc:
        with pytest.raises(BmcError):
            await read(access(bmc.url, password="another"))
        assert bmc.proofs == 0


@in_virtual_time
async def test_an_answer_that_was_here_before_is_dropped() -> None:
    """Numbers of requests come again after 64 commands; an old answer must not be taken for the new one."""
    readings = []
    for behaviour in (Behaviour(), Behaviour(replays=True)):
        async with answering(crowded(), behaviour) as bmc:
            readings.append(await read(access(bmc.url)))
    assert readings[0].rails == readings[1].rails
    assert readings[0].supplies == readings[1].supplies


async def test_a_session_has_the_lowest_level_and_ends() -> None:
    async with answering(server()) as bmc:
        await read(access(bmc.url))
        async with asyncio.timeout(10):
            await bmc.closed.wait()
        assert set(bmc.levels) == {2}


@in_virtual_time
async def test_a_bmc_that_stops_answering_ends_the_reading() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    message = await error_of(Behaviour(silent_after=40), timeout=0.6)
    assert "no answer any more after 41 commands" in message
    assert loop.time() - start < 10
    assert "--deadline" in await error_of(Behaviour(silent_after=40), deadline=0.5)


@in_virtual_time
async def test_nobody_at_the_port() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"ipmi://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BmcError, match=r"no answer from 127.0.0.1 within 0.6 s.*IPMI over LAN"):
            await read(access(url, timeout=0.6))
    with pytest.raises(BmcError, match=r"no connection .* is closed; switch IPMI over LAN on"):
        await read(access(url))


@in_virtual_time
async def test_packets_of_others_are_dropped() -> None:
    async with answering(server(1, 1)) as bmc:
        real = bmc._in_session

        def forging(data: bytes, addr: tuple[str, int]) -> None:
            bmc._transport.sendto(b"\x06\x00\xff\x07" + bytes(60), addr)
            bmc._transport.sendto(data, addr)
            real(data, addr)

        bmc._in_session = forging  # type: ignore[method-assign]
        reading = await read(access(bmc.url))
    assert len(reading.supplies) == 1


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"url": "ipmi://reader:secret@bmc"}, "contains a user or a password"),
        ({"url": "ipmi://"}, "ipmi://HOST"),
        ({"url": "ipmi://bmc:port"}, "no URL"),
        ({"url": "ipmi://bmc/path"}, "ipmi://HOST"),
        ({"url": "ipmi://bmc", "insecure": True}, "TLS"),
        ({"url": "ipmi://bmc", "ca": "x"}, "TLS"),
        ({"url": "ipmi://bmc", "user": ""}, "anonymous"),
        ({"url": "ipmi://bmc", "password": ""}, "anonymous"),
        ({"url": "ipmi://bmc", "password": "x" * 21}, "at most 20"),
        ({"url": "ipmi://bmc", "user": "x" * 17}, "at most 16"),
    ],
)
def test_an_access_that_cannot_be_right_is_refused(changed: dict[str, Any], part: str) -> None:
    with pytest.raises(BmcError, match=part):
        address(access(**{"url": "ipmi://bmc"} | changed))


async def auto(
    bmcs: Bmcs, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, Any], *, of: Any = "hpe", **changed: Any
) -> str:
    """The source of a reading by `auto://`, or the message of its failure; IPMI answers at the usual port."""
    async with bmcs(of, **behaviour) as web, answering(server()) as bmc:
        monkeypatch.setattr(lan, "PORT", bmc.port)
        usual = {"url": web.url.replace("https", "auto"), "ca": bmcs.ca}
        try:
            return (await protocols.read(access(**usual | changed))).source
        except BmcError as error:
            return str(error)


@in_virtual_time
async def test_auto_reads_redfish_where_it_is_and_ipmi_where_it_is_not(
    bmcs: Bmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"user": redfish_bmc.USER, "password": redfish_bmc.PASSWORD}
    assert await auto(bmcs, monkeypatch, {}, **right) == REDFISH
    assert await auto(bmcs, monkeypatch, {"sessions": False}, of={}) == IPMI


@pytest.mark.parametrize(
    ("changed", "behaviour", "part"),
    [
        ({"ca": ""}, {}, "not trusted"),
        ({}, {}, "refuses the user or the password"),
        ({}, {"sessions": False, "broken": {"/redfish/v1": 500}}, "HTTP status 500"),
        ({"timeout": 0.5}, {"delay": 5}, "no answer within 0.5 s"),
    ],
    ids=["certificate", "password", "broken", "hanging"],
)
@in_virtual_time
async def test_auto_never_falls_back_for_another_reason(
    changed: dict[str, Any], behaviour: dict[str, Any], part: str, bmcs: Bmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody in between could bring these about, to be asked by the weaker protocol."""
    assert part in await auto(bmcs, monkeypatch, behaviour, **changed)


SENSOR = Sensor("P12V", 1, VOLTAGE, unit=4)


def only(sensor: Sensor) -> sdr.Sensor:
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
    assert sensors.is_inlet(only(Sensor(name, 1, TEMPERATURE, unit=CELSIUS, entity=entity))) is inlet


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: str(suite.number))
@given(payload=st.binary(max_size=80), flip=st.integers(0, 10_000))
def test_a_packet_with_any_byte_changed_is_dropped(suite: rmcp.Suite, payload: bytes, flip: int) -> None:
    keys = rmcp.keys(suite, b"k" * 20)
    packet = rmcp.sealed(payload, keys=keys, session=7, sequence=9)
    assert rmcp.opened(packet, keys=keys, session=7) == (9, payload)
    index = flip % len(packet)
    broken = packet[:index] + bytes((packet[index] ^ 0x40,)) + packet[index + 1 :]
    with pytest.raises(Malformed):
        rmcp.opened(broken, keys=keys, session=7)


@given(data=st.binary(max_size=200))
def test_no_packet_breaks_the_reader_of_packets(data: bytes) -> None:
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
    right = bytearray(inventory("Maker", "Product", "Serial", watts=2700))
    assert of_bytes(bytes(right)).capacity_watts == 2700
    right[at % len(right)] = byte
    for one in (data, bytes(right), bytes(right)[:at]):
        of_bytes(one)


class Lying:
    """A session whose BMC answers any command with other bytes than it should, now and then."""

    def __init__(self, data: st.DataObject) -> None:
        self._bmc = IpmiBmc(server(2, 2), Behaviour())
        self._data = data
        self.requests = 0

    async def command(self, netfn: int, command: int, data: bytes = b"", *, lun: int = 0) -> bytes:
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
@settings(max_examples=200)
@given(data=st.data())
async def test_no_answer_breaks_the_reader(data: st.DataObject) -> None:
    lying: Any = Lying(data)
    try:
        async with asyncio.timeout(60):
            reading = await read_session(cast(Session, lying))
    except BmcError:
        return
    assert judge_chassis(reading).summary


def test_keys_are_in_no_representation() -> None:
    keys = rmcp.keys(SUITES[0], b"secret")
    assert repr(changed(keys)) == "Keys(suite=17)"
