"""What a node's history tells: versions that changed, and the facts of a node that is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from nodegauge_cli.ticket.facts import Board, Changed, Machine, TicketFacts, Xid, cleaned
from nodegauge_cli.ticket.fleet import fleet_of
from nodegauge_cli.ticket.hardware import same
from nodegauge_cli.ticket.logs import with_commands
from nodegauge_cli.ticket.problems import for_a_vendor, gpus_of, problem_of
from nodegauge_cli.ticket.raw import Object
from nodegauge_operator import names
from nodegauge_operator.api.history import Transition
from nodegauge_operator.api.node_history import NodeHistory

_OF_PEOPLE = "override"
"""A transition that says what a person decided: none of the vendor's business."""


def recorded(
    history: NodeHistory, *, chosen: str = "", others: Sequence[Object] | None = None
) -> TicketFacts:
    """The facts of a node that is gone, from the record that its history kept.  It has one."""
    record = history.record
    assert record is not None, "the caller has looked"
    known = for_a_vendor(record.faults, chosen=chosen)
    accused = gpus_of(known[0]) if known else []
    boards = [
        Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci, product=record.product)
        for gpu in record.gpus
    ]
    boards = [replace(board, accused=any(same(gpu, board) for gpu in accused)) for board in boards]
    problems = [problem_of(fault, boards) for fault in known]
    facts = cleaned(
        TicketFacts(
            node=history.name,
            source=[names.HISTORY_KIND],
            gone_at=history.gone_at,
            verdict=record.verdict.value,
            machine=Machine(boot_id=record.boot_id, kernel=record.kernel),
            product=record.product,
            count=len(record.gpus),
            driver=record.driver,
            vbios=record.vbios,
            boards=boards,
            faults=problems,
            xids=with_recorded([], history, boards),
            fleet=fleet_of(others, ("gpus", "product"), record.product, problems[0] if problems else None),
            changes=[*transitions_of(record.transitions), *versions_of(history, since="")],
            gaps=[
                f"The node is gone: this is its record of {record.written_at or 'an unknown time'}. "
                "Counters, machine, runs and peers are not in it. Logs can be saved only while the machine "
                "still runs."
            ],
        )
    )
    return with_commands(facts, nvswitch=False)


def with_recorded(xids: list[Xid], history: NodeHistory | None, boards: Sequence[Board]) -> list[Xid]:
    """These Xids, and others that the history records: a reading holds the last run alone."""
    record = history.record if history is not None else None
    known = {(xid.code, xid.gpu) for xid in xids}
    more = []
    for seen in record.xids if record is not None else ():
        board = next((each for each in boards if seen.gpu and each.uuid.startswith(seen.gpu)), Board())
        if (seen.xid, board.index) not in known:
            more.append(
                Xid(
                    code=seen.xid,
                    gpu=board.index,
                    pci=board.pci,
                    count=seen.count or None,
                    last=seen.last_seen,
                    source="record",
                )
            )
    return xids + more


def transitions_of(transitions: Sequence[Transition]) -> list[Changed]:
    """What changed, without what people decided."""
    return [
        Changed(at=each.at, what=each.what, before=each.before, after=each.to)
        for each in transitions
        if each.what != _OF_PEOPLE
    ]


def versions_of(history: NodeHistory | None, *, since: str) -> Iterator[Changed]:
    """Versions that the history saw change, by day."""
    known: dict[str, str] = {}
    for date, day in (history.days if history is not None else {}).items():
        for what in ("driver", "vbios", "kernel"):
            value = getattr(day, what)
            if value and known.get(what) not in (None, value) and date >= since[:10]:
                yield Changed(at=date, what=what, before=known[what], after=value)
            known |= {what: value} if value else {}
