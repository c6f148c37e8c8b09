"""An IPMI BMC: what `ipmi_sim` lacks (cipher suite 17, DCMI), and BMCs that misbehave.  `ipmi_sim` shows that
`nodegauge_bmc.rmcp`, which both ends use, is right for suite 3; `ipmitool -C 17` did by hand for 17."""

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from nodegauge_bmc import rmcp
from nodegauge_bmc.rmcp import Keys, Malformed
from testbed.hardware.ipmimachine import PASSWORD, THRESHOLD, USER, Machine, Sensor


@dataclass
class Behaviour:
    """What is wrong with the BMC.  `suites`: cipher suites that it has.  `downgrades`: it confirms algorithms
    "none".  `silent_after`: commands after which it answers nothing.  `loses`: every how many packets one
    gets lost.  `most`: bytes of a record that it gives at once.  `cancels`: reservations that it cancels.
    `busy`: commands that it is too busy for.  `version`: 1.5 or 2.0.  `role`: the user may log in over LAN.
    `endless`: its records never end.  `own_key`: it has a key Kg.  `repository`: it has one, else its
    sensors' own records.  `raw`: answers by network function and command, instead of the right ones.
    `replays`: before each answer it sends that of 64 commands ago again, whose request had the same
    number."""

    suites: tuple[int, ...] = (17, 3)
    downgrades: bool = False
    silent_after: int | None = None
    loses: int = 0
    most: int = 255
    cancels: int = 0
    busy: int = 0
    version: float = 2.0
    role: bool = True
    endless: bool = False
    own_key: bytes = b""
    repository: bool = True
    raw: dict[tuple[int, int], bytes] = field(default_factory=dict)
    replays: bool = False


class IpmiBmc(asyncio.DatagramProtocol):
    """One running BMC with one session at a time.  `commands`: those in sessions; `closed`: a session ended;
    `levels`: privilege levels that were asked for; `proofs`: proofs of the password that it was given."""

    def __init__(self, machine: Machine, behaviour: Behaviour) -> None:
        self.machine = machine
        self.behaviour = behaviour
        self.port = 0
        self.commands = self.proofs = 0
        self.closed = asyncio.Event()
        self.levels: list[int] = []
        self._answers: list[bytes] = []
        self._packets = self._sent = 0
        self._keys: Keys | None = None

    @property
    def url(self) -> str:
        return f"ipmi://127.0.0.1:{self.port}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._packets += 1
        if self.behaviour.loses and self._packets % self.behaviour.loses == 0:
            return
        steps = {rmcp.OPEN: self._open, rmcp.RAKP1: self._first, rmcp.RAKP3: self._third}
        if data[4] == 0:
            status = 0x80 if self.behaviour.version == 2.0 else 0x00
            answer = bytes((1, status | 0x04, 0x04, 0x03 if status else 0x01)) + bytes(4)
            self._transport.sendto(rmcp.outside(_answer(rmcp.from_outside(data), 0, answer)), addr)
        elif data[5] in steps:
            answer = steps[data[5]](rmcp.from_setup(data, data[5]))
            self._transport.sendto(rmcp.setup(data[5] + 1, answer), addr)
        elif self._keys is not None:
            self._in_session(data, addr)

    def _open(self, request: bytes) -> bytes:
        wanted = (request[12], request[20], request[28])
        known = [one for one in rmcp.SUITES if one.number in self.behaviour.suites]
        self._suite = next((one for one in known if one.algorithms == wanted), None)
        self._theirs = request[4:8]
        self.levels.append(request[1])
        if self._suite is None and not self.behaviour.downgrades:
            return bytes((request[0], 0x11, 0, 0)) + self._theirs
        self._ours = os.urandom(4)
        agreed = (0, 0, 0) if self._suite is None else wanted
        algorithms = b"".join(struct.pack("<BBBBI", kind, 0, 0, 8, one) for kind, one in enumerate(agreed))
        return bytes((request[0], 0, 2, 0)) + self._theirs + self._ours + algorithms

    def _first(self, request: bytes) -> bytes:
        self._random, self._guid, theirs = os.urandom(16), os.urandom(16), request[8:24]
        self._role, user = request[24:25] + request[27:28], request[28:]
        head = bytes((request[0], 0, 0, 0)) + self._theirs
        if user != USER.encode():
            return bytes((request[0], 0x0D, 0, 0)) + self._theirs
        if not self.behaviour.role:
            return bytes((request[0], 0x0A, 0, 0)) + self._theirs
        self._nonce, self._name = theirs, self._role + user
        proven = self._theirs + self._ours + theirs + self._random + self._guid + self._name
        return head + self._random + self._guid + self._digest(PASSWORD.encode(), proven)

    def _third(self, request: bytes) -> bytes:
        self.proofs += 1
        if request[8:] != self._digest(PASSWORD.encode(), self._random + self._theirs + self._name):
            return bytes((request[0], 0x0F, 0, 0)) + self._theirs
        assert self._suite is not None
        key = self._digest(
            self.behaviour.own_key or PASSWORD.encode(), self._nonce + self._random + self._name
        )
        self._keys = rmcp.keys(self._suite, key)
        check = self._digest(key, self._nonce + self._ours + self._guid)[: self._suite.check]
        return bytes((request[0], 0, 0, 0)) + self._theirs + check

    def _digest(self, key: bytes, data: bytes) -> bytes:
        assert self._suite is not None
        return rmcp.digest(self._suite, key, data)

    def _in_session(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._keys is not None
        try:
            _, message = rmcp.opened(data, keys=self._keys, session=int.from_bytes(self._ours, "little"))
        except Malformed:
            return
        self.commands += 1
        silent = self.behaviour.silent_after
        if silent is not None and self.commands > silent:
            return
        netfn, command, body = message[1] >> 2, message[5], message[6:-1]
        if self.behaviour.busy:
            self.behaviour.busy -= 1
            code, answer = 0xC0, b""
        elif (netfn, command) in self.behaviour.raw:
            code, answer = 0, self.behaviour.raw[netfn, command]
        else:
            code, answer = self._command(netfn, command, body)
        self._sent += 1
        number = int.from_bytes(self._theirs, "little")
        payload = _answer(message, code, answer)
        if self.behaviour.replays and len(self._answers) >= 64:
            self._transport.sendto(self._answers[-64], addr)
        packet = rmcp.sealed(payload, keys=self._keys, session=number, sequence=self._sent)
        self._answers.append(packet)
        self._transport.sendto(packet, addr)

    def _command(self, netfn: int, command: int, body: bytes) -> tuple[int, bytes]:
        machine, now = self.machine, int(time.time())
        if (netfn, command) == (0x06, 0x3C):
            self.closed.set()
            return 0, b""
        if (netfn, command) == (0x00, 0x01):
            return 0, bytes((machine.power_on, 0, 0))
        if (netfn, command) == (0x0A, 0x48):
            stated = now + machine.seconds_off if machine.clock is None else machine.clock
            return 0, struct.pack("<I", stated)
        if (netfn, command) == (0x2C, 0x02) and machine.watts is not None:
            meter = struct.pack("<HHHHIIB", machine.watts, 0, 9000, 2000, now, 1000, 0x40 * machine.metering)
            return 0, b"\xdc" + meter
        if netfn == (0x0A if self.behaviour.repository else 0x04) and command == 0x22:
            return 0, b"\x01\x00"
        if (netfn, command) == ((0x0A, 0x23) if self.behaviour.repository else (0x04, 0x21)):
            return self._record(body)
        if netfn == 0x0A and command in (0x10, 0x11):
            return self._inventory(command, body)
        if netfn == 0x04 and command in (0x2D, 0x27):
            sensor = next((one for one in machine.sensors if one.number == body[0]), None)
            return (0xCB, b"") if sensor is None or sensor.absent else _sensor(sensor, command)
        return 0xC1, b""

    def _record(self, body: bytes) -> tuple[int, bytes]:
        if self.behaviour.cancels:
            self.behaviour.cancels -= 1
            return 0xC5, b""
        records = self.machine.records()
        number, offset, count = struct.unpack("<HBB", body[2:6])
        index = max(number - 1, 0)
        if index >= len(records):
            return 0xCB, b""
        if min(count, len(records[index]) - offset) > self.behaviour.most:
            return 0xCA, b""
        last = index + 1 == len(records)
        following = 1 if last and self.behaviour.endless else 0xFFFF if last else index + 2
        return 0, struct.pack("<H", following) + records[index][offset : offset + count]

    def _inventory(self, command: int, body: bytes) -> tuple[int, bytes]:
        data = self.machine.inventories.get(body[0])
        if data is None:
            return 0xCB, b""
        if command == 0x10:
            return 0, struct.pack("<HB", len(data), 0)
        _, offset, count = struct.unpack("<BHB", body)
        if count > self.behaviour.most:
            return 0xCA, b""
        return 0, bytes((count,)) + data[offset : offset + count]


def _sensor(sensor: Sensor, command: int) -> tuple[int, bytes]:
    if command == 0x27:
        return 0, bytes((sensor.mask, *(bound or 0 for bound in sensor.bounds)))
    flags = 0x40 * sensor.scanned | 0x20 * (not sensor.available)
    states = sensor.crossed if sensor.event == THRESHOLD else sensor.states
    return 0, bytes((sensor.raw, flags)) + (states | 0x8000).to_bytes(2, "little")


def _answer(request: bytes, code: int, data: bytes) -> bytes:
    head = bytes((rmcp.SOFTWARE, request[1] | 0x04))
    body = bytes((rmcp.BMC, request[4], request[5], code)) + data
    return head + bytes((-sum(head) & 0xFF,)) + body + bytes((-sum(body) & 0xFF,))


@asynccontextmanager
async def answering(machine: Machine, behaviour: Behaviour | None = None) -> AsyncIterator[IpmiBmc]:
    bmc = IpmiBmc(machine, behaviour or Behaviour())
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: bmc, local_addr=("127.0.0.1", 0))
    bmc.port = transport.get_extra_info("sockname")[1]
    try:
        yield bmc
    finally:
        transport.close()
