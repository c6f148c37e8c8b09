"""A load run's judgement as text: the verdict, the reasons, what to do, then what each GPU did under load."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from nodegauge_cli.judge_text import head, plain_console, print_findings, taints, write
from nodegauge_cli.output import printable
from nodegauge_contract import LoadResult, Result
from nodegauge_judge.case import number, text
from nodegauge_judge.loadtest_rules.case import LoadCase, Loaded, positive
from nodegauge_judge.loadtest_rules.heat import celsius, distance
from nodegauge_judge.loadtest_rules.judge import LoadJudgement
from nodegauge_judge.loadtest_rules.offload import OffloadReading
from nodegauge_judge.thresholds import Thresholds

COLUMNS = ("GPU", "W", "limit", "°C", "left", "MHz", "TFLOPS", "GB/s", "to GPU", "to host", "wrong")


def show_load(result: Result, judgement: LoadJudgement, *, console: Console | None = None) -> None:
    """Print the judgement of a load run."""
    console = console or plain_console()
    with console.capture() as captured:
        console.print(_head(result, judgement))
        print_findings(console, judgement.findings, node=result.node)
        if result.load is not None and result.load.gpus:
            console.print()
            console.print(_gpus(result, result.load))
    write(console, captured.get())


def _head(result: Result, judgement: LoadJudgement) -> Table:
    table = head(judgement.verdict, judgement.summary)
    load = result.load
    if load is not None and not load.skipped:
        planned, lasted = positive(load.seconds), positive(load.loaded_seconds)
        parts = [f"{planned:g} s planned"] if planned is not None else []
        parts += [f"{lasted:.0f} s under load, ended: {load.ended}"] if lasted is not None else []
        parts += (
            [f"{judgement.power_percent} % of the power limit at least"] if judgement.power_percent else []
        )
        table.add_row("load", printable(", ".join(parts) or "no duration was read"))
    for name, sentence in _offload(judgement.offload):
        table.add_row(name, printable(sentence))
    if judgement.readable:
        for taint in taints(judgement.answers):
            table.add_row("taint", taint)
    source = [f"driver {text(result.system.driver)}"] if text(result.system.driver) else []
    source += [f"kernel {kernel}" for kernel in _kernels(load)]
    source += [f"node {result.node}"] if result.node else []
    source += [f"run {result.run}"] if result.run else []
    if source:
        table.add_row("source", printable(", ".join(source)))
    return table


def _offload(offload: OffloadReading) -> Iterator[tuple[str, str]]:
    """What offload to the host and to its disk gets, or why that is unknown."""
    rates = (("alone", offload.h2d_gbps), ("while all copy", offload.h2d_all_gbps))
    known = [f"{gbps:g} GB/s {when}" for when, gbps in rates if gbps is not None]
    if sentence := "; ".join([*known, *filter(None, [offload.h2d_problem])]):
        yield "to GPU", f"slowest GPU: {sentence}"
    if offload.nvme_path:
        read, written = offload.nvme_read_gbps, offload.nvme_write_gbps
        parts = [f"reads {read:g} GB/s"] if read is not None else [offload.nvme_problem]
        parts += [f"writes {written:g} GB/s"] if written is not None else []
        yield "storage", f"{offload.nvme_path}: {', '.join(parts)}"


def _kernels(load: LoadResult | None) -> list[str]:
    return list(dict.fromkeys(gpu.kernel for gpu in load.gpus if gpu.kernel)) if load is not None else []


def _gpus(result: Result, load: LoadResult) -> Table:
    """A line for each GPU; a dash where nothing was read."""
    table = Table.grid(padding=(0, 2))
    for _ in COLUMNS:
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*COLUMNS, style="bold")
    for loaded in LoadCase(result=result, load=load, thresholds=Thresholds()).gpus:
        table.add_row(*_line(loaded))
    return table


def _line(loaded: Loaded) -> tuple[str, ...]:
    load = loaded.load
    return (
        str(load.index),
        _shown(load.steady_mw, per=1000),
        _shown(load.limit_mw, per=1000),
        _shown(celsius(loaded)),
        _shown(distance(loaded)),
        _shown(load.sm_mhz),
        _shown(load.tflops),
        _shown(load.memory_gbps),
        _shown(load.h2d_gbps),
        _shown(load.d2h_gbps),
        _shown(load.mismatches),
    )


def _shown(value: object, *, per: int = 1) -> str:
    read = number(value)
    return "-" if read is None else f"{read / per:.4g}"
