"""One cause on many nodes, on the real API server: few taints, one incident, and no hand that ends it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import System
from support.cluster_under_test import GROUP, answering, at_work, run_of
from support.taint_history import TaintHistory
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

COUNT = 60
COOL, HOT = at_work(60), at_work(95)
UPGRADED = System(driver="575.10.01", nvml="12.575.10", cuda=12090)
SPEC: dict[str, Any] = {
    "probes": {
        "health": {"interval": "15s", "deadline": "4s", "window": "500ms"},
        "load": {"enabled": False},
    },
    "hysteresis": {"dwell": "1s", "probationAfter": []},
    "budget": {"concurrentProbes": "100%", "gatedNodes": "20%", "gatedNodesPerHour": "5%"},
    "breaker": {},
}
BY_RATE = COUNT * 5 // 100
DEFAULTS = {"NODEGAUGE_MAX_GATED_NODES": "20%", "NODEGAUGE_MAX_GATED_NODES_PER_HOUR": "5%"}
SLOWEST = 240.0


class Fleet:
    """Machines that are all cool, until some turn bad at once."""

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self.driver = COOL.system
        self._lock = threading.Lock()

    def turn(self, *nodes: str, driver: System = COOL.system) -> None:
        """These nodes are bad from now on, with this driver, and no others."""
        with self._lock:
            self.bad, self.driver = set(nodes), driver

    def __call__(self, pod: Any) -> str:
        _, node = run_of(pod)
        with self._lock:
            result = replace(HOT, system=self.driver) if node in self.bad else COOL
        return answering(result)(pod)


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


@pytest.mark.parametrize("what", ["heat", "driver"])
@pytest.mark.timeout(900)
def test_a_common_cause_taints_few_nodes_and_is_shown_once(rig: Any, control_plane: Any, what: str) -> None:
    """All of 60 nodes hot within a minute, or a driver roll-out that makes 30 % of them fail alike: at most
    budget and rate are tainted, also over a restart; as the cause goes, everything clears by itself."""
    fleet = Fleet()
    for _ in range(COUNT):
        rig.add_node()
    bad = rig.nodes if what == "heat" else rig.nodes[: COUNT * 30 // 100]
    with TaintHistory(control_plane.kubeconfig, prefix=f"node-{rig.mark}-") as witness, rig.kubelet(fleet):
        with rig.operator(**DEFAULTS):
            policy = rig.add_policy(**SPEC)
            wait_for(lambda: rig.counts().get("validated") == COUNT, what="all validated", seconds=SLOWEST)
            assert state(rig, policy) == ("False", [])
            fleet.turn(*bad, driver=COOL.system if what == "heat" else UPGRADED)

            def complete() -> bool:
                return any(i["nodes"] == len(bad) for i in state(rig, policy)[1])

            wait_for(complete, what="an incident of all of them", seconds=SLOWEST)
            (incident,) = state(rig, policy)[1]
        with rig.operator(name="again", **DEFAULTS) as again:
            number = {name: rig.last_run(name)["number"] for name in bad}
            wait_for(
                lambda: all(rig.last_run(name)["number"] > number[name] for name in bad),
                what="another bad run each",
                seconds=SLOWEST,
            )
            assert state(rig, policy) == ("True", [incident])
            assert incident["group"] == ("" if what == "heat" else f"driver={UPGRADED.driver}")
            assert 0 < len(tainted(rig)) <= BY_RATE
            waiting = sorted(set(bad) - tainted(rig))[0]
            assert f"held back by incident {incident['id']}" in rig.condition(waiting)["message"]
            assert again.metric("nodegauge_incidents_open") == 1
            assert len(announced(rig, policy)) == 1
            fleet.turn()
            wait_for(lambda: state(rig, policy)[0] == "False", what="the incident closed", seconds=SLOWEST)
            wait_for(lambda: not tainted(rig), what="no taint left", seconds=SLOWEST)
            wait_for(lambda: rig.counts()["heldBack"] == 0, what="nobody held back", seconds=SLOWEST)
            (closed,) = state(rig, policy)[1]
            assert closed["id"] == incident["id"]
            assert closed["closedAt"]
            assert len(announced(rig, policy)) == 1
    most = max(len(nodes | reports) for nodes, reports in witness.moments())
    assert 0 < most <= BY_RATE
