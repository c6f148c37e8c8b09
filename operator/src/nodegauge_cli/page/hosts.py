"""`page` of the archive for Ansible: the role's report.json on standard input, the page on standard output.

    {"title": "GPU hosts", "report": {"hosts": [...], "measured_at": "..."}}

The answer is `{"version": ..., "html": ...}`, or `{"error": ...}` for a report that cannot be read.  What
cannot be read of one host is said on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_cli.page.html import page
from nodegauge_cli.page.judged import Part, from_judged
from nodegauge_cli.page.links import numbered
from nodegauge_cli.page.model import FleetData, RunData
from nodegauge_judge import Severity, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.core.usable import Lost

SOURCE = "the Ansible role nodegauge.gpu.validate"
HOST = "host"
NOT_THIS_RUN = "not-this-run"
"""Stands among the causes of a host that the last run did not measure, so that people can filter by it."""
ORDER = (names.PROBE_HEALTH, names.PROBE_NCCL, names.PROBE_LOAD, names.PROBE_BMC)
NAMED = 5
"""Hosts that a sentence names."""
BAD_REQUEST = 2
TITLES = {
    "no-answer": "the host gave no answer",
    "unreachable": "the host could not be reached",
    "not-measured": "the probe could not measure",
    "skipped": "the probe did not run",
    "no-load": "nothing ran on the GPUs",
    "unknown": "nothing could be judged",
    "summary": "the probe's verdict",
    "gpu-count-unstated": "nothing says how many GPUs there must be",
    "unexpected-gpu-count": "another number of GPUs than expected",
    "unexpected-model": "another model than expected",
    "unread-model": "a GPU does not say its model",
    "unexpected-interconnect": "another interconnect than expected",
    "unread-interconnect": "no interconnect could be read",
    "unexpected-nvlink": "NVLink is slower than expected",
    "unread-nvlink": "no NVLink rate could be read",
}
"""What the role's own codes say is wrong; those of findings are in the catalogue."""


class Reason(Struct, frozen=True, kw_only=True):
    """Why a host has its verdict, as the role `validate` says it."""

    probe: str
    code: str
    severity: str
    """fail, unknown, warn, or pass for a probe that nobody wanted."""
    message: str
    what_to_do: list[str] = []


class Note(Struct, frozen=True, kw_only=True):
    """A finding that is in no verdict."""

    probe: str
    code: str
    message: str


class Row(Struct, frozen=True, kw_only=True):
    """A host of report.json; what the page does not need is passed over."""

    host: str
    verdict: Verdict
    summary: str = ""
    reasons: list[Reason] = []
    notes: list[Note] = []
    probes: dict[str, str] = {}
    """By probe its verdict; those of which nothing was read are unknown."""
    this_run: bool = True
    measured_at: str = ""
    """When its probes ended, RFC 3339; empty if they did not."""
    page: dict[str, str] = {}
    """By probe, the `Part` that the judge made, as JSON."""


class Report(Struct, frozen=True, kw_only=True):
    """report.json."""

    hosts: list[Row]
    measured_at: str = ""
    """When the last host was measured."""


class Request(Struct, frozen=True, kw_only=True):
    """What standard input holds."""

    title: str
    report: Report


def main(version: str) -> int:
    """Answer the request on standard input; the exit code."""
    answer, code = answered(sys.stdin.buffer.read(), version=version)
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
    return code


def answered(data: bytes, *, version: str) -> tuple[dict[str, Any], int]:
    """The answer, and the exit code."""
    try:
        request = msgspec.json.decode(data, type=Request)
    except msgspec.DecodeError as error:
        return {"version": version, "error": f"report: {str(error).replace('`$.', '`')}"}, BAD_REQUEST
    html = page(fleet_data(request.report, title=request.title, version=version))
    return {"version": version, "html": html}, 0


def fleet_data(report: Report, *, title: str, version: str) -> FleetData:
    """What the page shows."""
    hosts = [_host(row) for row in sorted(report.hosts, key=lambda row: row.host)]
    return FleetData(
        title=title,
        made_at=report.measured_at,
        source=SOURCE,
        version=version,
        unit=HOST,
        matrices=numbered((host.data, host.matrix) for host in hosts),
        nodes=[host.data for host in hosts],
        trend=[],
        problems=_gaps(report.hosts),
    )


def _host(row: Row) -> Part:
    parts, unreadable = _parts(row.page)
    wrong = [reason for reason in row.reasons if reason.severity != Verdict.PASS.value]
    known = [fault for part in parts.values() for fault in part.data.faults]
    host = from_judged(
        row.host,
        list(parts.values()),
        verdict=row.verdict,
        faults=[_fault(reason, known) for reason in wrong],
    )
    data = host.data
    data.summary = row.summary or next((reason.message for reason in wrong), "")
    data.read_at = row.measured_at if data.gpus else ""
    data.notes = [f"{note.code}: {note.message}" for note in row.notes]
    data.notes += [f"What was read of {probe} cannot be shown: {why}." for probe, why in unreadable]
    data.runs = _runs(row, parts)
    if not row.this_run:
        data.causes.append(NOT_THIS_RUN)
        when = row.measured_at or "an unknown time"
        data.notes.insert(0, f"Not measured in this run. What is shown is the result of {when}.")
    return host


def _parts(texts: Mapping[str, str]) -> tuple[dict[str, Part], list[tuple[str, str]]]:
    """By probe, health first; and which cannot be read, and why."""
    parts: dict[str, Part] = {}
    unreadable = []
    for probe in sorted(
        texts, key=lambda probe: (ORDER.index(probe) if probe in ORDER else len(ORDER), probe)
    ):
        try:
            parts[probe] = msgspec.json.decode(texts[probe], type=Part)
        except msgspec.DecodeError as error:
            unreadable.append((probe, str(error)))
    return parts, unreadable


def _fault(reason: Reason, known: Sequence[Fault]) -> Fault:
    """The reason with what the judge knows of its finding: place, GPUs with serial numbers, numbers."""
    severity = Severity(reason.severity)
    matches = [fault for fault in known if (fault.probe, fault.code) == (reason.probe, reason.code)]
    matches.sort(key=lambda fault: fault.severity != severity)
    base = next(iter(matches), None) or Fault(
        code=reason.code,
        title=TITLES.get(reason.code, reason.code),
        severity=severity,
        probe=reason.probe,
        measured=reason.message,
    )
    steps = reason.what_to_do
    return replace(base, severity=severity, steps=steps, next_step=steps[0] if steps else "")


def _runs(row: Row, parts: Mapping[str, Part]) -> list[RunData]:
    """A run for each probe, also for those that nobody wanted or that read nothing."""
    message_of: dict[str, str] = {}
    for reason in row.reasons:
        message_of.setdefault(reason.probe, reason.message)
    unasked = [reason.probe for reason in row.reasons if reason.severity == Verdict.PASS.value]
    verdicts = {**row.probes, **dict.fromkeys(unasked, Verdict.SKIPPED.value)}
    runs = []
    for probe, verdict in verdicts.items():
        if probe in parts:
            runs += [replace(run, verdict=verdict, read_at=row.measured_at) for run in parts[probe].data.runs]
        elif probe in unasked:
            runs.append(RunData(probe=probe, verdict=verdict, summary=message_of[probe]))
        else:
            runs.append(RunData(probe=probe, verdict=Lost.UNREAD.value, summary=message_of.get(probe, "")))
    return runs


def _gaps(rows: Sequence[Row]) -> list[str]:
    """What the page cannot say."""
    gaps = {
        "Not measured in this run, so that an earlier result stands": [
            row.host for row in rows if not row.this_run
        ],
        "Nothing could be read": [row.host for row in rows if not row.page],
    }
    return [f"{what}: {_named(hosts)}." for what, hosts in gaps.items() if hosts]


def _named(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - NAMED} more" if len(hosts) > NAMED else ""
    return f"{', '.join(hosts[:NAMED])}{more}"
