"""What pages repeat from the code: the runbook's causes and reasons, times, numbers, queries of alerts."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from nodegauge_contract.model import MAJOR, MINOR
from nodegauge_judge import Thresholds, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Hysteresis, seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.bmc_reader.metrics import READ
from nodegauge_operator.bmc_reader.metrics import Metrics as ReaderMetrics
from nodegauge_operator.core.probes import health, watch
from nodegauge_operator.kube import errors
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.names import PaceReason
from nodegauge_probes.watch.schedule import BRAKED_S
from nodegauge_probes.watch_options import CONFIRM, NUMBERS
from support.chart import CHART
from support.promtool import panel_queries, selectors
from testbed.hardware import FAULTS

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
TIMES = (ROOT / "docs" / "times.md").read_text(encoding="utf-8")


def test_runs_that_cannot_keep_up_are_explained() -> None:
    assert f"\n## The policy says {PaceReason.TOO_FEW_SLOTS.value}\n" in RUNBOOK


def test_the_page_of_times_has_what_follows_from_the_defaults() -> None:
    """To the taint: as long as a reading of what flaps may wait, and one more.  Back: three good runs."""
    hysteresis, probes = Hysteresis(), Probes()
    interval, soon = seconds(probes.health.interval) / 60, seconds(probes.health.recheck) / 60
    enter, leave = hysteresis.enter_runs, hysteresis.leave_runs
    judged = max(soon, Thresholds().interval_floor / 60)
    day, recheck = seconds(probes.nccl.interval) / 3600, seconds(probes.nccl.recheck) / 60
    assert f"up to `probes.health.interval` ({interval:g} min)" in TIMES
    first, *later = map(int, CONFIRM.split(","))
    confirmed = f"after {first} s, " + " and ".join(f"{wait / 60:g} min" for wait in later)
    assert f"reads a change again {confirmed}." in TIMES
    assert TIMES.count(f", {BRAKED_S / 60 + (enter - 1) * soon:g} min | {leave} good runs") == 2
    assert f"{leave} good runs: {(leave - 1) * soon:g} min or less" in TIMES
    assert f"{leave} good runs under load: {leave * judged:g} to " in TIMES
    assert f"| {enter} | {recheck + 1:g} min, {day / 2:g} h, {day:g} h |" in TIMES
    first, *relapses = hysteresis.probation_after
    assert f"on trial {first.replace('h', ' h')} after the taint was set" in TIMES
    assert " and ".join(after.replace("h", " h") for after in relapses) + " for relapses" in TIMES
    assert f"A taint stays at least {hysteresis.dwell.replace('m', ' min')}" in TIMES


def text_of(page: str) -> str:
    """The page on one line, without the marks of comments."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return " ".join(" ".join(line.strip().removeprefix("# ") for line in lines).split())


def test_the_contract_names_the_version_that_the_code_writes() -> None:
    assert f"`nodegauge.dev/probe-result`, version {MAJOR}.{MINOR};" in text_of("probes/README.md")


def test_the_page_of_the_demo_counts_the_faults_right() -> None:
    assert f"the {len(FAULTS)} faults" in text_of("docs/demo.md")


def test_pages_say_what_the_container_of_mode_watch_requests() -> None:
    """It is on every node by default, so people plan with it."""
    cpu, memory = watch.REQUESTS["cpu"], watch.REQUESTS["memory"]
    stated = memory.replace("Mi", " MiB")
    assert f"no GPU, {cpu} CPU, {stated} |" in text_of("docs/how-it-works.md")
    assert f"requests {cpu} CPU and {stated}" in text_of("docs/faq.md")


@pytest.mark.parametrize("page", ["charts/nodegauge/values.yaml", "crds/gpuvalidationpolicies.yaml"])
def test_values_say_what_both_kinds_of_health_pods_request(page: str) -> None:
    """Users merge their own resources into these."""
    cpu, memory = health.REQUESTS["cpu"], health.REQUESTS["memory"]
    assert watch.REQUESTS["cpu"] == cpu
    assert watch.LIMITS == health.LIMITS
    assert f"requests {cpu} CPU and {memory}, in mode Watch {watch.REQUESTS['memory']}; limits" in text_of(
        page
    )


def test_pages_say_how_often_a_calm_node_reports() -> None:
    [usual] = [one[1] for one in NUMBERS if one[0] == "interval"]
    assert f"`probes.health.watch.interval` ({usual / 3600:g} hours)" in text_of("docs/watch-mode.md")


SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
KNOWN = {
    f"{metric._name}{suffix}": {*metric._labelnames, *(["le"] if suffix == "_bucket" else [])}
    for served in (Metrics(), ReaderMetrics())
    for metric in vars(served).values()
    if isinstance(metric, MetricWrapperBase)
    for suffix in SUFFIXES[metric._type]
}
FAILURES = {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"Unexpected"}
VALUES = {
    "last_run": {"read", "unread"},
    "verdict": {verdict.value for verdict in Verdict},
    "probe": {*names.PROBES},
    "kind": FAILURES | {*names.Obstacle},
    "outcome": {outcome.value for outcome in Outcome},
    "state": {READ},
}
BOUNDED = {*VALUES, "policy", "cause", "taint", "interconnect", "agreement"}
BOUNDED |= {"reason", "verb", "resource", "status"}
"""Labels whose values are few: none names a node, a pod or a GPU."""
RULES = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))
QUERIES = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
QUERIES |= {f"{panel}-{ref}": query for (panel, ref), query in panel_queries().items()}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_a_query_asks_for_what_exists(query: str) -> None:
    asked = selectors(query)
    assert asked
    for name, matchers in asked:
        assert matchers.keys() <= KNOWN[name]
        for label, pattern in matchers.items():
            if pattern == "$policy":
                continue
            assert set(pattern.split("|")) <= VALUES[label], (label, pattern)


def test_labels_that_are_dropped_exist() -> None:
    scrape = {"instance", "pod", "namespace", "service", "job", "endpoint", "container"}
    ours = set[str]().union(*KNOWN.values())
    for dropped in re.findall(r"(?:without|ignoring|by) \(([^)]*)\)", "\n".join(QUERIES.values())):
        assert set(dropped.split(", ")) <= ours | scrape


def test_every_label_has_few_values() -> None:
    """A fleet of thousands of nodes must not make thousands of series."""
    assert set[str]().union(*KNOWN.values()) - {"le"} <= BOUNDED
