"""What is wrong, for a vendor: the faults of a report, or of the record that a history kept of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodegauge_cli.ticket.facts import Board, Problem
from nodegauge_cli.ticket.hardware import same
from nodegauge_judge import GpuIdentity, Severity
from nodegauge_operator.api.fault import Fault

REQUESTS = ("recovery-action", "reset-required")
"""Findings that say what the driver wants, not what is broken: a ticket is about another one if it can be."""
_IN_SUBJECT = re.compile(r"GPU (\d{1,4}) \(([0-9a-f:.]{7,16})\)")


def for_a_vendor(known: Sequence[Fault], *, chosen: str) -> list[Fault]:
    """The faults in their order, but first the one of the chosen code, then what is broken."""
    return sorted(
        known,
        key=lambda fault: (
            fault.code != chosen,
            fault.severity is not Severity.FAIL,
            fault.code in REQUESTS,
        ),
    )


def gpus_of(fault: Fault) -> list[GpuIdentity]:
    """The GPUs of a fault; of a report that keeps none, as its subject names them."""
    named = _IN_SUBJECT.findall(fault.subject)
    return fault.gpus or [GpuIdentity(index=int(index), pci=pci) for index, pci in named]


def problem_of(fault: Fault, boards: Sequence[Board]) -> Problem:
    """The fault in a ticket's words; `boards`: those of the node, to which it points."""
    gpus = gpus_of(fault)
    return Problem(
        code=fault.code,
        title=fault.title,
        severity=fault.severity.value,
        cause=fault.cause,
        state=fault.state,
        probe=fault.probe,
        since=fault.since,
        confirmed=fault.confirmed,
        last_seen=fault.last_seen,
        subject=fault.subject,
        scope=fault.scope,
        gpus=[at for at, board in enumerate(boards) if any(same(gpu, board) for gpu in gpus)],
        measured=fault.measured,
        also=fault.also,
        steps=fault.steps,
    )
