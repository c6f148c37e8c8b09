"""`nodegauge override`: overrule nodegauge on one node for a time, end that, or list what is in force.

It writes the four annotations that the operator reads (`core.override`), and only such as it would accept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time

import click

from nodegauge_cli import output
from nodegauge_cli.cluster import NODES, REPORTS, Cluster, NoCluster, Object, context_option
from nodegauge_cli.completion import called, node_names
from nodegauge_operator import names
from nodegauge_operator.api.override import HEALTHY, LEAVE_ALONE
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.report import parse_report
from nodegauge_operator.api.times import stamp, unstamp
from nodegauge_operator.core.override import (
    DAY,
    MAX_AHEAD_DAYS,
    MAX_BY,
    MAX_REASON,
    RFC_3339,
    annotations_of,
    override_at,
)

KEYS = (names.OVERRIDE, names.OVERRIDE_UNTIL, names.OVERRIDE_BY, names.OVERRIDE_REASON)
FOLLOWS = {
    HEALTHY: "No fault sets a taint on it, and its label health says warn at worst. It is measured as "
    "before.",
    LEAVE_ALONE: "No run starts on it, and nothing is written to it: labels and taints stay as they are, and "
    "a taint that you remove stays away.",
}
"""What the operator does, by kind (docs/runbook.md, "How to overrule nodegauge")."""
AFTERWARDS = "After it, a fault that is still there sets its taint again, within budget and rate."


@click.command()
@click.argument("node", required=False, shell_complete=node_names)
@click.argument("kind", required=False, type=click.Choice([HEALTHY, LEAVE_ALONE]))
@click.option("--until", help=f"End: 12h, 1d, or 2027-01-31T12:00:00Z; at most {MAX_AHEAD_DAYS} days ahead.")
@click.option("--reason", help="Why, for whoever reads the report.")
@click.option("--by", help="Who takes the decision (default: the user of the kubeconfig).")
@click.option("--end", is_flag=True, help="End the override of NODE now.")
@click.option(
    "--list", "listing", is_flag=True, help="Show every override, also those that are not in force."
)
@context_option
def override(
    node: str | None,
    kind: str | None,
    until: str | None,
    reason: str | None,
    by: str | None,
    end: bool,
    listing: bool,
    context: str,
) -> None:
    """Overrule nodegauge on one node until a time.

    healthy: no fault of the node sets a taint. leave-alone: no run starts on it, and nothing is written to
    it. Both end by themselves; a fault that is still there then sets its taint again.
    """
    given = [name for name, value in (("--until", until), ("--reason", reason), ("--by", by)) if value]
    cluster = Cluster(context=context)
    with output.quiet_pipe():
        if listing:
            _refuse("--list", [*(["NODE"] if node else []), *given, *(["--end"] if end else [])])
            click.echo(_listed(cluster))
        elif not node:
            raise click.UsageError("name a NODE, or pass --list")
        elif end:
            _refuse("--end", [*([kind] if kind else []), *given])
            click.echo(_ended(cluster, node))
        else:
            annotations = validated(kind, until, reason, by or _user(context), now=time.time())
            click.echo(_written(cluster, node, annotations))


def validated(
    kind: str | None, until: str | None, reason: str | None, by: str, *, now: float
) -> dict[str, str]:
    """The annotations; each value is one that the operator accepts.  Raises `click.UsageError`."""
    if not kind:
        raise click.UsageError(f"say what holds for the node: {HEALTHY} or {LEAVE_ALONE}")
    if not until:
        raise click.UsageError("--until is missing: write 12h, 1d or a time; it ends by itself then")
    ends = end_of(until, now=now)
    for option, text, most in (("--reason", reason or "", MAX_REASON), ("--by", by, MAX_BY)):
        if not text.strip():
            raise click.UsageError(
                f"{option} is missing or empty: the report shows who decided this, and why"
            )
        if len(text.encode()) > most:
            raise click.BadParameter(f"{len(text.encode())} bytes; at most {most}", param_hint=option)
    texts = (kind, stamp(ends), by.strip(), (reason or "").strip())
    annotations = dict(zip(KEYS, texts, strict=True))
    meant = override_at(annotations_of(annotations), now=now)
    if meant is None or meant.problem:
        raise click.UsageError(meant.problem if meant else "it says nothing")
    return annotations


def end_of(text: str, *, now: float) -> float:
    """When an override ends, epoch seconds, from a duration or a time.  Raises `click.BadParameter`."""
    days = re.fullmatch(r"(\d{1,4})d(.*)", text)
    try:
        if RFC_3339.fullmatch(text):
            ends = unstamp(text)
        elif days:
            ends = now + int(days[1]) * DAY + (seconds(days[2]) if days[2] else 0.0)
        else:
            ends = now + seconds(text)
    except ValueError:
        wrong = f"{text!r} is neither a duration (12h, 1d) nor a time with its zone (2027-01-31T12:00:00Z)"
        raise click.BadParameter(wrong, param_hint="--until") from None
    if ends <= now:
        raise click.BadParameter(f"{stamp(ends) or text} is over: write a later time", param_hint="--until")
    if ends > now + MAX_AHEAD_DAYS * DAY:
        most = f"at most {MAX_AHEAD_DAYS}d: write an earlier time, and renew it"
        raise click.BadParameter(f"{text} is too far ahead: {most}", param_hint="--until")
    return ends


def _refuse(option: str, others: list[str]) -> None:
    if others:
        raise click.UsageError(f"{option} goes without {', '.join(others)}")


def _user(context: str) -> str:
    """The name of the kubeconfig's user; empty where there is no kubectl or no such user."""
    program = shutil.which("kubectl")
    if program is None:
        return ""
    select = [f"--context={context}"] if context else []
    command = [
        program,
        *select,
        "config",
        "view",
        "--minify",
        "--output=jsonpath={.contexts[0].context.user}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _written(cluster: Cluster, node: str, annotations: dict[str, str]) -> str:
    before = _annotated(cluster, node)
    _patch(cluster, node, dict(annotations))
    kind, until, by, reason = (annotations[key] for key in KEYS)
    holds = "taken as healthy" if kind == HEALTHY else "left alone"
    lines = [f"{node} is {holds} until {until}, by {by}: {reason}"]
    if before:
        lines.append(f"This replaces {before}.")
    try:
        if cluster.find(REPORTS, node) is None:
            lines.append("nodegauge has no report of this node: a policy has to select it first.")
    except NoCluster as error:  # what was written stands
        lines.append(f"Whether nodegauge looks after it was not read: {error.message.splitlines()[0]}")
    lines.append(f"{FOLLOWS[kind]} {AFTERWARDS}")
    return "\n".join([*map(output.paragraph, lines), f"To end it now: {called()} override {node} --end"])


def _ended(cluster: Cluster, node: str) -> str:
    before = _annotated(cluster, node)
    if not before:
        return f"{node} has no override."
    _patch(cluster, node, dict.fromkeys(KEYS))
    return output.paragraph(f"Ended on {node}: {before}. {AFTERWARDS}")


def _annotated(cluster: Cluster, node: str) -> str:
    """The override that the node has now, in words; empty for none."""
    body = cluster.get(f"{NODES}/{node}")
    known = annotations_of(body["metadata"].get("annotations") or {})
    return f"{known.kind} until {known.until}, by {known.by}: {known.reason}" if known else ""


def _patch(cluster: Cluster, node: str, annotations: dict[str, str | None]) -> None:
    cluster.patch("nodes", node, {"metadata": {"annotations": annotations}})


def _listed(cluster: Cluster) -> str:
    rows = [row for body in cluster.each(REPORTS) if (row := _row(body)) is not None]
    if not rows:
        return "No node has an override."
    return output.table(("NODE", "OVERRIDE", "UNTIL", "BY", "REASON"), rows)


def _row(body: Object) -> tuple[str | output.Cell, ...] | None:
    report = parse_report(body)
    known = report.status.override
    if known is None:
        return None
    why = output.Cell(f"not in force: {known.problem}", output.BAD) if known.problem else known.reason
    return report.name, known.kind, known.until, known.by, why
