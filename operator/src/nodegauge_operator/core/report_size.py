"""Keeps a report's status under 16 KiB: leaves out what is repeated, then what is least needed.

Only a machine with 16 GPUs and many faults at once needs it; its NodeReading has everything.  The limit is
chosen by this project: 5,000 such reports are 80 MB of JSON.  Nothing that decides is ever left out:
verdict, the gates' states and times, what the node should carry, the judge's history.  A finding stays
whole or goes: half a sentence misleads.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from nodegauge_judge import Finding, Severity
from nodegauge_operator.api.report import ReportStatus

LIMIT = 15_900
"""Bytes of the status as JSON: 16 KiB minus what name, owner, installation and UIDs need."""
MAX_FINDINGS = 20
MAX_SUBJECT = 60
MAX_TRANSITIONS = 20
"""Of a node's history.  Chosen by this project: a taint's coming and going takes four."""
MAX_WHY = 160
"""Bytes of a transition's cause; the event has the rest."""
LEAST_FIRST = list(Severity)
NO_WORD = re.compile(r"[^A-Za-z0-9_.-]")
"""What a reason of Kubernetes has none of."""
MAX_REASON = 128


def fitted(status: ReportStatus) -> ReportStatus:
    """The status, with no more left out than necessary; fitting it again changes nothing."""
    gates = [replace(gate, subject=cut(gate.subject, MAX_SUBJECT)) for gate in status.gates]
    transitions = [replace(change, why=cut(change.why, MAX_WHY)) for change in status.transitions]
    status = replace(status, gates=gates, transitions=transitions)
    for step in STEPS:
        # the size with what is None is a bound that costs little
        if len(msgspec.json.encode(status)) <= LIMIT or size(status) <= LIMIT:
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


def _without_repeated(status: ReportStatus) -> ReportStatus:
    """Gates without the message that a finding of the last run has as well.  Their subjects stay."""
    repeated = {(finding.code, finding.message) for probe in status.probes for finding in probe.findings}
    gates = [
        replace(gate, message="") if (gate.code, gate.message) in repeated else gate for gate in status.gates
    ]
    return replace(status, gates=gates)


def _without_messages(status: ReportStatus) -> ReportStatus:
    """Gates by code and subject alone."""
    return replace(status, gates=[replace(gate, message="") for gate in status.gates])


def _findings(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """Keep the worst findings."""

    def step(status: ReportStatus) -> ReportStatus:
        probes = [replace(probe, findings=worst(probe.findings, most)) for probe in status.probes]
        return replace(status, probes=probes)

    return step


def _history(keep: int) -> Callable[[ReportStatus], ReportStatus]:
    """Keep the last transitions."""

    def step(status: ReportStatus) -> ReportStatus:
        return replace(status, transitions=status.transitions[max(0, len(status.transitions) - keep) :])

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


def _without_numbers(status: ReportStatus) -> ReportStatus:
    """Findings without their numbers, which their messages name too."""
    probes = [replace(p, findings=[replace(f, evidence={}) for f in p.findings]) for p in status.probes]
    return replace(status, probes=probes)


def _without_gpus(status: ReportStatus) -> ReportStatus:
    """Keep the number and the product of the GPUs, not each of them."""
    return replace(status, gpus=replace(status.gpus, items=[]))


STEPS: tuple[Callable[[ReportStatus], ReportStatus], ...] = (
    _without_repeated,
    _named_once,
    _without_bands,
    _named_by_subject,
    _history(10),
    _history(4),
    _without_numbers,
    _without_uuids,
    _history(0),
    _findings(2048),
    _without_messages,
    _without_gpus,
    _findings(1024),
    _findings(512),
)
"""What is left out, in this order.  Findings come late: they are what a reader opens the report for."""
