"""A node's report as text: the verdict, what follows from it, then what each probe found."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from nodegauge_cli.judge_text import grid, head, plain_console, print_cells, print_findings, write
from nodegauge_cli.output import printable
from nodegauge_cli.reported import KindJudgement, Reported, ReportJudgement
from nodegauge_judge.nccl.measurement import Measurement
from nodegauge_operator import names
from nodegauge_operator.api.report import GateStatus
from nodegauge_operator.core.gates import TITLES


def show_report(document: Reported, judgement: ReportJudgement, *, console: Console | None = None) -> None:
    """Print the judgement of a node."""
    console = console or plain_console()
    with console.capture() as captured:
        console.print(_head(document, judgement))
        for kind in judgement.kinds:
            console.print()
            console.print(_kind(kind))
            print_findings(console, kind.findings, node=judgement.node)
            if kind.probe == names.PROBE_NCCL:
                record = document.report.status.probe[names.PROBE_NCCL].history
                print_cells(console, Measurement.decode(record))
    write(console, captured.get())


def _head(document: Reported, judgement: ReportJudgement) -> Table:
    status = document.report.status
    table = head(judgement.verdict, f"{judgement.node}: {judgement.summary}")
    for taint in judgement.taints or ["none"]:
        table.add_row("taint", printable(taint))
    for gate in judgement.gates:
        table.add_row("gate", printable(", ".join(_gate(document, gate))))
    joined = status.interconnect
    if joined.klass or joined.message:
        evidence = f" [{joined.evidence}]" if joined.evidence else ""
        table.add_row("link", printable(f"{joined.klass or 'unknown class'}{evidence}: {joined.message}"))
    table.add_row("read", printable(judgement.coverage))
    gpus = status.gpus
    source = [f"{names.REPORT_KIND} of node {judgement.node}"]
    source += [f"with its {names.READING_KIND}"] if document.results else []
    source += [f"policy {status.policy}"] if status.policy else []
    source += [f"{gpus.count}x {gpus.product}, driver {gpus.driver}"] if gpus.count else []
    table.add_row("source", printable(", ".join(source)))
    return table


def _gate(document: Reported, gate: GateStatus) -> Iterator[str]:
    yield f"{gate.code} {gate.state.value} since {gate.since or 'an unknown time'}"
    yield TITLES.get(gate.code, "a finding of another version")
    if gate.subject:
        serial = document.report.status.gpus.serial_of(gate.subject)
        yield f"{gate.subject}, serial {serial}" if serial else gate.subject


def _kind(kind: KindJudgement) -> Table:
    table = grid()
    table.add_row(printable(kind.probe), printable(f"{kind.verdict.value.upper()}: {kind.summary}"))
    return table
