"""What users pass in: durations, and files with results, logs of nccl-tests or NodeReports.

Invalid input ends in `BadInput`, which names the file, the position in it, and what was expected.
"""

from __future__ import annotations

from typing import BinaryIO

import click

from nodegauge_cli import documents
from nodegauge_cli.documents import READ_LIMIT, Document, Part
from nodegauge_cli.reported import Unusable
from nodegauge_contract import Collective
from nodegauge_operator.api.policy import seconds


class BadInput(click.ClickException):
    """The input cannot be judged; the message says what is wrong and where."""

    exit_code = 2


def duration(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    """A `click.option` callback: seconds, written as in policies and values (90s, 2m, 1h30m)."""
    try:
        return seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def name_of(file: BinaryIO) -> str:
    """The file's name as the user typed it."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name not in ("<stdin>", "-") else "standard input"


def text_of(file: BinaryIO, *, limit: int = READ_LIMIT) -> str:
    """The whole file, at most so many bytes.  Raises `BadInput`."""
    data = file.read(limit + 1)
    if len(data) > limit:
        raise BadInput(f"{name_of(file)}: more than {limit} bytes; a result is much smaller")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name_of(file)}: not UTF-8 text (byte {error.start})") from None


def parts_of(file: BinaryIO, *, collective: Collective | None = None, ranks: int | None = None) -> list[Part]:
    """The documents in a file (`documents.parts_of`).  Raises `BadInput`."""
    text = text_of(file)
    try:
        return documents.parts_of(text, collective=collective, ranks=ranks)
    except Unusable as error:
        raise BadInput(f"{name_of(file)}: {error}") from None


def documents_of(file: BinaryIO) -> list[Document]:
    """The documents in a file of which each can be judged.  Raises `BadInput`."""
    parts = parts_of(file)
    for title, document in parts:
        if isinstance(document, Unusable):
            raise BadInput(f"{name_of(file)}: {title}: {document}")
    return [part.document for part in parts if not isinstance(part.document, Unusable)]
