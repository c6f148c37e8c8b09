"""What people hand to the command line in a file: a result document, a log of nccl-tests, a NodeReport.

Told apart by what stands in them, never by a file's name.  Whatever cannot be read ends in `BadInput`, which
names the file, the place in it, and what was expected.  Nothing is read beyond `READ_LIMIT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import click
import yaml

from nodegauge_contract import Collective, ContractError, NotAResult, Result, decode
from nodegauge_contract.nccl_tests import document, log
from nodegauge_contract.wire.codec import PREFIX
from nodegauge_operator import names
from nodegauge_operator.api.report import Report, parse_report

READ_LIMIT = 1024 * 1024
"""Bytes of input that are read; a result has at most 64 KiB, a log around it some more."""


class BadInput(click.ClickException):
    """What was given cannot be judged; the message says what and where."""

    exit_code = 2


def name_of(file: BinaryIO) -> str:
    """The file as the person called it."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name not in ("<stdin>", "-") else "standard input"


def text_of(file: BinaryIO) -> str:
    """All of the file.  Raises `BadInput`."""
    data = file.read(READ_LIMIT + 1)
    if len(data) > READ_LIMIT:
        raise BadInput(f"{name_of(file)}: more than {READ_LIMIT} bytes; a result document is far smaller")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name_of(file)}: not UTF-8 text (byte {error.start})") from None


def report_or_result(file: BinaryIO, *, collective: Collective | None = None) -> Report | Result:
    """A NodeReport (YAML or JSON), a result document, or a log of nccl-tests as one; `collective` as
    `nccltests.result` takes it.  Raises `BadInput`."""
    name, text = name_of(file), text_of(file)
    try:
        return _decode(text)
    except NotAResult as error:
        why = str(error)
    except ContractError as error:
        raise BadInput(f"{name}: {error}") from None
    if log.looks_like(text):
        try:
            return document.result(text, collective=collective)
        except log.NcclTestsError as error:
            raise BadInput(f"{name}: {error}") from None
    report = _report(name, text)
    if report is None:
        raise BadInput(
            f"{name}: {why}; nor is it a NodeReport (kind: {names.REPORT_KIND}) or a log of nccl-tests"
        )
    return report


def _decode(text: str) -> Result:
    """The document that `text` is, or else the last line of it that is one (a pod's log mixes in others)."""
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
    """The one NodeReport in a YAML or JSON text; null where it holds none."""
    if names.REPORT_KIND not in text:
        return None
    found = [body for body in yaml_of(name, text) if body.get("kind") == names.REPORT_KIND]
    if len(found) != 1:
        raise BadInput(f"{name}: {len(found)} documents of kind {names.REPORT_KIND}, expected one")
    if not isinstance(found[0].get("metadata"), dict) or "name" not in found[0]["metadata"]:
        raise BadInput(f"{name}: a {names.REPORT_KIND} without metadata.name")
    report = parse_report(found[0])
    if report.unreadable is not None:
        raise BadInput(f"{name}: the status of {names.REPORT_KIND} {report.name} cannot be read")
    return report


def yaml_of(name: str | Path, text: str) -> list[dict[str, Any]]:
    """Every mapping of a YAML text; the items of a List one by one.  Raises `BadInput`."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"{name}: not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    lists = [
        doc["items"] for doc in documents if isinstance(doc, dict) and isinstance(doc.get("items"), list)
    ]
    return [doc for doc in [*documents, *(item for some in lists for item in some)] if isinstance(doc, dict)]
