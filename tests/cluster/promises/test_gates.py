"""Taints on the real API server: the budget at every moment, foreign taints, and whatever takes ours off."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.cluster_under_test import GROUP, answering, at_work, run_of
from support.taint_history import TaintHistory
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

HOT, COOL = at_work(95), at_work(60)
THERMAL = ["throttled=thermal:NoSchedule"]
OFTEN = {"health": {"interval": "5s", "deadline": "4s", "window": "500ms"}}
AT_ONCE = {"enterRuns": 1, "leaveRuns": 1, "dwell": "1s", "probationAfter": []}
FOREIGN = {"key": "example.com/maintenance", "effect": "NoSchedule", "timeAdded": "2026-11-21T03:00:00Z"}


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
        TaintHistory(control_plane.rest(), prefix=f"node-{rig.mark}-") as witness,
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
