"""A report's status within its bound: what is said twice, or least needed at 3 a.m., goes first.

Design, section 4: a report stays under 8 KiB.  The largest machines (16 GPUs, ten network cards) need most of
it for their matrix and their memory; with many rows bad at once something has to give.  Nothing that decides
is ever cut: verdict, rows' states and times, what is held, the memory of the next judgement.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from nodegauge_judge import Finding, Severity
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.texts import cut

LIMIT = 7800
"""Bytes of the status as JSON: 8 KiB less what name, owner and UIDs need."""
_LEAST_FIRST = list(Severity)


def fitted(status: ReportStatus) -> ReportStatus:
    """The status, cut no further than it has to be; the same again when asked again."""
    for step in STEPS:
        if size(status) <= LIMIT:
            return status
        status = step(status)
    return status


def size(status: ReportStatus) -> int:
    """Bytes of the status as JSON."""
    return len(msgspec.json.encode(status))


def worst(findings: list[Finding], most: int) -> list[Finding]:
    """As many of the worst as fit into so many bytes: one at least, in the judge's order."""
    kept = sorted(findings, key=lambda f: _LEAST_FIRST.index(f.severity), reverse=True)
    while len(kept) > 1 and len(msgspec.json.encode(kept)) > most:
        kept.pop()
    return [finding for finding in findings if finding in kept]


def _evidence(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """Cut the rows' words; the findings hold them too.  Their subjects stand in the condition, and stay."""

    def step(status: ReportStatus) -> ReportStatus:
        return replace(status, gates=[replace(row, message=cut(row.message, most)) for row in status.gates])

    return step


def _findings(most: int) -> Callable[[ReportStatus], ReportStatus]:
    """Keep the worst findings."""

    def step(status: ReportStatus) -> ReportStatus:
        probes = [replace(probe, findings=worst(probe.findings, most)) for probe in status.probes]
        return replace(status, probes=probes)

    return step


def _without_legend(status: ReportStatus) -> ReportStatus:
    return replace(status, matrix=status.matrix.partition("\n\n")[0])


def _narrow(status: ReportStatus) -> ReportStatus:
    """One space between the matrix's cells."""
    lines = [" ".join(line.split()) for line in status.matrix.splitlines()]
    return replace(status, matrix="\n".join(lines))


def _named_once(status: ReportStatus) -> ReportStatus:
    """A GPU's name only where it is not that of all of them."""
    gpus = status.gpus
    items = [replace(item, name="") if item.name == gpus.product else item for item in gpus.items]
    return replace(status, gpus=replace(gpus, items=items))


def _without_uuids(status: ReportStatus) -> ReportStatus:
    """GPUs by their places and PCI addresses alone."""
    items = [replace(item, uuid="") if item.pci else item for item in status.gpus.items]
    return replace(status, gpus=replace(status.gpus, items=items))


def _without_bands(status: ReportStatus) -> ReportStatus:
    """Temperatures without their names."""
    items = [replace(item, band="") for item in status.gpus.items]
    return replace(status, gpus=replace(status.gpus, items=items))


def _gpus_alone(status: ReportStatus) -> ReportStatus:
    """The matrix of the GPUs among themselves: network cards and affinities go."""
    lines = [line.split() for line in status.matrix.splitlines()]
    names = lines[0] if lines else []
    gpus = sum(1 for name in names if name.startswith("GPU") and name[3:].isdigit())
    if not gpus:
        return status
    kept = [names[:gpus], *(line[: gpus + 1] for line in lines[1 : gpus + 1])]
    return replace(status, matrix="\n".join(" ".join(line) for line in kept))


def _without_matrix(status: ReportStatus) -> ReportStatus:
    return replace(status, matrix="")


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
    """How many GPUs there are, and of which kind: not each of them."""
    return replace(status, gpus=replace(status.gpus, items=[]))


STEPS: tuple[Callable[[ReportStatus], ReportStatus], ...] = (
    _evidence(120),
    _without_legend,
    _named_once,
    _narrow,
    _without_bands,
    _evidence(40),
    _without_uuids,
    _findings(2048),
    _briefly(400),
    _briefly(250),
    _findings(1024),
    _evidence(0),
    _gpus_alone,
    _without_matrix,
    _briefly(160),
    _without_gpus,
    _findings(512),
)
"""What goes, in this order: findings are what a reader came for, and lose last what can be said shorter."""
