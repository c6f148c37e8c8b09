"""What is done to a probe's pod: by its kubelet, its scheduler, its node, and to the operator meanwhile.

Each takes the run and the pod, and returns when it is done; the caller checks what follows.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from e2e import node_marks
from e2e.cluster import NAMESPACE, WORKLOADS, Cluster, Object, terminated
from e2e.containers import pending, process
from testbed.kubelet_comparison import perform, samples

DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nodegauge"
OPERATOR = "app.kubernetes.io/component=operator"


def deadline(cluster: Cluster, pod: Object) -> None:
    """Hold the probe still until the kubelet's SIGTERM waits for it; then it speaks its last words."""
    probe = process(pod)
    os.kill(probe, signal.SIGSTOP)
    _let_speak(cluster, probe)


def stubborn(cluster: Cluster, pod: Object) -> None:
    """Hold the probe still, so that it can only be killed."""
    os.kill(process(pod), signal.SIGSTOP)


def terminate(cluster: Cluster, pod: Object) -> None:
    """SIGTERM from the node's side, as on a shutdown: the handler writes the last words."""
    os.kill(process(pod), signal.SIGTERM)


def delete(cluster: Cluster, pod: Object) -> None:
    """As an eviction or a drain does."""
    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")


def preempt(cluster: Cluster, pod: Object) -> None:
    """A pod of higher priority needs the one place on the node that the probe has (see PLACED)."""
    perform.make_room(cluster.api, node=cluster.node.name)
    body = samples.urgent(node=cluster.node.name, label=samples.URGENT)
    cluster.api.create(f"/api/v1/namespaces/{WORKLOADS}/pods", body | {"metadata": {"name": samples.URGENT}})


def preempt_unseen(cluster: Cluster, pod: Object) -> None:
    """Preempted while the operator is cut off: when it hears of it, the pod has long been gone."""
    with _cut_off(cluster):
        preempt(cluster, pod)
        _gone(cluster, pod)


def remove(cluster: Cluster, pod: Object) -> None:
    """By force, as a pod of a lost node is: it is gone from the API before its container has ended."""
    name = pod["metadata"]["name"]
    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})


def preempt_meanwhile(cluster: Cluster, pod: Object) -> None:
    """Preempted and gone while there is no operator: the one that comes finds no pod and no word of it.

    Only a finished run is written down, so the run is done again by a pod of its own.
    """
    before = cluster.report()
    probe = process(pod)
    os.kill(probe, signal.SIGSTOP)
    _scale(cluster, 0)
    preempt(cluster, pod)
    _let_speak(cluster, probe)
    _gone(cluster, pod)
    clear_preemption(cluster)
    cluster.must_be(cluster.report(), before, what="the report while there is no operator")
    cluster.must_be(node_marks.taints(cluster), [], what="our taints while there is no operator")
    cluster.api.patch(node_marks.POLICY, {"spec": {"probes": {"health": {"window": "1s"}}}})
    _scale(cluster, 1)


def restart_kubelet(cluster: Cluster, pod: Object) -> None:
    """SIGKILL for the kubelet, and a new one: the container goes on meanwhile."""
    cluster.node.stop_kubelet()
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())


def stop_kubelet(cluster: Cluster, pod: Object) -> None:
    """SIGKILL for the kubelet: the node turns NotReady, the pod's status stands still."""
    cluster.node.stop_kubelet()


def back(cluster: Cluster) -> None:
    """After `stop_kubelet`: the node must turn NotReady, and its kubelet comes back."""
    cluster.until(lambda: _ready(cluster) == "Unknown", what="a node without kubelet to be NotReady")
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())
    cluster.until(lambda: _ready(cluster) == "True", what="the node to be Ready again")


def clear_preemption(cluster: Cluster) -> None:
    """Take the urgent pod away."""
    if cluster.pod(samples.URGENT) is None:
        return
    ended = "the urgent pod's end"
    cluster.until(lambda: terminated(cluster.pod(samples.URGENT)), what=ended)
    cluster.api.delete(f"/api/v1/namespaces/{WORKLOADS}/pods/{samples.URGENT}")
    gone = "the urgent pod to be gone"
    cluster.until(lambda: cluster.pod(samples.URGENT) is None, what=gone)


@contextmanager
def _cut_off(cluster: Cluster) -> Iterator[None]:
    """No packet from the API server, nor from anybody else outside, reaches the operator's pod."""
    [operator] = _operators(cluster)
    location = f"{operator['status']['podIP']}/32"
    subprocess.run(["ip", "route", "add", "blackhole", location], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", "blackhole", location], check=True)


def _scale(cluster: Cluster, replicas: int) -> None:
    """The operator's Deployment has that many pods, all of them ready."""
    cluster.api.patch(DEPLOYMENT, {"spec": {"replicas": replicas}})

    def done() -> bool:
        ready = cluster.api.get(DEPLOYMENT)["status"].get("readyReplicas", 0)
        return ready == replicas and len(_operators(cluster)) == replicas

    cluster.until(done, what=f"{replicas} operators")


def _operators(cluster: Cluster) -> list[Object]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={OPERATOR}"
    result: list[Object] = cluster.api.get(path)["items"]
    return result


def _let_speak(cluster: Cluster, probe: int) -> None:
    cluster.until(lambda: pending(probe, signal.SIGTERM), what="the kubelet's SIGTERM")
    os.kill(probe, signal.SIGCONT)


def _gone(cluster: Cluster, pod: Object) -> None:
    name = pod["metadata"]["name"]
    cluster.until(lambda: cluster.pod(name, namespace=NAMESPACE) is None, what=f"{name} to be gone")


def _ready(cluster: Cluster) -> str:
    conditions = cluster.node_object()["status"]["conditions"]
    return str({c["type"]: c["status"] for c in conditions}["Ready"])
