"""All objects of a fleet, taken up one by one and kept small, and the page's data made of them.

A cluster of 5,000 nodes has some hundred MB of NodeReadings: of each only what the page shows is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from nodegauge_cli.cluster import NODES, OF_OURS, POLICIES, READINGS, REPORTS, Cluster, NoCluster
from nodegauge_cli.fleet import fleet_of, has_gpus
from nodegauge_cli.judging import Criteria
from nodegauge_cli.page import history
from nodegauge_cli.page.links import numbered
from nodegauge_cli.page.model import FleetData, NodeData
from nodegauge_cli.page.nodes import node_data, unseen
from nodegauge_cli.page.notices import notices
from nodegauge_cli.page.reading import OfReading, of_reading
from nodegauge_cli.reported import Unusable
from nodegauge_cli.standing import Standing
from nodegauge_operator import names
from nodegauge_operator.api.chassis import Chassis, parse_chassis
from nodegauge_operator.api.node_history import NodeHistory, all_days, parse_node_history
from nodegauge_operator.api.policy import Policy, PolicyInvalid, PolicySpec, parse
from nodegauge_operator.api.report import Report, parse_report
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core.model import NodeView, node_view

HISTORIES = f"{OF_OURS}/{names.HISTORY_PLURAL}"
NODE_KIND = "Node"
CHASSIS = f"{OF_OURS}/{names.CHASSIS_PLURAL}"
POLICY = Policy(name="", uid="", generation=0, spec=msgspec.convert({"nodeSelector": {}}, PolicySpec))
"""For nodes whose policy was not read."""


class Fleet:
    """Objects in any order, one of each kind a node."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._readings: dict[str, OfReading] = {}
        self._chassis: dict[str, Chassis] = {}
        self._histories: dict[str, NodeHistory] = {}
        self._nodes: dict[str, NodeView] = {}
        self._policies: dict[str, Policy] = {}
        self._criteria: dict[str, Criteria] = {}
        self._bodies: list[dict[str, Any]] = []
        self._problems: list[str] = []

    def add(self, body: Mapping[str, Any]) -> None:
        """Take an object up; one of a kind that the page does not show is passed over."""
        kind = str(body.get("kind", ""))
        take = {
            names.REPORT_KIND: self._report,
            names.READING_KIND: self._reading,
            names.CHASSIS_KIND: self._bmc,
            names.HISTORY_KIND: self._history,
            NODE_KIND: self._node,
            names.POLICY_KIND: self._policy,
        }.get(kind)
        metadata = body.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if take is None:
            return
        if not isinstance(name, str):
            self._problems.append(f"a {kind} without metadata.name")
            return
        take(name, body)

    def lacks(self, problem: str) -> None:
        """Say on the page what could not be read, and why."""
        self._problems.append(problem)

    @property
    def nodes(self) -> int:
        """Nodes with a report."""
        return len(self._reports)

    def _report(self, name: str, body: Mapping[str, Any]) -> None:
        self._reports[name] = parse_report(body)

    def _reading(self, name: str, body: Mapping[str, Any]) -> None:
        self._readings[name] = of_reading(body)

    def _bmc(self, name: str, body: Mapping[str, Any]) -> None:
        self._chassis[name] = parse_chassis(body)

    def _history(self, name: str, body: Mapping[str, Any]) -> None:
        self._histories[name] = parse_node_history(body)

    def _node(self, name: str, body: Mapping[str, Any]) -> None:
        self._nodes[name] = node_view(body)

    def _policy(self, name: str, body: Mapping[str, Any]) -> None:
        self._bodies.append(dict(body))
        try:
            self._policies[name] = parse(dict(body))
            self._criteria[name] = Criteria.from_spec(body.get("spec") or {})
        except (PolicyInvalid, Unusable) as error:
            self._problems.append(f"{names.POLICY_KIND} {name}: {error}")

    def data(self, *, title: str, made_at: str, source: str) -> FleetData:
        """What the page shows."""
        usual = Criteria.from_spec({})
        fleet = fleet_of(
            self._reports.values(), policies=self._bodies, nodes=self._nodes or None, now=unstamp(made_at)
        )
        standings = sorted(fleet.standings, key=lambda standing: standing.node)
        nodes = [self._of_node(standing, fleet.reports, usual) for standing in standings]
        matrices = numbered((node, self._readings.get(node.name, OfReading()).links) for node in nodes)
        return FleetData(
            title=title,
            made_at=made_at,
            source=source,
            version=own_version(),
            nodes=nodes,
            matrices=matrices,
            trend=history.shares(each.days for each in self._histories.values()),
            problems=[*self._problems, *self._gaps()],
            notices=notices(fleet),
        )

    def _of_node(self, standing: Standing, reports: Mapping[str, Report], usual: Criteria) -> NodeData:
        name = standing.node
        report = reports.get(name)
        if report is None:
            return unseen(standing)
        followed = report.status.policy
        past = self._histories.get(name)
        return node_data(
            report,
            standing=standing,
            policy=self._policies.get(followed, POLICY),
            criteria=self._criteria.get(followed, usual),
            reading=self._readings.get(name, OfReading()),
            chassis=self._chassis.get(name),
            days=all_days(past, report.status.days),
        )

    def _gaps(self) -> list[str]:
        """What the page cannot say because objects are missing."""
        with_gpus = {name for name, node in self._nodes.items() if has_gpus(node)}
        without = sorted((self._readings.keys() | with_gpus) - self._reports.keys())
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        gaps = [f"No {names.REPORT_KIND} of {', '.join(without[:5])}{more}."] if without else []
        if not self._nodes:
            gaps.append("No Node was read: cordoned nodes and nodes that are not Ready count as usable.")
        if not self._policies:
            gaps.append("No policy was read: the defaults stand for its thresholds and limits.")
        return gaps


def read_cluster(cluster: Cluster) -> Fleet:
    """All that the page shows, in pages of each collection.  Raises `NoCluster` if there are no reports to
    be had; what else cannot be read is said on the page."""
    fleet = Fleet()
    for path in (REPORTS, READINGS, POLICIES, HISTORIES, CHASSIS, NODES):
        try:
            for body in cluster.each(path):
                fleet.add({"kind": _KINDS[path]} | body)  # a member of a list has no kind
        except NoCluster as error:
            if path == REPORTS:
                raise
            fleet.lacks(f"{_KINDS[path]}: {error.message}")
    return fleet


_KINDS = {
    REPORTS: names.REPORT_KIND,
    READINGS: names.READING_KIND,
    POLICIES: names.POLICY_KIND,
    HISTORIES: names.HISTORY_KIND,
    CHASSIS: names.CHASSIS_KIND,
    NODES: NODE_KIND,
}


def own_version() -> str:
    try:
        return version("nodegauge")
    except PackageNotFoundError:  # the archive for Ansible holds packages that are not installed
        return ""
