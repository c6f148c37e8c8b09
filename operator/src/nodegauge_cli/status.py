"""`nodegauge status`: the fleet on one screen of 80 columns."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
from msgspec import Struct

from nodegauge_cli.cluster import Cluster, context_option
from nodegauge_cli.fleet import Fleet, read_fleet
from nodegauge_cli.output import (
    BAD,
    GOOD,
    TITLE,
    WORTH_A_LOOK,
    age,
    dump,
    entry,
    output_option,
    table,
)
from nodegauge_cli.standing import UNREAD, Standing
from nodegauge_operator import names
from nodegauge_operator.api.incident import Incident, incidents_of
from nodegauge_operator.api.times import unstamp

BREAKER_OPEN = "BreakerOpen"
"""The condition of a policy that is well while it is False; its incidents are listed one by one."""
MODES = {"Observe": "nothing is written to nodes", "Paused": "nothing is read"}
"""Those that keep a policy from doing all that it could, and what they do not do."""
NAMED = 5
"""Nodes that a line names; the others are a number."""
ROWS = 12
"""Rows of a table, so that one screen holds them; further ones are added up."""
EXIT_UNWELL = 3
"""With `--exit-code`: GPUs are lost, or a policy does not do what it says."""


class Loss(Struct, frozen=True, rename="camel", kw_only=True):
    """GPUs of a class, or lost to a cause."""

    name: str
    nodes: int
    gpus: int
    usable: int = 0


class PolicyLine(Struct, frozen=True, rename="camel", kw_only=True):
    """A policy, and what keeps it from doing what it says."""

    name: str
    mode: str
    nodes: int
    ready: str = ""
    """Status of its condition Ready; empty if nobody has written one."""
    problems: list[str] = []
    """Conditions that are not as they should be, with their messages."""
    incidents: list[Incident] = []
    """Those that are open."""


class Status(Struct, frozen=True, rename="camel", kw_only=True):
    """The fleet at one moment."""

    nodes: int
    gpus: int
    usable: int
    """GPUs that can be used: read lately, without a confirmed fault, open to pods."""
    classes: list[Loss]
    causes: list[Loss]
    health: dict[str, int]
    """Nodes by `pass`, `warn`, `fail` and `unread`."""
    held_back: list[str]
    """Nodes whose taint waits for a budget, a rate or the end of an incident."""
    held_by: dict[str, list[str]]
    """The same nodes by what holds them back, in words."""
    unread: dict[str, str]
    """By node, why nothing is known of it now."""
    uncounted: list[str]
    """Nodes of which nobody knows how many GPUs they have."""
    oldest: str = ""
    """The node whose reading is the oldest."""
    oldest_read_at: str = ""
    """That reading's time (RFC 3339, UTC)."""
    overrides: dict[str, int]
    """Nodes by kind of override; `invalid` for those that are not in force."""
    policies: list[PolicyLine]
    installations: dict[str, int]
    """Nodes by the installation that writes their report."""
    unselected: int = 0
    """Nodes with GPUs that no policy selects."""
    not_seen: str = ""
    """What could not be read, and why."""


@click.command()
@click.option("--exit-code", is_flag=True, help=f"Exit with {EXIT_UNWELL} unless every GPU can be used.")
@output_option("json", "yaml")
@context_option
def status(exit_code: bool, form: str | None, context: str) -> None:
    """The fleet on one screen: usable GPUs, what the others are lost to, and what nobody sees.

    Needs the ClusterRole nodegauge-view; with the right to list nodes it also counts nodes without a report,
    and those that are cordoned or not Ready. Exit codes: 0, 1 if the cluster cannot be asked, 2 for wrong
    usage.
    """
    now = time.time()
    seen = status_of(read_fleet(Cluster(context=context), now=now))
    if form:
        click.echo(dump(seen, form))
    else:
        click.echo("\n".join(lines(seen, now=now)))
    well = (
        seen.usable == seen.gpus and not seen.unread and all(known.ready == "True" for known in seen.policies)
    )
    if exit_code and not (well and seen.nodes):
        sys.exit(EXIT_UNWELL)


def status_of(fleet: Fleet) -> Status:
    """What a screen says of the fleet."""
    standings = fleet.standings
    read = sorted((known.read_at, known.node) for known in standings if known.read_at)
    followers = Counter(known.policy for known in standings)
    return Status(
        nodes=len(standings),
        gpus=sum(known.gpus_had for known in standings),
        usable=sum(known.usable for known in standings),
        classes=_by_class(standings),
        causes=_by_cause(standings),
        health=dict(Counter(known.health for known in standings)),
        held_back=sorted(known.node for known in standings if known.held_back),
        held_by=by_word((known.held_by, known.node) for known in standings),
        unread={known.node: known.why_unread for known in standings if known.why_unread},
        uncounted=sorted(known.node for known in standings if not known.gpus_had),
        oldest=read[0][1] if read else "",
        oldest_read_at=read[0][0] if read else "",
        overrides=dict(Counter(known.override for known in standings if known.override)),
        policies=[_policy(body, followers) for body in fleet.policies],
        installations=dict(Counter(known.installation for known in standings if known.installation)),
        unselected=fleet.unselected,
        not_seen=fleet.not_seen,
    )


def by_word(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names of nodes by a word; those with an empty one are left out."""
    by: dict[str, list[str]] = {}
    for word, node in sorted(pairs):
        if word:
            by.setdefault(word, []).append(node)
    return by


def _by_class(standings: Iterable[Standing]) -> list[Loss]:
    nodes: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    usable: Counter[str] = Counter()
    for known in standings:
        nodes[known.gpu_class] += 1
        gpus[known.gpu_class] += known.gpus_had
        usable[known.gpu_class] += known.usable
    return [
        Loss(name=name, nodes=nodes[name], gpus=count, usable=usable[name])
        for name, count in gpus.most_common()
    ]


def _by_cause(standings: Iterable[Standing]) -> list[Loss]:
    nodes: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    for known in standings:
        for cause, lost in known.lost.items():
            nodes[cause] += 1
            gpus[cause] += lost
    return [Loss(name=cause, nodes=nodes[cause], gpus=lost) for cause, lost in gpus.most_common()]


def _policy(body: Mapping[str, Any], followers: Mapping[str, int]) -> PolicyLine:
    name, spec, state = body["metadata"]["name"], body.get("spec") or {}, body.get("status") or {}
    conditions = {known.get("type", ""): known for known in state.get("conditions") or ()}
    problems = [
        f"{kind} is False: {known.get('reason')}: {known.get('message', '')}"
        for kind, known in conditions.items()
        if known.get("status") == "False" and kind != BREAKER_OPEN
    ]
    mode = str(spec.get("mode", "Enforce"))
    paused = (spec.get("budget") or {}).get("concurrentProbes") in (0, "0%")
    return PolicyLine(
        name=name,
        mode="Paused" if paused else mode,
        nodes=followers.get(name, 0),
        ready=(conditions.get("Ready") or {}).get("status", ""),
        problems=problems,
        incidents=[incident for incident in incidents_of(dict(state)) if not incident.closed_at],
    )


def lines(seen: Status, *, now: float) -> Iterator[str]:
    """The status as text; `now`: epoch seconds."""
    if not seen.nodes:
        yield entry("nodes", "nodegauge looks after no node: `kubectl get gpuvalidationpolicies`")
    share = f" ({100 * seen.usable / seen.gpus:.1f} %)" if seen.gpus else ""
    style = GOOD if seen.gpus and seen.usable == seen.gpus else WORTH_A_LOOK
    yield entry("usable", f"{seen.usable} of {seen.gpus} GPUs{share}, {in_nodes(seen.nodes)}", style=style)
    health = [
        f"{seen.health[word]} {word}" for word in ("pass", "warn", "fail", UNREAD) if word in seen.health
    ]
    yield entry("nodes", ", ".join(health) or "none")
    if seen.oldest:
        read = age(now - unstamp(seen.oldest_read_at))
        yield entry("oldest", f"reading: {seen.oldest}, {seen.oldest_read_at} ({read} ago)")
    yield ""
    yield from _tables(seen)
    yield from _gaps(seen)
    yield ""
    for known in seen.policies:
        yield from _policy_lines(known)
    if not seen.policies:
        yield entry("policies", "none: nothing is read", style=WORTH_A_LOOK)
    if len(seen.installations) > 1:
        owners = ", ".join(
            f"{name} ({in_nodes(count)})" for name, count in sorted(seen.installations.items())
        )
        yield entry("foreign", f"reports of several installations: {owners}", style=WORTH_A_LOOK)


def _tables(seen: Status) -> Iterator[str]:
    if seen.classes:
        rows = [[row.name, str(row.nodes), str(row.gpus), str(row.usable)] for row in _few(seen.classes)]
        yield table(("CLASS", "NODES", "GPUS", "USABLE"), rows)
        yield ""
    if seen.causes:
        rows = [[row.name, str(row.nodes), str(row.gpus)] for row in _few(seen.causes)]
        yield table(("LOST TO", "NODES", "GPUS"), rows)
        yield ""


def _few(rows: list[Loss]) -> list[Loss]:
    """The first rows, and one for all the others."""
    if len(rows) <= ROWS:
        return rows
    rest = rows[ROWS - 1 :]
    added = Loss(
        name=f"{len(rest)} more",
        nodes=sum(row.nodes for row in rest),
        gpus=sum(row.gpus for row in rest),
        usable=sum(row.usable for row in rest),
    )
    return [*rows[: ROWS - 1], added]


def _gaps(seen: Status) -> Iterator[str]:
    """What nobody sees, or what waits."""
    for why, nodes in seen.held_by.items():
        yield entry("held back", f"{_named(nodes)}: {why}", style=WORTH_A_LOOK)
    if seen.unread:
        yield entry("unread", _named(sorted(seen.unread)), style=BAD)
        first = min(seen.unread)
        yield entry("", f"{first}: {seen.unread[first]}")
    if seen.uncounted:
        yield entry("uncounted", f"GPUs of {_named(seen.uncounted)}", style=WORTH_A_LOOK)
    if seen.overrides:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(seen.overrides.items()))
        yield entry("overrides", kinds, style=WORTH_A_LOOK)
    if seen.unselected:
        yield entry("unwatched", f"{in_nodes(seen.unselected)} with GPUs that no policy selects")
    if seen.not_seen:
        yield entry("not seen", seen.not_seen, style=WORTH_A_LOOK)


def _policy_lines(known: PolicyLine) -> Iterator[str]:
    ready = {"True": "Ready", "False": "NOT Ready", "": "without status: no operator has read it"}
    says = MODES.get(known.mode, "")
    text = f"{known.name}: {known.mode}{f' ({says})' if says else ''}, {in_nodes(known.nodes)}"
    well = known.ready == "True" and not says
    style = TITLE if well else WORTH_A_LOOK
    yield entry("policy", f"{text}, {ready.get(known.ready, known.ready)}", style=style)
    for problem in known.problems:
        yield entry("", problem, style=WORTH_A_LOOK)
    for incident in known.incidents:
        where = f" of {incident.group}" if incident.group else ""
        yield entry(
            "incident",
            f"{incident.cause} on {in_nodes(incident.nodes)}{where} since {incident.since}; to end it: "
            f"`{end_of(incident, known.name)}`",
            style=BAD,
        )


def end_of(incident: Incident, policy: str) -> str:
    """The command that ends it."""
    return f"kubectl annotate gpuvalidationpolicy {policy} {names.CLOSE_INCIDENT}={incident.id} --overwrite"


def _named(nodes: list[str]) -> str:
    more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
    return f"{in_nodes(len(nodes))}: {', '.join(nodes[:NAMED])}{more}"


def in_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} node" if count == 1 else f"{count} nodes"
