"""`nodegauge bmc --entries FOLDER`: read every BMC that the chart would, and pin certificates on first use.

The folder is what becomes the Secret of the BMC reader, and is read by the same code.  Progress goes to
standard error, the table to standard output.  The exit code is that of the worst: 1 if a machine fails, else
2 if an entry is wrong or a BMC is not read, else 3 if one is unknown.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import click
import msgspec
from msgspec import Struct

from nodegauge_bmc.connection import Access, BmcError, Unreadable, certificate
from nodegauge_bmc.inventory import Inventory, Plan, Target, WrongEntry, in_fields
from nodegauge_bmc.pins import pin
from nodegauge_bmc.protocols import read
from nodegauge_cli.inputs import BadInput
from nodegauge_cli.judging import EXIT_CODES, EXIT_UNKNOWN
from nodegauge_cli.output import printable
from nodegauge_contract.chassis import ChassisReading
from nodegauge_judge import Verdict
from nodegauge_judge.chassis.judge import ChassisJudgement, judge_chassis

T = TypeVar("T")
EXIT_BAD = 2
BAD_ENTRY, UNREAD = "entry", "unread"
_ORDER = (Verdict.FAIL, BAD_ENTRY, UNREAD, Verdict.UNKNOWN, Verdict.WARN, Verdict.PASS)


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one entry.  `verdict`: the judgement's, `entry` for one that is wrong, or `unread`."""

    node: str
    address: str = ""
    verdict: str
    wrong: str
    """What is wrong, or what was seen; one sentence."""
    seconds: float | None = None
    judgement: ChassisJudgement | None = None
    reading: ChassisReading | None = None


class Rows(Struct, frozen=True, kw_only=True):
    """What `--format json` prints: the worst first."""

    bmcs: Sequence[Row]
    counts: dict[str, int]


class Pace(Struct, frozen=True, kw_only=True):
    """Seconds for one BMC and for one request, and how many BMCs at a time."""

    deadline: float
    timeout: float
    concurrency: int


class Progress:
    """One line that changes on a terminal, one line for each BMC elsewhere."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream, self._done = total, stream, 0
        self._terminal = stream.isatty()

    def say(self, text: str) -> None:
        """One more is done."""
        self._done += 1
        before, after = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        self._stream.write(f"{before}[{self._done}/{self._total}] {text}{after}")
        self._stream.flush()

    def end(self) -> None:
        """Nothing of it stays on a terminal."""
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def planned(folder: Path, *, names: Iterable[str] | None, pace: Pace) -> tuple[Inventory, Plan]:
    """The folder's entries.  `names`: those of the cluster's nodes; None: the nodes that have a file."""
    inventory = Inventory(folder)
    try:
        inventory.changed()
    except OSError as error:
        raise BadInput(f"--entries {folder}: not readable ({error.strerror})") from None
    wanted = inventory.nodes if names is None else list(names)
    if names is None and inventory.pattern:
        others = "kubectl get nodes -o name | nodegauge bmc --entries FOLDER --nodes -"
        click.echo(f"_defaults has a pattern, and only nodes with a file are read: {others}", err=True)
    if inventory.empty or not wanted:
        raise BadInput(f"--entries {folder}: no entries; write a file for each node, named as the node")
    nodes = dict.fromkeys(wanted, "")
    return inventory, inventory.plan(nodes, selected=frozenset(nodes), timeout=pace.timeout)


def read_entries(plan: Plan, *, pace: Pace, needed: int | None, form: str) -> int:
    """Read and judge them all, and print the table; the exit code."""

    async def one(target: Target) -> Row:
        started = time.monotonic()
        seen = await _outcome(read(target.access, deadline=pace.deadline))
        seconds = round(time.monotonic() - started, 1)
        judgement = None if isinstance(seen, str) else judge_chassis(seen, needed=needed)
        return Row(
            node=target.node,
            address=target.address,
            verdict=judgement.verdict.value if judgement else UNREAD,
            wrong=judgement.summary if judgement else str(seen),
            seconds=seconds,
            judgement=judgement,
            reading=None if isinstance(seen, str) else seen,
        )

    rows = _all(plan, one, line=lambda row: f"{row.node}: {row.verdict}", concurrency=pace.concurrency)
    rows = sorted([*rows, *_bad(plan)], key=lambda row: (_ORDER.index(row.verdict), row.node))
    counts = Counter(row.verdict for row in rows)
    counted = {str(word): counts[word] for word in _ORDER if counts[word]}
    if form == "json":
        encoded = msgspec.json.encode(Rows(bmcs=rows, counts=counted))
        sys.stdout.write(msgspec.json.format(encoded, indent=2).decode() + "\n")
    else:
        _print([(row.verdict, row.node, row.address, _seconds(row), row.wrong) for row in rows])
        click.echo(f"{len(rows)} BMCs: " + ", ".join(f"{number} {word}" for word, number in counted.items()))
    if counts[Verdict.FAIL]:
        return EXIT_CODES[Verdict.FAIL]
    if counts[BAD_ENTRY] or counts[UNREAD]:
        return EXIT_BAD
    return EXIT_UNKNOWN if counts[Verdict.UNKNOWN] else EXIT_CODES[Verdict.PASS]


def collect(inventory: Inventory, plan: Plan, *, pace: Pace, yes: bool) -> int:
    """Show the fingerprints of entries without pin and CA, and of pins that do not fit any more; after a yes,
    write the new ones.  The exit code."""

    async def one(target: Target) -> tuple[str, Target, str]:
        url = target.access.url.replace("auto://", "https://", 1)
        shown = await _outcome(certificate(msgspec.structs.replace(target.access, url=url, fingerprint="")))
        pinned = target.access.fingerprint.replace(":", "").strip().lower()
        if len(shown) != 64 or not shown.isalnum():
            return UNREAD, target, shown
        if not pinned:
            return "new", target, shown
        return ("same" if pinned == shown else "changed"), target, shown

    targets = {node: target for node, target in plan.targets.items() if _may_be_pinned(target.access)}
    seen = _all(
        msgspec.structs.replace(plan, targets=targets),
        one,
        line=lambda result: f"{result[1].node}: {result[0]}",
        concurrency=pace.concurrency,
    )
    new = {target.node: shown for word, target, shown in seen if word == "new"}
    left = [(row.verdict, row.node, "", row.wrong) for row in _bad(plan)]
    _print([*left, *((word, target.node, target.address, shown) for word, target, shown in seen)])
    changed = [target.node for word, target, _ in seen if word == "changed"]
    if changed:
        click.echo(
            f"{len(changed)} pins do not fit any more ({', '.join(changed[:4])}): a renewed certificate, or "
            "somebody in between. None is replaced; after a renewal, take the old pin out and collect again.",
            err=True,
        )
    failed = [*left, *changed, *(shown for word, _, shown in seen if word == UNREAD)]
    if new and not _agreed(new, yes=yes):
        click.echo("nothing is written", err=True)
        return EXIT_BAD
    failed += _write(inventory, new)
    return EXIT_BAD if failed else 0


def _write(inventory: Inventory, new: dict[str, str]) -> list[str]:
    """Pin them; the nodes whose file did not take it."""
    failed = []
    for node, fingerprint in new.items():
        try:
            pin(inventory.file_of(node), fingerprint)
        except (WrongEntry, OSError) as error:
            failed.append(node)
            click.echo(f"{node}: not written: {error}", err=True)
    click.echo(f"{len(new) - len(failed)} pins written")
    return failed


def _agreed(new: dict[str, str], *, yes: bool) -> bool:
    """Whether a person trusts these certificates, from now on them alone."""
    shared = [digest for digest, number in Counter(new.values()).items() if number > 1]
    for digest in shared:
        sharing = [node for node in new if new[node] == digest]
        click.echo(
            f"{len(sharing)} BMCs show one certificate ({', '.join(sharing[:4])}): the vendor's. Who has "
            "such a machine can pass for any of them: give each its own.",
            err=True,
        )
    if yes:
        return True
    try:
        return click.confirm(f"Trust these {len(new)} certificates from now on?", err=True)
    except click.Abort:
        click.echo("nobody answers here: say --yes", err=True)
        return False


def _may_be_pinned(access: Access) -> bool:
    return access.url.startswith(("https://", "auto://")) and not access.ca and not access.insecure


def _bad(plan: Plan) -> list[Row]:
    """Entries that are wrong, and files that belong to no node."""
    named = {**plan.problems, **{text.partition(":")[0]: text for text in plan.unused}}
    return [Row(node=node, verdict=BAD_ENTRY, wrong=text) for node, text in sorted(named.items())]


def _all(
    plan: Plan, one: Callable[[Target], Awaitable[T]], *, line: Callable[[T], str], concurrency: int
) -> list[T]:
    """`one` for every target, some at a time, with progress."""
    progress = Progress(len(plan.targets), sys.stderr)
    slots = asyncio.Semaphore(concurrency)

    async def next_one(target: Target) -> T:
        async with slots:
            done = await one(target)
        progress.say(line(done))
        return done

    async def every() -> list[T]:
        return await asyncio.gather(*(next_one(target) for target in plan.targets.values()))

    try:
        return asyncio.run(every())
    finally:
        progress.end()


async def _outcome(work: Awaitable[T]) -> T | str:
    """What came of it, or why nothing did, in an entry's words: one BMC never ends the others."""
    try:
        return await work
    except (BmcError, Unreadable) as error:
        return in_fields(str(error))
    except Exception as error:
        return f"the reader failed ({type(error).__name__}): report this machine"


def _seconds(row: Row) -> str:
    return "" if row.seconds is None else f"{row.seconds:.1f} s"


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    """One line each, in columns, whatever the width: for people and for grep."""
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
