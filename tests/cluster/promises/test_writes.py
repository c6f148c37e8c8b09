"""Promise 2: only our keys, and nothing twice, in writes to nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from support.cluster_under_test import AT_ONCE, OURS, Machines, at_work
from support.results import dgx1, h100
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = "nodegauge-operator"
OUR_RESOURCES = {"nodes", "nodes/status", "pods", "events", "leases"} | {
    "nodereports",
    "nodereports/status",
    "nodereadings",
    "gpuvalidationpolicies/status",
}
OUR_STATUS_KEYS = {"conditions"}
OUR_TAINTS = {OURS + "throttled", OURS + "unhealthy"}
FOREIGN = [
    {"key": "example.com/maintenance", "effect": "NoExecute", "timeAdded": "2026-11-21T03:00:00Z"},
    {"key": "team", "value": "blue", "effect": "PreferNoSchedule"},
]


def taint_writes(audit: Any) -> list[Any]:
    """The lists of taints that the operator wrote to nodes, in their order."""
    on_nodes = [w for w in audit.writes(user_agent=OPERATOR) if w.resource == "nodes" and w.code == 200]
    return [w.body["spec"]["taints"] for w in on_nodes if "spec" in w.body]


def test_nothing_but_our_own_keys_is_ever_in_a_write_to_a_node(rig: Any, audit: Any) -> None:
    """Read from the API server's own audit log, over a first run, a change, a taint that comes and goes and
    comes again, and the end of the policy."""
    node = rig.add_node()
    rig.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": FOREIGN}})
    policy = rig.add_policy(hysteresis=AT_ONCE)
    machines, cool = Machines(h100()), at_work(60)
    with rig.kubelet(machines), rig.operator():
        rig.wait_up_to_date(node, 1)
        for number, result in enumerate((dgx1(), at_work(95), cool, at_work(95)), start=2):
            machines.now = result
            rig.ask_for_run(node)
            rig.wait_up_to_date(node, number)
            if result == cool:  # a gate also stands for its dwell
                wait_for(lambda: not rig.taints(node), what="the taint off")
        rig.api.delete(f"/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/{policy}")
        wait_for(lambda: not (rig.ours(node) or rig.condition(node) or rig.report(node)), what="all off")
        assert not rig.reading(node), "it goes before its report"
    wait_for(lambda: taint_writes(audit)[-1:] == [FOREIGN], what="the last write in the audit log")
    on_nodes = [w for w in audit.writes(user_agent=OPERATOR) if w.resource.split("/")[0] == "nodes"]
    assert not audit.writes(user_agent="kopf"), "kopf writes nothing at all: no annotation, no finalizer"
    on_pods = [w for w in audit.writes(user_agent=OPERATOR) if w.resource.split("/")[0] == "pods"]
    assert {w.verb for w in on_pods} == {"create", "delete"}
    on_readings = [w for w in audit.writes(user_agent=OPERATOR) if w.resource == "nodereadings"]
    assert [w.verb for w in on_readings] == ["delete"], "what probes wrote goes once, and never changes"
    assert {w.resource for w in audit.writes(user_agent=OPERATOR)} <= OUR_RESOURCES
    for write in on_nodes:
        assert set(write.body) <= {"metadata", "status", "spec"}, write.body
        metadata = write.body["metadata"]
        assert set(metadata) <= {"resourceVersion", "uid", "labels"}, metadata
        assert metadata.get("resourceVersion") or "labels" not in metadata, "decided on a node as it was then"
        assert all(k.startswith(OURS) or k == "interconnect" for k in metadata.get("labels", {})), metadata
        assert set(write.body.get("spec", {})) <= {"taints"}, write.body
        taints = write.body.get("spec", {}).get("taints", FOREIGN)
        assert [t for t in taints if not t["key"].startswith(OURS)] == FOREIGN
        assert {t["key"] for t in taints if t["key"].startswith(OURS)} <= OUR_TAINTS
        for condition in write.body.get("status", {}).get("conditions", []):
            assert condition["type"] == "GPUValidated"
        assert set(write.body.get("status", {})) <= OUR_STATUS_KEYS
    taken = taint_writes(audit)
    assert len(taken) >= 4, "set, lifted, set again, taken off"
    assert all(before != after for before, after in pairwise(taken)), "nothing is written twice"
    assert rig.node(node)["spec"]["taints"] == FOREIGN
