"""`nodegauge history NODE`: what has changed on a node, also after it is gone.

Changes come from its report, days and trend from its NodeHistory, which outlives the node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import click

from nodegauge_cli import output
from nodegauge_cli.cluster import OF_OURS, REPORTS, Cluster, NotThere, context_option
from nodegauge_cli.completion import node_names
from nodegauge_operator import names
from nodegauge_operator.api.history import Transition
from nodegauge_operator.api.node_history import (
    MAX_DAYS,
    Day,
    NodeHistory,
    all_days,
    parse_node_history,
)
from nodegauge_operator.api.report import Report, parse_report
from nodegauge_operator.core.trend import SERIES, trend

HISTORIES = f"{OF_OURS}/{names.HISTORY_PLURAL}"
BARS = "▁▂▃▄▅▆▇█"
GAP = "."
"""A day on which nothing was measured."""
MIN_POINTS = 3
"""Fewer days draw no line.  Chosen by this project."""
FLAT = 0.02
"""Share of the value below which a line would show noise.  Chosen by this project."""


class Known(NamedTuple):
    """What the cluster has of a node; `remark`: why it has no NodeHistory."""

    report: Report | None
    history: NodeHistory | None
    remark: str = ""


@click.command()
@click.argument("node", shell_complete=node_names)
@click.option(
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    default=MAX_DAYS,
    show_default=True,
    help="Days to show, counted back from the last one that was measured.",
)
@output.output_option("json", "yaml")
@context_option
def history(node: str, days: int, form: str | None, context: str) -> None:
    """Show what has changed on a node: its days, their trend, and its last changes.

    It works after the node is gone, for as long as its NodeHistory is kept.
    """
    cluster = Cluster(context=context)
    with output.quiet_pipe():
        known = _known(cluster, node)
        if known.report is None and known.history is None:
            raise NotThere(f"nothing is known of {node}: it has neither a NodeReport nor a NodeHistory")
        going_on = known.report.status.days if known.report else {}
        shown = _last(all_days(known.history, going_on), days)
        if form:
            click.echo(output.dump(document(node, known, shown), form))
        else:
            click.echo("\n".join(text(node, known, shown)))


def document(node: str, known: Known, days: Mapping[str, Day]) -> Mapping[str, object]:
    """The same for programs."""
    return {
        "node": node,
        "goneAt": (known.history.gone_at if known.history else "") or None,
        "trend": trend(days),
        "days": days,
        "transitions": transitions(known),
    }


def transitions(known: Known) -> Sequence[Transition]:
    """Changes, oldest first: the report's, or those that were kept when the node's faults last changed."""
    if known.report is not None:
        return known.report.status.transitions
    record = known.history.record if known.history else None
    return record.transitions if record else []


def text(node: str, known: Known, days: Mapping[str, Day]) -> Iterator[str]:
    """The lines for people, 80 columns wide."""
    yield output.styled(node, output.TITLE)
    yield output.entry("now", _now(known))
    for at, line in enumerate(trend(days)):
        yield output.entry("" if at else "trend", line)
    if known.remark or not days:
        yield output.entry("days", known.remark or "no day has been recorded yet")
    lines = list(sparklines(days))
    if lines:
        yield ""
        yield from lines
    yield ""
    changes = transitions(known)
    yield "Changes, newest first:" if changes else "No change is recorded."
    for change in reversed(changes):
        yield output.entry(change.at, _of_change(change), indent=22)


def sparklines(days: Mapping[str, Day]) -> Iterator[str]:
    """A line for each value that varies, a character a day; none where the terminal cannot show them."""
    if not days or not _prints(BARS):
        return
    dates = [date.fromisoformat(text) for text in days]
    span = [min(dates) + timedelta(days=at) for at in range((max(dates) - min(dates)).days + 1)]
    drawn = False
    for field, name, unit in SERIES:
        values = [getattr(days.get(day.isoformat()), field, None) for day in span]
        line = bars(values)
        if line:
            drawn = True
            known = [value for value in values if value is not None]
            yield f"{name.rstrip(':')} {min(known):g} to {max(known):g} {unit}".rstrip()
            yield f"  {line}"
    if drawn:
        gap = f" ({GAP}: not measured)" if len(span) > len(days) else ""
        yield f"  {span[0].isoformat()} to {span[-1].isoformat()}, a character a day{gap}"


def bars(values: Sequence[float | None]) -> str:
    """One character for each value; empty where they are too few or hardly vary."""
    known = [value for value in values if value is not None]
    if len(known) < MIN_POINTS:
        return ""
    low, high = min(known), max(known)
    if high - low <= FLAT * abs(high):
        return ""
    step = (high - low) / (len(BARS) - 1)
    return "".join(GAP if value is None else BARS[round((value - low) / step)] for value in values)


def _known(cluster: Cluster, node: str) -> Known:
    body = cluster.find(REPORTS, node)
    report = parse_report(body) if body is not None else None
    try:
        result = cluster.find(HISTORIES, node)
    except NotThere:
        return Known(report, None, "this cluster has no NodeHistories: an older version is installed")
    kept = parse_node_history(result) if result is not None else None
    if report is not None and kept is not None and kept.node_uid not in ("", report.node_uid):
        return Known(
            report,
            None,
            "not shown: until this machine's first day is over, the NodeHistory is of one that had this name "
            f"before; `nodegauge ticket {node} --gone` has its faults",
        )
    return Known(report, kept)


def _last(days: Mapping[str, Day], count: int) -> dict[str, Day]:
    known = [day for day in sorted(days) if _is_date(day)]
    if not known:
        return {}
    first = (date.fromisoformat(known[-1]) - timedelta(days=count - 1)).isoformat()
    return {day: days[day] for day in known if day >= first}


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def _now(known: Known) -> str:
    gone = known.history.gone_at if known.history else ""
    record = known.history.record if known.history else None
    if known.report is None:
        last = f"; last {record.verdict.value}, as of {record.written_at}" if record else ""
        return f"the node is gone{f' since {gone}' if gone else ''}{last}"
    status = known.report.status
    taints = ", ".join(f"{t.key}={t.value}" for t in status.desired.taints) or "no taint"
    return f"{status.verdict.value}; {taints}"


def _of_change(change: Transition) -> str:
    run = f" ({change.probe} run {change.run})" if change.run else ""
    why = f": {change.why}" if change.why else ""
    return f"{change.what}: {change.before or 'none'} -> {change.to or 'none'}{why}{run}"


def _prints(characters: str) -> bool:
    """Whether standard output can show these."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
