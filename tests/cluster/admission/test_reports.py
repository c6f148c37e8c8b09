"""Who writes what was measured, and a whole cycle of the operator under the admission policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodegauge_operator import names
from support.cluster_under_test import AT_ONCE, GROUP, ClusterUnderTest, Machines, at_work
from support.guarded import ACCOUNT, NAMESPACE, NODE, Guarded, of_kind, refusal
from support.results import h100
from testbed.audit import AuditTrail, service_account
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

FAST = {
    "NODEGAUGE_HTTP_PORT": "0",
    "NODEGAUGE_RELEASE_GRACE": "1s",
    "NODEGAUGE_MAX_GATED_NODES": "100%",
    "NODEGAUGE_MAX_GATED_NODES_PER_HOUR": "100%",
    "NODEGAUGE_NCCL_IMAGE": "",
}
"""The chart's environment for a cluster of one node."""


def test_only_the_release_writes_what_was_measured(guarded: Guarded) -> None:
    """Reports by the operator's account; people may ask for a run, and delete."""
    guarded.operator.create(f"{GROUP}/nodereports", of_kind(names.REPORT_KIND))
    report = f"{GROUP}/nodereports/{NODE}"
    status = {"status": {"policy": "default"}}
    for rest in (guarded.admin, guarded.cleanup):
        assert "writes what it measured" in refusal(rest.patch, f"{report}/status", status)
    guarded.operator.patch(f"{report}/status", status)
    guarded.admin.patch(report, {"spec": {"requestedAt": "2026-01-01T00:00:00Z"}})
    guarded.admin.delete(report)


def test_only_the_bmc_reader_writes_what_a_bmc_said(guarded: Guarded) -> None:
    """Not the operator's account, and not the administrator."""
    made = of_kind(names.CHASSIS_KIND)
    collection = f"{GROUP}/chassisreadings"
    assert "BMC reader" in refusal(guarded.admin.create, collection, made)
    guarded.bmc.create(collection, made)
    guarded.bmc.delete(f"{collection}/{NODE}")


def test_a_whole_cycle_under_the_policies(guarded: Guarded, tmp_path: Path) -> None:
    """Labels, taint, condition, lifting and release of a node: no write is refused."""
    token = guarded.plane.service_account_token(NAMESPACE, ACCOUNT)
    kubeconfig = guarded.plane.user_kubeconfig("operator", token=token)
    audit = AuditTrail(guarded.plane.audit_log, guarded.admin)
    where = {"namespace": NAMESPACE, "directory": tmp_path, "kubeconfig": kubeconfig}
    rig = ClusterUnderTest(guarded.admin, protected=True, **where)
    node, machines = rig.add_node(), Machines(h100())

    def answer(pod: Object) -> str | None:
        return machines(pod) if names.POD_PROBE in pod["metadata"]["labels"] else None

    rig.add_policy(
        labels={"interconnectKey": "example.com/fabric"},
        probes={
            "health": {"interval": "5s", "deadline": "4s", "window": "500ms"},
            "load": {"enabled": False},
        },
        hysteresis=AT_ONCE,
        budget={"gatedNodes": "100%"},
    )
    environment: dict[str, Any] = guarded.environment() | FAST
    with rig.kubelet(answer), rig.operator(**environment):
        wait_for(lambda: rig.labels(node).get("example.com/fabric") == "nvlink", what="labels")
        machines.now = at_work(95)
        wait_for(lambda: rig.taints(node), what="a taint")
        machines.now = at_work(60)
        wait_for(lambda: not rig.taints(node), what="the taint's end")
        guarded.admin.delete(f"{GROUP}/gpuvalidationpolicies/{rig.policies[0]}")
        wait_for(lambda: not rig.ours(node) and not rig.condition(node), what="the release of the node")
    user = service_account(NAMESPACE, ACCOUNT)
    writes = audit.writes(user=user)
    assert {"nodes", "nodes/status", "pods", "nodereports/status"} <= {w.resource for w in writes}
    assert [w for w in writes if w.code in (401, 403, 422)] == []
