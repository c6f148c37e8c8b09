"""Promise 2 and the budget of writes: only our keys, nothing on unchanged nodes, foreign writes survive."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from support.cluster_under_test import OURS, answering, at_work
from support.results import dgx1, h100
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = "nodegauge-operator"
OUR_STATUS_KEYS = {"conditions"}
OUR_TAINTS = {OURS + "throttled", OURS + "unhealthy"}
FOREIGN = [
    {"key": "example.com/maintenance", "effect": "NoExecute", "timeAdded": "2026-11-21T03:00:00Z"},
    {"key": "team", "value": "blue", "effect": "PreferNoSchedule"},
]
AT_ONCE = {"enterRuns": 1, "leaveRuns": 1, "dwell": "1s", "probationAfter": []}


def kinds(writes: list[Any]) -> Counter[str]:
    """Writes as verb and resource."""
    return Counter(f"{w.verb} {w.resource}" for w in writes)


def ours(audit: Any) -> list[Any]:
    """What the operator wrote since the test began, but for what many nodes share: the policies' status, and
    the Lease."""
    shared = ("gpuvalidationpolicies", "gpuvalidationpolicies/status", "leases")
    return [w for w in audit.writes(user_agent=OPERATOR) if w.resource not in shared]


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
    machine, cool = {"now": h100()}, at_work(60)
    with rig.kubelet(lambda pod: answering(machine["now"])(pod)), rig.operator():
        rig.wait_up_to_date(node, 1)
        for number, result in enumerate((dgx1(), at_work(95), cool, at_work(95)), start=2):
            machine["now"] = result
            rig.ask_for_run(node)
            rig.wait_up_to_date(node, number)
            if result == cool:  # a gate also stands for its dwell
                wait_for(lambda: not rig.taints(node), what="the taint off")
        rig.api.delete(f"/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/{policy}")
        wait_for(lambda: not rig.ours(node) and not rig.condition(node), what="gates off")
    wait_for(lambda: taint_writes(audit)[-1:] == [FOREIGN], what="the last write in the audit log")
    on_nodes = [w for w in audit.writes(user_agent=OPERATOR) if w.resource.split("/")[0] == "nodes"]
    assert not audit.writes(user_agent="kopf"), "kopf writes nothing at all: no annotation, no finalizer"
    on_pods = [w for w in audit.writes(user_agent=OPERATOR) if w.resource.split("/")[0] == "pods"]
    assert {w.verb for w in on_pods} == {"create", "delete"}
    for write in on_nodes:
        assert set(write.body) <= {"metadata", "status", "spec"}, write.body
        metadata = write.body["metadata"]
        assert set(metadata) <= {"resourceVersion", "uid", "labels"}, metadata
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


def test_a_gated_node_that_stays_as_it_is_costs_three_writes_a_run(rig: Any, audit: Any) -> None:
    """Create pod, report status, delete pod: a taint that stands is not written again."""
    node = rig.add_node()
    rig.add_policy(hysteresis=AT_ONCE)
    with rig.kubelet(answering(at_work(95))), rig.operator():
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: len(rig.events(node)) == 1, what="the event")
        first = kinds(ours(audit))
        assert rig.taints(node) == ["throttled=thermal:NoSchedule"]
        rig.ask_for_run(node)
        rig.wait_up_to_date(node, 2)
    assert kinds(ours(audit)) - first == {
        "create pods": 1,
        "patch nodereports/status": 1,
        "delete pods": 1,
    }


def test_a_run_that_changes_nothing_costs_three_writes(rig: Any, audit: Any) -> None:
    """Create pod, report status, delete pod; the first run adds report, evidence, labels and event."""
    node = rig.add_node()
    rig.add_policy()
    with rig.kubelet(), rig.operator():
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.events(node), what="the event")
        first = kinds(ours(audit))
        rig.ask_for_run(node)
        rig.wait_up_to_date(node, 2)
    steady = kinds(ours(audit)) - first
    three = {"create pods": 1, "patch nodereports/status": 1, "delete pods": 1}
    assert steady == three
    extra = {"create nodereports": 1, "patch nodes": 1, "patch nodes/status": 1, "create events": 1}
    assert first == Counter(three) + Counter(extra) + Counter({"create nodeevidences": 1})


def test_a_foreign_label_and_taint_added_during_our_patch_survive(rig: Any, fault_proxy: Any) -> None:
    """Someone writes between our reading of the node and our patch: ours meets a conflict and tries again."""
    node = rig.add_node()
    rig.add_policy()
    taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
    done: list[int] = []

    def intrude(*_: Any) -> None:
        done.append(1)
        body = {"metadata": {"labels": {"example.com/team": "blue"}}, "spec": {"taints": [taint]}}
        rig.api.patch(f"/api/v1/nodes/{node}", body)

    path = re.compile(rf"/api/v1/nodes/{node}$")
    fault_proxy.on(method="PATCH", path=path, when="before", times=1, do=intrude)
    with rig.kubelet(), rig.operator(kubeconfig=fault_proxy.kubeconfig()):
        rig.wait_up_to_date(node)
    assert done, "our patch was never seen"
    assert rig.labels(node)["example.com/team"] == "blue"
    assert [t["key"] for t in rig.node(node)["spec"]["taints"]] == [taint["key"]]
    assert rig.ours(node)["interconnect"] == "nvlink"


def test_a_short_key_of_somebody_else_is_left_alone_and_reported(rig: Any) -> None:
    """The full key is ours and written; the short one stays as its owner left it, also at the end."""
    node = rig.add_node(interconnect="infiniband")
    policy = rig.add_policy()
    with rig.kubelet(), rig.operator():
        rig.wait_run(node, 1)
        wait_for(lambda: rig.ours(node).get(OURS + "interconnect") == "nvlink", what="our own key")
        assert rig.labels(node)["interconnect"] == "infiniband"
        assert rig.report(node)["status"]["desired"]["conflicts"] == ["interconnect"]
        reported = "label interconnect=infiniband was set by another owner"
        wait_for(lambda: any(reported in e["note"] for e in rig.events(node)), what="the event")
        rig.api.delete(f"/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/{policy}")
        wait_for(lambda: rig.ours(node) == {"interconnect": "infiniband"}, what="only the foreign one left")


def test_a_changed_label_key_takes_the_old_one_away(rig: Any) -> None:
    """Renaming the short key in the policy renames the label on the node."""
    node = rig.add_node()
    policy = rig.add_policy()
    with rig.kubelet(answering(h100())), rig.operator():
        rig.wait_up_to_date(node)
        assert rig.labels(node)["interconnect"] == "nvlink"
        change = {"spec": {"labels": {"interconnectKey": "example.com/gpu-link"}}}
        rig.api.patch(f"/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/{policy}", change)
        wait_for(lambda: rig.labels(node).get("example.com/gpu-link") == "nvlink", what="the new key")
        wait_for(lambda: "interconnect" not in rig.labels(node), what="the old key gone")


def test_observe_writes_reports_and_nothing_on_nodes(rig: Any, audit: Any) -> None:
    """Mode Observe: the report is full, the node is never touched."""
    node = rig.add_node()
    rig.add_policy(mode="Observe")
    with rig.kubelet(), rig.operator():
        rig.wait_run(node, 1)
        assert rig.report(node)["status"]["interconnect"]["class"] == "nvlink"
        wait_for(lambda: rig.events(node), what="the event")
    assert not [w for w in audit.writes(user_agent=OPERATOR) if w.resource.split("/")[0] == "nodes"]
