"""What the operator makes of feed windows: metrics by cause, an event a day, nothing on nodes."""

from typing import Any

import pytest
from msgspec.structs import replace

import nodegauge_operator.core.probes.feed as kind
from nodegauge_contract import Result, text
from nodegauge_judge import Finding, Severity, Verdict
from nodegauge_judge.feed.judge import FeedJudgement
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.probes.watch import daemon_set
from nodegauge_operator.names import READING_PLURAL
from nodegauge_operator.reconcile.node_counts import NodeCounters
from support import schema
from support.api_server import NODES, POLICIES, REPORTS
from support.feed_windows import FED, STARVED_BY_A_DISK, feed, gpu
from support.objects import DEFAULTS, make_policy
from support.watched import Watched

HOUR = 3600.0
FINE = feed(gpu(0, **FED), gpu(1, **FED))


class Fed(Watched):
    """A node whose watch container also writes feed windows."""

    number = 0

    def feeds(self, result: Result | str, *, later: float = HOUR, **of: Any) -> None:
        self.cluster.pass_time(later)
        self.number += 1
        if isinstance(result, Result):
            result = text(replace(result, **{"run": self.pod.uid, "node": "node-1"} | of))
        how = {"pod": self.pod.body, "sequence": self.number}
        self.cluster.write_reading("node-1", names.PROBE_FEED, result, **how)
        self.catch_up(granted=False)

    @property
    def fed(self) -> dict[str, Any]:
        return next((probe for probe in self.status["probes"] if probe["name"] == "feed"), {})

    @property
    def announced(self) -> list[str]:
        return [message for reason, message in self.events if reason == "GpusUnderfed"]

    @property
    def amounts(self) -> dict[tuple[str, str], float]:
        return NodeCounters(self.cache).amounts("default")


@pytest.fixture
def node(stated_answers: None, monkeypatch: pytest.MonkeyPatch) -> Fed:
    parts = schema.schema(READING_PLURAL)["properties"]
    monkeypatch.setitem(parts, "feed", parts["health"])
    node = Fed()
    node.after()
    return node


def carried(node: Fed) -> tuple[Any, ...]:
    """All that the node has of ours, and what the report makes of it."""
    body, status = node.cluster.objects[NODES]["node-1"], node.status
    verdicts = (status["verdict"], status["rawVerdict"], status.get("gates"), status["desired"])
    return (body["metadata"]["labels"], body["spec"].get("taints"), body["status"]["conditions"], verdicts)


def test_a_window_is_judged_once_and_changes_nothing_on_the_node(node: Fed) -> None:
    before = carried(node)
    node.feeds(STARVED_BY_A_DISK)
    assert (node.fed["verdict"], node.fed["findings"][0]["code"]) == ("warn", "gpu-underfed")
    assert "storage" in node.fed["summary"]
    assert carried(node) == before
    number = node.fed["lastRun"]["number"]
    node.resume(granted=False)
    assert node.fed["lastRun"]["number"] == number


@pytest.mark.parametrize("severity", [Severity.WARN, Severity.FAIL])
def test_no_finding_about_feeding_ever_taints(
    node: Fed, monkeypatch: pytest.MonkeyPatch, severity: Severity
) -> None:
    before = carried(node)
    findings = [Finding(code=code, severity=severity, subject="x", message="m") for code in ("gpu-lost", "b")]
    judged = FeedJudgement(verdict=Verdict(severity.value), summary="s", findings=findings, allocated=2)
    monkeypatch.setattr(kind, "judge_feed", lambda result: judged)
    for _ in range(4):
        node.feeds(FINE)
    assert node.fed["verdict"] == severity.value
    assert carried(node) == before


def test_an_event_comes_at_most_once_a_day_and_is_normal(node: Fed) -> None:
    for hour in range(30):
        node.feeds(STARVED_BY_A_DISK if hour % 2 else FINE)
    assert len(node.announced) == 2
    assert "limits" not in node.announced[0]
    assert "NVMe" in node.announced[0]
    node.feeds(FINE, later=30 * HOUR)
    assert len(node.announced) == 2


def test_a_policy_counts_what_is_lost_now_and_the_report_what_was_lost_lately(node: Fed) -> None:
    node.feeds(STARVED_BY_A_DISK)
    lost = node.amounts["gpus_lost", "storage"]
    assert node.amounts["gpus_allocated", ""] == 2
    assert lost == pytest.approx(2 * 0.58)
    for _ in range(9):
        node.feeds(FINE)
    assert node.amounts == {("gpus_allocated", ""): 2}
    kept = kind.memory(node.cache.reports["node-1"].status.probe["feed"])
    assert 0.6 * lost < kept.hours["storage"] < lost
    assert 14 < kept.held_hours < 18
    assert "GPU-hours of about a day: storage" in node.fed["summary"]


def test_a_fleet_that_is_fed_costs_few_writes(node: Fed) -> None:
    node.feeds(FINE)
    for _ in range(8):
        node.feeds(FINE)
    assert node.fed["lastRun"]["number"] == 5


def test_what_a_window_said_of_now_ends_without_another(node: Fed) -> None:
    for _ in range(2):
        node.feeds(STARVED_BY_A_DISK, later=2 * HOUR)
    node.cluster.pass_time(4 * HOUR)
    node.catch_up(granted=False)
    assert (node.fed["verdict"], node.fed.get("findings", [])) == ("unknown", [])
    assert sum(node.amounts.values()) == 0
    assert kind.memory(node.cache.reports["node-1"].status.probe["feed"]).hours
    node.feeds(STARVED_BY_A_DISK)
    node.cluster.change(POLICIES, "default", {"spec": {"probes": {"feed": {"enabled": False}}}})
    node.catch_up(granted=False)
    assert node.fed["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("document", "of"),
    [("{", {}), (FINE, {"node": "node-2"}), (FINE, {"probe": "health"}), (replace(FINE, feed=None), {})],
    ids=["no document", "of another node", "of another probe", "no window"],
)
def test_a_hostile_part_is_passed_over_without_an_event(
    node: Fed, document: Result | str, of: dict[str, Any]
) -> None:
    before, events = carried(node), len(node.events)
    node.feeds(document, **of)
    assert node.fed["lastRun"]["outcome"] == "skipped"
    assert (carried(node), len(node.events)) == (before, events)
    node.feeds(STARVED_BY_A_DISK)
    assert node.fed["verdict"] == "warn"


@pytest.mark.parametrize(
    "history", ['{"lost": {"storage": 1e30}}', '{"hours": 3}', '{"lost": {"rubbish": 2}}', "rubbish"]
)
def test_a_memory_that_somebody_broke_counts_as_empty(node: Fed, history: str) -> None:
    node.feeds(FINE)
    probes = [p | ({"history": history} if p["name"] == "feed" else {}) for p in node.status["probes"]]
    node.write_over(REPORTS, "node-1", status={"probes": probes})
    assert sum(node.amounts.values()) == 0
    node.feeds(STARVED_BY_A_DISK)
    assert node.fed["verdict"] == "warn"


def test_windows_of_strangers_and_of_other_modes_do_not_count(node: Fed) -> None:
    own, other = node.pod.body, {"metadata": {"name": "other", "uid": "other"}}
    node.pod.body = other
    node.feeds(replace(STARVED_BY_A_DISK))
    node.pod.body = own
    assert node.fed == {}
    node.cluster.change(POLICIES, "default", {"spec": {"probes": {"health": {"mode": "Periodic"}}}})
    node.feeds(STARVED_BY_A_DISK)
    assert node.fed == {}


@pytest.mark.parametrize(("ago", "counts"), [(60.0, False), (HOUR, True)])
def test_a_window_with_a_load_run_of_ours_says_nothing_of_users(node: Fed, ago: float, counts: bool) -> None:
    at = node.cluster.clock() + HOUR - ago
    run = {"number": 1, "outcome": "read", "startedAt": stamp(at - 60), "finishedAt": stamp(at)}
    probes = [*node.status["probes"], {"name": names.PROBE_LOAD, "lastRun": run}]
    node.write_over(REPORTS, "node-1", status={"probes": probes})
    node.feeds(STARVED_BY_A_DISK)
    assert (node.fed["lastRun"]["reason"] == "OwnRun") is not counts


@pytest.mark.parametrize(
    "settings", [{}, {"enabled": False}, {"controlGroups": True, "dcgm": "http://d:9400"}]
)
def test_the_container_gets_what_the_policy_asks_for(settings: dict[str, Any]) -> None:
    made = daemon_set(make_policy().of({"probes": {"feed": settings}}), DEFAULTS)
    spec = made["spec"]["template"]["spec"]
    (body,) = spec["containers"]
    args = [arg for arg in body["args"] if arg.startswith(("--feed", "--control", "--dcgm"))]
    always = ["--feed-window=120", "--feed-interval=3600"]
    more = ["--dcgm=http://d:9400", "--control-groups=/run/control-groups"] if "dcgm" in settings else []
    assert args == ([] if settings == {"enabled": False} else always + more)
    groups = [volume for volume in spec["volumes"] if volume.get("hostPath") == {"path": "/sys/fs/cgroup"}]
    mounts = [mount for mount in body["volumeMounts"] if mount["name"] == "control-groups"]
    assert len(groups) == len(mounts) == bool(more)
    assert all(mount["readOnly"] for mount in mounts)
