"""`--for json`: the facts as they are (`facts.TicketFacts`), for a program that opens tickets."""

from __future__ import annotations

from nodegauge_cli.output import dump
from nodegauge_cli.ticket.facts import TicketFacts


def as_json(facts: TicketFacts) -> str:
    """One JSON object, indented."""
    return dump(facts, "json") + "\n"
