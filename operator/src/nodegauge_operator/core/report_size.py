"""Keeps a report's status under 8 KiB: cuts what is repeated or least needed first.

With many gates entered at once on a machine with 16 GPUs something has to go; the node's NodeEvidence has
all of it.  The limit is chosen by this project: 5,000 reports are then 40 MB of JSON.  Nothing that decides
is ever cut: verdict, the gates' states and times, what the node should carry, the judge's history.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from nodegauge_judge import Finding, Severity
from nodegauge_operator.api.report import ReportStatus

LIMIT = 7800
"""Bytes of the status as JSON: 8 KiB minus what name, owner, installation and UIDs need."""
MAX_FINDINGS = 20
MAX_SUBJECT = 60
MAX_MESSAGES = 1200
"""Bytes for the messages of all gates together: a report stays under 8 KiB."""
MAX_MESSAGE, MIN_MESSAGE = 300, 40
MAX_TRANSITIONS = 20
"""Of a node's history.  Chosen by this project: a taint's coming and going takes four."""
LEAST_FIRST = list(Severity)
NO_WORD = re.compile(r"[^A-Za-z0-9_.-]")
"""What a reason of Kubernetes has none of."""
MAX_REASON = 128


def fitted(status: ReportStatus) -> ReportStatus:
    """The status, cut no more than necessary; fitting it again changes nothing."""
    most = max(MIN_MESSAGE, min(MAX_MESSAGE, MAX_MESSAGES // max(1, len(status.gates))))
    gates = [
        replace(gate, subject=cut(gate.subject, MAX_SUBJECT), message=cut(gate.message, most))
        for gate in status.gates
    ]
    status = replace(status, gates=gates)
    for step in STEPS:
        if size(status) <= LIMIT:
            return status
        status = step(status)
    return status


def printable(text: str) -> str:
    """One line of a text that a container, an API server or an editor wrote, without control characters."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def word(reason: str) -> str:
    """A reason as Kubernetes has them; a container's, or one in an edited report, may hold anything."""
    return NO_WORD.sub("", reason)[:MAX_REASON] or "Unknown"


def cut(text: str, most: int) -> str:
    """One line of at most so many bytes of UTF-8; dots show that there was more.  A command in backquotes
    stays whole, or goes: half of one would be run at 3 a.m."""
    text = printable(text)
    if len(text.encode()) <= most:
        return text
    kept = text.encode()[: max(0, most - 3)].decode(errors="ignore")
    if kept.count("`") % 2:
        kept = kept[: kept.rindex("`")]
    return f"{kept.rstrip()}..." if most > 3 else ""


def size(status: ReportStatus) -> int:
    """Bytes of the status as JSON, as it is written: without what is None, and without who writes it, which
    like name and owner is no evidence."""
    written = {key: value for key, value in msgspec.to_builtins(status).items() if value is not None}
    return len(msgspec.json.encode(written)) - len(f'"installation":"{status.installation}",')


def worst(findings: list[Finding], most: int) -> list[Finding]:
    """The worst findings that fit into so many bytes: at least one, at most 20, in the judge's order."""
    kept = sorted(findings, key=_rank, reverse=True)[:MAX_FINDINGS]
    while len(kept) > 1 and len(msgspec.json.encode(kept)) > most:
        kept.pop()
    return [finding for finding in findings if finding in kept]


def _rank(finding: Finding) -> int:
    """The worse, the higher; a severity that this version does not know comes last."""
    return LEAST_FIRST.index(finding.severity) if finding.severity in LEAST_FIRST else -1


def _evidence(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """Shorten the gates' messages, which the findings repeat.  Their subjects stay, for the condition."""

    def step(status: ReportStatus) -> ReportStatus:
        return replace(
            status, gates=[replace(gate, message=cut(gate.message, most)) for gate in status.gates]
        )

    return step


def _findings(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """Keep the worst findings."""

    def step(status: ReportStatus) -> ReportStatus:
        probes = [replace(probe, findings=worst(probe.findings, most)) for probe in status.probes]
        return replace(status, probes=probes)

    return step


def _history(keep: int, why: int) -> Callable[[ReportStatus], ReportStatus]:
    """Keep the last transitions, each with so many bytes of its reason, which events and evidence repeat."""

    def step(status: ReportStatus) -> ReportStatus:
        kept = status.transitions[max(0, len(status.transitions) - keep) :]
        return replace(status, transitions=[replace(past, why=cut(past.why, why)) for past in kept])

    return step


def _named_once(status: ReportStatus) -> ReportStatus:
    """Drop a GPU's name if it is the name of all of them."""
    gpus = status.gpus
    items = [replace(item, name="") if item.name == gpus.product else item for item in gpus.items]
    return replace(status, gpus=replace(gpus, items=items))


def _without_uuids(status: ReportStatus) -> ReportStatus:
    """GPUs by index and PCI address only."""
    items = [replace(item, uuid="") if item.pci else item for item in status.gpus.items]
    return replace(status, gpus=replace(status.gpus, items=items))


def _named_by_subject(status: ReportStatus) -> ReportStatus:
    """Findings name their GPUs by their subject alone: the list of GPUs has the rest of their identity."""
    probes = [replace(p, findings=[replace(f, gpus=[]) for f in p.findings]) for p in status.probes]
    return replace(status, probes=probes)


def _without_bands(status: ReportStatus) -> ReportStatus:
    """Temperatures without their names."""
    items = [replace(item, band="") for item in status.gpus.items]
    return replace(status, gpus=replace(status.gpus, items=items))


def _briefly(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """Findings without their numbers, which their messages name too."""

    def step(status: ReportStatus) -> ReportStatus:
        probes = [
            replace(
                probe,
                findings=[replace(f, message=cut(f.message, most), evidence={}) for f in probe.findings],
            )
            for probe in status.probes
        ]
        return replace(status, probes=probes)

    return step


def _without_gpus(status: ReportStatus) -> ReportStatus:
    """Keep the number and the product of the GPUs, not each of them."""
    return replace(status, gpus=replace(status.gpus, items=[]))


def _event(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """The text of the last event in brief: gates and findings say the same."""

    def step(status: ReportStatus) -> ReportStatus:
        change = status.change and replace(status.change, message=cut(status.change.message, most))
        return replace(status, change=change)

    return step


STEPS: tuple[Callable[[ReportStatus], ReportStatus], ...] = (
    _history(MAX_TRANSITIONS, 40),
    _evidence(120),
    _history(10, 40),
    _history(4, 0),
    _named_once,
    _without_bands,
    _named_by_subject,
    _evidence(40),
    _history(0, 0),
    _without_uuids,
    _findings(2048),
    _briefly(400),
    _briefly(250),
    _findings(1024),
    _evidence(0),
    _briefly(160),
    _event(200),
    _event(30),
    _without_gpus,
    _findings(512),
    _briefly(120),
    _briefly(60),
    _briefly(40),
    _briefly(20),
)
"""What is cut, in this order.  Findings come late: they are what a reader opens the report for."""
