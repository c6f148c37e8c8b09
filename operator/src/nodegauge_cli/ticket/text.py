"""`--for text`: everything, for people and for any vendor's form."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_cli.ticket import paragraphs
from nodegauge_cli.ticket.facts import TicketFacts
from nodegauge_cli.ticket.logs import SHELL


def text(facts: TicketFacts) -> str:
    """The ticket, 80 columns wide but for commands and words that are longer."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: TicketFacts) -> Iterator[str]:
    yield paragraphs.headline(facts)
    yield from paragraphs.block("FAULT", [*paragraphs.what(facts), *paragraphs.when(facts)])
    yield from paragraphs.block("WHAT TO DO", paragraphs.steps(facts.fault))
    shell = SHELL.format(facts.node)
    where = paragraphs.Row("", "As root on the node. Without SSH:", shell)
    yield from paragraphs.block("SAVE BEFORE A REBOOT OR A RESET", [where, *paragraphs.save(facts.logs)])
    yield from paragraphs.block("BOARD", paragraphs.accused(facts), none="The fault names no board.")
    yield from paragraphs.block("XIDS", paragraphs.xids(facts), none="None in what was read.")
    yield from paragraphs.block("HOW IT WAS SEEN", paragraphs.how(facts), none="The runs are not known.")
    yield from paragraphs.block("OTHER MACHINES", paragraphs.where(facts))
    yield from paragraphs.block(
        "CHANGED SINCE THE LAST GOOD RUN", paragraphs.changed(facts), none="Nothing that is known."
    )
    yield from paragraphs.block("ALSO READ", paragraphs.numbers(facts))
    yield from paragraphs.block(
        "LOOKED FOR IN THE LAST READINGS, NOT FOUND",
        paragraphs.excluded(facts),
        none="Nothing is known to be good.",
    )
    yield from paragraphs.block("NOT READ OR NOT JUDGED", paragraphs.gaps(facts))
    yield from paragraphs.block("MACHINE", paragraphs.machine(facts))
    yield from paragraphs.block("OTHER BOARDS", paragraphs.others(facts))
    yield from paragraphs.block("FOR THE VENDOR, NOT KNOWN HERE", paragraphs.ask(facts.ask))
    yield from paragraphs.block("TRIED", paragraphs.tried(facts), none="Nothing that is known.")
    yield from ("", f"From {', '.join(facts.source)}.")
