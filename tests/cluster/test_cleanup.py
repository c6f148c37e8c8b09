"""`nodegauge cleanup` against a real API server: kubelets that never answer, an operator that has to stop."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster_under_test import GROUP, ROOT, ClusterUnderTest, install_crds
from testbed.errors import ApiError
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

LABELS = {"app.kubernetes.io/part-of": "nodegauge", "app.kubernetes.io/component": "operator"}
FOREIGN = {"key": "team", "value": "blue", "effect": "PreferNoSchedule"}
CONTAINER = {"name": "main", "image": "nothing:1"}


@pytest.fixture
def rig(api: Rest, control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """Nodes without kubelets: no pod on them is ever confirmed gone."""
    install_crds(api)
    rig = ClusterUnderTest(api, namespace=namespace, directory=tmp_path, kubeconfig=control_plane.kubeconfig)
    yield rig
    rig.clean()
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    for body in api.get(deployments)["items"]:
        api.delete(f"{deployments}/{body['metadata']['name']}")
    for pod in rig.pods():
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}"
        with contextlib.suppress(ApiError):
            api.delete(path, {"gracePeriodSeconds": 0})


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
    rig.api.create(f"{GROUP}/nodeevidences", body | {"kind": "NodeEvidence"})


def add_probe(rig: ClusterUnderTest, node: str) -> None:
    """A probe pod that runs on the node as far as the API server knows."""
    metadata = {
        "name": "probe",
        "labels": {"nodegauge.dev/probe": "health"},
        "annotations": {"nodegauge.dev/node": node, "nodegauge.dev/run": "1"},
    }
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 5, "containers": [CONTAINER]}
    pods = f"/api/v1/namespaces/{rig.namespace}/pods"
    rig.api.create(pods, {"metadata": metadata, "spec": spec})
    rig.api.patch(f"{pods}/probe/status", {"status": {"phase": "Running"}})


def add_operator(rig: ClusterUnderTest, node: str) -> None:
    """A Deployment with the chart's labels, under a name of its own, with a pod on the node."""
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [CONTAINER]}
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    body = {
        "metadata": {"name": "my-gauge", "labels": LABELS},
        "spec": {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template},
    }
    rig.api.create(f"/apis/apps/v1/namespaces/{rig.namespace}/deployments", body)
    wait_for(lambda: rig.pods(), what="the operator's pod")
    [pod] = rig.pods()
    path = f"/api/v1/namespaces/{rig.namespace}/pods/{pod['metadata']['name']}"
    rig.api.patch(f"{path}/status", {"status": {"phase": "Running"}})


def test_all_goes_although_no_kubelet_answers(rig: ClusterUnderTest) -> None:
    """Operator and probe on nodes whose kubelet is dead: both are removed, then nothing of ours is left."""
    node = rig.add_node()
    add_marks(rig, node)
    add_operator(rig, node)
    add_probe(rig, node)
    done = cleanup(rig)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my-gauge scaled to 0" in done.stdout
    assert done.stdout.count("without confirmation by") == 2
    assert rig.pods() == []
    assert (rig.ours(node), rig.condition(node), rig.report(node)) == ({}, {}, {})
    assert rig.evidence(node) == {}
    assert rig.node(node)["spec"]["taints"] == [FOREIGN]
    deployment = rig.api.get(f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/my-gauge")
    assert deployment["spec"]["replicas"] == 0
