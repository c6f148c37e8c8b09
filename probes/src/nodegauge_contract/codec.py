"""Encoding and bounded decoding of result documents.

A termination message holds 4,096 bytes (a kubelet keeps the first 4,096), so a document that is larger as
JSON travels as `ngz1:` + base85(zlib(JSON)).  Decoding never trusts its input: sizes are bounded before and
after decompression (4 KB of zlib can hold 4 MB), types and list lengths by the schema, and whatever is wrong
ends in one `ContractError` with words for a person.  No I/O here.
"""

from __future__ import annotations

import base64
import re
import zlib

import msgspec

from nodegauge_contract.model import MAJOR, SCHEMA, Problem, ProblemKind, Result

MESSAGE_LIMIT = 4096
MAX_ENCODED_BYTES = 64 * 1024
MAX_DECODED_BYTES = 256 * 1024
PREFIX = "ngz1:"

_VERSION = re.compile(r"^(\d{1,4})\.(\d{1,4})$")


class ContractError(Exception):
    """A text that is not a usable result document; the message says what is wrong and where."""


class NotAResult(ContractError):
    """Not JSON, not base85, not zlib, or JSON of another schema."""


class TooLarge(ContractError):
    """Over the size limits before or after decompression."""


class UnknownVersion(ContractError):
    """A major version that this reader does not know."""


class Malformed(ContractError):
    """The right schema with a wrong type, length or a missing field; the message holds the path."""


class _Envelope(msgspec.Struct):
    schema: str = ""
    version: str = ""


_encoder = msgspec.json.Encoder()
_envelope = msgspec.json.Decoder(_Envelope)
_result = msgspec.json.Decoder(Result)


def encode(result: Result) -> bytes:
    """The document in full, as UTF-8 JSON."""
    return _encoder.encode(result)


def encode_message(result: Result, *, limit: int = MESSAGE_LIMIT) -> str:
    """The document as text of at most `limit` bytes: plain JSON where it fits, else compressed.

    A document that does not fit even then is replaced by one that says so (`result-too-large`): half a
    document would be judged as if it were whole.
    """
    plain = encode(result)
    if len(plain) <= limit:
        return plain.decode()
    packed = PREFIX + base64.b85encode(zlib.compress(plain, 9)).decode()
    if len(packed) <= limit:
        return packed
    problem = Problem(
        kind=ProblemKind.TOO_LARGE,
        call="encode_message",
        message=f"the result needs {len(packed)} bytes compressed, a termination message holds {limit}",
    )
    return encode(
        Result(probe=result.probe, run=result.run, node=result.node, host=result.host, problem=problem)
    ).decode()


def decode(text: str) -> Result:
    """The typed document in `text`, plain or compressed.

    Raises `NotAResult`, `TooLarge`, `UnknownVersion` or `Malformed` (all `ContractError`).
    """
    data = _unpack(text)
    try:
        envelope = _envelope.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NotAResult(f"not a result document: {_brief(error)}") from None
    if envelope.schema != SCHEMA:
        raise NotAResult(f"schema is {envelope.schema[:80]!r}, expected {SCHEMA!r}")
    _check_version(envelope.version)
    try:
        return _result.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_brief(error)) from None


def _unpack(text: str) -> bytes:
    if len(text) > MAX_ENCODED_BYTES:
        raise TooLarge(f"{len(text)} characters, at most {MAX_ENCODED_BYTES} are read")
    text = text.strip()
    if not text:
        raise NotAResult("empty: the probe wrote no result")
    if not text.startswith(PREFIX):
        return text.encode("utf-8", "surrogatepass")
    try:
        packed = base64.b85decode(text[len(PREFIX) :])
        inflate = zlib.decompressobj()
        data = inflate.decompress(packed, MAX_DECODED_BYTES + 1)
    except (ValueError, zlib.error) as error:
        raise NotAResult(f"compressed result cannot be unpacked: {_brief(error)}") from None
    if len(data) > MAX_DECODED_BYTES:
        raise TooLarge(f"more than {MAX_DECODED_BYTES} bytes after decompression")
    if not inflate.eof:
        raise NotAResult("compressed result is cut off")
    return data


def _check_version(version: str) -> None:
    match = _VERSION.match(version)
    if match is None:
        raise UnknownVersion(f"version is {version[:40]!r}, expected MAJOR.MINOR")
    if int(match[1]) != MAJOR:
        raise UnknownVersion(f"major version {match[1]} is not known here (this reader knows {MAJOR})")


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
