"""`--for text`: everything, for people and for any vendor's form."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_cli.ticket import words
from nodegauge_cli.ticket.facts import TicketFacts
from nodegauge_cli.ticket.logs import SHELL


def text(facts: TicketFacts) -> str:
    """The ticket, 80 columns wide but for commands and words that are longer."""
    return "\n".join(_lines(facts)) + "\n"


def _lines(facts: TicketFacts) -> Iterator[str]:
    yield words.headline(facts)
    yield from words.block("FAULT", [*words.what(facts), *words.when(facts)])
    yield from words.block("BOARD", words.accused(facts), none="The fault names no board.")
    yield from words.block("XIDS", words.xids(facts), none="None in what was read.")
    yield from words.block("HOW IT WAS SEEN", words.how(facts), none="The runs are not known.")
    yield from words.block("OTHER MACHINES", words.where(facts))
    yield from words.block(
        "CHANGED SINCE THE LAST GOOD RUN", words.changed(facts), none="Nothing that is known."
    )
    yield from words.block("READ, AND GOOD", words.excluded(facts), none="Nothing is known to be good.")
    yield from words.block("NOT READ OR NOT JUDGED", words.gaps(facts))
    yield from words.block("MACHINE", words.machine(facts))
    yield from words.block("OTHER BOARDS", words.others(facts))
    shell = SHELL.format(facts.node)
    where = words.Row("", "As root on the node. Without SSH:", shell)
    yield from words.block("SAVE BEFORE A REBOOT OR A RESET", [where, *words.save(facts.logs)])
    yield from words.block("FOR THE VENDOR, NOT KNOWN HERE", words.ask(facts.ask))
    yield from words.block("TRIED", words.tried(facts), none="Nothing that is known.")
    yield from words.block("WHAT TO DO", words.steps(facts.fault))
    yield from ("", f"From {', '.join(facts.source)}.")
