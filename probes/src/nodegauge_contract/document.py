"""Encoding and bounded decoding of result documents.

A document is JSON with its lists of records by column (`columns`), one member a line where people read it
(`text`), all in one line on standard output (`encode`).  Decoding trusts nothing: the size is bounded before
anything is parsed, the number of values while columns unfold, types and list lengths by the schema.  Every
defect is a `ContractError` with a message for a person.

No I/O here.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from nodegauge_contract import columns
from nodegauge_contract.columns import ROWS, BadColumns
from nodegauge_contract.model import MAJOR, SCHEMA, Result

MAX_BYTES = 256 * 1024
"""Of a text that is read.  Chosen by this project: four times what a NodeReading holds in all, for documents
that a person indented; a log around one, or another tool's output, is told from a document, not refused."""

_VERSION = re.compile(r"^(\d{1,4})\.(\d{1,4})$")


class ContractError(Exception):
    """A text that is not a valid result document; the message says what is wrong and where."""


class NotAResult(ContractError):
    """Not JSON, or JSON of another schema."""


class TooLarge(ContractError):
    """Over the size limit."""


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
    """The document in one line of UTF-8 JSON."""
    return _encoder.encode(columns.fold(msgspec.to_builtins(result)))


def text(result: Result) -> str:
    """The same document, one member a line: what `kubectl get -o yaml` shows as it is."""
    return "{" + ",\n".join(_lines(columns.fold(msgspec.to_builtins(result)))) + "}\n"


def _lines(members: dict[str, Any]) -> list[str]:
    lines = []
    for name, member in members.items():
        key = f"{_encoder.encode(name).decode()}: "
        is_table = isinstance(member, dict) and ROWS in member
        value = "{" + ",\n ".join(_lines(member)) + "}" if is_table else _encoder.encode(member).decode()
        lines.append(key + value)
    return lines


def decode(text: str) -> Result:
    """The typed document in `text`.

    Raises `NotAResult`, `TooLarge`, `UnknownVersion` or `Malformed` (all `ContractError`).
    """
    if len(text) > MAX_BYTES:
        raise TooLarge(f"{len(text)} characters, at most {MAX_BYTES} are read")
    text = text.strip()
    if not text:
        raise NotAResult("empty: the probe wrote no result")
    try:
        document = msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
        envelope = msgspec.convert(document, _Envelope)
    except _INPUT_ERRORS as error:
        raise NotAResult(f"not a result document: {_brief(error)}") from None
    if envelope.schema != SCHEMA:
        raise NotAResult(f"schema is {envelope.schema[:80]!r}, expected {SCHEMA!r}")
    _check_version(envelope.version)
    try:
        return msgspec.convert(columns.unfold(document), Result)
    except _INPUT_ERRORS as error:
        raise Malformed(_brief(error)) from None


def _check_version(version: str) -> None:
    match = _VERSION.match(version)
    if match is None:
        raise UnknownVersion(f"version is {version[:40]!r}, expected MAJOR.MINOR")
    if int(match[1]) != MAJOR:
        raise UnknownVersion(f"major version {match[1]} is not known here (this reader knows {MAJOR})")


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
