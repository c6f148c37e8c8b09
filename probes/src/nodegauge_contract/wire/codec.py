"""Encoding and bounded decoding of result documents.

A termination message holds 4,096 bytes (a kubelet keeps the last 4,096), so a document that is larger as JSON
travels as `ngz2:` and base85 of a packet: a checksum, JSON by column (`columns`) deflated with a preset
`DICTIONARY`, and the bits of its numbers (`cells`).  Decoding never trusts its input: sizes are bounded
before and after decompression (4 KB of deflate can hold 4 MB), rows and cells while columns unfold, types and
list lengths by the schema.  Every defect is a `ContractError` with a message for a person.

A document that is too large even when packed loses members, in the order of `DROP_ORDER`: distances among
network cards and affinities (for the printed matrix only), numbers by which people look a device up, sensors
that are neither a supply's volts and watts nor raise an alarm; of an NCCL run, pairs that do not touch the
slowest one, and the ends of messages.  No verdict and no label depends on any of them: if you base a verdict
on one, remove it from the list.  Xids alone are judged: repeated ones, of which the oldest go first of all
and the others late, and at last how often and when new ones came, of which there are more than a hundred
then; each code counts once without it.  A dropped member reads as "not read" and is listed in `omitted`.

No I/O here.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_contract.model import MAJOR, SCHEMA, Result, Sensor
from nodegauge_contract.values import NOT_READ, Num, Problem, ProblemKind, Short, Str, Unavailable
from nodegauge_contract.wire.cells import BadColumns, Folding, Unfolding
from nodegauge_contract.wire.columns import DICTIONARY, NO_DEFAULT, plan_of

MESSAGE_LIMIT = 4096
MAX_ENCODED_BYTES = 256 * 1024
MAX_DECODED_BYTES = 256 * 1024
PREFIX = "ngz2:"
CHECKSUM = 4
RAW = -15
"""zlib's window of a bare deflate stream: the packet has a checksum of its own."""

PLAN = plan_of(Result)

_VERSION = re.compile(r"^(\d{1,4})\.(\d{1,4})$")


class ContractError(Exception):
    """A text that is not a valid result document; the message says what is wrong and where."""


class NotAResult(ContractError):
    """Not JSON, not a packet, or JSON of another schema."""


class TooLarge(ContractError):
    """Over the size limits before or after decompression."""


class UnknownVersion(ContractError):
    """A major version that this reader does not support."""


class Malformed(ContractError):
    """The right schema with a wrong type, length or a missing field; the message holds the path."""


class _Envelope(msgspec.Struct):
    schema: str = ""
    version: str = ""


_encoder = msgspec.json.Encoder()
_INPUT_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, BadColumns)


def encode(result: Result) -> bytes:
    """The document in full, as UTF-8 JSON."""
    return _encoder.encode(result)


def encode_message(result: Result, *, limit: int = MESSAGE_LIMIT) -> str:
    """The document as text of at most `limit` bytes: plain JSON where it fits, else packed.

    If it still does not fit, members are dropped in the order of `DROP_ORDER` and listed in `omitted`.  A
    document that is still too large is replaced by one with the problem `result-too-large`: half a document
    would be judged as if it were whole.
    """
    plain = encode(result)
    if len(plain) <= limit:
        return plain.decode()
    packed = _pack(result)
    for name, without in DROP_ORDER:
        if len(packed) <= limit:
            break
        less = without(result)
        if less != result:
            result = replace(less, omitted=[*result.omitted, name])
            packed = _pack(result)
    if len(packed) <= limit:
        return packed
    problem = Problem(
        kind=ProblemKind.TOO_LARGE,
        call="encode_message",
        message=f"the result needs {len(packed)} bytes packed, a termination message holds {limit}",
    )
    return encode(
        Result(probe=result.probe, run=result.run, node=result.node, host=result.host, problem=problem)
    ).decode()


def _pack(result: Result) -> str:
    folded = Folding()
    columns = PLAN.fold([msgspec.to_builtins(result)], folded, default=NO_DEFAULT)
    text = _encoder.encode([result.version, list(folded.reasons), columns])
    return wrap(text, bits=folded.bits.to_bytes())


def wrap(text: bytes, *, bits: bytes = b"") -> str:
    """A packet: base85 of the checksum of both, `text` deflated, and `bits` as they are."""
    deflate = zlib.compressobj(level=9, wbits=RAW, memLevel=9, zdict=DICTIONARY)
    checksum = zlib.crc32(bits, zlib.crc32(text)).to_bytes(CHECKSUM, "big")
    packet = checksum + deflate.compress(text) + deflate.flush() + bits
    return PREFIX + base64.b85encode(packet).decode()


def decode(text: str) -> Result:
    """The typed document in `text`, plain or compressed.

    Raises `NotAResult`, `TooLarge`, `UnknownVersion` or `Malformed` (all `ContractError`).
    """
    if len(text) > MAX_ENCODED_BYTES:
        raise TooLarge(f"{len(text)} characters, at most {MAX_ENCODED_BYTES} are read")
    text = text.strip()
    if not text:
        raise NotAResult("empty: the probe wrote no result")
    try:
        document = _parse(text)
        envelope = msgspec.convert(document, _Envelope)
    except _INPUT_ERRORS as error:
        raise NotAResult(f"not a result document: {_brief(error)}") from None
    if envelope.schema != SCHEMA:
        raise NotAResult(f"schema is {envelope.schema[:80]!r}, expected {SCHEMA!r}")
    _check_version(envelope.version)
    try:
        return msgspec.convert(document, Result)
    except _INPUT_ERRORS as error:
        raise Malformed(_brief(error)) from None


def _parse(text: str) -> Any:
    """The JSON in `text` as Python's own types; a packet may hold a document by row, too."""
    if not text.startswith(PREFIX):
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    data, bits = _unwrap(text[len(PREFIX) :])
    document = msgspec.json.decode(data)
    return _unfold(document, bits) if type(document) is list else document


def _unfold(packet: list[Any], bits: bytes) -> dict[str, Any]:
    version, reasons, columns = msgspec.convert(packet, tuple[Short, list[Str], Any])
    _check_version(version)
    [document] = PLAN.unfold(columns, 1, Unfolding(reasons=reasons, bits=bits))
    return {**document, "schema": SCHEMA, "version": version}


def _unwrap(text: str) -> tuple[bytes, bytes]:
    """The text and the bits of a packet."""
    try:
        packet = base64.b85decode(text)
        inflate = zlib.decompressobj(wbits=RAW, zdict=DICTIONARY)
        data = inflate.decompress(packet[CHECKSUM:], MAX_DECODED_BYTES + 1)
    except (ValueError, zlib.error) as error:
        raise NotAResult(f"packed result cannot be unpacked: {_brief(error)}") from None
    if len(data) > MAX_DECODED_BYTES:
        raise TooLarge(f"more than {MAX_DECODED_BYTES} bytes after decompression")
    if not inflate.eof:
        raise NotAResult("packed result cannot be unpacked: it is cut off")
    bits = inflate.unused_data
    if zlib.crc32(bits, zlib.crc32(data)) != int.from_bytes(packet[:CHECKSUM], "big"):
        raise NotAResult("packed result cannot be unpacked: its checksum does not match")
    return data, bits


def _check_version(version: str) -> None:
    match = _VERSION.match(version)
    if match is None:
        raise UnknownVersion(f"version is {version[:40]!r}, expected MAJOR.MINOR")
    if int(match[1]) != MAJOR:
        raise UnknownVersion(f"major version {match[1]} is not known here (this reader knows {MAJOR})")


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


SUPPLY = ("in", "power")
"""Sensors of a supply: volts and watts."""

SHORT, SHORTER = 80, 40
"""Characters of a message that still say what happened: of one of a few arms, of one of sixteen GPUs."""


def _without_nic_distances(result: Result) -> Result:
    return replace(result, nics=replace(result.nics, to_nic=[]))


def _without_affinities(result: Result) -> Result:
    gpus = [replace(gpu, cpus=NOT_READ, memory_nodes=NOT_READ) for gpu in result.gpus]
    return replace(result, gpus=gpus)


def _without_serials(result: Result) -> Result:
    gpus = [replace(gpu, serial=NOT_READ, minor=NOT_READ, module_id=NOT_READ) for gpu in result.gpus]
    return replace(result, gpus=gpus)


def _with_relevant_sensors(result: Result) -> Result:
    """Those of supplies, those with an alarm, those that cannot be read, and all of a chip without volts."""
    supplies = {sensor.chip for sensor in result.sensors if sensor.name.startswith(SUPPLY)}
    kept = [sensor for sensor in result.sensors if sensor.chip not in supplies or _is_relevant(sensor)]
    return replace(result, sensors=kept)


def _is_relevant(sensor: Sensor) -> bool:
    raised = isinstance(sensor.alarm, int) and sensor.alarm != 0
    return raised or sensor.name.startswith(SUPPLY) or isinstance(sensor.value, Unavailable)


def _with_slowest_pairs(result: Result) -> Result:
    """Of each arm the rows of the two GPUs whose copies are the slowest; the others read as "not read"."""
    if result.nccl is None:
        return result
    arms = [replace(arm, pairs=_slowest(arm.pairs)) for arm in result.nccl.arms]
    return replace(result, nccl=replace(result.nccl, arms=arms))


def _slowest(pairs: list[list[Num]]) -> list[list[Num]]:
    known = [
        (speed, i, j)
        for i, row in enumerate(pairs)
        for j, speed in enumerate(row)
        if i != j and isinstance(speed, int | float)
    ]
    kept = min(known)[1:] if known else ()
    return [row if i in kept else [NOT_READ] * len(row) for i, row in enumerate(pairs)]


def _with_short_messages(result: Result) -> Result:
    if result.nccl is None:
        return result
    arms = [replace(arm, message=arm.message[:SHORT]) for arm in result.nccl.arms]
    nccl = replace(result.nccl, arms=arms, message=result.nccl.message[:SHORT])
    return replace(result, nccl=nccl)


def _with_short_load_messages(result: Result) -> Result:
    if result.load is None:
        return result
    gpus = [replace(gpu, message=gpu.message[:SHORTER]) for gpu in result.load.gpus]
    return replace(result, load=replace(result.load, gpus=gpus))


def _without_xid_counts(result: Result) -> Result:
    gpus = [replace(gpu, xids=replace(gpu.xids, counts=[])) for gpu in result.gpus]
    return replace(result, gpus=gpus)


NEWEST = 16
"""Repeated Xids that stay for longer than what no verdict depends on.  Chosen by this project: one of each of
16 GPUs."""


def _with_newest_repeated(result: Result) -> Result:
    return _repeating(result, NEWEST)


def _without_repeated(result: Result) -> Result:
    return _repeating(result, 0)


def _repeating(result: Result, most: int) -> Result:
    if result.watch is None or len(result.watch.repeated) <= most:
        return result
    newest = result.watch.repeated[len(result.watch.repeated) - most :]
    return replace(result, watch=replace(result.watch, repeated=newest))


DROP_ORDER: tuple[tuple[str, Callable[[Result], Result]], ...] = (
    ("watch.repeated.oldest", _with_newest_repeated),
    ("nics.to_nic", _without_nic_distances),
    ("gpus.affinities", _without_affinities),
    ("sensors.others", _with_relevant_sensors),
    ("gpus.serials", _without_serials),
    ("bench.pairs", _with_slowest_pairs),
    ("bench.messages", _with_short_messages),
    ("load.messages", _with_short_load_messages),
    ("watch.repeated", _without_repeated),
    ("gpus.xids.counts", _without_xid_counts),
)
"""Names in `omitted`, and the function that drops the member; each is dropped after those before it."""
