"""Alerts and the Grafana dashboard, judged by promtool on what the demo served; Grafana itself is not run
here."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodegauge_operator.core.gates import GATES
from support.chart import ALL, ROOT, Helm, of_kind, only
from support.promtool import LENGTH, SCRAPED, Promtool, Series, dashboard, healthy, panel_queries, scraped

VALUES = {"metrics": {"prometheusRule": {"enabled": True}}, "bmc": {"enabled": True}}
BREAK = 20
"""The minute in which a series changes."""
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")

Rule = dict[str, Any]


def groups(helm: Helm, values: dict[str, Any] | None = None) -> list[Rule]:
    return [g for o in of_kind(helm.objects(values or VALUES), "PrometheusRule") for g in o["spec"]["groups"]]


def rules(helm: Helm) -> dict[str, Rule]:
    return {rule["alert"]: rule for group in groups(helm) for rule in group["rules"]}


@pytest.fixture
def promtool(helm: Helm, tmp_path: Path) -> Promtool:
    return Promtool(tmp_path, groups(helm))


def since(series: str, value: str, *, before: str = "0") -> Series:
    """A series with another value, or none (`_`), from BREAK on."""
    return {series: [before] * BREAK + [value] * (LENGTH - BREAK)}


def counting(series: str, *, every: int = 10) -> Series:
    """A counter that grows by one at BREAK and then at regular times."""
    return {series: ["0"] * BREAK + [str(1 + minute // every) for minute in range(LENGTH - BREAK)]}


def ending(series: Series) -> Series:
    """The same until BREAK."""
    return {name: values[:BREAK] for name, values in series.items()}


BMC = {name: values for name, values in healthy().items() if "_bmc_" in name}
OPERATOR = {name: values for name, values in healthy().items() if name not in BMC}
RUNS = 'nodegauge_runs_total{outcome="read",probe="nccl",reason="Read"}'
LAST_PASS = str(60 * (BREAK - 1))
PASSES = "nodegauge_last_pass_timestamp_seconds"
NODE = 'node="gpu-7",policy="default"'
GPU = 'gpu="3",pci="0000:3b:00.0",serial="1654922001234"'
FAULT = f'nodegauge_node_fault{{{{cause="{{}}",code="{{}}",{GPU},{NODE},taint="{{}}"}}}}'


def fault(cause: str, code: str, taint: str) -> Series:
    return since(FAULT.format(cause, code, taint), "1", before="_")


def changing(changes: dict[str, list[Any] | str]) -> Series:
    result: Series = {}
    for series, change in changes.items():
        before, after = map(str, change) if isinstance(change, list) else ("", change)
        result |= since(series, after, before=before) if before else counting(series)
    return result


CHANGES = yaml.safe_load(Path(__file__).with_name("alert-changes.yaml").read_text("utf-8"))
FAULTS: dict[str, tuple[Series, int]] = {
    "NodegaugeOperatorAbsent": (ending(OPERATOR), 0),
    "NodegaugeOperatorStuck": ({PASSES: healthy()[PASSES][:BREAK] + [LAST_PASS] * (LENGTH - BREAK)}, 5),
    "NodegaugeBenchmarksStarve": (
        since('nodegauge_waiting_nodes{probe="nccl"}', "5")
        | {RUNS: [str(min(n, BREAK)) for n in range(LENGTH)]},
        359,  # the last run ended at BREAK and counts for six hours
    ),
    "NodegaugeNodeCorruption": (fault("nccl", "nccl-wrong-data", "unhealthy"), 0),
    "NodegaugeNodeBroken": (fault("xid", "xid", "unhealthy"), 0),
    "NodegaugeNodeDegraded": (fault("nccl", "p2p-broken", "unhealthy"), 0),
    "NodegaugeNodeThrottled": (fault("thermal", "hot", "throttled"), 0),
    "NodegaugeNodeUnread": (fault("unread", "call-hung", ""), 0),
    "NodegaugeBmcReaderAbsent": (ending(BMC), 0),
    "NodegaugeListsFail": (since("nodegauge_failed_lists", "3"), 0),
    "NodegaugeReadingsUnprotected": (since("nodegauge_readings_protected", "0", before="1"), 0),
    "NodegaugeBmcReadingOld": (since("nodegauge_bmc_oldest_reading_age_seconds", "86401"), 0),
} | {alert: (changing(changes), 0) for alert, changes in CHANGES.items()}
"""By alert: the series that differ from the healthy ones, and the minutes until its query is true."""


def test_promtool_accepts_the_rules(promtool: Promtool) -> None:
    done = promtool.run("check", "rules", "--lint=all", "--lint-fatal", "rules.json")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "labels", [SCRAPED, {"instance": "a:8080", "job": "nodegauge"}], ids=["operator", "plain"]
)
def test_nothing_fires_on_the_demo(promtool: Promtool, labels: dict[str, str]) -> None:
    quiet = {minute: set[str]() for minute in range(0, LENGTH, 7)}
    assert promtool.firing(scraped(healthy(), labels=labels), quiet) == ""


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_after_its_time(helm: Helm, promtool: Promtool, alert: str) -> None:
    """Alone; a minute earlier nothing fires."""
    changed, until_true = FAULTS[alert]
    at = BREAK + until_true + minutes(rules(helm)[alert]["for"])
    assert promtool.firing(scraped(healthy() | changed), {at - 1: set(), at + 1: {alert}}) == ""


@pytest.mark.parametrize("gpu", [GPU, 'gpu="",pci="",serial=""'])
def test_the_text_alone_says_what_where_and_what_to_do(helm: Helm, promtool: Promtool, gpu: str) -> None:
    """Also while two operators serve the same, and without the series that has the text."""
    series_name = FAULT.format("xid", "xid", "unhealthy").replace(GPU, gpu)
    series = since(series_name, "1", before="_")
    where = ", GPU 3, PCI address 0000:3b:00.0, serial number 1654922001234" if gpu == GPU else ""
    added = ""
    if gpu == GPU:
        texts = (
            'measured="Xid 94 came twice.",next_step="drain, and reset GPU 3.",since="1970-01-01T00:01:00Z",'
            'taint_state="set"'
        )
        series |= since(f'nodegauge_node_fault_info{{code="xid",{NODE},{texts}}}', "60", before="_")
        added = " Measured: Xid 94 came twice. First seen 1970-01-01T00:01:00Z, 20m 0s ago."
        added += " Taint unhealthy=xid: set. Next step: drain, and reset GPU 3."
    text = f"gpu-7: xid (xid){where}.{added} More: `kubectl nodegauge explain gpu-7`."
    two = scraped(series) + scraped(series, labels=SCRAPED | {"pod": "b", "instance": "b:1"})
    labels = {name: value for name, value in SCRAPED.items() if name not in ("instance", "pod")}
    labels |= dict(re.findall(r'(\w+)="([^"]+)"', series_name)) | {"severity": "critical"}
    notes = rules(helm)["NodegaugeNodeBroken"]["annotations"]
    summary = "Jobs on node gpu-7 hang or die, or do so soon (xid). Drain it."
    expected = {"summary": summary, "description": text, "runbook_url": notes["runbook_url"]}
    assert promtool.says(two, "NodegaugeNodeBroken", BREAK + 1, labels, expected) == ""


def test_every_fault_has_one_alert(promtool: Promtool) -> None:
    faults = [fault(gate.cause, code, gate.kind) for code, gate in GATES.items()]
    query = 'count by (code) (ALERTS{alertstate="firing"})'
    expected = {(query, BREAK + 20): {f'{{code="{code}"}}': 1.0 for code in GATES}}
    series = [line for fault in [healthy(), *faults] for line in scraped(fault)]
    assert promtool.query(series, expected) == ""


def test_a_restart_fires_nothing(promtool: Promtool) -> None:
    """Three minutes without an operator, then a new pod whose counters begin anew."""
    back = BREAK + 3
    after = scraped(
        {
            name: ["_"] * back + (values[back:] if name == PASSES else values[-1:] * (LENGTH - back))
            for name, values in OPERATOR.items()
            if "_total" not in name
        },
        labels=SCRAPED | {"pod": "nodegauge-1", "instance": "10.0.0.2:8080"},
    )
    before, bmc = scraped(ending(OPERATOR)), scraped(BMC)
    quiet = {minute: set[str]() for minute in range(BREAK, LENGTH, 7)}
    assert promtool.firing(before + after + bmc, quiet) == ""


def test_an_alert_goes_on_in_a_new_pod(promtool: Promtool) -> None:
    """Nodes are held back before and after the pod is replaced: the time does not begin anew."""
    name = 'nodegauge_held_back_nodes{policy="default"}'
    rest = {other: values for other, values in healthy().items() if other != name}
    first = scraped({name: ["0"] * BREAK + ["2"] * 10})
    second = scraped(
        {name: ["_"] * (BREAK + 10) + ["2"] * 60}, labels=SCRAPED | {"pod": "b", "instance": "b:1"}
    )
    expected = {BREAK + 14: set[str](), BREAK + 16: {"NodegaugeHeldBack"}}
    assert promtool.firing(scraped(rest) + first + second, expected) == ""


def test_one_refusal_is_no_alert(promtool: Promtool) -> None:
    once = scraped(healthy() | since("nodegauge_pods_refused_total", "1"))
    assert promtool.firing(once, {minute: set() for minute in range(BREAK, BREAK + 90)}) == ""


def test_a_waiting_installation_is_no_blind_operator(promtool: Promtool) -> None:
    """The other one is ready: the waiting one is named, and nobody is woken."""
    waiting = scraped(
        {"nodegauge_ready": ["0"] * LENGTH, "nodegauge_standing_by": ["1"] * LENGTH},
        labels=SCRAPED | {"namespace": "other", "pod": "other-0", "instance": "c:1"},
    )
    assert promtool.firing(scraped(healthy()) + waiting, {LENGTH - 1: {"NodegaugeStandingBy"}}) == ""


def test_texts_name_the_policy_and_the_release(helm: Helm, promtool: Promtool) -> None:
    for alert, rule in rules(helm).items():
        notes = rule["annotations"]
        assert notes["runbook_url"] == f"docs/runbook.md#{alert.lower()}"
        assert f"### {alert}\n" in RUNBOOK, alert
        assert "kubectl" in notes["description"], alert
        assert not re.search(r"NAMESPACE|OPERATOR|RUNBOOK", str(rule)), alert
        critical = rule["labels"] == {"severity": "critical"}
        assert critical or rule["labels"] == {"severity": "warning"}
        assert critical == (f"### {alert}\nCritical. " in RUNBOOK), alert
    written = re.findall(r"^### (Nodegauge\w+)$", RUNBOOK, re.MULTILINE)
    assert sorted(written) == sorted(rules(helm)) == sorted(FAULTS), "a new alert needs its fault"


def test_without_bmcs_or_names_their_alerts_are_left_out(helm: Helm) -> None:
    metrics = {"prometheusRule": {"enabled": True}}
    without = [
        groups(helm, {"metrics": metrics | {"perNode": {"enabled": named}}}) for named in (True, False)
    ]
    names = [[group["name"] for group in groups] for groups in without]
    assert names == [["nodegauge", "nodegauge-nodes"], ["nodegauge"]]


def minutes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


DEMO_ENDS = 12
RARE = {'nodegauge_reconcile_failures_total{kind="Conflict"}': [str(minute // 3) for minute in range(LENGTH)]}
"""A series that a demo without trouble does not have."""
VARIABLES = {"$policy": ".*", "$__rate_interval": "5m"}


def filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


@pytest.mark.parametrize("pods", ["a", "ab"])
def test_queries_show_what_the_demo_served(tmp_path: Path, pods: str) -> None:
    """Sixteen nodes of which twelve pass or warn, and the four taints of its last step.  While a roll-out
    runs two operators, none is counted twice."""
    stats = {name: filled(query) for (name, _), query in panel_queries().items()}
    expected = {
        (stats["Operator"], DEMO_ENDS): {"{}": 1.0},
        (stats["Nodes that pass"], DEMO_ENDS): {"{}": 12 / 16},
        (stats["Taints for faults"], DEMO_ENDS): {"{}": 4.0},
        (stats["Held back"], DEMO_ENDS): {"{}": 0.0},
    }
    for query in panel_queries().values():
        expected[f"count({filled(query)}) > bool 0", DEMO_ENDS] = {"{}": 1.0}
    labels = [SCRAPED | {"instance": f"{pod}:1"} for pod in pods]
    served = [line for own in labels for line in scraped(healthy() | RARE, labels=own)]
    assert Promtool(tmp_path).query(served, expected) == ""


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
    on = only(helm.objects({"metrics": {"dashboard": {"enabled": True}}}), "ConfigMap")
    assert on["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(on["data"]["nodegauge.json"]) == dashboard()
    changed = only(helm.objects(ALL), "ConfigMap")["metadata"]
    assert changed["labels"]["grafana_dashboard"] == "yes"
    assert changed["annotations"]["grafana_folder"] == "GPUs"
