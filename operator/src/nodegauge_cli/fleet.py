"""All nodes that nodegauge looks after, read once for a command: reports, policies and, with the right to
read them, the nodes themselves.

The ClusterRole nodegauge-view has no right to read nodes.  Without it a command says what it did not see:
nodes without a report, and whether a node is Ready or cordoned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from nodegauge_cli.cluster import NODES, POLICIES, REPORTS, Cluster, NoCluster
from nodegauge_cli.standing import UNREAD, Standing, policies_of, standing_of
from nodegauge_operator.api.policy import Policy, ranked
from nodegauge_operator.api.report import Report, ReportStatus, parse_report
from nodegauge_operator.api.selector import Operator, Requirement, match_expressions
from nodegauge_operator.core.gpu_eligibility import COUNT, PRODUCT
from nodegauge_operator.core.model import NodeView, node_view
from nodegauge_operator.core.usable import usable

NOT_SEEN = "Nodes without a report, and which nodes are cordoned or not Ready, could not be read"


class Fleet(Struct, frozen=True, kw_only=True):
    """What was read."""

    standings: list[Standing]
    """One of each node that has a report, or that a policy selects."""
    reports: dict[str, Report]
    """By name the reports of nodes that are there."""
    policies: list[dict[str, Any]]
    """The policies as the API has them."""
    nodes: dict[str, NodeView] | None
    """Nodes by name; None where they could not be read."""
    not_seen: str = ""
    """Why the nodes could not be read, and what is not known without them; empty if they were."""
    unselected: int = 0
    """Nodes with GPUs that no policy selects."""


def read_fleet(cluster: Cluster, *, now: float, selector: str = "") -> Fleet:
    """The fleet at `now`, epoch seconds.  `selector`: only nodes with these labels of others'; it needs the
    right to read nodes.  Raises `NoCluster`."""
    policies = list(cluster.each(POLICIES))
    nodes, not_seen = _nodes(cluster, selector)
    reports = [parse_report(body) for body in cluster.each(REPORTS)]
    if selector and nodes is not None:
        reports = [report for report in reports if report.name in nodes]
    return fleet_of(reports, policies=policies, nodes=nodes, now=now, not_seen=not_seen)


def fleet_of(
    reports: Iterable[Report],
    *,
    policies: list[dict[str, Any]],
    nodes: dict[str, NodeView] | None,
    now: float,
    not_seen: str = "",
) -> Fleet:
    """The fleet that these objects are at `now`, epoch seconds; `nodes`, `not_seen`: as in `Fleet`."""
    known_policies = policies_of(policies)
    fresh = [report for report in reports if _is_of(report, nodes)]
    standings = [
        standing_of(
            report, known_policies.get(report.status.policy), now=now, node=(nodes or {}).get(report.name)
        )
        for report in fresh
    ]
    known = {report.name: report for report in fresh}
    unknown = [node for node in (nodes or {}).values() if node.name not in known]
    selected = list(_unseen(unknown, known_policies))
    with_gpus = [node for node in unknown if has_gpus(node)]
    chosen = {standing.node for standing in selected}
    return Fleet(
        standings=[*standings, *selected],
        reports=known,
        policies=policies,
        nodes=nodes,
        not_seen=not_seen,
        unselected=sum(1 for node in with_gpus if node.name not in chosen),
    )


def _nodes(cluster: Cluster, selector: str) -> tuple[dict[str, NodeView] | None, str]:
    """The nodes, or why they could not be read; a selector needs them."""
    query = {"labelSelector": selector} if selector else {}
    try:
        views = [node_view(body) for body in cluster.each(NODES, **query)]
    except NoCluster as error:
        if selector:
            raise
        why = error.message.partition("\n")[0]
        return None, f"{NOT_SEEN}: {why}"
    return {view.name: view for view in views}, ""


def _is_of(report: Report, nodes: Mapping[str, NodeView] | None) -> bool:
    """Whether the report is of the node that has its name now, not of one before."""
    node = (nodes or {}).get(report.name)
    return node is None or not report.node_uid or node.uid == report.node_uid


def _unseen(nodes: Iterable[NodeView], policies: Mapping[str, Policy]) -> Iterator[Standing]:
    """Nodes that a policy selects and that have no report."""
    for node in nodes:
        chosen = ranked(policies.values(), node.selected_by)
        if chosen and has_gpus(node):
            count = usable(ReportStatus(), node, chosen[0])
            yield Standing(
                node=node.name,
                health=UNREAD,
                why_unread="Never read: it has no NodeReport.",
                gpu_class=count.klass,
                gpus_had=count.gpus,
                lost=count.lost,
                policy=chosen[0].name,
                mode=chosen[0].spec.mode.value,
            )


def has_gpus(node: NodeView) -> bool:
    """Whether the cluster or a label counts GPUs there."""
    return node.gpu_capacity not in ("", "0") or COUNT in node.labels or PRODUCT in node.labels


def matches(labels: Mapping[str, str], selector: str) -> bool:
    """Whether labels match a selector as kubectl takes it.  Raises `ValueError` for a text that is none."""
    return all(holds(labels, part) for part in match_expressions(selector))


def keys_of(selector: str) -> list[str]:
    """The label keys that it asks for.  Raises `ValueError` for a text that is none."""
    return [str(part["key"]) for part in match_expressions(selector)]


def holds(labels: Mapping[str, str], part: Mapping[str, Any]) -> bool:
    """One match expression; `Gt` and `Lt` compare whole numbers, as Kubernetes does."""
    key, values = str(part["key"]), [str(value) for value in part.get("values", ())]
    if part["operator"] not in ("Gt", "Lt"):
        return Requirement(key=key, operator=Operator(part["operator"]), values=values).matches(labels)
    try:
        value, limit = int(labels.get(key, "")), int(values[0])
    except (ValueError, IndexError):
        return False
    return value > limit if part["operator"] == "Gt" else value < limit
