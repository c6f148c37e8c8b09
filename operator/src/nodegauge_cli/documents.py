"""Texts that can be judged, recognised by their content, never by a file's name.

Must not know files, options or a terminal: the command line and the archive for Ansible both read with it.
Invalid input ends in `Unusable`, which says what was expected and where.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from nodegauge_cli.reported import KINDS, Reported, Unusable, objects, reported, results_of
from nodegauge_contract import Collective, ContractError, NotAResult, Result, decode
from nodegauge_contract.chassis import MAJOR, ChassisReading
from nodegauge_contract.nccl_tests import captures, document
from nodegauge_contract.nccl_tests.log import NcclTestsError
from nodegauge_contract.pasted import document as pasted
from nodegauge_contract.pasted.sections import sections
from nodegauge_judge import judge_health
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.health import proven
from nodegauge_operator import names

READ_LIMIT = 1024 * 1024
"""Bytes of a text that are read: a result has at most 64 KiB, and a log around it is a little longer."""
CHASSIS_FIELDS = {"supplies", "fans", "rails", "air", "leaks", "unread", "requests", "listsSupplies"}
"""A JSON object with one of these, and no schema, is a ChassisReading."""
Document = Reported | Result


class Part(NamedTuple):
    """A part of a text: what it is, in words (empty if the text is this alone), and its document, or why it
    cannot be judged."""

    title: str
    document: Document | Unusable


def parts_of(text: str, *, collective: Collective | None = None, ranks: int | None = None) -> list[Part]:
    """The documents of a text, in its order, at least one: a probe result, nodes with their NodeReport, parts
    of a NodeReading, runs of nccl-tests, or pasted text as a result.

    `collective`, `ranks`: those of a log that does not say them.  Raises `Unusable` for a text that holds
    nothing to judge; what only a part lacks is in its place.
    """
    try:
        return [Part("", _decode(text))]
    except NotAResult as error:
        reason = f" ({error})" if text.lstrip()[:1] in ("", "{", "[") else ""
    except ContractError as error:
        raise Unusable(str(error)) from None
    parts = _of_log(text, collective=collective, ranks=ranks) if captures.looks_like(text) else []
    parts = [*parts, *_pasted_faults(text)] if parts else _of_objects(text)
    if not parts and pasted.looks_like(text):
        try:
            parts = _of_paste(text)
        except pasted.PasteError as error:
            raise Unusable(str(error)) from None
    if not parts:
        raise Unusable(
            f"not a probe result{reason}, a NodeReport (kind: {names.REPORT_KIND}), a log of nccl-tests or "
            "pasted output of nvidia-smi (its table, `-q`, `-q -x`, `topo -m`, `topo -p2p`, `nvlink -s`), of "
            "`dcgmi diag`, gpu-burn or ipmitool, a kernel log or a message of the driver"
        )
    if len(parts) == 1:
        [(_, document)] = parts
        if isinstance(document, Unusable):
            raise document
        return [Part("", document)]
    return parts


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


def _of_log(text: str, *, collective: Collective | None, ranks: int | None) -> list[Part]:
    """The runs in a log of nccl-tests.  Raises `Unusable`."""
    try:
        runs = document.runs(text, collective=collective, ranks=ranks)
    except NcclTestsError as error:
        raise Unusable(str(error)) from None
    return [
        Part(_title(run, number, len(runs)), run.result if run.result is not None else Unusable(run.error))
        for number, run in enumerate(runs, 1)
    ]


def _of_paste(text: str) -> list[Part]:
    """The captures of a paste.  Raises `PasteError`."""
    return [
        Part(title, Unusable(str(result)) if isinstance(result, pasted.PasteError) else result)
        for title, result in sections(text, models=known_models().links)
    ]


def _pasted_faults(text: str) -> list[Part]:
    """What a paste beside the runs of a log shows to be wrong; nothing where it shows nothing."""
    if not pasted.looks_like(text):
        return []
    try:
        parts = _of_paste(text)
    except pasted.PasteError:
        return []
    return [
        Part(title or "beside the runs", result)
        for title, result in parts
        if isinstance(result, Result) and proven(judge_health(result).findings)
    ]


def _title(run: document.Run, number: int, of: int) -> str:
    """`run 2 of 3: all_reduce on box, line 27, 2026-05-05T06:16:47Z`."""
    hosts = f"{', '.join(run.hosts[:2])}{' and more' if len(run.hosts) > 2 else ''}"
    where = " on ".join(part for part in (run.collective or "nccl-tests", hosts) if part)
    return ", ".join(part for part in (f"run {number} of {of}: {where}", f"line {run.line}", run.at) if part)


def _of_objects(text: str) -> list[Part]:
    """The nodes in a YAML or JSON text that have a NodeReport, and the parts of other NodeReadings; none if
    there are none.  Raises `Unusable`."""
    if not any(kind in text for kind in KINDS):
        return []
    bodies = objects(text)
    nodes = reported(bodies)
    parts = [Part(f"node {node.node}", node) for node in nodes]
    for body in bodies:
        if body.get("kind") != names.READING_KIND:
            continue
        name = body["metadata"]["name"]
        if name not in {node.node for node in nodes}:
            results, wrong = results_of(body)
            parts += [
                Part(f"node {name}, {probe}", result)
                for probe, result in results.items()
                if probe != names.PROBE_PULL
            ]
            parts += [Part(f"node {name}", Unusable(each)) for each in wrong]
    return parts


def one_of_kind(text: str, kind: str) -> dict[str, Any]:
    """The one object of a kind in a YAML text, also inside a List.  Raises `Unusable`."""
    matches = [body for body in objects(text) if body.get("kind") == kind]
    if len(matches) != 1:
        raise Unusable(f"{len(matches)} documents of kind {kind}, expected one")
    return matches[0]
