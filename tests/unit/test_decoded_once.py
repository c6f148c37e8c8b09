"""A result that brings something new is decoded once, although its evidence and its report are two writes."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import Result
from nodegauge_contract import decode as real
from nodegauge_operator.core import actions, pod_outcome
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.probes import watch
from support.api_server import EVIDENCE
from support.cluster import FakeCluster
from support.objects import make_node, make_pod, make_report, make_snapshot
from support.operator import SteppedOperator
from support.watch_pods import WatchPod

NODE = make_node()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages that were decoded."""
    messages: list[str] = []

    def decode(text: str) -> Result:
        messages.append(text)
        return real(text)

    for module in (pod_outcome, watch):
        monkeypatch.setattr(module, "decode", decode)
    return messages


def test_a_pods_result(decoded: list[str]) -> None:
    """A pod's message is decoded for its evidence, and not again for its report."""
    known = {"report": make_report(), "pods": (make_pod(NODE).with_result(made.titan()),)}
    evidence = next_step(make_snapshot(**known | {"evidenced": None}))
    assert isinstance(evidence, actions.WriteEvidence)
    report = next_step(make_snapshot(**known | {"evidenced": evidence}))
    assert isinstance(report, actions.PatchReport)
    assert len(decoded) == 1


def test_a_watch_containers_result(decoded: list[str]) -> None:
    """The same of a watch container, whose second result names another board."""
    operator = SteppedOperator(FakeCluster())
    operator.cluster.add_node(gpus="yes")
    operator.cluster.add_policy(probes={"health": {"mode": "Watch"}, "load": {"enabled": False}})
    operator.list()
    operator.keep_watch_sets()
    pod = WatchPod(operator.cluster)
    for machine in (made.h100(), made.every_gpu(made.h100(), serial="7")):
        decoded.clear()
        pod.reports(machine, later=20.0)
        operator.catch_up()
    evidence = operator.cluster.objects[EVIDENCE]["node-1"]["probes"]["health"]
    assert evidence["gpus"][0]["serial"] == "7"
    assert len(decoded) == 1
