"""The Grafana dashboard: each query runs in the engine of Prometheus on what the demo served.

Grafana itself is not run here: its pages are in no package index that the project may use.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

from support.chart import ALL, Helm, only
from support.promtool import LENGTH, Promtool, dashboard, healthy, panel_queries, scraped

DEMO_ENDS = 12
"""The minute of the demo's last step."""
RARE = {'nodegauge_reconcile_failures_total{kind="Conflict"}': [str(minute // 3) for minute in range(LENGTH)]}
"""A series that a demo without trouble does not have."""
VARIABLES = {"$policy": ".*", "$__rate_interval": "5m"}


def filled(query: str) -> str:
    """With the variables as Grafana fills them in, every policy chosen."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def test_queries_show_what_the_demo_served(tmp_path: Path) -> None:
    """Each answers with samples, in every panel."""
    queries = [f"count({filled(query)}) > bool 0" for query in panel_queries().values()]
    expected = {(query, DEMO_ENDS): {"{}": 1.0} for query in queries}
    assert Promtool(tmp_path).query(scraped(healthy() | RARE), expected) == ""


def test_the_numbers_are_those_of_the_demo(tmp_path: Path) -> None:
    """Sixteen nodes of which twelve pass or warn, and the four taints of its last step."""
    stats = {name: filled(query) for (name, _), query in panel_queries().items()}
    expected = {
        (stats["Operator"], DEMO_ENDS): {"{}": 1.0},
        (stats["Nodes that pass"], DEMO_ENDS): {"{}": 12 / 16},
        (stats["Taints for faults"], DEMO_ENDS): {"{}": 4.0},
        (stats["Held back"], DEMO_ENDS): {"{}": 0.0},
    }
    assert Promtool(tmp_path).query(scraped(healthy()), expected) == ""


def test_two_pods_count_once(tmp_path: Path) -> None:
    """While a roll-out runs two operators, a node is not counted twice."""
    again = scraped(healthy(), labels={"instance": "b:1", "job": "nodegauge-metrics"})
    first = scraped(healthy(), labels={"instance": "a:1", "job": "nodegauge-metrics"})
    query = filled(panel_queries()["Taints for faults", "A"])
    assert Promtool(tmp_path).query(first + again, {(query, DEMO_ENDS): {"{}": 4.0}}) == ""


def test_panels_have_what_grafana_needs() -> None:
    """An id and an area of its own within 24 columns, a title, a text, a unit, and the chosen data source."""
    body, areas = dashboard(), {}
    assert len({panel["id"] for panel in body["panels"]}) == len(body["panels"]) <= 16
    for panel in body["panels"]:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        assert 0 <= x < x + w <= 24
        areas[panel["title"]] = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert panel["type"] in ("stat", "timeseries")
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [t["refId"] for t in panel["targets"]] == list("ABC"[: len(panel["targets"])])
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert not any(a & b for a, b in combinations(areas.values(), 2))
    assert len(areas) == len(body["panels"])


def test_every_variable_is_defined() -> None:
    """`$name` in a query is one of the dashboard's, or Grafana's own."""
    defined = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard())))
    assert used - defined <= {"__rate_interval", "__all"}
    assert {"datasource", "policy"} <= used


def test_legends_name_labels_that_the_query_keeps() -> None:
    """Else Grafana shows an empty name."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.search(r"sum by \(([^)]*)\)", target["expr"])
            assert asked <= (set(grouped[1].split(", ")) if grouped else {"policy", "last_run"})


def test_the_sidecar_finds_it(helm: Helm) -> None:
    """A ConfigMap with the sidecar's label and the JSON as it is; without the value there is none."""
    on = only(helm.objects({"metrics": {"dashboard": {"enabled": True}}}), "ConfigMap")
    assert on["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(on["data"]["nodegauge.json"]) == dashboard()
    changed = only(helm.objects(ALL), "ConfigMap")["metadata"]
    assert changed["labels"]["grafana_dashboard"] == "yes"
    assert changed["annotations"]["grafana_folder"] == "GPUs"
    assert [o for o in helm.objects() if o["kind"] == "ConfigMap"] == []
