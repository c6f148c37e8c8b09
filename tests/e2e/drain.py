"""`kubectl drain` without `--force` on a node where a probe runs: it is evicted, and none follows at once."""

from __future__ import annotations

import shutil
import subprocess

from e2e import node_marks
from e2e.cluster import NAMESPACE, Cluster, Object
from e2e.containers import speaks
from e2e.pod_failures import PROBE, SLOW, USUAL
from testbed.errors import TestbedError

DRAINED_WITHIN = 60


def drains(cluster: Cluster) -> None:
    """The probe's controller is its report, so kubectl evicts it like a pod of any controller.

    Only probe pods are drained: this node is the operator's as well.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        cluster.say("no kubectl on PATH: kubectl drain was not tried")
        return
    cluster.api.patch(node_marks.POLICY, {"spec": SLOW})
    before = node_marks.last_run(cluster)
    node_marks.ask(cluster)
    cluster.until(lambda: any(map(speaks, _probes(cluster))), what="a probe to run")
    [pod] = _probes(cluster)
    command = [kubectl, f"--kubeconfig={cluster.plane.kubeconfig}", "drain", cluster.node.name]
    command += [f"--pod-selector={PROBE}", f"--timeout={DRAINED_WITHIN}s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DRAINED_WITHIN)
    if done.returncode:
        raise TestbedError(f"kubectl drain ended with {done.returncode}: {done.stderr.strip()}")
    cluster.say("; ".join(done.stdout.splitlines()))
    if f"pod/{pod['metadata']['name']} evicted" not in done.stdout:
        raise TestbedError(f"kubectl drain evicted no {pod['metadata']['name']}: {done.stdout}{done.stderr}")
    cluster.until(lambda: node_marks.last_run(cluster) != before, what="the run's judgement")
    cluster.must_be(node_marks.last_run(cluster)["outcome"], "unknown", what="the evicted run's outcome")
    cluster.must_be(node_marks.taints(cluster), [], what="our taints after a drain")
    cluster.must_be(_probes(cluster), [], what="the probes on a node that is being drained")
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"unschedulable": None}})
    cluster.api.patch(node_marks.POLICY, {"spec": USUAL})
    cluster.must_be(node_marks.measure(cluster)["outcome"], "read", what="the next run's outcome")


def _probes(cluster: Cluster) -> list[Object]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={PROBE}"
    result: list[Object] = cluster.api.get(path)["items"]
    return result
