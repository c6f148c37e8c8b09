"""`nodegauge diff NODE NODE`: what differs between two nodes, from their reports and last readings."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import click

from nodegauge_cli import output
from nodegauge_cli.cluster import NODES, READINGS, REPORTS, Cluster, NoCluster, NotThere, context_option
from nodegauge_cli.completion import node_names
from nodegauge_cli.diff_facts import CELSIUS, COUNTERS, Fact, Facts, differs, facts, labels
from nodegauge_cli.reported import results_of
from nodegauge_operator import names
from nodegauge_operator.api.report import Report, parse_report
from nodegauge_operator.api.times import unstamp

WHAT, VALUE = 22, 28
"""Columns of what is compared, and of each node's value; with two blanks between, a screen's 80."""
NOT_READ = "not read"
ALIKE = f"Temperatures within {CELSIUS:.0f} °C count as alike, and bandwidth, clocks and speed within 3 %."


class Side(NamedTuple):
    """One node: its name, when the health probe read it (empty: never), what is known of it, and its labels;
    `unread`: parts of its NodeReading that cannot be read; `up`: seconds from boot to reading, or None."""

    node: str
    read_at: str
    facts: Facts
    labels: dict[str, Fact] | None
    unread: tuple[str, ...]
    up: float | None


class Difference(NamedTuple):
    """One fact that differs; an empty text is a value that was not read."""

    what: str
    values: tuple[str, str]


@click.command()
@click.argument("nodes", nargs=2, metavar="NODE NODE", shell_complete=node_names)
@output.output_option("json", "yaml")
@context_option
def diff(nodes: tuple[str, str], form: str | None, context: str) -> None:
    """Show what differs between two nodes: hardware, driver, settings, links, bandwidth, heat and labels.

    It compares their NodeReports and last readings, and asks no node. It exits with 0 whether or not
    something differs.
    """
    if nodes[0] == nodes[1]:
        raise click.UsageError("name two different nodes")
    cluster = Cluster(context=context)
    with output.quiet_pipe():
        sides = (_side(cluster, nodes[0]), _side(cluster, nodes[1]))
        click.echo(output.dump(document(*sides), form) if form else "\n".join(text(*sides)))


def document(one: Side, other: Side) -> Mapping[str, object]:
    """The same for programs; null: not read."""
    result, alike, neither = compared(one, other)
    return {
        "nodes": [
            {"name": side.node, "readAt": side.read_at or None, "upSeconds": side.up} for side in (one, other)
        ],
        "differences": [
            {"what": each.what, "values": [value or None for value in each.values]} for each in result
        ],
        "alike": alike,
        "readOnNeither": neither,
    }


def text(one: Side, other: Side) -> Iterator[str]:
    """The lines for people, 80 columns wide."""
    result, alike, neither = compared(one, other)
    for side in (one, other):
        yield output.entry(side.node, _when(side), indent=max(len(one.node), len(other.node)) + 2)
    yield ""
    known = [each for each in result if all(each.values)]
    once = [each for each in result if not all(each.values)]
    if known:
        yield from _table(known, one, other)
    elif alike:
        yield f"No difference in what both were read for: {len(alike)} things."
    else:
        yield "Nothing was read on both nodes, so nothing can be compared."
    if once:
        yield ""
        yield "Read on one node only:"
        yield from _table(once, one, other)
    yield ""
    yield from _rest(known, alike, neither, (one, other))
    if any(each.what in COUNTERS for each in result):
        yield output.paragraph(_counted((one, other)))


def compared(one: Side, other: Side) -> tuple[list[Difference], list[str], list[str]]:
    """What differs, what is alike, and what was read on neither node."""
    result, alike, neither = [], [], []
    for what in one.facts | other.facts:
        a, b = one.facts.get(what), other.facts.get(what)
        if a is None and b is None:
            neither.append(what)
        elif a is None or b is None or differs(a, b):
            result.append(Difference(what, (a.text if a else "", b.text if b else "")))
        else:
            alike.append(what)
    if one.labels is None or other.labels is None:
        return result, alike, [*neither, "labels"]
    for key in one.labels | other.labels:
        values = tuple(
            side.labels.get(key, Fact("absent")).text or "(empty)"
            for side in (one, other)
            if side.labels is not None
        )
        (
            alike.append(key)
            if values[0] == values[1]
            else result.append(Difference(key, (values[0], values[1])))
        )
    return result, alike, neither


def _side(cluster: Cluster, node: str) -> Side:
    body = cluster.find(REPORTS, node)
    if body is None:
        raise NotThere(f"{node} has no NodeReport: `kubectl get {names.REPORT_PLURAL}` lists those that have")
    report = parse_report(body)
    results, unread = results_of(reading) if (reading := cluster.find(READINGS, node)) else ({}, [])
    health = report.status.probe[names.PROBE_HEALTH]
    result = results.get(names.PROBE_HEALTH)
    up = result.host.boottime_ms if result is not None else None
    return Side(
        node=node,
        read_at=health.read_at,
        facts=facts(report.status, result),
        labels=_labels(cluster, report),
        unread=tuple(unread) if result is None else (),
        up=up / 1000 if isinstance(up, int) else None,
    )


def _labels(cluster: Cluster, report: Report) -> dict[str, Fact] | None:
    """None where the user may not read nodes, or the node is gone."""
    try:
        body = cluster.find(NODES, report.name)
    except NoCluster:
        return None
    return labels(body["metadata"].get("labels") or {}) if body is not None else None


def _when(side: Side) -> str:
    if not side.read_at:
        return "was never read by the health probe"
    ago = output.age(time.time() - unstamp(side.read_at))
    return f"read {ago} ago, at {side.read_at}" + "".join(f"; {text}" for text in side.unread)


def _counted(sides: tuple[Side, Side]) -> str:
    """Since when errors are counted, as far as that is known."""
    up = [
        f"{side.node} had been up for {output.age(side.up)}"
        if side.up is not None
        else f"how long {side.node} had been up was not read"
        for side in sides
        if side.read_at
    ]
    return f"Errors are counted since the driver was loaded, after the last boot: {'; '.join(up)}."


def _table(result: Sequence[Difference], one: Side, other: Side) -> Iterator[str]:
    head = Difference("", (one.node, other.node))
    for each in (head, *result):
        values = [output.printable(value or NOT_READ) for value in each.values]
        shown = each.what.replace(names.PREFIX, "")
        columns = [
            textwrap.wrap(cell, width) or [""]
            for cell, width in zip((shown, *values), (WHAT, VALUE, VALUE), strict=True)
        ]
        for at in range(max(map(len, columns))):
            cells = [column[at] if at < len(column) else "" for column in columns]
            line = f"{cells[0]:<{WHAT}} {cells[1]:<{VALUE}} {cells[2]}".rstrip()
            yield output.styled(line, output.TITLE if each is head else "")


def _rest(
    known: Sequence[Difference], alike: Sequence[str], neither: Sequence[str], sides: tuple[Side, Side]
) -> Iterator[str]:
    if known:
        yield output.paragraph(f"{len(known) + len(alike)} things were read on both: {len(known)} differ.")
    yield output.paragraph(ALIKE)
    if neither:
        yield output.paragraph(f"Read on neither: {', '.join(neither)}.")
    without = [side.node for side in sides if side.labels is None]
    if without:
        reason = "the node is gone, or you may not read nodes"
        yield output.paragraph(f"No labels of {', '.join(without)}: {reason}.")
