"""What a node's history tells: versions that changed, and the facts of a node that is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from nodegauge_cli.ticket.facts import Board, Changed, Machine, Problem, TicketFacts, Xid, cleaned
from nodegauge_cli.ticket.fleet import fleet_of
from nodegauge_cli.ticket.hardware import same
from nodegauge_cli.ticket.logs import with_commands
from nodegauge_cli.ticket.raw import Object
from nodegauge_judge import GpuIdentity, Severity
from nodegauge_operator.api.history import Transition
from nodegauge_operator.api.node_history import NodeHistory

_OF_PEOPLE = "override"
"""A transition that says what a person decided: none of the vendor's business."""


def recorded(history: NodeHistory, *, others: Sequence[Object] | None = None) -> TicketFacts:
    """The facts of a node that is gone, from the record that its history kept.  It has one."""
    record = history.record
    assert record is not None, "the caller has looked"
    accused = record.faults[0].gpus if record.faults else []
    boards = [
        Board(index=gpu.index, serial=gpu.serial, uuid=gpu.uuid, pci=gpu.pci, product=record.product)
        for gpu in record.gpus
    ]
    boards = [replace(board, accused=any(same(gpu, board) for gpu in accused)) for board in boards]
    problems = [
        Problem(
            code=fault.code,
            title=fault.title,
            severity=Severity.FAIL.value if fault.cause else Severity.WARN.value,
            cause=fault.cause,
            state=fault.state,
            since=fault.since,
            last_seen=record.written_at,
            subject=fault.subject,
            gpus=[at for at, board in enumerate(boards) if any(same(gpu, board) for gpu in fault.gpus)],
            measured=fault.measured,
            steps=fault.steps,
        )
        for fault in record.faults
    ]
    machine = Machine(boot_id=record.boot_id, kernel=record.kernel)
    facts = cleaned(
        TicketFacts(
            node=history.name,
            source=["NodeHistory"],
            gone_at=history.gone_at,
            verdict=record.verdict.value,
            machine=machine,
            product=record.product,
            count=len(record.gpus),
            driver=record.driver,
            vbios=record.vbios,
            boards=boards,
            faults=problems,
            xids=with_recorded([], history),
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


def with_recorded(xids: list[Xid], history: NodeHistory | None) -> list[Xid]:
    """These Xids, and those of other numbers that the history records: a reading holds the last run alone."""
    record = history.record if history is not None else None
    known = {xid.code for xid in xids}
    boards = {gpu.uuid: gpu for gpu in (record.gpus if record is not None else ())}
    kept = [
        (
            xid,
            next(
                (gpu for uuid, gpu in boards.items() if xid.gpu and uuid.startswith(xid.gpu)), GpuIdentity()
            ),
        )
        for xid in (record.xids if record is not None else ())
        if xid.xid not in known
    ]
    return xids + [
        Xid(
            code=xid.xid,
            gpu=gpu.index,
            pci=gpu.pci,
            count=xid.count or None,
            last=xid.last_seen,
            source="record",
        )
        for xid, gpu in kept
    ]


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
