"""Each alert by promtool: it fires after its `for` and not before, and never on what the demo serves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.chart import ROOT, Helm, of_kind
from support.promtool import LENGTH, SCRAPED, Promtool, Series, healthy, scraped

VALUES = {"metrics": {"prometheusRule": {"enabled": True}}, "bmc": {"enabled": True}}
BREAK = 60
"""The minute in which a test breaks something."""
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")

Rule = dict[str, Any]


def groups(helm: Helm, values: dict[str, Any] | None = None) -> list[Rule]:
    """The rule groups that the chart renders."""
    return [g for o in of_kind(helm.objects(values or VALUES), "PrometheusRule") for g in o["spec"]["groups"]]


def rules(helm: Helm) -> dict[str, Rule]:
    """The alerts by name."""
    return {rule["alert"]: rule for group in groups(helm) for rule in group["rules"]}


@pytest.fixture
def promtool(helm: Helm, tmp_path: Path) -> Promtool:
    """promtool on the chart's rules."""
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
AGE = 'nodegauge_oldest_reading_age_seconds{{last_run="{}",policy="default"}}'
NODES = 'nodegauge_nodes{{policy="default",verdict="{}"}}'
LAST_PASS = str(60 * (BREAK - 1))
PASSES = "nodegauge_last_pass_timestamp_seconds"
FAULTS: dict[str, tuple[Series, int]] = {
    "NodegaugeOperatorAbsent": (ending(OPERATOR), 0),
    "NodegaugeOperatorStuck": ({PASSES: healthy()[PASSES][:BREAK] + [LAST_PASS] * (LENGTH - BREAK)}, 10),
    "NodegaugeOperatorNotReady": (since("nodegauge_ready", "0", before="1"), 0),
    "NodegaugeStandingBy": (since("nodegauge_standing_by", "1"), 0),
    "NodegaugeListsFail": (since("nodegauge_failed_lists", "3"), 0),
    "NodegaugeReadingsOld": (since(AGE.format("read"), "1201", before="1200"), 0),
    "NodegaugeNodesUnread": (since(AGE.format("unread"), "3601", before="3600"), 0),
    "NodegaugeHeldBack": (since('nodegauge_held_back_nodes{policy="default"}', "1"), 0),
    "NodegaugeIncidentOpen": (since('nodegauge_incidents_open{policy="default",cause="thermal"}', "1"), 0),
    "NodegaugeNothingPasses": (
        since(NODES.format("pass"), "_", before="11")
        | since(NODES.format("warn"), "_", before="1")
        | since(NODES.format("fail"), "16", before="4"),
        0,
    ),
    "NodegaugePodsRefused": (counting("nodegauge_pods_refused_total"), 0),
    "NodegaugeWritesFail": (counting('nodegauge_reconcile_failures_total{kind="Forbidden"}'), 0),
    "NodegaugeReportsUnreadable": (since('nodegauge_unreadable_reports{policy="default"}', "1"), 0),
    "NodegaugeBenchmarksStarve": (
        since('nodegauge_waiting_nodes{probe="nccl"}', "5")
        | {RUNS: [str(min(n, BREAK)) for n in range(LENGTH)]},
        359,  # the last run ended at BREAK and counts for six hours
    ),
    "NodegaugeBmcReaderAbsent": (ending(BMC), 0),
    "NodegaugeBmcsUnread": (since('nodegauge_bmc_bmcs{state="timeout"}', "17"), 0),
    "NodegaugeBmcReadingOld": (since("nodegauge_bmc_oldest_reading_age_seconds", "86401"), 0),
    "NodegaugeBmcReadingsNotWritten": (counting("nodegauge_bmc_unwritten_total"), 0),
}
"""By alert: the series that differ from the healthy ones, and the minutes until its query is true."""


def test_promtool_accepts_the_rules(promtool: Promtool) -> None:
    """`promtool check rules` with every lint."""
    done = promtool.run("check", "rules", "--lint=all", "--lint-fatal", "rules.json")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "labels", [SCRAPED, {"instance": "a:8080", "job": "nodegauge"}], ids=["operator", "plain"]
)
def test_nothing_fires_on_the_demo(promtool: Promtool, labels: dict[str, str]) -> None:
    """From its first step on, and for half a day after it."""
    quiet = {minute: set[str]() for minute in range(0, LENGTH, 7)}
    assert promtool.firing(scraped(healthy(), labels=labels), quiet) == ""


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_after_its_time(helm: Helm, promtool: Promtool, alert: str) -> None:
    """Alone; a minute earlier nothing fires."""
    changed, until_true = FAULTS[alert]
    at = BREAK + until_true + minutes(rules(helm)[alert]["for"])
    assert promtool.firing(scraped(healthy() | changed), {at - 1: set(), at + 1: {alert}}) == ""


def test_every_alert_is_tested(helm: Helm) -> None:
    """A new alert needs its fault."""
    assert rules(helm).keys() == FAULTS.keys()


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
    """A webhook that was away for a moment."""
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
    """Placeholders are filled in, and the link leads to the alert's section."""
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
    assert sorted(written) == sorted(rules(helm))


def test_without_bmcs_their_alerts_are_left_out(helm: Helm) -> None:
    """No reader is absent where none was asked for; and by default no rule is rendered at all."""
    only = groups(helm, {"metrics": {"prometheusRule": {"enabled": True}}})
    assert [group["name"] for group in only] == ["nodegauge"]
    assert of_kind(helm.objects(), "PrometheusRule") == []


def minutes(text: str) -> int:
    """Of a Prometheus duration such as 10m or 6h."""
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]
