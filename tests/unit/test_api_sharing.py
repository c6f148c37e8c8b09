"""What the operator keeps or reads once: texts that reports have in common, and a result's document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_contract import decode as real
from nodegauge_operator.api.report import parse_report
from nodegauge_operator.api.sharing import DEEPEST, LONGEST, shared
from nodegauge_operator.core import actions, pod_outcome
from nodegauge_operator.core.planner import next_step
from support.objects import make_node, make_pod, make_report, make_snapshot


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
    assert one.status.probe["health"].history.startswith("node-1")


def test_a_shared_document_is_equal() -> None:
    """Whatever it holds, and however deep; numbers stay what they are."""
    document: Any = {"a": [1, True, None, 1.5, "text", {"b": "c" * (LONGEST + 1)}]}
    for _ in range(2 * DEEPEST):
        document = [document]
    assert shared(document) == document
    assert shared({"a": [1, True]})["a"][1] is True


NODE = make_node()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    documents: list[str] = []

    def decode(text: str) -> Result:
        documents.append(text)
        return real(text)

    monkeypatch.setattr(pod_outcome, "decode", decode)
    return documents


def test_a_pods_result(decoded: list[str]) -> None:
    """A pod's document is decoded for its node, and not again for its report."""
    snapshot = make_snapshot(report=make_report(), pods=(make_pod(NODE).with_result(made.titan()),))
    patch = next_step(snapshot)
    assert isinstance(patch, actions.PatchNode)
    assert patch.judged is not None
    node = replace(NODE.patched(patch.labels), resource_version="11")
    report = next_step(replace(snapshot, node=node, judged=patch.judged))
    assert isinstance(report, actions.PatchReport)
    assert len(decoded) == 1
