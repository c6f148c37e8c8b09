"""All objects of a fleet, taken up one by one and kept small, and the page's data made of them.

A cluster of 5,000 nodes has some hundred MB of NodeReadings: of each only what the page shows is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from nodegauge_cli.judging import Criteria
from nodegauge_cli.page import history
from nodegauge_cli.page.model import FleetData, Links, NodeData
from nodegauge_cli.page.nodes import node_data
from nodegauge_cli.page.reading import OfReading, of_reading
from nodegauge_cli.reported import Unusable
from nodegauge_operator import names
from nodegauge_operator.api.chassis import Chassis, parse_chassis
from nodegauge_operator.api.report import Report, parse_report

HISTORY_KIND = "NodeHistory"


class Fleet:
    """Objects in any order, one of each kind a node."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}
        self._readings: dict[str, OfReading] = {}
        self._chassis: dict[str, Chassis] = {}
        self._days: dict[str, dict[date, history.Day]] = {}
        self._criteria: dict[str, Criteria] = {}
        self._problems: list[str] = []

    def add(self, body: Mapping[str, Any]) -> None:
        """Take an object up; one of a kind that the page does not show is passed over."""
        kind = str(body.get("kind", ""))
        take = {
            names.REPORT_KIND: self._report,
            names.READING_KIND: self._reading,
            names.CHASSIS_KIND: self._bmc,
            HISTORY_KIND: self._history,
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
        self._days[name] = history.days_of(body)

    def _policy(self, name: str, body: Mapping[str, Any]) -> None:
        try:
            self._criteria[name] = Criteria.from_spec(body.get("spec") or {})
        except Unusable as error:
            self._problems.append(f"{names.POLICY_KIND} {name}: {error}")

    def data(self, *, title: str, made_at: str, source: str) -> FleetData:
        """What the page shows."""
        usual = Criteria.from_spec({})
        matrices: dict[bytes, int] = {}
        known: list[Links] = []
        nodes = [self._node(name, usual) for name in sorted(self._reports)]
        for node in nodes:
            links = self._readings.get(node.name, OfReading()).links
            if links is not None:
                key = msgspec.json.encode(links)
                if key not in matrices:
                    matrices[key] = len(known)
                    known.append(links)
                node.links = matrices[key]
        return FleetData(
            title=title,
            made_at=made_at,
            source=source,
            version=_version(),
            nodes=nodes,
            matrices=known,
            trend=history.trend(self._days.values()),
            problems=[*self._problems, *self._without_report()],
        )

    def _node(self, name: str, usual: Criteria) -> NodeData:
        report = self._reports[name]
        return node_data(
            report,
            reading=self._readings.get(name, OfReading()),
            chassis=self._chassis.get(name),
            days=self._days.get(name, {}),
            criteria=self._criteria.get(report.status.policy, usual),
        )

    def _without_report(self) -> list[str]:
        """Nodes that wrote a reading, and of which the operator says nothing."""
        without = sorted(self._readings.keys() - self._reports.keys())
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        named = f"{', '.join(without[:5])}{more}"
        return [f"no {names.REPORT_KIND} is there of {named}"] if without else []


def _version() -> str:
    try:
        return version("nodegauge")
    except PackageNotFoundError:  # the archive for Ansible holds packages that are not installed
        return ""
