"""What pages repeat from the code: the runbook's causes and reasons, times, numbers, queries of alerts."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from nodegauge_contract.model import MAJOR, MINOR
from nodegauge_judge import Cause, GateKind, Thresholds, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Hysteresis, seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.bmc_reader.metrics import READ
from nodegauge_operator.bmc_reader.metrics import Metrics as ReaderMetrics
from nodegauge_operator.core.alerts import CAUSE_UNREAD
from nodegauge_operator.core.gates import GATES
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
TIMES = (ROOT / "docs" / "times.md").read_text(encoding="utf-8")


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


HEALTH, WATCH = ((kind.REQUESTS["cpu"], kind.REQUESTS["memory"]) for kind in (health, watch))
EACH = f"requests {HEALTH[0]} CPU and {HEALTH[1]}, in mode Watch {WATCH[1]}; limits"
[USUAL] = [one[1] for one in NUMBERS if one[0] == "interval"]
STATED = {
    "docs/runbook.md": f" ## The policy says {PaceReason.TOO_FEW_SLOTS.value} ",
    "probes/README.md": f"`nodegauge.dev/probe-result`, version {MAJOR}.{MINOR};",
    "docs/demo.md": f"the {len(FAULTS)} faults",
    "docs/how-it-works.md": f"no GPU, {WATCH[0]} CPU, {WATCH[1].replace('Mi', ' MiB')} |",
    "docs/faq.md": f"requests {WATCH[0]} CPU and {WATCH[1].replace('Mi', ' MiB')}",
    "charts/nodegauge/values.yaml": EACH,
    "crds/gpuvalidationpolicies.yaml": EACH,
    "docs/watch-mode.md": f"`probes.health.watch.interval` ({USUAL / 3600:g} hours)",
}
"""What people plan with, and merge their own values into."""


@pytest.mark.parametrize("page", STATED)
def test_pages_repeat_what_the_code_has(page: str) -> None:
    assert STATED[page] in text_of(page)
    assert (watch.REQUESTS["cpu"], watch.LIMITS) == (health.REQUESTS["cpu"], health.LIMITS)


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
    "cause": {*Cause, CAUSE_UNREAD},
    "code": {*GATES},
    "taint": {*GateKind},
}
BOUNDED = {*VALUES, "policy", "interconnect", "agreement", "class"}
BOUNDED |= {"reason", "verb", "resource", "status"}
"""Labels whose values are few: none names a node, a pod or a GPU."""
OF_NODES = {"nodegauge_node_fault", "nodegauge_node_fault_info"}
"""These name nodes, as many as `metrics.perNode.limit` allows (test_operator_policy_status.py)."""
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
    few = [labels for name, labels in KNOWN.items() if name not in OF_NODES]
    assert set[str]().union(*few) - {"le"} <= BOUNDED
