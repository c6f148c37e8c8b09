"""A judgement printed for a person: the verdict first, then why, then what to do, then the matrix.

Reads well at 80 columns and when piped (no colour, no box drawing, no trailing blanks).  Nothing from a
document is taken as markup or sent to the terminal as a control character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodegauge_contract import Result
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

VERDICTS = {
    Verdict.PASS: "bold green",
    Verdict.WARN: "bold yellow",
    Verdict.FAIL: "bold red",
    Verdict.UNKNOWN: "bold magenta",
}
_SEVERITIES = {Severity.FAIL: "bold red", Severity.WARN: "bold yellow", Severity.INFO: "cyan"}
_LOADS = {
    Load.LOADED: "the GPUs worked while they were watched",
    Load.IDLE: "idle: what is only judged under load was not judged",
    Load.UNKNOWN: "cannot be told, so what is only judged under load may not have been judged",
}
_SUPPLIES = {
    Psu.OK: "ok: a supply's sensor was read, and nothing complains",
    Psu.FAULT: "fault",
    None: "not known: no sensor of a supply could be read, or what was read is not fine",
}


def show(result: Result, judgement: Judgement, *, console: Console | None = None) -> None:
    """Print the judgement of `result`."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(_head(result, judgement))
        print_findings(console, judgement.findings)
        if judgement.matrix:
            console.print()
            for line in judgement.matrix.splitlines():
                console.print(Text(printable(line)), soft_wrap=True)
    write(console, captured.get())


def write(console: Console, text: str) -> None:
    """What was captured, without trailing blanks where nobody looks at it on a terminal."""
    for line in text.splitlines():
        console.file.write((line if console.is_terminal else line.rstrip()) + "\n")


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Each with its way out, which is said once for each code."""
    told: set[str] = set()
    for one in findings:
        console.print()
        console.print(finding_table(one, again=one.code in told))
        told.add(one.code)


def _head(result: Result, judgement: Judgement) -> Table:
    table = grid()
    verdict = judgement.verdict
    table.add_row(
        Text(verdict.value.upper(), VERDICTS.get(verdict, "bold")),
        Text(printable(judgement.summary), "bold"),
    )
    table.add_row("link", _joined(judgement.interconnect))
    if judgement.readable:
        table.add_row("load", _LOADS[judgement.load])
        table.add_row("heat", _heat(judgement))
        table.add_row("psu", _SUPPLIES[judgement.psu])
        for gate in gates(judgement.answers):
            table.add_row("gate", gate)
    facts = [f"driver {judgement.driver}"] if judgement.driver else []
    facts += [f"node {result.node}"] if result.node else []
    facts += [f"run {result.run}"] if result.run else []
    if facts:
        table.add_row("from", printable(", ".join(facts)))
    return table


def _joined(joined: Interconnect) -> str:
    if joined.klass is None:
        return printable(f"no class ({joined.reason}): {joined.message}")
    evidence = f" [{joined.evidence.value}]" if joined.evidence is not None else ""
    return printable(f"{joined.klass.value}{evidence}: {joined.message}")


def _heat(judgement: Judgement) -> str:
    """The hottest GPU, with the name of its temperature's band."""
    known = [gpu for gpu in judgement.gpus if gpu.celsius is not None]
    if not known:
        return "no temperature was read"
    hottest = max(known, key=lambda gpu: gpu.celsius or 0)
    which = f"GPU {hottest.index} is the hottest with " if len(known) > 1 else ""
    return f"{which}{hottest.celsius} °C ({hottest.band.replace('-', ' ')})"


def gates(answers: Mapping[str, Answer]) -> Iterator[str]:
    """The taints that a policy with the default effects would come to, row by row."""
    bad = [code for code, answer in answers.items() if answer is Answer.BAD]
    rows = [(code, CATALOGUE[code].gate) for code in bad]
    said = [f"{_taint(gate)} ({code})" for code, gate in rows if gate is not None]
    yield from said or ["none would follow from this result"]


def _taint(gate: Gate) -> str:
    loaded = " under load" if gate.judged is Judged.UNDER_LOAD else ""
    runs = f"this run{loaded}" if gate.runs == 1 else f"{gate.runs} such runs{loaded} in a row"
    return f"{gate.kind.value}={gate.cause.value} after {runs}"


def finding_table(finding: Finding, *, again: bool) -> Table:
    """`again`: what to do about this code has been said above."""
    entry = CATALOGUE[finding.code]
    table = grid()
    title = Text.assemble((finding.code, "bold"), "  ", printable(finding.subject))
    table.add_row(Text(finding.severity.value, _SEVERITIES[finding.severity]), title)
    message = finding.message.removesuffix(f" Next: {entry.next_step}")
    table.add_row("", printable(message))
    if also := finding.evidence.get("also"):
        table.add_row("", printable(f"Also: {also}."))
    table.add_row("", Text("What to do: as above.") if again else _steps(entry.way_out))
    return table


def _steps(steps: tuple[str, ...]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, step in enumerate(steps, 1):
        table.add_row(f"{number}.", Text(step))
    return table


def grid() -> Table:
    """Two columns, the second folded."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=7)
    table.add_column(overflow="fold")
    return table


def printable(text: str) -> str:
    """Foreign text with nothing that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)
