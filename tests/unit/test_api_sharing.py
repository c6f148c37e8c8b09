"""Texts that reports of many nodes have in common are kept once."""

from __future__ import annotations

import json
from typing import Any

from nodegauge_operator.api.report import parse_report
from nodegauge_operator.api.sharing import DEEPEST, LONGEST, shared


def report(name: str) -> dict[str, Any]:
    """As it comes from the API server: each text is an object of its own."""
    status = {
        "summary": "8x NVIDIA H100 80GB HBM3: healthy",
        "desired": {"labels": {"nodegauge.dev/interconnect": "nvlink, of 450 GB/s"}},
        "probes": [{"name": "health", "verdict": "pass", "history": name + "h" * LONGEST}],
    }
    body: dict[str, Any] = json.loads(json.dumps({"metadata": {"name": name}, "status": status}))
    return body


def test_reports_share_equal_texts() -> None:
    """At every depth; what is long is of one node alone, and only passes through."""
    one, other = parse_report(report("node-1")), parse_report(report("node-2"))
    assert one.status.summary is other.status.summary
    (label,), (same,) = one.status.desired.labels.values(), other.status.desired.labels.values()
    assert label is same
    assert one.status.probe("health").history.startswith("node-1")


def test_a_shared_document_is_equal() -> None:
    """Whatever it holds, and however deep; numbers stay what they are."""
    document: Any = {"a": [1, True, None, 1.5, "text", {"b": "c" * (LONGEST + 1)}]}
    for _ in range(2 * DEEPEST):
        document = [document]
    assert shared(document) == document
    assert shared({"a": [1, True]})["a"][1] is True
