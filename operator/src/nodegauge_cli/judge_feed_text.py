"""A feed window's judgement as text: whether GPUs starve and why, what to change, what each GPU did, and what
the machine gave them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from nodegauge_cli.judge_text import head, plain_console, print_findings, write
from nodegauge_cli.output import printable
from nodegauge_contract import Result
from nodegauge_contract.feed import FeedResult
from nodegauge_judge.feed.case import amount, share
from nodegauge_judge.feed.gpus import Did, GpuFeeding
from nodegauge_judge.feed.judge import FeedJudgement
from nodegauge_judge.model import Scalar

COLUMNS = ("GPU", "did", "util %", "of power", "SMs", "lost", "cause")
DID = {Did.STARVED: "waits", Did.HOLLOW: "busy, little work", Did.FED: "works", Did.PAUSED: "paused"}
"""How a person reads it; the others as they are."""
SLOW = "holds the others up"
MOST_DISKS = 2
"""Disks and ports that are shown: the busiest come first."""


def show_feed(result: Result, judgement: FeedJudgement, *, console: Console | None = None) -> None:
    """Print the judgement of a feed window."""
    console = console or plain_console()
    with console.capture() as captured:
        console.print(_head(result, judgement))
        print_findings(console, judgement.findings, node=result.node)
        if judgement.gpus:
            console.print()
            slow = {finding.evidence.get("slow_gpu") for finding in judgement.findings}
            console.print(_gpus(judgement.gpus, slow=slow))
    write(console, captured.get())


def _head(result: Result, judgement: FeedJudgement) -> Table:
    table = head(judgement.verdict, judgement.summary)
    if judgement.lost:
        lost = ", ".join(f"{cause} {gpus:.2f}" for cause, gpus in judgement.lost.items())
        table.add_row("lost", printable(f"{lost}, of {judgement.allocated} GPUs that are held"))
    if result.feed is not None:
        table.add_row("machine", printable("; ".join(_machine(result.feed)) or "nothing was read of it"))
        seconds = amount(result.feed.seconds)
        source = [f"{seconds:.0f} s"] if seconds is not None else []
        source += [f"node {result.node}"] if result.node else []
        source += [f"active SMs by {result.feed.source}"] if isinstance(result.feed.source, str) else []
        table.add_row("window", printable(", ".join(source) or "of unknown length"))
    if judgement.missing:
        table.add_row("not read", printable("; ".join(judgement.missing)))
    table.add_row("taint", "none: feeding is about jobs, and says nothing of the node's health")
    return table


def _machine(feed: FeedResult) -> list[str]:
    """CPUs, pressure, the busiest disks and ports: what was read of them."""
    host, parts = feed.host, []
    cpus, busy = amount(host.cpus), share(host.cpu_busy)
    if busy is not None:
        parts.append(f"{busy:.0%} of {cpus:g} CPUs busy" if cpus is not None else f"{busy:.0%} of CPUs busy")
    waits = {"CPU": host.pressure.cpu, "I/O": host.pressure.io, "memory": host.pressure.memory}
    waited = [f"{what} {read:.0%}" for what, value in waits.items() if (read := share(value)) is not None]
    parts += [f"tasks waited for {', '.join(waited)} of the time"] if waited else []
    for disk in feed.disks[:MOST_DISKS]:
        if (used := share(disk.busy_share)) is not None:
            read, written = amount(disk.read_mbps) or 0, amount(disk.write_mbps) or 0
            parts.append(f"{disk.name} busy {used:.0%}, {read:.0f} MB/s read, {written:.0f} written")
    for port in feed.ports[:MOST_DISKS]:
        if (received := amount(port.rx_mbps)) is not None:
            parts.append(f"{port.name} received {received:.0f} MB/s")
    return parts


def _gpus(gpus: list[GpuFeeding], *, slow: set[Scalar | None]) -> Table:
    """A line for each GPU; a dash where nothing was read.  `slow`: those for which others wait."""
    table = Table.grid(padding=(0, 2))
    for column in COLUMNS:
        table.add_column(justify="left" if column in ("did", "cause") else "right", no_wrap=True)
    table.add_row(*COLUMNS, style="bold")
    for gpu in gpus:
        table.add_row(
            str(gpu.index),
            SLOW if gpu.index in slow else DID.get(gpu.did, gpu.did.value),
            "-" if gpu.utilization is None else f"{gpu.utilization:.0f}",
            "-" if gpu.power_share is None else f"{gpu.power_share:.0%}",
            "-" if gpu.sm_active is None else f"{gpu.sm_active:.0%}",
            f"{gpu.lost:.2f}" if gpu.cause else "",
            gpu.cause,
        )
    return table
