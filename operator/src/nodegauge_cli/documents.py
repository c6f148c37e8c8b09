"""Texts that can be judged, recognised by their content, never by a file's name.

Must not know files, options or a terminal: the command line and the archive for Ansible both read with it.
Invalid input ends in `Unusable`, which says what was expected and where.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from nodegauge_contract import Collective, ContractError, NotAResult, Result, decode
from nodegauge_contract.chassis import MAJOR, ChassisReading
from nodegauge_contract.nccl_tests import document, log
from nodegauge_contract.pasted import document as pasted
from nodegauge_judge.gpu_models import known_models
from nodegauge_operator import names
from nodegauge_operator.api.report import Report, ReportStatus, parse_report

READ_LIMIT = 1024 * 1024
"""Bytes of a text that are read: a result has at most 64 KiB, and a log around it is a little longer."""
CHASSIS_FIELDS = {"supplies", "fans", "rails", "air", "leaks", "unread", "requests", "listsSupplies"}
"""A JSON object with one of these, and no schema, is a ChassisReading."""


class Unusable(Exception):
    """The text cannot be judged; the message says why, and what was expected."""


def report_or_result(
    text: str, *, collective: Collective | None = None, ranks: int | None = None
) -> Report | Result:
    """A NodeReport (YAML or JSON), a probe result, or a log of nccl-tests or pasted text as a result.

    `collective`, `ranks`: those of a log that does not say them.  Raises `Unusable`.
    """
    try:
        return _decode(text)
    except NotAResult as error:
        reason = str(error)
    except ContractError as error:
        raise Unusable(str(error)) from None
    if log.looks_like(text):
        try:
            return document.result(text, collective=collective, ranks=ranks)
        except log.NcclTestsError as error:
            raise Unusable(str(error)) from None
    report = _report(text)
    if report is not None:
        return report
    if pasted.looks_like(text):
        try:
            return pasted.result(text, models=known_models().links)
        except pasted.PasteError as error:
            raise Unusable(str(error)) from None
    raise Unusable(
        f"not a probe result ({reason}), a NodeReport (kind: {names.REPORT_KIND}), a log of "
        "nccl-tests or pasted output of `nvidia-smi topo -m`, `nvidia-smi topo -p2p` or `nvidia-smi -q`"
    )


def chassis_reading(text: str) -> ChassisReading | None:
    """A BMC's reading, alone or as `nodegauge bmc --format json` prints it; None if the text is none."""
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(body, dict) and "schema" not in body and isinstance(body.get("reading"), dict):
        body = body["reading"]
    elif not isinstance(body, dict) or "schema" in body or not body.keys() & CHASSIS_FIELDS:
        return None
    if body.get("major", MAJOR) != MAJOR:
        raise Unusable(f"a ChassisReading of version {body['major']}; this judge reads version {MAJOR}")
    try:
        return msgspec.convert(body, ChassisReading)
    except msgspec.ValidationError as error:
        raise Unusable(f"a ChassisReading that cannot be read: {error}") from None


def _decode(text: str) -> Result:
    """The result in `text`; in a log, the last line that is one."""
    try:
        return decode(text)
    except ContractError as error:
        lines = [line for line in text.splitlines() if line.startswith("{")]
        for line in reversed(lines if text.count("\n") > 1 else []):
            try:
                return decode(line)
            except NotAResult:
                continue
        raise error


def _report(text: str) -> Report | None:
    """The one NodeReport in a YAML or JSON text; None if there is none."""
    if names.REPORT_KIND not in text:
        return None
    body = one_of_kind(text, names.REPORT_KIND)
    if not isinstance(body.get("metadata"), dict) or "name" not in body["metadata"]:
        raise Unusable(f"a {names.REPORT_KIND} without metadata.name")
    report = parse_report(body)
    if report.unreadable is not None and report.status == ReportStatus():
        raise Unusable(f"the status of {names.REPORT_KIND} {report.name} cannot be read")
    return report


def one_of_kind(text: str, kind: str) -> dict[str, Any]:
    """The one object of a kind in a YAML text, also inside a List.  Raises `Unusable`."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise Unusable(f"not readable as YAML: {' '.join(str(error).split())[:200]}") from None
    lists = [
        doc["items"] for doc in documents if isinstance(doc, dict) and isinstance(doc.get("items"), list)
    ]
    every = [*documents, *(item for items in lists for item in items)]
    matches = [body for body in every if isinstance(body, dict) and body.get("kind") == kind]
    if len(matches) != 1:
        raise Unusable(f"{len(matches)} documents of kind {kind}, expected one")
    return matches[0]
