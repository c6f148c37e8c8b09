"""`nodegauge cleanup` against a real API server: kubelets that never answer, an operator that has to stop."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from nodegauge_contract import text
from support.cluster_under_test import GROUP, ROOT, ClusterUnderTest
from support.results import h100
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

LABELS = {"app.kubernetes.io/part-of": "nodegauge", "app.kubernetes.io/component": "operator"}
FOREIGN = {"key": "team", "value": "blue", "effect": "PreferNoSchedule"}


def cleanup(rig: ClusterUnderTest, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as people run it."""
    paths = [str(ROOT / "operator/src"), str(ROOT / "probes/src")]
    environment = {**os.environ, "KUBECONFIG": str(rig.kubeconfig), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "nodegauge_cli", "cleanup", "--namespace", rig.namespace, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def add_marks(rig: ClusterUnderTest, node: str) -> None:
    """What the operator writes: a label, a taint, the condition, a report; beside a stranger's taint."""
    ours = {"key": "nodegauge.dev/throttled", "value": "thermal", "effect": "NoSchedule"}
    marks = {"metadata": {"labels": {"nodegauge.dev/health": "pass"}}, "spec": {"taints": [FOREIGN, ours]}}
    rig.api.patch(f"/api/v1/nodes/{node}", marks)
    conditions = rig.node(node)["status"].get("conditions", [])
    ours = {"type": "GPUValidated", "status": "True", "reason": "Validated", "message": "fine"}
    rig.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [*conditions, ours]}})
    body = {"apiVersion": "nodegauge.dev/v1alpha1", "kind": "NodeReport", "metadata": {"name": node}}
    rig.api.create(f"{GROUP}/nodereports", body | {"spec": {}})


def pod(node: str, *, grace: int) -> dict[str, Any]:
    """The spec of a pod on this node, whose kubelet is dead."""
    container = {"name": "main", "image": "nothing:1"}
    return {"nodeName": node, "terminationGracePeriodSeconds": grace, "containers": [container]}


def add_operator_and_probe(rig: ClusterUnderTest, node: str) -> None:
    """A Deployment with the chart's labels, under a name of its own, with a pod on the node, and a probe pod
    beside it, which has written a reading; both run as far as the API server knows."""
    template = {"metadata": {"labels": LABELS}, "spec": pod(node, grace=1)}
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    deployment = {"metadata": {"name": "my-gauge", "labels": LABELS}, "spec": spec}
    rig.api.create(f"/apis/apps/v1/namespaces/{rig.namespace}/deployments", deployment)
    wait_for(rig.pods, what="the operator's pod")
    annotations = {"nodegauge.dev/node": node, "nodegauge.dev/run": "1"}
    metadata = {"name": "probe", "labels": {"nodegauge.dev/probe": "health"}, "annotations": annotations}
    pods = f"/api/v1/namespaces/{rig.namespace}/pods"
    probe = rig.api.create(pods, {"metadata": metadata, "spec": pod(node, grace=5)})
    rig.kubelet().write_reading(probe, text(h100()))
    assert rig.reading(node)["health"]
    for name in [one["metadata"]["name"] for one in rig.pods()]:
        rig.api.patch(f"{pods}/{name}/status", {"status": {"phase": "Running"}})


def test_all_goes_although_no_kubelet_answers(rig: ClusterUnderTest) -> None:
    """Operator and probe on nodes whose kubelet is dead: both are removed, then nothing of ours is left."""
    node = rig.add_node()
    add_marks(rig, node)
    add_operator_and_probe(rig, node)
    done = cleanup(rig)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my-gauge scaled to 0" in done.stdout
    assert done.stdout.count("without confirmation by") == 2
    assert rig.pods() == []
    assert (rig.ours(node), rig.condition(node), rig.report(node)) == ({}, {}, {})
    assert rig.reading(node) == {}
    assert rig.node(node)["spec"]["taints"] == [FOREIGN]
    deployment = rig.api.get(f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/my-gauge")
    assert deployment["spec"]["replicas"] == 0
