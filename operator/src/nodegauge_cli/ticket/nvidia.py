"""`--for nvidia`: a case at NVIDIA Enterprise Support, in the order in which NVIDIA asks.

The questions are those of "Initial Incident Report" in the GPU Debug Guidelines
<https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html>.  What a replacement needs beside them is in
the RMA process <https://docs.nvidia.com/deploy/rma-process/index.html>: the output of nvidia-bug-report, the
field diagnostic, and that causes in the system have been ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_cli.ticket import words
from nodegauge_cli.ticket.facts import TicketFacts


def nvidia(facts: TicketFacts) -> str:
    """The case as plain text, 80 columns wide but for commands and words that are longer."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: TicketFacts) -> Iterator[str]:
    yield f"Subject: {_subject(facts)}"
    yield from words.block(
        "Product and serial number", words.accused(facts), none="The fault names no board."
    )
    yield from words.block("System", words.machine(facts))
    yield from words.block("What was observed about the incident?", [*words.what(facts), *words.xids(facts)])
    yield from words.block("When was the incident observed?", words.when(facts))
    yield from words.block("How was it observed?", words.how(facts), none="The runs are not known.")
    yield from words.block("Is this behavior observed on multiple systems? How many?", words.where(facts))
    yield from words.block(
        "Has anything changed recently?", words.changed(facts), none="Nothing that is known."
    )
    yield from words.block(
        "Causes in the system that are ruled out", words.excluded(facts), none="None is known to be."
    )
    yield from words.block("Not read or not judged", words.gaps(facts))
    yield from words.block("Steps taken so far", words.tried(facts), none="None that is known.")
    yield from words.block("Attach (save before a reboot or a reset)", words.save(facts.logs))
    yield from words.block("Add by hand", words.ask(facts.ask))
    yield from words.block("Other GPUs of the system", words.others(facts))


def _subject(facts: TicketFacts) -> str:
    serials = ", ".join(board.serial for board in facts.accused() if board.serial)
    return f"{words.headline(facts)}{f', serial {serials}' if serials else ''}"
