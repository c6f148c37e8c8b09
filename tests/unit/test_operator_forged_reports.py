"""Somebody writes into reports: nothing of theirs reaches a node but what runs and the budget would allow."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, stamp
from support.api_server import NODES, REPORTS
from support.cluster import FakeCluster
from support.objects import INTERVAL, NOW
from support.operator import SteppedOperator

FOREIGN = {
    "node-role.kubernetes.io/control-plane": "",
    "node-restriction.kubernetes.io/trusted": "true",
    "topology.kubernetes.io/zone": "elsewhere",
    "kubernetes.io/hostname": "other",
}
THROTTLED = {"key": names.TAINT_THROTTLED, "value": "thermal", "effect": "NoSchedule"}
GATED = {
    "code": "hot",
    "state": GateState.GATED.value,
    "bad": 2,
    "since": stamp(NOW),
    "enteredAt": stamp(NOW),
}


def nodes(count: int, **spec: Any) -> SteppedOperator:
    """An operator and so many nodes, each with a report of one good run."""
    cluster = FakeCluster()
    for n in range(count):
        cluster.add_node(f"node-{n}")
    cluster.add_policy(**spec)
    operator = SteppedOperator(cluster)
    operator.list()
    look(operator)
    cluster.kubelets()
    look(operator)
    return operator


def look(operator: SteppedOperator, *, granted: bool = True) -> None:
    """Every node is reconciled."""
    operator.deliver()
    for name in sorted(operator.cluster.objects[NODES]):
        operator.reconcile(name, granted=granted)
    operator.deliver()


def forge(operator: SteppedOperator, status: dict[str, Any]) -> None:
    """Somebody merges this into the status of every report."""
    for name in list(operator.cluster.objects[REPORTS]):
        operator.cluster.change(REPORTS, name, {"status": status}, sub="status")


def tainted(operator: SteppedOperator, *keys: str) -> list[str]:
    """Nodes with a taint of one of these keys; of any key but `unvalidated` by default."""
    objects = operator.cluster.objects[NODES].items()
    taints = {n: [t["key"] for t in body["spec"].get("taints") or ()] for n, body in objects}
    return [name for name, carried in taints.items() if set(carried) & set(keys or carried)]


@pytest.mark.parametrize("nulled", [True, False], ids=["no run is known", "runs are known"])
@pytest.mark.parametrize(
    "desired",
    [
        {"labels": FOREIGN},
        {"labels": {names.LABEL_INTERCONNECT: "nvlink", **FOREIGN}},
        {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoExecute"}]},
        {"taints": [{"key": "example.com/drain", "effect": "NoExecute"}], "labels": FOREIGN},
        {"condition": "False", "reason": "Forged", "message": "remove this node"},
    ],
    ids=["labels", "with one of ours", "a taint", "both", "the condition"],
)
def test_what_a_report_asks_for_is_computed_again_before_it_is_written(
    desired: dict[str, Any], nulled: bool
) -> None:
    """Labels, taints and condition come from readings, whatever stands under `desired`."""
    operator = nodes(1)
    before = operator.cluster.state()["nodes"]["node-0"]
    past = {"probes": None, "interconnect": None, "gates": None} if nulled else {}
    forge(operator, past | {"desired": desired})
    look(operator, granted=False)
    after = operator.cluster.state()["nodes"]["node-0"]
    assert not after["labels"].keys() & (FOREIGN.keys() - before["labels"].keys())
    assert after["taints"] == []
    assert "Forged" not in str(after["conditions"])


@pytest.mark.parametrize("nulled", [True, False], ids=["no run is known", "runs are known"])
@pytest.mark.parametrize("state", list(GateState))
def test_gates_that_somebody_wrote_take_no_more_slots_than_there_are(state: GateState, nulled: bool) -> None:
    """Nine forged reports, one slot: at no moment do more nodes carry a taint for a fault."""
    operator = nodes(9, budget={"gatedNodes": 1})
    most: list[int] = []
    operator.cluster.subscribers.append(lambda *_: most.append(len(tainted(operator, THROTTLED["key"]))))
    forged = {"gates": [GATED | {"state": state.value}], "desired": {"taints": [THROTTLED]}}
    forge(operator, forged | ({"probes": None} if nulled else {}))
    look(operator, granted=False)
    look(operator, granted=False)
    assert max(most) <= 1
    if nulled:
        assert max(most) == 0, "a gate of which no run is known waits for one"


def test_forged_gates_leave_by_good_runs() -> None:
    """The slot that a forged gate took is free again after the runs that every gate needs."""
    operator = nodes(2, budget={"gatedNodes": 1}, hysteresis={"leaveRuns": 1, "dwell": "1m"})
    forge(operator, {"gates": [GATED | {"code": "gpu-lost"}], "desired": {"taints": []}})
    for _ in range(3):
        operator.cluster.pass_time(INTERVAL)
        look(operator)
        operator.cluster.kubelets()
        look(operator, granted=False)
    assert tainted(operator) == []


@pytest.mark.parametrize("restart", [True, False])
def test_a_node_that_carries_its_taint_keeps_it_beside_forged_reports(restart: bool) -> None:
    """Who was gated by runs stays so: a forger neither takes its slot nor lifts its taint."""
    operator = nodes(5, budget={"gatedNodes": 1})
    forged = {"gates": [GATED], "desired": {"taints": [THROTTLED]}}
    operator.cluster.change(REPORTS, "node-3", {"status": forged}, sub="status")
    look(operator, granted=False)
    assert tainted(operator, THROTTLED["key"]) == ["node-3"], "one report may ask for the one slot"
    forge(operator, forged)
    if restart:
        operator.restart()
    look(operator, granted=False)
    assert tainted(operator, THROTTLED["key"]) == ["node-3"]


@pytest.mark.parametrize("number", [2**63 - 1, 10**9, 10**9 + 7, 0])
def test_any_run_number_in_a_report_is_followed_by_a_run(number: int) -> None:
    """Numbers begin anew after those that a pod's annotation and a report can count."""
    operator = nodes(1)
    [probe] = operator.cluster.objects[REPORTS]["node-0"]["status"]["probes"]
    edited = probe | {"lastRun": probe["lastRun"] | {"number": number}, "streak": 2**63 - 1}
    forge(operator, {"probes": [edited]})
    operator.cluster.pass_time(INTERVAL)
    look(operator)
    assert len(list(operator.cluster.pods())) == 1
    operator.cluster.kubelets()
    look(operator, granted=False)
    after = operator.cluster.objects[REPORTS]["node-0"]["status"]["probes"][0]
    assert after["lastRun"]["outcome"] == "read"
    assert 0 < after["streak"] < 2**53
