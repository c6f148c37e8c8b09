"""What users pass in: durations, and files with a result, an nccl-tests log or a NodeReport.

Files are recognised by their content, never by their name.  Invalid input ends in `BadInput`, which names the
file, the position in it, and what was expected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import click
import yaml

from nodegauge_contract import Collective, ContractError, NotAResult, Result, decode
from nodegauge_contract.nccl_tests import document, log
from nodegauge_contract.pasted import document as pasted
from nodegauge_contract.wire.codec import PREFIX
from nodegauge_operator import names
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.report import Report, ReportStatus, parse_report

READ_LIMIT = 1024 * 1024
"""Bytes of input that are read: a result has at most 64 KiB, and a log around it is a little longer."""


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


def text_of(file: BinaryIO) -> str:
    """The whole file.  Raises `BadInput`."""
    data = file.read(READ_LIMIT + 1)
    if len(data) > READ_LIMIT:
        raise BadInput(f"{name_of(file)}: more than {READ_LIMIT} bytes; a result is far smaller")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name_of(file)}: not UTF-8 text (byte {error.start})") from None


def report_or_result(
    file: BinaryIO, *, collective: Collective | None = None, ranks: int | None = None
) -> Report | Result:
    """A NodeReport (YAML or JSON), a probe result, or a log of nccl-tests or pasted text as a result.

    `collective`, `ranks`: those of a log that does not say them.  Raises `BadInput`.
    """
    name, text = name_of(file), text_of(file)
    try:
        return _decode(text)
    except NotAResult as error:
        reason = str(error)
    except ContractError as error:
        raise BadInput(f"{name}: {error}") from None
    if log.looks_like(text):
        try:
            return document.result(text, collective=collective, ranks=ranks)
        except log.NcclTestsError as error:
            raise BadInput(f"{name}: {error}") from None
    report = _report(name, text)
    if report is not None:
        return report
    if pasted.looks_like(text):
        try:
            return pasted.result(text)
        except pasted.PasteError as error:
            raise BadInput(f"{name}: {error}") from None
    raise BadInput(
        f"{name}: not a probe result ({reason}), a NodeReport (kind: {names.REPORT_KIND}), a log of "
        "nccl-tests or pasted output of `nvidia-smi topo -m`, `nvidia-smi topo -p2p` or `nvidia-smi -q`"
    )


def _decode(text: str) -> Result:
    """The result in `text`; in a log, the last line that is one."""
    try:
        return decode(text)
    except ContractError as error:
        lines = [line for line in text.splitlines() if line.startswith(("{", PREFIX))]
        for line in reversed(lines if text.count("\n") > 1 else []):
            try:
                return decode(line)
            except NotAResult:
                continue
        raise error


def _report(name: str, text: str) -> Report | None:
    """The one NodeReport in a YAML or JSON text; None if there is none."""
    if names.REPORT_KIND not in text:
        return None
    body = one_of_kind(name, text, names.REPORT_KIND)
    if not isinstance(body.get("metadata"), dict) or "name" not in body["metadata"]:
        raise BadInput(f"{name}: a {names.REPORT_KIND} without metadata.name")
    report = parse_report(body)
    if report.unreadable is not None and report.status == ReportStatus():
        raise BadInput(f"{name}: the status of {names.REPORT_KIND} {report.name} cannot be read")
    return report


def one_of_kind(name: str | Path, text: str, kind: str) -> dict[str, Any]:
    """The one object of a kind in a YAML text, also inside a List.  Raises `BadInput`."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{name}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    lists = [
        doc["items"] for doc in documents if isinstance(doc, dict) and isinstance(doc.get("items"), list)
    ]
    every = [*documents, *(item for items in lists for item in items)]
    matches = [body for body in every if isinstance(body, dict) and body.get("kind") == kind]
    if len(matches) != 1:
        raise BadInput(f"{name}: {len(matches)} documents of kind {kind}, expected one")
    return matches[0]
