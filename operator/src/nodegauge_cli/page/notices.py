"""What concerns many nodes at once, as `nodegauge status` says it: incidents, what holds taints back,
policies that do less than they could, people's overrides, and nodes that nobody reads.  Must not judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodegauge_cli.fleet import Fleet
from nodegauge_cli.page.model import Notice
from nodegauge_cli.standing import Standing
from nodegauge_cli.status import MODES, PolicyLine, Status, by_word, end_of, in_nodes, status_of
from nodegauge_judge import Severity
from nodegauge_operator.api.incident import Incident
from nodegauge_operator.core.usable import Lost

NAMED = 40
"""Nodes that a notice names; the table has all."""
OVERRIDES = {
    "healthy": "taken as healthy by a person",
    "leave-alone": "left alone for a person",
    "invalid": "with an override that is not in force",
}


def notices(fleet: Fleet) -> list[Notice]:
    """The worst first."""
    seen = status_of(fleet)
    return [
        *(_incident(fleet, known, each) for known in seen.policies for each in known.incidents),
        *_unread(seen),
        *(_many(nodes, "whose taint is held back", text=f"{why}.") for why, nodes in seen.held_by.items()),
        *(notice for known in seen.policies for notice in _policy(fleet.standings, known)),
        *_people(fleet.standings),
        *_others(seen),
    ]


def _many(nodes: Sequence[str], what: str, *, text: str = "", severity: Severity = Severity.WARN) -> Notice:
    return Notice(
        title=f"{in_nodes(len(nodes))} {what}",
        text=text,
        severity=severity,
        nodes=[*nodes[:NAMED]],
        count=len(nodes),
    )


def _incident(fleet: Fleet, policy: PolicyLine, incident: Incident) -> Notice:
    nodes = [
        each.node for each in fleet.standings if each.policy == policy.name and incident.cause in each.causes
    ]
    key, _, value = incident.group.partition("=")
    if key and fleet.nodes is not None:
        nodes = [name for name in nodes if name in fleet.nodes and fleet.nodes[name].labels.get(key) == value]
    where = f" of {incident.group}" if incident.group else ""
    text = f"Incident of policy {policy.name}: further taints of this cause wait until it ends. To end it: "
    return Notice(
        title=f"{incident.cause} on {in_nodes(incident.nodes)}{where} at once",
        text=f"{text}`{end_of(incident, policy.name)}`.",
        severity=Severity.FAIL,
        since=incident.since,
        cause=incident.cause,
        nodes=sorted(nodes)[:NAMED],
        count=incident.nodes,
    )


def _unread(seen: Status) -> Iterator[Notice]:
    if seen.unread:
        first = min(seen.unread)
        notice = _many(
            sorted(seen.unread), "unread", text=f"{first}: {seen.unread[first]}", severity=Severity.FAIL
        )
        notice.cause = Lost.UNREAD.value
        yield notice


def _policy(standings: Sequence[Standing], policy: PolicyLine) -> Iterator[Notice]:
    nodes = sorted(each.node for each in standings if each.policy == policy.name)
    for problem in policy.problems:
        yield Notice(title=f"Policy {policy.name}", text=problem, nodes=nodes[:NAMED], count=len(nodes))
    if says := MODES.get(policy.mode, ""):
        title = f"Policy {policy.name} is in mode {policy.mode}: {says}"
        yield Notice(title=title, nodes=nodes[:NAMED], count=len(nodes))


def _people(standings: Sequence[Standing]) -> Iterator[Notice]:
    for kind, nodes in by_word((each.override, each.node) for each in standings).items():
        yield _many(nodes, OVERRIDES.get(kind, kind))


def _others(seen: Status) -> Iterator[Notice]:
    if len(seen.installations) > 1:
        known = ", ".join(f"{name} ({count})" for name, count in sorted(seen.installations.items()))
        yield Notice(title="Reports of several installations", text=f"Nodes by installation: {known}.")
    if seen.unselected:
        yield Notice(
            title=f"{in_nodes(seen.unselected)} with GPUs that no policy selects", count=seen.unselected
        )
