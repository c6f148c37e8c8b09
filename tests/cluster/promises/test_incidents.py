"""One cause on many nodes, on the real API server: few taints, one incident, and no hand that ends it."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import GROUP, Machines, at_work
from support.taint_history import TaintHistory
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

COUNT = 20
COOL, HOT = at_work(60), at_work(95)
SPEC: dict[str, Any] = {
    "probes": {"health": {"interval": "5s", "deadline": "4s", "window": "500ms"}, "load": {"enabled": False}},
    "hysteresis": {"dwell": "1s", "probationAfter": []},
    "budget": {"concurrentProbes": "100%", "gatedNodes": "20%", "gatedNodesPerHour": "5%"},
    "breaker": {},
}
BY_RATE = COUNT * 5 // 100
DEFAULTS = {"NODEGAUGE_MAX_GATED_NODES": "20%", "NODEGAUGE_MAX_GATED_NODES_PER_HOUR": "5%"}


def state(rig: Any, policy: str) -> tuple[str, list[dict[str, Any]]]:
    """Status of the condition BreakerOpen, and the incidents."""
    status = rig.api.get(f"{GROUP}/gpuvalidationpolicies/{policy}").get("status", {})
    statuses = [c["status"] for c in status.get("conditions", []) if c["type"] == "BreakerOpen"]
    return (statuses[0] if statuses else ""), status.get("incidents", [])


def tainted(rig: Any) -> set[str]:
    """Nodes that carry a taint for a fault."""
    return {name for name in rig.nodes if rig.taints(name)}


def announced(rig: Any, policy: str) -> list[str]:
    """Notes of the events regarding the policy."""
    items = rig.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    regarding = [e for e in items if e["regarding"].get("name") == policy]
    return [e["note"] for e in regarding if e["regarding"]["kind"] == "GPUValidationPolicy"]


def test_a_common_cause_taints_few_nodes_and_is_shown_once(rig: Any, control_plane: Any) -> None:
    """All nodes hot within seconds: at most budget and rate are tainted, also over a restart; as the cause
    goes, everything clears by itself."""
    machines = Machines(COOL)
    for _ in range(COUNT):
        rig.add_node()
    with TaintHistory(control_plane.rest(), prefix=f"node-{rig.mark}-") as witness, rig.kubelet(machines):
        with rig.operator(**DEFAULTS):
            policy = rig.add_policy(**SPEC)
            wait_for(lambda: rig.counts().get("validated") == COUNT, what="all validated")
            assert state(rig, policy) == ("False", [])
            machines.now = HOT

            def complete() -> bool:
                return any(i["nodes"] == COUNT for i in state(rig, policy)[1])

            wait_for(complete, what="an incident of all of them")
            (incident,) = state(rig, policy)[1]
        with rig.operator(name="again", **DEFAULTS) as again:
            number = {name: rig.last_run(name)["number"] for name in rig.nodes}
            wait_for(
                lambda: all(rig.last_run(name)["number"] > number[name] for name in rig.nodes),
                what="another bad run each",
            )
            assert state(rig, policy) == ("True", [incident])
            assert incident["group"] == ""
            assert 0 < len(tainted(rig)) <= BY_RATE
            waiting = sorted(set(rig.nodes) - tainted(rig))[0]
            assert f"held back by incident {incident['id']}" in rig.condition(waiting)["message"]
            assert again.metric("nodegauge_incidents_open") == 1
            assert len(announced(rig, policy)) == 1
            machines.now = COOL
            wait_for(lambda: state(rig, policy)[0] == "False", what="the incident closed")
            wait_for(lambda: not tainted(rig), what="no taint left")
            wait_for(lambda: rig.counts()["heldBack"] == 0, what="nobody held back")
            (closed,) = state(rig, policy)[1]
            assert closed["id"] == incident["id"]
            assert closed["closedAt"]
            assert len(announced(rig, policy)) == 1
    most = max(len(nodes | reports) for nodes, reports in witness.moments())
    assert 0 < most <= BY_RATE
