"""What an IPMI BMC stores: its sensor data records and the inventories (FRU) of machine and supplies.

BMCs differ in how many bytes they give at once, cancel reservations while somebody else reads, and have
lists that never end; all of that is bounded here.
"""

from __future__ import annotations

import re
import struct

from msgspec import Struct

from nodegauge_bmc import sdr, values
from nodegauge_bmc.connection import Unreadable
from nodegauge_bmc.lan import Refused, Session
from nodegauge_contract.values import NOT_READ, Num, Text, Unavailable

STORAGE, SENSOR = 0x0A, 0x04
MAX_RECORDS = 2000
MAX_RESERVATIONS = 8
"""Reservations of one walk: another reader of the same BMC cancels ours."""
PIECES = (0xFF, 32, 16, 8)
"""Bytes of a record to ask for at once: all, or what small buffers hold."""
MAX_INVENTORY = 2048
INVENTORY_PIECE = 32
LAST = 0xFFFF
_CANCELLED, _TOO_MANY = 0xC5, frozenset({0xC7, 0xC8, 0xCA, 0xFF})
_SMALLER = frozenset({0xC7, 0xC8, 0xC9, 0xCA})
_PLACEHOLDER = re.compile(
    r"to be filled|default string|not specified|not available|^n/?a$|^none$|^unknown$|^[0 .x-]+$|"
    r"^0?123456789$|^(system|chassis|(base ?)?board|product)[ _](serial( number)?|name|manufacturer)$",
    re.IGNORECASE,
)
"""What stands in inventories that nobody filled in."""


async def records(session: Session) -> list[bytes]:
    """All sensor data records, of the repository or, where there is none, of the BMC's own sensors.  Raises
    `Unreadable` if there are neither."""
    try:
        return await _walk(session, netfn=STORAGE, get=0x23)
    except Refused:
        return await _walk(session, netfn=SENSOR, get=0x21)


async def _walk(session: Session, *, netfn: int, get: int) -> list[bytes]:
    """Each record once, in the order of the BMC's list."""
    read: dict[int, bytes] = {}
    record, reservations, piece = 0, 0, PIECES[0]
    reservation = await _reserved(session, netfn=netfn)
    while record != LAST and record not in read and len(read) < MAX_RECORDS:
        try:
            following, data = await _record(
                session, netfn=netfn, command=get, reservation=reservation, record=record, piece=piece
            )
        except Refused as error:
            if error.code == _CANCELLED and reservations < MAX_RESERVATIONS:
                reservations += 1
                reservation = await _reserved(session, netfn=netfn)
                continue
            smaller = [size for size in PIECES if size < piece]
            if error.code not in _TOO_MANY or not smaller:
                raise
            piece = smaller[0]
            continue
        read[record] = data
        record = following
    return list(read.values())


async def _reserved(session: Session, *, netfn: int) -> bytes:
    got = await session.command(netfn, 0x22)
    if len(got) < 2:
        raise Unreadable("a reservation without content")
    return got[:2]


async def _record(
    session: Session, *, netfn: int, command: int, reservation: bytes, record: int, piece: int
) -> tuple[int, bytes]:
    """The number of the following record, and this one."""
    following, data, length = LAST, b"", 5
    while len(data) < length:
        whole = piece == 0xFF and not data
        count = 0xFF if whole else min(piece, PIECES[1], length - len(data))
        got = await session.command(
            netfn, command, reservation + struct.pack("<HBB", record, len(data), count)
        )
        if len(got) < 3:
            raise Unreadable("a record without content")
        following = int.from_bytes(got[:2], "little")
        data += got[2:]
        if len(data) >= 5:
            length = 5 + data[4]
    return following, data


class Inventory(Struct, frozen=True, kw_only=True):
    """Who made a part.  `capacity_watts`: of a power supply, as its maker states it."""

    vendor: Text = NOT_READ
    product: Text = NOT_READ
    serial: Text = NOT_READ
    capacity_watts: Num = NOT_READ


async def inventory(session: Session, device: int) -> Inventory:
    """The inventory of one device.  Raises `Unreadable` if the BMC does not give it: is the part there?"""
    about = await session.command(STORAGE, 0x10, bytes((device,)))
    if len(about) < 3:
        raise Unreadable("an inventory without content")
    by_words = about[2] & 0x01
    size = min(int.from_bytes(about[:2], "little"), MAX_INVENTORY)
    data, piece = b"", INVENTORY_PIECE
    while len(data) < size:
        offset = len(data) >> by_words
        try:
            got = await session.command(
                STORAGE,
                0x11,
                struct.pack("<BHB", device, offset, max(min(piece, size - len(data)) >> by_words, 1)),
            )
        except Refused as error:
            if error.code in _SMALLER and piece > 8:
                piece //= 2
                continue
            if data:
                break
            raise
        if len(got) < 2 or got[0] == 0:
            break
        data += got[1:]
        if len(data) >= 8 and len(data) >= _end(data):
            break
    return of_bytes(data)


def of_bytes(data: bytes) -> Inventory:
    """An inventory out of its bytes (IPMI platform management FRU specification 1.3): the product area, and
    what it lacks from the board's; a wrong checksum or a length beyond the end is no area."""
    if len(data) < 8 or sum(data[:8]) & 0xFF or data[0] & 0x0F != 1:
        return Inventory()
    product = _fields(data, data[4] * 8, 3)
    board = _fields(data, data[3] * 8, 6)
    return Inventory(
        vendor=_first(product[0:1] + board[0:1]),
        product=_first(product[1:2] + product[2:3] + board[1:2]),
        serial=_first(product[4:5] + board[2:3]),
        capacity_watts=_capacity(data, data[5] * 8),
    )


def _end(data: bytes) -> int:
    """Bytes until the last area that is used ends, as far as it can be told by now."""
    ends = [8]
    for start in (data[3] * 8, data[4] * 8):
        if start:
            ends.append(start + data[start + 1] * 8 if start + 1 < len(data) else start + 2)
    at = data[5] * 8
    while at:
        if at + 5 > len(data):
            ends.append(at + 5)
            break
        ends.append(at + 5 + data[at + 2])
        if data[at + 1] & 0x80:
            break
        at += 5 + data[at + 2]
    return max(ends)


def _fields(data: bytes, start: int, head: int) -> list[str]:
    """The texts of an area; empty if there is none that is whole."""
    if not start or start + 8 > len(data):
        return []
    area = data[start : start + data[start + 1] * 8]
    if len(area) < 8 or len(area) < data[start + 1] * 8 or sum(area) & 0xFF:
        return []
    texts, at = [], head
    while at < len(area) - 1 and area[at] != 0xC1:
        length = area[at] & 0x3F
        content = area[at + 1 : at + 1 + length]
        texts.append(sdr.text(area[at] >> 6, content) if any(content) else "")
        at += 1 + length
    return texts


def _first(candidates: list[str]) -> Text:
    for candidate in candidates:
        if candidate and not _PLACEHOLDER.search(candidate):
            return values.text(candidate)
    return Unavailable("a placeholder") if any(candidates) else NOT_READ


def _capacity(data: bytes, at: int) -> Num:
    """Watts of a supply: the record "Power Supply Information" (section 18.1)."""
    while at and at + 5 <= len(data):
        kind, last, length = data[at], data[at + 1] & 0x80, data[at + 2]
        body = data[at + 5 : at + 5 + length]
        if kind == 0x00 and len(body) >= 2 and sum(body) + data[at + 3] & 0xFF == 0:
            stated = int.from_bytes(body[:2], "little") & 0x0FFF
            return Unavailable("not stated") if stated in (0, 0x0FFF) else values.watts(stated)
        at = 0 if last else at + 5 + length
    return NOT_READ
