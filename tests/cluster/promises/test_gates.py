"""Taints on the real API server: the budget at every moment, foreign taints, and whatever takes ours off."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.cluster_under_test import GROUP, OURS, answering, at_work, run_of
from support.taint_history import TaintHistory
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

HOT, COOL = at_work(95), at_work(60)
THERMAL = ["throttled=thermal:NoSchedule"]
OFTEN = {"health": {"interval": "5s", "deadline": "4s", "window": "500ms"}}
AT_ONCE = {"enterRuns": 1, "leaveRuns": 1, "dwell": "1s", "probationAfter": []}
FOREIGN = {"key": "example.com/maintenance", "effect": "NoSchedule", "timeAdded": "2026-11-21T03:00:00Z"}
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
MIG = "nvidia.com/mig.config.state"


class Machines:
    """What each node's probe finds; hot where nothing else is said."""

    def __init__(self) -> None:
        self.cool: set[str] = set()

    def __call__(self, pod: Any) -> str:
        _, node = run_of(pod)
        return answering(COOL if node in self.cool else HOT)(pod)


@pytest.fixture
def machines() -> Machines:
    """All hot."""
    return Machines()


def budget(rig: Any, policy: str) -> dict[str, Any]:
    """The condition GatesWithinBudget of the policy, with the counts beside it; empty before the first."""
    status = rig.api.get(f"{GROUP}/gpuvalidationpolicies/{policy}").get("status", {})
    result = [c for c in status.get("conditions", []) if c["type"] == "GatesWithinBudget"]
    return {**result[0], **status["nodes"]} if result else {}


def gated(rig: Any) -> set[str]:
    """The nodes that carry the taint, and no other of ours."""
    return {name for name in rig.nodes if rig.taints(name) == THERMAL}


def test_twenty_hot_nodes_never_gate_more_than_the_budget(
    rig: Any, machines: Machines, control_plane: Any
) -> None:
    """At no moment, on nodes and in reports together; the policy's condition says how many are held back; as
    the first ones cool down, others come in their place."""
    for _ in range(20):
        rig.add_node()
    with (
        TaintHistory(control_plane.kubeconfig, prefix=f"node-{rig.mark}-") as witness,
        rig.kubelet(machines),
        rig.operator() as operator,
    ):
        policy = rig.add_policy(
            probes=OFTEN,
            hysteresis={"leaveRuns": 1, "dwell": "1s", "probationAfter": []},
            budget={"concurrentProbes": "100%", "gatedNodes": "20%"},
        )

        def all_held_back() -> dict[str, Any]:
            now = budget(rig, policy)
            return now if now.get("heldBack") == 16 else {}

        reported = wait_for(all_held_back, what="16 nodes held back")
        assert (reported["status"], reported["reason"], reported["gated"]) == ("False", "BudgetExhausted", 4)
        message = "4 of 4 slots used (20% of 20 nodes), 16 nodes held back: thermal 16."
        assert reported["message"].startswith(message)
        wait_for(lambda: len(gated(rig)) == 4, what="four nodes gated, after their reports")
        first = gated(rig)
        wait_for(lambda: operator.metric("nodegauge_held_back_nodes") == 16, what="16 in the metric")
        machines.cool = first

        def others() -> bool:
            now = gated(rig)
            return len(now) == 4 and not now & first

        wait_for(others, what="four others gated")
    moments = list(witness.moments())
    assert max(len(nodes | reports) for nodes, reports in moments) == 4
    assert max(len(nodes) for nodes, _ in moments) == 4


def test_a_taint_comes_after_two_hot_runs_and_goes_after_three_cool_ones(
    rig: Any, machines: Machines
) -> None:
    """The label says the same; good runs that are too few change nothing."""
    node = rig.add_node()
    rig.add_policy(hysteresis={"dwell": "1s"})
    with rig.kubelet(machines), rig.operator():
        rig.wait_up_to_date(node, 1)
        assert rig.taints(node) == []
        for number in (2, 3):
            rig.ask_for_run(node)
            rig.wait_up_to_date(node, number)
            wait_for(lambda: rig.taints(node) == THERMAL, what="the taint")
        assert rig.ours(node)["nodegauge.dev/throttled"] == "thermal"
        machines.cool = {node}
        for number in (4, 5):
            rig.ask_for_run(node)
            rig.wait_up_to_date(node, number)
            assert rig.taints(node) == THERMAL
        rig.ask_for_run(node)
        rig.wait_run(node, 6)
        wait_for(lambda: rig.taints(node) == [], what="the taint gone")
        assert rig.ours(node).get("nodegauge.dev/throttled") != "thermal"


def test_foreign_taints_survive_a_race_with_ours(rig: Any, machines: Machines, fault_proxy: Any) -> None:
    """Someone taints the node between our reading and our patch, as it comes and as it goes; a list that is
    replaced whole must not lose it, nor the time in it."""
    node = rig.add_node()
    rig.add_policy(hysteresis=AT_ONCE)
    done: list[str] = []

    def intrude(*_: Any) -> None:
        key = f"example.com/{len(done)}"
        done.append(key)
        taints = [*(rig.node(node)["spec"].get("taints") or []), FOREIGN | {"key": key}]
        rig.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": taints}})

    path = re.compile(rf"/api/v1/nodes/{node}$")
    fault_proxy.on(method="PATCH", path=path, when="before", times=1, do=intrude)
    with rig.kubelet(machines), rig.operator(kubeconfig=fault_proxy.kubeconfig()):
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.taints(node) == THERMAL, what="the taint")
        machines.cool = {node}
        fault_proxy.on(method="PATCH", path=path, when="before", times=1, do=intrude)
        rig.ask_for_run(node)
        rig.wait_run(node, 2)
        wait_for(lambda: rig.taints(node) == [], what="the taint gone")
    assert done == ["example.com/0", "example.com/1"]
    assert rig.node(node)["spec"]["taints"] == [FOREIGN | {"key": key} for key in done]


def test_a_policy_that_goes_takes_everything_of_ours_with_it(rig: Any, machines: Machines) -> None:
    """Taints, labels, condition and report, without any finalizer; it leaves the taints of others."""
    node = rig.add_node()
    rig.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [FOREIGN]}})
    policy = rig.add_policy(hysteresis=AT_ONCE)
    with rig.kubelet(machines), rig.operator():
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.taints(node) == THERMAL, what="the taint")
        assert not rig.report(node)["metadata"].get("finalizers")
        rig.api.delete(f"{GROUP}/gpuvalidationpolicies/{policy}")
        wait_for(lambda: not rig.report(node), what="the report gone")
        assert rig.node(node)["spec"]["taints"] == [FOREIGN]
        assert (rig.ours(node), rig.condition(node)) == ({}, {})
        assert OURS + "validated-at" not in rig.labels(node)


def test_observe_takes_taints_off_and_the_fault_stays_known(rig: Any, machines: Machines) -> None:
    """Nothing of ours stays on nodes in mode Observe; the report goes on to say what was found."""
    node = rig.add_node()
    policy = rig.add_policy(hysteresis=AT_ONCE)
    with rig.kubelet(machines), rig.operator():
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.taints(node) == THERMAL, what="the taint")
        rig.api.patch(f"{GROUP}/gpuvalidationpolicies/{policy}", {"spec": {"mode": "Observe"}})
        wait_for(lambda: not rig.taints(node) and not rig.ours(node), what="nothing of ours left")
        assert rig.report(node)["status"]["verdict"] == "fail"


def test_a_node_that_leaves_the_server_side_selection_loses_its_taint(rig: Any, machines: Machines) -> None:
    """A lost label arrives as a deletion: the node is there, so what we hold comes off."""
    node = rig.add_node(watched="yes")
    rig.add_policy(hysteresis=AT_ONCE)
    selector = f"test={rig.mark},watched=yes"
    with rig.kubelet(machines), rig.operator(NODEGAUGE_NODE_LABEL_SELECTOR=selector):
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.taints(node) == THERMAL, what="the taint")
        rig.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"watched": None}}})
        wait_for(lambda: not rig.taints(node) and not rig.ours(node), what="nothing of ours left")


@pytest.mark.parametrize(
    ("label", "state", "over"),
    [(UPGRADE, "cordon-required", "upgrade-done"), (MIG, "pending", "success")],
    ids=["upgrade", "mig"],
)
def test_a_gated_node_under_maintenance_keeps_its_taint_and_gets_no_probe(
    rig: Any, machines: Machines, audit: Any, label: str, state: str, over: str
) -> None:
    """The GPU Operator is at work there: an open NVML client would be in its way; a run asked for waits."""
    node = rig.add_node()
    rig.add_policy(hysteresis=AT_ONCE)
    with rig.kubelet(machines), rig.operator() as operator:
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.taints(node) == THERMAL, what="the taint")
        rig.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: state}}})
        machines.cool = {node}
        rig.ask_for_run(node)
        other = rig.add_node()  # its run shows that the operator has had time to begin one
        rig.wait_up_to_date(other, 1)
        assert operator.running()
        assert rig.last_run(node)["number"] == 1
        assert rig.taints(node) == THERMAL
        assert len(audit.writes(resource="pods", verb="create", user_agent="nodegauge-operator")) == 2
        rig.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {label: over}}})
        rig.wait_run(node, 2)
        wait_for(lambda: rig.taints(node) == [], what="the taint gone")
