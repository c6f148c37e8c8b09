"""A judgement as text: the verdict, the reasons, what to do, then the matrix or the measured cells.

The output fits 80 columns and is plain when piped: no colour, no box drawing, no trailing blanks.  Text from
a document is printed without markup and without control characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodegauge_cli.output import printable
from nodegauge_contract import Result
from nodegauge_contract.model import PASTED
from nodegauge_contract.placement import numa_lines
from nodegauge_judge import (
    CATALOGUE,
    Answer,
    Finding,
    Gate,
    Interconnect,
    Judged,
    Judgement,
    Load,
    Psu,
    Severity,
    Verdict,
)
from nodegauge_judge.identity import lines
from nodegauge_judge.nccl.grading import size_text
from nodegauge_judge.nccl.measurement import MeasuredArm, MeasuredCell, Measurement, NcclJudgement
from nodegauge_judge.rule import measured

_VERDICTS = {
    Verdict.PASS: "bold green",
    Verdict.WARN: "bold yellow",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "bold magenta",
}
_SEVERITIES = {Severity.FAIL: "bold red", Severity.WARN: "bold yellow", Severity.INFO: "cyan"}
_LOADS = {
    Load.LOADED: "loaded: the GPUs worked during the run",
    Load.IDLE: "idle: checks that need load were skipped",
    Load.UNKNOWN: "unknown: checks that need load may have been skipped",
}
SUPPLIES = {
    Psu.OK: "ok: a power supply sensor was read and reports no fault",
    Psu.REDUNDANCY_LOST: "redundancy lost: no supply to spare",
    Psu.FAULT: "fault",
    None: "unknown: a power supply was not read, or its reading is unclear",
}


def show_health(result: Result, judgement: Judgement, *, console: Console | None = None) -> None:
    """Print the judgement of a health result."""
    console = console or plain_console()
    with console.capture() as captured:
        console.print(_health_head(result, judgement))
        print_findings(console, judgement.findings, node=result.node)
        if judgement.matrix:
            console.print()
            for line in judgement.matrix.splitlines():
                console.print(Text(printable(line)), soft_wrap=True)
        if lines_of_nodes := numa_lines(result):
            console.print()
            for line in lines_of_nodes:
                console.print(Text(printable(line)), soft_wrap=True)
    write(console, captured.get())


def show_nccl(judgement: NcclJudgement, *, node: str = "", console: Console | None = None) -> None:
    """Print the judgement of an NCCL run; `node`: the node's name from the document."""
    console = console or plain_console()
    measurement = Measurement.decode(judgement.record)
    with console.capture() as captured:
        console.print(_nccl_head(judgement, measurement, node))
        print_findings(console, judgement.findings, node=node)
        print_cells(console, measurement)
    write(console, captured.get())


def show_section(title: str, *, console: Console | None = None) -> None:
    """Print the line above one of several judgements."""
    console = console or plain_console()
    console.print()
    console.print(Text(f"-- {printable(title)}", "bold"), soft_wrap=True)


def show_refused(reason: str, *, console: Console | None = None) -> None:
    """Print why one of several documents cannot be judged."""
    console = console or plain_console()
    with console.capture() as captured:
        console.print(head(Verdict.UNKNOWN, f"Not judged: {reason}"))
    write(console, captured.get())


def show_worst(
    verdict: Verdict, summary: str, *, every: Sequence[Verdict], console: Console | None = None
) -> None:
    """Print the worst verdict of several documents with its reason, and how many have which."""
    console = console or plain_console()
    counts = Counter(each.value for each in every)
    table = head(verdict, summary)
    table.add_row("all", ", ".join(f"{number} {value}" for value, number in counts.items()))
    with console.capture() as captured:
        console.print(table)
    write(console, captured.get())


def plain_console() -> Console:
    """A console that prints text as it stands."""
    return Console(highlight=False, markup=False, emoji=False)


def write(console: Console, text: str) -> None:
    """The captured text, without trailing blanks unless it goes to a terminal."""
    for line in text.splitlines():
        console.file.write((line if console.is_terminal else line.rstrip()) + "\n")


def _health_head(result: Result, judgement: Judgement) -> Table:
    table = head(judgement.verdict, judgement.summary)
    about_gpus = bool(result.gpus) or result.probe != PASTED
    if about_gpus:
        table.add_row("link", _interconnect(judgement.interconnect))
    if about_gpus and judgement.coverage is not None:
        table.add_row("read", printable(judgement.coverage.text))
    if about_gpus and judgement.readable:
        table.add_row("load", _LOADS[judgement.load])
        table.add_row("heat", _heat(judgement))
        if result.probe != PASTED:
            table.add_row("psu", SUPPLIES[judgement.psu])
            for taint in taints(judgement.answers):
                table.add_row("taint", taint)
    source = ["pasted text"] if result.probe == PASTED else []
    source += [f"driver {judgement.driver}"] if judgement.driver else []
    source += [f"node {result.node}"] if result.node else []
    source += [f"run {result.run}"] if result.run else []
    if source:
        table.add_row("source", printable(", ".join(source)))
    return table


def _nccl_head(judgement: NcclJudgement, measurement: Measurement | None, node: str) -> Table:
    table = head(judgement.verdict, judgement.summary)
    if judgement.busbw:
        busbw = ", ".join(f"{name} {gbps}" for name, gbps in judgement.busbw.items())
        off = judgement.p2p_off
        p2p_off = f"; all_reduce with P2P disabled {off:.3g} GB/s" if off is not None else ""
        table.add_row("busbw", printable(f"{busbw} GB/s{p2p_off}"))
    if judgement.readable:
        table.add_row("link", printable(f"{judgement.agreement.value}: {judgement.message}"))
        for taint in taints(judgement.answers):
            table.add_row("taint", taint)
    if judgement.again:
        table.add_row("rerun", "needed: one run like this is not enough for a decision")
    if measurement is not None:
        table.add_row("source", printable(", ".join(_source(judgement, measurement, node))))
    return table


def _source(judgement: NcclJudgement, measurement: Measurement, node: str) -> Iterator[str]:
    gpus = f"{judgement.ranks} of {judgement.expected}" if judgement.expected else f"{judgement.ranks}"
    yield f"{gpus} GPUs"
    if measurement.gpu:
        yield measurement.gpu
    if measurement.interconnect and not measurement.from_log:
        yield measurement.interconnect
    if measurement.engine:
        yield f"engine {measurement.engine}"
    if measurement.nccl:
        yield f"NCCL {measurement.nccl}"
    if measurement.driver:
        yield f"driver {measurement.driver}"
    if node:
        yield f"node {node}"


def head(verdict: Verdict, summary: str) -> Table:
    """Two columns, the second folded; the verdict comes first."""
    table = grid()
    style = _VERDICTS.get(verdict, "bold")
    table.add_row(Text(verdict.value.upper(), style), Text(printable(summary), "bold"))
    return table


def _interconnect(interconnect: Interconnect) -> str:
    if interconnect.klass is None:
        return printable(f"unknown class ({interconnect.reason}): {interconnect.message}")
    evidence = f" [{interconnect.evidence.value}]" if interconnect.evidence is not None else ""
    return printable(f"{interconnect.klass.value}{evidence}: {interconnect.message}")


def _heat(judgement: Judgement) -> str:
    """The hottest GPU, with the name of its temperature band."""
    gpus = [gpu for gpu in judgement.gpus if gpu.celsius is not None]
    if not gpus:
        return "no temperature was read"
    hottest = max(gpus, key=lambda gpu: gpu.celsius or 0)
    name = f"GPU {hottest.index} is the hottest at " if len(gpus) > 1 else ""
    return f"{name}{hottest.celsius} °C ({hottest.band.replace('-', ' ')})"


def taints(answers: Mapping[str, Answer]) -> Iterator[str]:
    """The taints that follow under a policy with the default effects."""
    bad = [code for code, answer in answers.items() if answer is Answer.BAD]
    gates = [(code, CATALOGUE[code].gate) for code in bad]
    texts = [_taint(gate, code) for code, gate in gates if gate is not None]
    yield from texts or ["none from this result"]


def _taint(gate: Gate, code: str) -> str:
    loaded = " under load" if gate.judged is Judged.UNDER_LOAD else ""
    runs = f"this run{loaded}" if gate.runs == 1 else f"{gate.runs} such runs{loaded} in a row"
    return f"{gate.kind.value}={gate.cause.value} after {runs} ({code})"


def print_findings(console: Console, findings: Iterable[Finding], *, node: str) -> None:
    """Every finding; the steps of a code are printed once."""
    printed: set[str] = set()
    for finding in findings:
        console.print()
        console.print(_finding(finding, node=node, steps=finding.code not in printed))
        printed.add(finding.code)


def _finding(finding: Finding, *, node: str, steps: bool) -> Table:
    table = grid()
    title = Text.assemble((printable(finding.code), "bold"), "  ", printable(finding.subject))
    style = _SEVERITIES.get(finding.severity, "bold")
    table.add_row(Text(printable(finding.severity.value), style), title)
    table.add_row("", printable(measured(finding)))
    for gpu in lines(finding):
        table.add_row("", printable(gpu))
    if also := finding.evidence.get("also"):
        table.add_row("", printable(f"Also: {also}."))
    rule = CATALOGUE.get(finding.code)
    if rule is not None:  # a report of another version may have others
        table.add_row("", _steps(rule.steps(finding, node=node)) if steps else Text("What to do: see above."))
    return table


def print_cells(console: Console, measurement: Measurement | None) -> None:
    """What an NCCL run measured, if anything."""
    if measurement is not None and any(arm.cells for arm in measurement.arms):
        console.print()
        console.print(_cells(measurement))


def _steps(steps: list[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, step in enumerate(steps, 1):
        table.add_row(f"{number}.", Text(printable(step)))
    return table


def _cells(measurement: Measurement) -> Table:
    table = Table.grid(padding=(0, 2))
    for column in ("arm", "collective", "size", "time", "busbw", "algorithm"):
        table.add_column(justify="right" if column in ("size", "time", "busbw") else "left", no_wrap=True)
    table.add_row("arm", "collective", "size", "time", "busbw", "algorithm", style="bold")
    for arm in measurement.arms:
        for cell in sorted(arm.cells, key=lambda cell: (cell.collective, cell.bytes)):
            table.add_row(*_cell(measurement, arm, cell))
    return table


def _cell(measurement: Measurement, arm: MeasuredArm, cell: MeasuredCell) -> tuple[str, ...]:
    gbps = measurement.busbw(cell)
    algorithm = cell.algorithm + (f" {cell.wrong} wrong" if cell.wrong else "")
    if measurement.from_log and cell.wrong is None:
        algorithm += " not checked"
    return (
        printable(arm.name),
        cell.collective.value,
        size_text(cell.bytes),
        f"{cell.us:.4g} us" if cell.us < 1e4 else f"{cell.us / 1e3:.4g} ms",
        "-" if gbps is None else f"{gbps:.2f} GB/s" if gbps < 100 else f"{gbps:.1f} GB/s",
        printable(algorithm.strip()),
    )


def grid() -> Table:
    """A table without lines: a short word, then text."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=7)
    table.add_column(overflow="fold")
    return table
