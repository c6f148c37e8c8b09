"""`--for nvidia`: a case at NVIDIA Enterprise Support, in the order in which NVIDIA asks.

The questions are those of "Initial Incident Report" in the GPU Debug Guidelines
<https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html>.  What a replacement needs beside them is in
the RMA process <https://docs.nvidia.com/deploy/rma-process/index.html>: the output of nvidia-bug-report, the
field diagnostic, and that causes in the system have been ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_cli.ticket import paragraphs
from nodegauge_cli.ticket.facts import TicketFacts


def nvidia(facts: TicketFacts) -> str:
    """The case as plain text, 80 columns wide but for commands and words that are longer."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: TicketFacts) -> Iterator[str]:
    yield f"Subject: {_subject(facts)}"
    yield from paragraphs.block(
        "Product and serial number", paragraphs.accused(facts), none="The fault names no board."
    )
    yield from paragraphs.block("System", paragraphs.machine(facts))
    yield from paragraphs.block(
        "What was observed about the incident?", [*paragraphs.what(facts), *paragraphs.xids(facts)]
    )
    yield from paragraphs.block("When was the incident observed?", paragraphs.when(facts))
    yield from paragraphs.block("How was it observed?", paragraphs.how(facts), none="The runs are not known.")
    yield from paragraphs.block(
        "Is this behavior observed on multiple systems? How many?", paragraphs.where(facts)
    )
    yield from paragraphs.block(
        "Has anything changed recently?", paragraphs.changed(facts), none="Nothing that is known."
    )
    yield from paragraphs.block(
        "Causes in the system that are ruled out", paragraphs.excluded(facts), none="None is known to be."
    )
    yield from paragraphs.block("Power, heat and links, as read", paragraphs.numbers(facts))
    yield from paragraphs.block("Not read or not judged", paragraphs.gaps(facts))
    yield from paragraphs.block("Steps taken so far", paragraphs.tried(facts), none="None that is known.")
    yield from paragraphs.block("Attach (save before a reboot or a reset)", paragraphs.save(facts.logs))
    yield from paragraphs.block("Add by hand", paragraphs.ask(facts.ask))
    yield from paragraphs.block("Other GPUs of the system", paragraphs.others(facts))


def _subject(facts: TicketFacts) -> str:
    serials = ", ".join(board.serial for board in facts.accused() if board.serial)
    return f"{paragraphs.headline(facts)}{f', serial {serials}' if serials else ''}"
