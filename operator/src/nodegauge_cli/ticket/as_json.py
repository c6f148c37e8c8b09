"""`--for json`: the facts as they are (`facts.TicketFacts`), for a program that opens tickets."""

from __future__ import annotations

import msgspec

from nodegauge_cli.ticket.facts import TicketFacts


def as_json(facts: TicketFacts) -> str:
    """One JSON object, indented."""
    return msgspec.json.format(msgspec.json.encode(facts), indent=2).decode() + "\n"
