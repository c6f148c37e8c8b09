"""A log of nccl-tests as result documents, one for each run, judged like any other NCCL run.

What a log does not contain stays "not read": NVLinks, UUIDs.  The collective comes from the program's name,
or from the relation of sizes, counts and bandwidths.  Nothing here judges a bandwidth.
"""

from __future__ import annotations

from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract.gpu import Gpu
from nodegauge_contract.model import MAX_GPUS, Result
from nodegauge_contract.nccl import (
    MAX_CELLS,
    MAX_VARIABLES,
    Arm,
    ArmName,
    ArmOutcome,
    Cell,
    Collective,
    NcclResult,
    Phase,
)
from nodegauge_contract.nccl_tests.captures import MAX_CHARS, Line, captures
from nodegauge_contract.nccl_tests.log import HEADER, Log, NcclTestsError, parse
from nodegauge_contract.nccl_tests.ranks import Measured, count, fit, listed, nodes
from nodegauge_contract.nccl_tests.table import Row, Table, Timing
from nodegauge_contract.values import NOT_READ, Int, Unavailable

ENGINE = "nccl-tests"
NO_GPUS = "no line `Rank 0 ... Pid ... on HOST device 0 [...] NAME`: the GPUs are unknown"


class Run(Struct, frozen=True, kw_only=True):
    """One run of a log.  `result` is None if it cannot be read, for the reason `error`."""

    line: int
    """Where it begins, from 1."""
    collective: str = ""
    """As nccl-tests names it; empty if unknown."""
    hosts: tuple[str, ...] = ()
    """Of its ranks, as listed."""
    at: str = ""
    """The first time that stands in it, as it stands there."""
    result: Result | None = None
    """Probe `nccl`, one arm, a cell for each size."""
    error: str = ""
    """What is wrong, where, and what was expected."""


def runs(text: str, *, collective: Collective | None = None, ranks: int | None = None) -> list[Run]:
    """The runs of a log, in its order; one without a list of ranks has that of the one before.

    Times are the in-place ones if there are any, as in the NCCL probe; rows of one size become one cell with
    their median.  `collective`, `ranks`: what ran on how many GPUs, if the log does not say.  Raises
    `NcclTestsError` for a text that is too long.
    """
    if len(text) > MAX_CHARS:
        raise NcclTestsError(f"more than {MAX_CHARS} characters; a log of nccl-tests is far smaller")
    every: list[Run] = []
    before = Log()
    for lines in captures(text):
        run, log = _run(lines, before, collective=collective, ranks=ranks)
        if log.mixed:  # the tables above it that got no rows were of the same runs
            while every and every[-1].result is not None and not _rows(every[-1].result):
                every.pop()
        every.append(run)
        before = log
    return every


def result(text: str, *, collective: Collective | None = None, ranks: int | None = None) -> Result:
    """The document of a log of one run.  Raises `NcclTestsError`."""
    every = runs(text, collective=collective, ranks=ranks)
    if not every:
        raise NcclTestsError(NO_GPUS)
    if len(every) > 1:
        raise NcclTestsError(f"{len(every)} runs, expected one: the second begins in line {every[1].line}")
    if every[0].result is None:
        raise NcclTestsError(every[0].error)
    return every[0].result


def _rows(document: Result) -> int:
    return sum(len(arm.cells) for arm in (document.nccl.arms if document.nccl is not None else ()))


def _run(
    lines: list[Line], before: Log, *, collective: Collective | None, ranks: int | None
) -> tuple[Run, Log]:
    """A run, and its log for the next one."""
    run, log = Run(line=lines[0].number), Log()
    try:
        log = parse(lines)
        if not log.devices and not log.per_process:
            log.devices, log.per_process, log.elided = before.devices, before.per_process, before.elided
        run = replace(run, collective=log.program, hosts=log.hosts, at=log.at)
        if log.mixed:
            raise NcclTestsError(
                f"line {log.mixed}: another run begins or ends within this one, and nothing tells their "
                "lines apart: keep each process's output in a file, or tag it (`mpirun --tag-output`)"
            )
        measured = _measured(log, collective)
        run = replace(run, collective=measured.collective if measured is not None else log.program)
        return replace(run, result=_document(log, measured, ranks=ranks)), log
    except NcclTestsError as error:
        return replace(run, error=str(error)), log


def _document(log: Log, measured: Measured | None, *, ranks: int | None) -> Result:
    """The document of one run.  Raises `NcclTestsError`."""
    if not log.devices and measured is None:
        raise NcclTestsError(NO_GPUS)
    if (log.table is None or (log.table.finished and measured is None)) and not (log.failure or log.timeout):
        raise NcclTestsError(
            f"no table: expected a line `{HEADER}` and rows below it (if nothing else was printed, NCCL hung)"
        )
    number = count(log, measured, given=ranks)
    every = [_with_algorithm(cell, log, number) for cell in (cells_of(measured) if measured else ())]
    kept = sorted(every, key=lambda cell: (not _is_wrong(cell), -cell.bytes))[:MAX_CELLS]
    truncated = f"the {len(kept)} largest of {len(every)} sizes" if len(kept) < len(every) else ""
    nccl = NcclResult(
        engine=ENGINE,
        engine_version=log.version,
        nccl=log.nccl,
        cuda=log.choices.cuda,
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
    """The one arm, with how it ended as far as the log tells, and what NCCL logged."""
    outcome, message, phase = ArmOutcome.DONE, "", ""
    table, choices = log.table, log.choices
    if log.timeout:
        outcome, message, phase = ArmOutcome.HUNG, log.timeout, Phase.MEASURE
    elif log.failure:
        no_memory = "out of memory" in log.failure.lower()
        outcome = ArmOutcome.OUT_OF_MEMORY if no_memory else ArmOutcome.FAILED
        message = log.failure
    elif table is not None and not table.rows and not table.finished:
        outcome, phase = ArmOutcome.HUNG, Phase.MEASURE
        message = f"no row follows the header in line {table.header} (unless the log was cut there)"
    elif table is not None and not table.finished:
        outcome, phase = ArmOutcome.PARTIAL, Phase.MEASURE
        message = (
            "the log ends before its line `# Avg bus bandwidth`: NCCL hung or failed, or the log was cut"
        )
    return Arm(
        name=ArmName.DEFAULT,
        outcome=outcome,
        phase=phase,
        message=message,
        cells=cells,
        transport=choices.transport,
        nvls=choices.nvls,
        channels=choices.channels,
        multicast=choices.multicast,
        environment=[f"{name}={value}" for name, value in choices.environment.items()][:MAX_VARIABLES],
    )


def _with_algorithm(cell: Cell, log: Log, ranks: int) -> Cell:
    """The cell with NCCL's algorithm and protocol for such a call, if the log has them."""
    algorithm, protocol = log.choices.chosen(cell.collective, cell.bytes, ranks=ranks)
    return replace(cell, algorithm=algorithm, protocol=protocol)


def cells_of(measured: Measured) -> list[Cell]:
    """A cell per size above 0, in the order of the table.  Raises `NcclTestsError`."""
    table = measured.table
    rows: dict[int, list[Row]] = {}
    for row in table.rows:
        if row.bytes:
            rows.setdefault(row.bytes, []).append(row)
    worst = max(table.rows, key=lambda row: max(half.error or 0.0 for half in _halves(row)))
    cells = [
        _cell(
            measured.collective,
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


def _measured(log: Log, requested: Collective | None) -> Measured | None:
    """The table with its collective, as the caller or the program's name says, else the likeliest of those
    that the rows fit; None without a row.  Raises `NcclTestsError`."""
    table = log.table
    if table is None or not any(row.bytes for row in table.rows):
        return None
    possible, times = _possible(table)
    every = {each: Measured(table=table, collective=each, times=times) for each in possible}
    fitting = [each for each, measured in every.items() if fit(log, measured)] or list(possible)
    if requested and requested not in possible:
        raise NcclTestsError(
            f"line {table.header}: the table is of {' or '.join(fitting)}, not of {requested}"
        )
    if log.program and log.program not in set(Collective) and not requested:
        raise NcclTestsError(f"line {table.header}: {log.program} is not known, only {', '.join(Collective)}")
    named = log.program if log.program in possible else fitting[0]
    return every[requested or Collective(named)]


def _possible(table: Table) -> tuple[tuple[Collective, ...], int]:
    """Collectives by the relation of sizes and counts, the likeliest first; and how often the size holds the
    count.

    all_gather, reduce_scatter, gather, scatter and alltoall print the total over all ranks; only reductions
    have a redop (and sendrecv has in some releases); alltoall checks no data in place.  Source: nccl-tests
    src/*.cu.
    """
    row = max(table.rows, key=lambda row: row.count)
    size = row.count * row.element
    if size and row.bytes % size == 0 and row.bytes > size:
        times = row.bytes // size
        if row.redop:
            return (Collective.REDUCE_SCATTER,), times
        if row.root:
            return (Collective.GATHER, Collective.SCATTER), times
        unchecked = [half is None or isinstance(half.wrong, Unavailable) for half in _pair(row)]
        gathered = (Collective.ALL_GATHER, Collective.ALLTOALL)
        return gathered[::-1] if unchecked == [True, False] else gathered, times
    if row.bytes == size and row.redop:
        return (Collective.REDUCE,) if row.root else (Collective.ALL_REDUCE, Collective.SENDRECV), 1
    if row.bytes == size:  # of one rank the last ones
        rooted = (Collective.BROADCAST, Collective.GATHER, Collective.SCATTER)
        return rooted if row.root else (Collective.SENDRECV, Collective.ALLTOALL, Collective.ALL_GATHER), 1
    raise NcclTestsError(
        f"line {row.line}: {row.bytes} bytes are neither {row.count} elements of {row.element} bytes nor a "
        "multiple of that, as for the total over all ranks"
    )


def _pair(row: Row) -> tuple[Timing | None, Timing | None]:
    return row.in_place, row.out_of_place
