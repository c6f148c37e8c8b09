"""Packets of RMCP+, the session protocol of IPMI 2.0 over UDP: built, checked and taken apart.

Pure: bytes in, bytes out.  Tables are those of the IPMI specification 2.0, revision 1.1.  Cipher suites
without authentication, integrity or encryption are not here, so none can be agreed upon; IPMI 1.5 is here
for the one question that comes before every session.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from msgspec import Struct

RMCP = bytes((0x06, 0x00, 0xFF, 0x07))
"""Header of every packet: version 1.0, no acknowledgement, class IPMI (table 13-1)."""
BMC, SOFTWARE = 0x20, 0x81
MESSAGE, OPEN, OPENED, RAKP1, RAKP2, RAKP3, RAKP4 = 0x00, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15
"""Payload types (table 13-16)."""
USER = 0x02
"""Privilege level of a session: all that a reading needs, and it cannot change anything."""
NAME_ONLY = 0x10
"""RAKP message 1: look the user up by name alone, whatever its privilege level (table 13-11)."""
MAX_USER, MAX_PASSWORD = 16, 20
"""Bytes (sections 22.28 and 22.30)."""
_BLOCK = 16


class Suite(Struct, frozen=True, kw_only=True):
    """One cipher suite (table 22-20): `digest` of hashlib, its three algorithm numbers, bytes of a check."""

    number: int
    digest: str
    authentication: int
    integrity: int
    confidentiality: int = 1
    check: int

    @property
    def size(self) -> int:
        """Bytes of a whole digest."""
        return hashlib.new(self.digest).digest_size

    @property
    def algorithms(self) -> tuple[int, int, int]:
        """Numbers of authentication, integrity and confidentiality, as a BMC confirms them."""
        return self.authentication, self.integrity, self.confidentiality


SUITES = (
    Suite(number=17, digest="sha256", authentication=3, integrity=4, check=16),
    Suite(number=3, digest="sha1", authentication=1, integrity=1, check=12),
)
"""HMAC-SHA256 first, then HMAC-SHA1, which is all that older BMCs have; both encrypt by AES-CBC-128."""


class Malformed(Exception):
    """A packet that is not what it should be; it is dropped, as a packet of somebody else is."""


def digest(suite: Suite, key: bytes, data: bytes) -> bytes:
    """HMAC of the suite."""
    return hmac.new(key, data, suite.digest).digest()


def message(netfn: int, command: int, data: bytes, *, sequence: int, lun: int = 0) -> bytes:
    """One IPMI request to the BMC (table 13-8)."""
    head = bytes((BMC, netfn << 2 | lun))
    body = bytes((SOFTWARE, sequence << 2, command)) + data
    return head + _checksum(head) + body + _checksum(body)


def answer(payload: bytes, *, netfn: int, command: int, sequence: int) -> tuple[int, bytes]:
    """Completion code and data of the answer to one request.  Raises `Malformed` for any other message."""
    if len(payload) < 8 or sum(payload[:3]) & 0xFF or sum(payload[3:]) & 0xFF:
        raise Malformed("wrong checksum")
    asked = (payload[1] >> 2, payload[4] >> 2, payload[5])
    if asked != (netfn | 1, sequence, command):
        raise Malformed("an answer to another request")
    return payload[6], payload[7:-1]


def outside(payload: bytes) -> bytes:
    """A packet of IPMI 1.5 outside any session."""
    return RMCP + bytes(9) + bytes((len(payload),)) + payload


def from_outside(packet: bytes) -> bytes:
    """The message in a packet of IPMI 1.5 without authentication."""
    if packet[:4] != RMCP or len(packet) < 14 or packet[4] != 0 or len(packet) < 14 + packet[13]:
        raise Malformed("no packet of IPMI 1.5")
    return packet[14 : 14 + packet[13]]


def setup(kind: int, payload: bytes) -> bytes:
    """A packet of RMCP+ that sets up a session: neither encrypted nor authenticated (table 13-8)."""
    return RMCP + struct.pack("<BBIIH", 6, kind, 0, 0, len(payload)) + payload


def from_setup(packet: bytes, kind: int) -> bytes:
    """The payload of a packet that sets up a session."""
    if packet[:4] != RMCP or len(packet) < 16 or packet[4:6] != bytes((6, kind)):
        raise Malformed("no packet of this step")
    (length,) = struct.unpack_from("<H", packet, 14)
    if len(packet) < 16 + length:
        raise Malformed("too short")
    return packet[16 : 16 + length]


class Keys(Struct, frozen=True, kw_only=True):
    """What both ends of a session know; printed by nobody."""

    suite: Suite
    integrity: bytes
    encryption: bytes

    def __repr__(self) -> str:
        return f"Keys(suite={self.suite.number})"


def keys(suite: Suite, session_key: bytes) -> Keys:
    """K1 and K2 of the session integrity key (section 13.32)."""
    return Keys(
        suite=suite,
        integrity=digest(suite, session_key, b"\x01" * 20),
        encryption=digest(suite, session_key, b"\x02" * 20)[:_BLOCK],
    )


def sealed(payload: bytes, *, keys: Keys, session: int, sequence: int) -> bytes:
    """An encrypted and authenticated packet (sections 13.28 and 13.29)."""
    initial = os.urandom(_BLOCK)
    missing = -(len(payload) + 1) % _BLOCK
    padded = payload + bytes(range(1, missing + 1)) + bytes((missing,))
    cipher = Cipher(algorithms.AES(keys.encryption), modes.CBC(initial)).encryptor()
    body = initial + cipher.update(padded) + cipher.finalize()
    packet = struct.pack("<BBIIH", 6, 0xC0 | MESSAGE, session, sequence, len(body)) + body
    missing = -(len(packet) + 2) % 4
    packet += b"\xff" * missing + bytes((missing, 0x07))
    return RMCP + packet + digest(keys.suite, keys.integrity, packet)[: keys.suite.check]


def opened(packet: bytes, *, keys: Keys, session: int) -> tuple[int, bytes]:
    """Sequence number and message of a packet of this session.  Raises `Malformed` for any other: one that is
    not encrypted or whose check does not fit, too."""
    if packet[:4] != RMCP or len(packet) < 16 + keys.suite.check:
        raise Malformed("no packet of RMCP+")
    version, kind, number, sequence, length = struct.unpack_from("<BBIIH", packet, 4)
    if (version, kind, number) != (6, 0xC0 | MESSAGE, session):
        raise Malformed("no packet of this session")
    inner, check = packet[4 : -keys.suite.check], packet[-keys.suite.check :]
    if not hmac.compare_digest(digest(keys.suite, keys.integrity, inner)[: keys.suite.check], check):
        raise Malformed("its check does not fit")
    body = packet[16 : 16 + length]
    if len(body) != length or length < 2 * _BLOCK or length % _BLOCK:
        raise Malformed("no whole blocks")
    cipher = Cipher(algorithms.AES(keys.encryption), modes.CBC(body[:_BLOCK])).decryptor()
    padded = cipher.update(body[_BLOCK:]) + cipher.finalize()
    end = len(padded) - 1 - padded[-1]
    if end < 0:
        raise Malformed("padding")
    return sequence, padded[:end]


def _checksum(data: bytes) -> bytes:
    return bytes((-sum(data) & 0xFF,))
