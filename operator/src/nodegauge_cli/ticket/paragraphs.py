"""The facts of a ticket as plain text of 80 columns: rows of a label and a text, under headings.

The forms for people choose headings and order; here is what a row says.  A command is never broken, so that
it can be pasted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nodegauge_cli.ticket.facts import Ask, Board, Log, Peer, Problem, TicketFacts, Xid
from nodegauge_cli.ticket.hardware import COUNTERS

WIDTH = 80
LABEL = 12
UNKNOWN = "not known"


class Row(NamedTuple):
    """A label and what is said beside it; `command`: what to type, on a line of its own.  A label that ends
    with a dot is the number of a list."""

    label: str
    text: str = ""
    command: str = ""


def block(heading: str, rows: Iterable[Row], *, none: str = "") -> Iterator[str]:
    """A heading and its rows, after an empty line; with `none` in place of no rows, else nothing."""
    rows = list(rows) or ([Row("", none)] if none else [])
    if rows:
        yield from ("", heading)
        for row in rows:
            yield from _lines(row)


def _lines(row: Row) -> Iterator[str]:
    margin = 2 if not row.label else 5 if row.label.endswith(".") else LABEL + 2
    wrapped = textwrap.wrap(row.text, WIDTH - margin, break_long_words=False, break_on_hyphens=False)
    first = f"  {row.label}"
    if len(first) >= margin and row.label:  # a long label stands alone
        yield first
        first = ""
    for text in wrapped:
        yield f"{first:<{margin}}{text}"
        first = ""
    if row.command:
        yield f"     {row.command}"


def headline(facts: TicketFacts) -> str:
    """The node and its worst fault in a few words."""
    fault = facts.fault
    return f"{facts.node}: {f'{fault.title} [{fault.code}]' if fault else 'no fault is known'}"


def what(facts: TicketFacts) -> Iterator[Row]:
    """The fault, where it is and what was measured."""
    fault = facts.fault
    if fault is None:
        yield Row("fault", "none is known")
        yield Row("verdict", f"{facts.verdict}: {facts.summary or 'nothing was read'}")
        return
    taint = f", taint {fault.cause}" if fault.cause else ""
    unsure = f", NOT CONFIRMED: {fault.bad_runs} bad so far" if facts.unconfirmed else ""
    yield Row("fault", f"{fault.title} [{fault.code}], {fault.severity}{taint}{unsure}")
    scope = f" ({fault.scope})" if fault.scope else ""
    yield Row("place", f"{fault.subject or 'the node'}{scope}")
    yield Row("measured", fault.measured or "see the finding's steps; the report keeps no number")
    if fault.also:
        yield Row("also", fault.also)
    for other in facts.faults[1:]:
        yield Row("beside it", f"{other.title} [{other.code}] {other.subject} since {other.since or UNKNOWN}")


def when(facts: TicketFacts) -> Iterator[Row]:
    """Since when, the last run that showed it, and the last good one."""
    fault = facts.fault
    if fault is not None:
        confirmed = f", confirmed {fault.confirmed}" if fault.confirmed not in ("", fault.since) else ""
        yield Row("since", f"{fault.since or UNKNOWN}{confirmed}")
        yield Row("last seen", fault.last_seen or UNKNOWN)
        yield Row("last good", fault.last_good or "no earlier good run is known")
    if facts.gone_at:
        yield Row("node gone", f"first seen gone at {facts.gone_at}")


def how(facts: TicketFacts) -> Iterator[Row]:
    """Which probe saw it in how many runs, and what the other probes say."""
    fault = facts.fault
    if fault is not None and fault.probe:
        many = f", {fault.bad_runs} bad run{'s' if fault.bad_runs != 1 else ''} in a row"
        state = f", {fault.state}" if fault.state else ""
        runs = many if fault.bad_runs else ""
        yield Row("found by", f"the {fault.probe} probe of nodegauge{runs}{state}")
    for probe in facts.observed:
        read = f"last read {probe.read_at}: {probe.verdict}" if probe.read_at else "never read"
        streak = f", {probe.streak} in a row since {probe.since}" if probe.streak else ""
        more = "; ".join(
            part for part in (probe.coverage, f"fails {probe.failing}" if probe.failing else "") if part
        )
        yield Row(probe.probe, f"run {probe.runs}, {read}{streak}{f' ({more})' if more else ''}")


def where(facts: TicketFacts) -> Iterator[Row]:
    """How many machines have it, and this node's numbers beside those of its peers."""
    fleet = facts.fleet
    if fleet is None:
        yield Row("fleet", "the reports of other nodes were not read")
    else:
        klass = f" of the class {fleet.klass}" if fleet.klass else ""
        names = f": {', '.join(fleet.same)}" if fleet.same else ""
        more = " and more" if fleet.same_count > len(fleet.same) else ""
        same = f"{fleet.same_count} of {fleet.nodes} other nodes{klass} have the same finding now"
        yield Row(
            "same fault", f"{same}{names}{more}" if facts.faults else f"{fleet.nodes} other nodes{klass}"
        )
        if fleet.drivers:
            runs = ", ".join(f"{driver} on {count}" for driver, count in fleet.drivers.items())
            yield Row("drivers", f"{facts.driver or UNKNOWN} here; {runs}")
    for peer in facts.peers:
        yield Row("peers", _peer(peer))


def _peer(peer: Peer) -> str:
    span = f"{peer.lowest:g} to {peer.highest:g}"
    return (
        f"{peer.what}: {peer.own:g} {peer.unit} here, {peer.median:g} in the median of {peer.nodes} ({span})"
    )


def changed(facts: TicketFacts) -> Iterator[Row]:
    """What changed since the last good run."""
    for change in facts.changes:
        before = f"{change.before} -> " if change.before else ""
        yield Row("", f"{change.at} {change.what}: {before}{change.after or 'none'}")


def machine(facts: TicketFacts) -> Iterator[Row]:
    """The computer and its software."""
    own = facts.machine
    maker = " ".join(part for part in (own.vendor, own.product) if part)
    yield Row("node", facts.node)
    for label, value in (
        ("machine", maker),
        ("serial", own.serial),
        ("provider", own.provider_id),
        ("type", own.instance_type),
        ("zone", own.zone),
        ("machine id", own.machine_id),
        ("system UUID", own.system_uuid),
        ("boot id", own.boot_id),
        ("system", own.os_image),
        ("kernel", own.kernel),
        ("GPUs", f"{facts.count}x {facts.product}" if facts.count else ""),
        ("driver", f"{facts.driver}{f', CUDA {facts.cuda}' if facts.cuda else ''}" if facts.driver else ""),
        ("VBIOS", facts.vbios),
    ):
        if value:
            yield Row(label, value)


def accused(facts: TicketFacts) -> Iterator[Row]:
    """The boards that the fault names, whole."""
    for board in facts.accused():
        yield Row(_name(board), _identity(board))
        yield Row("", ", ".join(part for part in _details(board) if part))
        counts = [(name, board.counters[path]) for path, name in COUNTERS.items() if path in board.counters]
        for name, count in counts:
            if count:
                yield Row("", f"{name}: {count}")
        zeros = "; ".join(name for name, count in counts if not count)
        if zeros or not counts:
            yield Row("", f"0: {zeros}" if zeros else "no counter of this board was read")


def others(facts: TicketFacts) -> Iterator[Row]:
    """The other boards, a line each."""
    for board in facts.boards:
        if not board.accused:
            yield Row(_name(board), _identity(board))


def _name(board: Board) -> str:
    return f"GPU {board.index}" if board.index is not None else "GPU"


def _identity(board: Board) -> str:
    known = (
        f"serial {board.serial or UNKNOWN}",
        board.pci,
        board.uuid,
        "lost: the last run did not read it" if board.lost else "",
    )
    return ", ".join(part for part in known if part)


def _details(board: Board) -> Iterator[str]:
    yield board.product
    yield f"VBIOS {board.vbios}" if board.vbios else ""
    yield f"module {board.module}" if board.module is not None else ""
    yield f"{board.memory_mib} MiB" if board.memory_mib is not None else ""


def xids(facts: TicketFacts) -> Iterator[Row]:
    """Each Xid with its times."""
    for xid in facts.xids:
        yield Row(f"Xid {xid.code}", _xid(xid))


def _xid(xid: Xid) -> str:
    gpu = f"GPU {xid.gpu}" if xid.gpu is not None else ""
    where = ", ".join(part for part in (gpu, xid.pci) if part) or "GPU not known"
    times = f"{xid.count} times" if xid.count is not None else "how often is not known"
    first = f", first {xid.first}" if xid.first else ""
    return f"{where}: {times}{first}, last {xid.last or UNKNOWN} ({xid.source})"


def numbers(facts: TicketFacts) -> Iterator[Row]:
    """What else was read, good or not."""
    for number in facts.numbers:
        yield Row(number.what, number.value)


def excluded(facts: TicketFacts) -> Iterator[Row]:
    """What the last reading of each probe looked for, and is good."""
    if facts.excluded:
        yield Row("", "; ".join(f"{each.title} [{each.code}]" for each in facts.excluded))


def gaps(facts: TicketFacts) -> Iterator[Row]:
    """What was not read or not judged."""
    for gap in facts.gaps:
        yield Row("", gap)


def save(logs: Iterable[Log]) -> Iterator[Row]:
    """What to save first, with its command."""
    for number, log in enumerate(logs, 1):
        yield Row(f"{number}.", f"{log.what}. {log.note}".strip(), log.command)


def ask(asks: Iterable[Ask]) -> Iterator[Row]:
    """What Kubernetes does not know, with the command that tells it."""
    for each in asks:
        yield Row("", f"{each.field}: {each.why}", each.command)


def steps(fault: Problem | None) -> Iterator[Row]:
    """What to do, in order."""
    for number, step in enumerate(fault.steps if fault is not None else (), 1):
        yield Row(f"{number}.", step)


def tried(facts: TicketFacts) -> Iterator[Row]:
    """What is known of attempts."""
    for attempt in facts.tried:
        yield Row("", attempt)
