"""Alerts and panels ask for metrics that exist, by labels that these have and values that these take."""

from __future__ import annotations

import re

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.kube import errors
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reader.metrics import READ
from nodegauge_operator.reader.metrics import Metrics as ReaderMetrics
from support.chart import CHART
from support.promtool import panel_queries, selectors

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
    "kind": FAILURES,
    "outcome": {outcome.value for outcome in Outcome},
    "state": {READ},
}
BOUNDED = {
    *VALUES,
    "policy",
    "cause",
    "taint",
    "interconnect",
    "agreement",
    "reason",
    "verb",
    "resource",
    "status",
}
"""Labels whose values are few: none names a node, a pod or a GPU."""
RULES = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))
QUERIES = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
QUERIES |= {f"{panel}-{ref}": query for (panel, ref), query in panel_queries().items()}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_a_query_asks_for_what_exists(query: str) -> None:
    """Names, labels and the values of labels."""
    asked = selectors(query)
    assert asked
    for name, matchers in asked:
        assert matchers.keys() <= KNOWN[name]
        for label, pattern in matchers.items():
            if pattern == "$policy":
                continue
            assert set(pattern.split("|")) <= VALUES[label], (label, pattern)


def test_labels_that_are_dropped_exist() -> None:
    """`by`, `without` and `ignoring` name labels of our metrics or of a scrape."""
    scrape = {"instance", "pod", "namespace", "service", "job", "endpoint", "container"}
    ours = set[str]().union(*KNOWN.values())
    for query in QUERIES.values():
        for dropped in re.findall(r"(?:without|ignoring|by) \(([^)]*)\)", query):
            assert set(dropped.split(", ")) <= ours | scrape


def test_every_label_has_few_values() -> None:
    """A fleet of thousands of nodes must not make thousands of series."""
    assert set[str]().union(*KNOWN.values()) - {"le"} <= BOUNDED
