"""One IPMI 2.0 session over UDP with one BMC: login, bounded commands, logout.

The session has privilege level USER, so that no command in it can change the machine, whatever the account
may do.  Cipher suites 17 and 3 alone are offered: a BMC that wants less is refused.  One command is in
flight; a lost packet is sent again.  The password is in no message, log or `repr`.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from nodegauge_bmc import rmcp
from nodegauge_bmc.connection import Access, BmcError, Unreadable
from nodegauge_bmc.rmcp import Keys, Malformed, Suite

PORT = 623
MAX_REQUESTS = 6000
"""Commands of one reading: a repository of 500 records in pieces of 16 bytes takes 2,500."""
FIRST_RESEND = 0.5
"""Seconds until a packet is sent again; doubled each time.  Chosen by this project."""
RETRY_AFTER = 0.5
"""Seconds before the one retry of a command that the BMC is too busy for."""
BUSY = frozenset({0xC0, 0xC3})
NO_SUITE = frozenset({0x04, 0x05, 0x06, 0x07, 0x10, 0x11})
"""Status codes of a BMC that lacks the algorithms that it was offered (table 13-15)."""
NO_USER = frozenset({0x0D, 0x0C})
NO_ROLE = frozenset({0x09, 0x0A})
CODES = {
    0xC0: "busy",
    0xC1: "no such command",
    0xC3: "took too long",
    0xC5: "its reservation was cancelled",
    0xC7: "wrong length of request",
    0xC8: "too long a request",
    0xC9: "parameter out of range",
    0xCA: "cannot return that many bytes",
    0xCB: "not present",
    0xCC: "invalid field in the request",
    0xCD: "illegal for this sensor",
    0xCE: "cannot answer",
    0xD4: "needs a higher privilege level",
    0xD5: "not in this state",
}
"""Completion codes that people meet (table 5-2)."""
_T = TypeVar("_T")
_WRONG = "the BMC refuses the user or the password: check --user and --password-file"


class Refused(Unreadable):
    """A command that the BMC answers with the completion code `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{CODES.get(code, 'refused')} (completion code {code:#04x})")
        self.code = code


class NoAnswer(BmcError):
    """Nothing came back: not a BMC, IPMI over LAN is off, or a firewall."""


def address(access: Access) -> tuple[str, int]:
    """Host and UDP port of an `ipmi://` access.  Raises `BmcError` for one that cannot be used."""
    try:
        parts = urlsplit(access.url)
        port = parts.port
    except ValueError as error:
        raise BmcError(f"the address of the BMC is no URL ({error}): write ipmi://HOST") from None
    if parts.username or parts.password:
        raise BmcError("the address contains a user or a password: give them by --user and --password-file")
    if parts.scheme != "ipmi" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise BmcError("the address of the BMC is no URL of IPMI: write ipmi://HOST or ipmi://HOST:PORT")
    if access.ca or access.fingerprint or access.insecure:
        raise BmcError("--ca, --fingerprint and --insecure are about TLS, and IPMI has none: leave them out")
    if not access.user or not access.password:
        raise BmcError("IPMI needs --user and --password-file: anonymous logins are not used")
    if len(access.user.encode()) > rmcp.MAX_USER or len(access.password.encode()) > rmcp.MAX_PASSWORD:
        raise BmcError(
            f"IPMI has users of at most {rmcp.MAX_USER} bytes and passwords of at most {rmcp.MAX_PASSWORD}: "
            "give the BMC a user for nodegauge that fits"
        )
    return parts.hostname, port or PORT


class _Socket(asyncio.DatagramProtocol):
    """Puts what arrives into a queue; a flood is dropped."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[bytes | Exception] = asyncio.Queue(maxsize=64)

    def datagram_received(self, data: bytes, addr: object) -> None:
        """A packet of the BMC: the socket is connected, the kernel drops all others."""
        if not self.arrived.full():
            self.arrived.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        """An ICMP error, such as port unreachable."""
        if not self.arrived.full():
            self.arrived.put_nowait(exc)


class Session:
    """An open session with a BMC; use it as an async context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._host, self._port = address(access)
        self._socket = _Socket()
        self._transport: asyncio.DatagramTransport | None = None
        self._keys: Keys | None = None
        self._ours = int.from_bytes(os.urandom(4), "little") | 1
        self._theirs = 0
        self._sent = self._seen = self._number = 0
        self.requests = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self._socket, remote_addr=(self._host, self._port)
            )
        except OSError as error:
            raise NoAnswer(f"no connection to {self._host}: {error.strerror or error}") from None
        try:
            await self._ask_for_version()
            await self._log_in()
        except BaseException:
            self._transport.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transport is not None
        try:
            self._send(0x06, 0x3C, struct.pack("<I", self._theirs))  # the BMC ends idle sessions itself
            await asyncio.sleep(0)
        finally:
            self._transport.close()

    async def command(self, netfn: int, command: int, data: bytes = b"", *, lun: int = 0) -> bytes:
        """The data of the BMC's answer.  Raises `Refused` for another completion code than 0, `Unreadable`
        after too many commands, `BmcError` if the BMC does not answer any more."""
        code, result = await self._command(netfn, command, data, lun=lun)
        if code in BUSY:
            await asyncio.sleep(RETRY_AFTER)
            code, result = await self._command(netfn, command, data, lun=lun)
        if code:
            raise Refused(code)
        return result

    async def _command(self, netfn: int, command: int, data: bytes, *, lun: int) -> tuple[int, bytes]:
        if self.requests >= MAX_REQUESTS:
            raise Unreadable(f"not asked: this reading already took {MAX_REQUESTS} commands")
        self._number = (self._number + 1) % 64
        self.requests += 1
        session, number = self._keys, self._number
        assert session is not None

        def take(packet: bytes) -> tuple[int, bytes]:
            sequence, payload = rmcp.opened(packet, keys=session, session=self._ours)
            if sequence <= self._seen:
                raise Malformed("a packet that was here before")
            self._seen = sequence
            return rmcp.answer(payload, netfn=netfn, command=command, sequence=number)

        try:
            return await self._exchange(lambda: self._send(netfn, command, data, lun=lun), take)
        except NoAnswer:
            raise BmcError(
                f"no answer any more after {self.requests} commands (the BMC was silent for "
                f"{self._access.timeout:g} s): try again, or restart the BMC"
            ) from None

    def _send(self, netfn: int, command: int, data: bytes, *, lun: int = 0) -> None:
        assert self._transport is not None
        assert self._keys is not None
        self._sent += 1
        payload = rmcp.message(netfn, command, data, sequence=self._number, lun=lun)
        self._transport.sendto(
            rmcp.sealed(payload, keys=self._keys, session=self._theirs, sequence=self._sent)
        )

    async def _exchange(self, send: Callable[[], None], take: Callable[[bytes], _T]) -> _T:
        """Send until something arrives that `take` takes; `NoAnswer` after the access's timeout."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._access.timeout
        wait = FIRST_RESEND
        while (left := deadline - clock()) > 0:
            send()
            resend = clock() + min(wait, left)
            wait *= 2
            while (left := resend - clock()) > 0:
                try:
                    async with asyncio.timeout(left):
                        packet = await self._socket.arrived.get()
                except TimeoutError:
                    break
                if isinstance(packet, Exception):
                    raise NoAnswer(self._unreachable(packet))
                try:
                    return take(packet)
                except Malformed:
                    continue
        raise NoAnswer(
            f"no answer from {self._host} within {self._access.timeout:g} s (UDP port {self._port}): switch "
            "IPMI over LAN on in the BMC, and let this port through firewalls"
        )

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, ConnectionRefusedError):
            return (
                f"no connection to {self._host}: UDP port {self._port} is closed; switch IPMI over LAN on in "
                "the BMC, or give its port as ipmi://HOST:PORT"
            )
        return f"no connection to {self._host}: {getattr(error, 'strerror', None) or error}"

    async def _step(self, kind: int, payload: bytes, *, expects: int) -> bytes:
        """One step of the login: the answer with the same tag."""
        assert self._transport is not None
        packet, transport = rmcp.setup(kind, payload), self._transport

        def take(arrived: bytes) -> bytes:
            got = rmcp.from_setup(arrived, expects)
            if len(got) < 2 or got[0] != payload[0]:
                raise Malformed("the answer to another step")
            return got

        return await self._exchange(lambda: transport.sendto(packet), take)

    async def _ask_for_version(self) -> None:
        """Get Channel Authentication Capabilities (section 22.13)."""
        assert self._transport is not None
        transport = self._transport
        packet = rmcp.outside(rmcp.message(0x06, 0x38, bytes((0x8E, rmcp.USER)), sequence=0))

        def take(arrived: bytes) -> tuple[int, bytes]:
            return rmcp.answer(rmcp.from_outside(arrived), netfn=0x06, command=0x38, sequence=0)

        code, data = await self._exchange(lambda: transport.sendto(packet), take)
        if code or len(data) < 4 or not (data[1] & 0x80 and data[3] & 0x02):
            raise BmcError(
                "the BMC speaks IPMI 1.5 alone, which neither encrypts nor protects passwords, so it is not "
                "read: update its firmware"
            )

    async def _log_in(self) -> None:
        """Open a session by the first suite that the BMC has, and prove to each other that both know the
        password (RAKP, sections 13.17 to 13.24)."""
        for tag, suite in enumerate(rmcp.SUITES, 1):
            if await self._open(tag, suite):
                await self._authenticate(tag, suite)
                return
        raise BmcError(
            "the BMC offers neither cipher suite 17 nor 3, and weaker ones are not used: enable one of them "
            "for IPMI over LAN in the BMC"
        )

    async def _open(self, tag: int, suite: Suite) -> bool:
        """Whether the BMC opens a session by exactly this suite."""
        wanted = (suite.authentication, suite.integrity, suite.confidentiality)
        offer = b"".join(struct.pack("<BBBBI", kind, 0, 0, 8, number) for kind, number in enumerate(wanted))
        request = struct.pack("<BBHI", tag, rmcp.USER, 0, self._ours) + offer
        got = await self._step(rmcp.OPEN, request, expects=rmcp.OPENED)
        if got[1] in NO_SUITE:
            return False
        if got[1] in NO_ROLE:
            raise BmcError(
                "the BMC gives nobody the privilege level USER over LAN: enable it for its channel"
            )
        if got[1] or len(got) < 36:
            raise BmcError(f"the BMC opens no session (status {got[1]:#04x}): its sessions may all be in use")
        ours, self._theirs = struct.unpack_from("<II", got, 4)
        return ours == self._ours and (got[16], got[24], got[32]) == suite.algorithms

    async def _authenticate(self, tag: int, suite: Suite) -> None:
        user, password = self._access.user.encode(), self._access.password.encode()
        role = bytes((rmcp.NAME_ONLY | rmcp.USER, len(user))) + user
        mine = os.urandom(16)
        request = struct.pack("<BBHI", tag, 0, 0, self._theirs) + mine
        second = await self._step(
            rmcp.RAKP1, request + struct.pack("<BHB", role[0], 0, len(user)) + user, expects=rmcp.RAKP2
        )
        if second[1] in NO_ROLE:
            raise BmcError("the user may not use IPMI over LAN: give it the privilege level USER there")
        if second[1] or len(second) < 40 + suite.size:
            raise BmcError(_WRONG if second[1] in NO_USER or not second[1] else _status(second[1]))
        theirs, guid = second[8:24], second[24:40]
        sessions = struct.pack("<II", self._ours, self._theirs)
        proof = rmcp.digest(suite, password, sessions + mine + theirs + guid + role)
        if not hmac.compare_digest(proof, second[40 : 40 + suite.size]):
            raise BmcError(_WRONG)
        ours = struct.pack("<I", self._ours)
        answer = rmcp.digest(suite, password, theirs + ours + role)
        fourth = await self._step(
            rmcp.RAKP3, struct.pack("<BBHI", tag, 0, 0, self._theirs) + answer, expects=rmcp.RAKP4
        )
        if fourth[1]:
            raise BmcError(_WRONG if fourth[1] == 0x0F else _status(fourth[1]))
        session_key = rmcp.digest(suite, password, mine + theirs + role)
        check = rmcp.digest(suite, session_key, mine + struct.pack("<I", self._theirs) + guid)
        if not hmac.compare_digest(check[: suite.check], fourth[8 : 8 + suite.check]):
            raise BmcError(
                "the BMC has a key of its own for IPMI (Kg), which cannot be given: clear it there"
            )
        self._keys = rmcp.keys(suite, session_key)


def _status(status: int) -> str:
    return f"the BMC ends the login (status {status:#04x}): its sessions may all be in use, or try again"
