"""The judgement of a benchmark printed for a person: verdict, figures, what contradicts what, every cell.

The same look as `judge_text`, whose parts it uses; nothing from a document reaches the terminal unfiltered.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodegauge_cli.judge_text import VERDICTS, gates, grid, print_findings, printable, write
from nodegauge_judge.nccl.measurement import MeasuredArm, MeasuredCell, Measurement
from nodegauge_judge.nccl.model import NcclJudgement

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def show_nccl(judgement: NcclJudgement, *, node: str = "", console: Console | None = None) -> None:
    """Print it; `node`: what the benchmark was run on, as the document says."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    measured = Measurement.decode(judgement.record)
    with console.capture() as captured:
        console.print(_head(judgement, measured, node))
        print_findings(console, judgement.findings)
        if measured is not None and any(arm.cells for arm in measured.arms):
            console.print()
            console.print(_cells(measured))
    write(console, captured.get())


def _head(judgement: NcclJudgement, measured: Measurement | None, node: str) -> Table:
    table = grid()
    verdict = judgement.verdict
    table.add_row(
        Text(verdict.value.upper(), VERDICTS.get(verdict, "bold")), Text(printable(judgement.summary), "bold")
    )
    if judgement.busbw:
        said = ", ".join(f"{name} {gbps}" for name, gbps in judgement.busbw.items())
        off = f"; all_reduce without P2P {judgement.p2p_off:.3g}" if judgement.p2p_off is not None else ""
        table.add_row("busbw", printable(f"{said} GB/s{off}"))
    if judgement.readable:
        table.add_row("link", printable(f"{judgement.agreement.value}: {judgement.message}"))
        for gate in gates(judgement.answers):
            table.add_row("gate", gate)
    if judgement.again:
        table.add_row("again", "another run is wanted: one such run alone decides nothing")
    if measured is not None:
        table.add_row("from", printable(", ".join(_facts(judgement, measured, node))))
    return table


def _facts(judgement: NcclJudgement, measured: Measurement, node: str) -> Iterator[str]:
    gpus = f"{judgement.ranks} of {judgement.expected}" if judgement.expected else f"{judgement.ranks}"
    yield f"{gpus} GPUs"
    joined = measured.interconnect if measured.driver else ""  # a log of nccl-tests names no links
    yield from (words for words in (measured.gpu, joined) if words)
    if measured.engine:
        yield f"engine {measured.engine}"
    if measured.nccl:
        yield f"NCCL {measured.nccl}"
    if measured.driver:
        yield f"driver {measured.driver}"
    if node:
        yield f"node {node}"


def _cells(measured: Measurement) -> Table:
    table = Table.grid(padding=(0, 2))
    for column in ("arm", "collective", "size", "time", "busbw", "algorithm"):
        table.add_column(justify="right" if column in ("size", "time", "busbw") else "left", no_wrap=True)
    table.add_row("arm", "collective", "size", "time", "busbw", "algorithm", style="bold")
    for arm in measured.arms:
        for cell in sorted(arm.cells, key=lambda cell: (cell.collective, cell.bytes)):
            table.add_row(*_row(measured, arm, cell))
    return table


def _row(measured: Measurement, arm: MeasuredArm, cell: MeasuredCell) -> tuple[str, ...]:
    gbps = measured.busbw(cell)
    algorithm = cell.algorithm + (f" {cell.wrong} wrong" if cell.wrong else "")
    return (
        printable(arm.name),
        cell.collective.value,
        _size(cell.bytes),
        f"{cell.us:.4g} us" if cell.us < 1e4 else f"{cell.us / 1e3:.4g} ms",
        "-" if gbps is None else f"{gbps:.2f} GB/s" if gbps < 100 else f"{gbps:.1f} GB/s",
        printable(algorithm.strip()),
    )


def _size(number: int) -> str:
    for unit, name in _UNITS:
        if number >= unit and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} B"
