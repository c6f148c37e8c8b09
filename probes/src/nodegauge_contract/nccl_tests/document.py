"""A log of nccl-tests as a result document, so that it is judged like any other NCCL run.

What a log does not contain stays "not read": NVLinks, UUIDs, transports.  The collective comes from the
program's name, or from the relation of sizes and counts.  Several tables of the same GPUs make one document.
Nothing here computes a bandwidth or judges one.
"""

from __future__ import annotations

from statistics import median

from msgspec.structs import replace

from nodegauge_contract.gpu import Gpu
from nodegauge_contract.model import MAX_GPUS, Result
from nodegauge_contract.nccl import MAX_CELLS, Arm, ArmName, ArmOutcome, Cell, Collective, NcclResult, Phase
from nodegauge_contract.nccl_tests.log import HEADER, Log, NcclTestsError, parse
from nodegauge_contract.nccl_tests.ranks import Measured, count, listed, nodes
from nodegauge_contract.nccl_tests.table import Row, Table, Timing
from nodegauge_contract.values import NOT_READ, Int, Unavailable

ENGINE = "nccl-tests"
_CALLS = {
    Collective.ALL_REDUCE: "AllReduce",
    Collective.ALL_GATHER: "AllGather",
    Collective.REDUCE_SCATTER: "ReduceScatter",
}
"""As NCCL names them."""


def result(text: str, *, collective: Collective | None = None, ranks: int | None = None) -> Result:
    """The result document of a log: probe `nccl`, one arm, a cell per collective and size.

    Times are the in-place ones if there are any, as in the NCCL probe; rows of one size become one cell with
    their median.  `collective`, `ranks`: what ran on how many GPUs, if the log does not say.  Raises
    `NcclTestsError`.
    """
    log = parse(text)
    if not log.devices and not any(table.rows for table in log.tables):
        raise NcclTestsError("no line `Rank 0 ... Pid ... on HOST device 0 [...] NAME`: the GPUs are unknown")
    empty = all(table.finished and not table.rows for table in log.tables)
    if empty and not log.failure:
        raise NcclTestsError(
            f"no table: expected a line `{HEADER}` and rows below it (if nothing else was printed, NCCL hung)"
        )
    measured = _supported(log, collective)
    number = count(log, measured, given=ranks)
    every = [
        _with_algorithm(cell, log, number) for measured_table in measured for cell in cells_of(measured_table)
    ]
    kept = sorted(every, key=lambda cell: (not _is_wrong(cell), -cell.bytes))[:MAX_CELLS]
    truncated = f"the {len(kept)} largest of {len(every)} sizes" if len(kept) < len(every) else ""
    nccl = NcclResult(
        engine=ENGINE,
        engine_version=log.version,
        nccl=log.nccl,
        cuda=log.cuda,
        ranks=number,
        nodes=nodes(log, number, given=ranks is not None),
        message=truncated,
        arms=[_arm(log, [cell for cell in every if cell in kept])],
    )
    gpus = [
        Gpu(index=device.rank, name=device.name or NOT_READ, pci=device.pci)
        for device in listed(log)[:MAX_GPUS]
    ]
    return Result(probe="nccl", gpus=gpus, nccl=nccl)


def _arm(log: Log, cells: list[Cell]) -> Arm:
    """The one arm, with how it ended as far as the log tells."""
    outcome, message, phase = ArmOutcome.DONE, "", ""
    last = log.tables[-1] if log.tables else None
    if log.timeout:
        outcome, message, phase = ArmOutcome.HUNG, log.timeout, Phase.MEASURE
    elif log.failure:
        no_memory = "out of memory" in log.failure.lower()
        outcome = ArmOutcome.OUT_OF_MEMORY if no_memory else ArmOutcome.FAILED
        message = log.failure
    elif last is not None and not last.rows and not last.finished:
        outcome, phase = ArmOutcome.HUNG, Phase.MEASURE
        message = f"no row follows the header in line {last.header} (unless the log was cut there)"
    elif not all(table.finished for table in log.tables):
        outcome, phase = ArmOutcome.PARTIAL, Phase.MEASURE
        message = (
            "the log ends before its line `# Avg bus bandwidth`: NCCL hung or failed, or the log was cut"
        )
    return Arm(name=ArmName.DEFAULT, outcome=outcome, phase=phase, message=message, cells=cells)


def _with_algorithm(cell: Cell, log: Log, ranks: int) -> Cell:
    """The cell with NCCL's algorithm and protocol for such a call, if the log has them."""
    share = 1 if cell.collective == Collective.ALL_REDUCE else ranks
    chosen = log.chosen.get((_CALLS[Collective(cell.collective)], cell.bytes // share))
    return cell if chosen is None else replace(cell, algorithm=chosen[0], protocol=chosen[1])


def cells_of(measured_table: Measured) -> list[Cell]:
    """A cell per size above 0, in the order of the table.  Raises `NcclTestsError`."""
    table = measured_table.table
    rows: dict[int, list[Row]] = {}
    for row in table.rows:
        if row.bytes:
            rows.setdefault(row.bytes, []).append(row)
    worst = max(table.rows, key=lambda row: max(half.error or 0.0 for half in _halves(row)))
    cells = [
        _cell(
            measured_table.collective,
            alike,
            summed=table.wrong if table.wrong == 0 or worst in alike else None,
        )
        for alike in rows.values()
    ]
    if table.wrong and not any(map(_is_wrong, cells)):
        raise NcclTestsError(
            f"line {table.summary}: {table.wrong} values are out of bounds, but no row has any: data was "
            "wrong in a row that the log lacks; judge the whole log"
        )
    return cells


def _is_wrong(cell: Cell) -> bool:
    return isinstance(cell.wrong, int) and cell.wrong > 0


def _halves(row: Row) -> list[Timing]:
    """In place first."""
    return [half for half in (row.in_place, row.out_of_place) if half is not None]


def _cell(collective: Collective, rows: list[Row], *, summed: int | None) -> Cell:
    """One size; `summed`: elements out of bounds by the summary, where the layout has no `#wrong`."""
    halves = [half for row in rows for half in _halves(row)]
    times = [_halves(row)[0].us for row in rows]
    counts = [half.wrong for half in halves if not isinstance(half.wrong, Unavailable)]
    wrong: Int = max(counts) if counts else halves[0].wrong
    if not counts and summed is not None and any(half.error is not None for half in halves):
        wrong = summed
    return Cell(
        collective=collective,
        bytes=rows[0].bytes,
        us=median(times),
        us_min=min(times),
        us_max=max(times),
        batches=len(times),
        wrong=wrong,
    )


def _supported(log: Log, requested: Collective | None) -> list[Measured]:
    """The tables of collectives that are judged.  Others are left out, unless they have wrong data or the log
    has nothing else.  Raises `NcclTestsError`."""
    tables = [table for table in log.tables if any(row.bytes for row in table.rows)]
    named = [(table, *_named(table, requested)) for table in tables]
    measured = [
        Measured(table=table, collective=Collective(name), times=times)
        for table, name, times in named
        if name in set(Collective)
    ]
    for table, name, _ in named:
        wrong = next((row.line for row in table.rows if _wrong(row)), table.summary if table.wrong else 0)
        if name not in set(Collective) and (wrong or not measured):
            fault = f", but its data was wrong (line {wrong})" if wrong else ""
            raise NcclTestsError(
                f"line {table.header}: {name} is not supported, only {', '.join(Collective)}{fault}"
            )
    return measured


def _wrong(row: Row) -> bool:
    return any(isinstance(half.wrong, int) and half.wrong > 0 for half in _halves(row))


def _named(table: Table, requested: Collective | None) -> tuple[str, int]:
    """The collective, as the caller or the program's name says, else the likeliest for the table's numbers;
    and how often its sizes hold the count."""
    possible, times = _possible(table)
    name = requested or (table.program if table.program in possible else possible[0])
    if name not in possible:
        raise NcclTestsError(f"line {table.header}: the table is of {' or '.join(possible)}, not of {name}")
    return name, times


def _possible(table: Table) -> tuple[tuple[str, ...], int]:
    """Collectives by the relation of sizes and counts, the likeliest first; and how often the size holds the
    count.

    all_gather, reduce_scatter and alltoall print the total over all ranks; only reductions have a redop;
    alltoall checks no data in place.  Source: nccl-tests src/*.cu.
    """
    row = max(table.rows, key=lambda row: row.count)
    size = row.count * row.element
    if size and row.bytes % size == 0 and row.bytes > size:
        times = row.bytes // size
        if row.redop:
            return (Collective.REDUCE_SCATTER,), times
        if row.root:
            return ("gather", "scatter"), times
        unchecked = [half is None or isinstance(half.wrong, Unavailable) for half in _pair(row)]
        return ("alltoall",) if unchecked == [True, False] else (Collective.ALL_GATHER, "alltoall"), times
    if row.bytes == size and row.redop:
        return ("reduce",) if row.root else (Collective.ALL_REDUCE,), 1
    if row.bytes == size:
        return ("broadcast", "gather", "scatter") if row.root else (
            "sendrecv",
            "alltoall",
        ), 1  # or of one rank
    raise NcclTestsError(
        f"line {row.line}: {row.bytes} bytes are neither {row.count} elements of {row.element} bytes nor a "
        "multiple of that, as for the total over all ranks"
    )


def _pair(row: Row) -> tuple[Timing | None, Timing | None]:
    return row.in_place, row.out_of_place
