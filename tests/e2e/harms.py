"""What is done to a probe's pod: by its kubelet, its scheduler, its node, and to the operator meanwhile.

Each takes the run and the pod, and returns when it is done; what follows is for the trial to see.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from e2e import carried
from e2e.containers import pending, process
from e2e.world import NAMESPACE, TRIALS, Object, World, terminated
from testbed.likeness import perform, samples

DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nodegauge"
OPERATOR = "app.kubernetes.io/component=operator"
TERM_WITHIN = 30.0
GONE_WITHIN = 60.0
READY_WITHIN = 90.0


def deadline(world: World, pod: Object) -> None:
    """Hold the probe still until the kubelet's SIGTERM waits for it; then it speaks its last words."""
    probe = process(pod)
    os.kill(probe, signal.SIGSTOP)
    _let_speak(world, probe)


def stubborn(world: World, pod: Object) -> None:
    """Hold the probe still, so that it can only be killed."""
    os.kill(process(pod), signal.SIGSTOP)


def terminate(world: World, pod: Object) -> None:
    """SIGTERM from the node's side, as on a shutdown: the handler writes the last words."""
    os.kill(process(pod), signal.SIGTERM)


def delete(world: World, pod: Object) -> None:
    """As an eviction or a drain does."""
    world.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")


def preempt(world: World, pod: Object) -> None:
    """A pod of higher priority needs the one place on the node that the probe has (see PLACED)."""
    perform.make_room(world.api, node=world.node.name)
    body = samples.urgent(node=world.node.name, label=samples.URGENT)
    world.api.create(f"/api/v1/namespaces/{TRIALS}/pods", body | {"metadata": {"name": samples.URGENT}})


def preempt_unseen(world: World, pod: Object) -> None:
    """Preempted while the operator is cut off: when it hears of it, the pod has long been gone."""
    with _cut_off(world):
        preempt(world, pod)
        _gone(world, pod)


def remove(world: World, pod: Object) -> None:
    """By force, as a pod of a lost node is: it is gone from the API before its container has ended."""
    name = pod["metadata"]["name"]
    world.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})


def preempt_meanwhile(world: World, pod: Object) -> None:
    """Preempted and gone while there is no operator: the one that comes finds no pod and no word of it.

    Only a finished run is written down, so the run is done again by a pod of its own.
    """
    before = world.report()
    probe = process(pod)
    os.kill(probe, signal.SIGSTOP)
    _scale(world, 0)
    preempt(world, pod)
    _let_speak(world, probe)
    _gone(world, pod)
    clear_preemption(world)
    world.must_be(world.report(), before, what="the report while there is no operator")
    world.must_be(carried.taints(world), [], what="our taints while there is no operator")
    world.api.patch(carried.POLICY, {"spec": {"probes": {"health": {"window": "1s"}}}})
    _scale(world, 1)


def restart_kubelet(world: World, pod: Object) -> None:
    """SIGKILL for the kubelet, and a new one: the container goes on meanwhile."""
    world.node.stop_kubelet()
    world.node.start_kubelet(world.plane.node_kubeconfig())


def stop_kubelet(world: World, pod: Object) -> None:
    """SIGKILL for the kubelet: the node turns NotReady, the pod's status stands still."""
    world.node.stop_kubelet()


def back(world: World) -> None:
    """After `stop_kubelet`: the node must turn NotReady, and its kubelet comes back."""
    world.until(lambda: _ready(world) == "Unknown", seconds=60, what="a node without kubelet to be NotReady")
    world.node.start_kubelet(world.plane.node_kubeconfig())
    world.until(lambda: _ready(world) == "True", seconds=60, what="the node to be Ready again")


def clear_preemption(world: World) -> None:
    """Take the urgent pod away."""
    if world.pod(samples.URGENT) is None:
        return
    ended = "the urgent pod's end"
    world.until(lambda: terminated(world.pod(samples.URGENT)), seconds=GONE_WITHIN, what=ended)
    world.api.delete(f"/api/v1/namespaces/{TRIALS}/pods/{samples.URGENT}")
    gone = "the urgent pod to be gone"
    world.until(lambda: world.pod(samples.URGENT) is None, seconds=GONE_WITHIN, what=gone)


@contextmanager
def _cut_off(world: World) -> Iterator[None]:
    """No packet from the API server, nor from anybody else outside, reaches the operator's pod."""
    [operator] = _operators(world)
    place = f"{operator['status']['podIP']}/32"
    subprocess.run(["ip", "route", "add", "blackhole", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", "blackhole", place], check=True)


def _scale(world: World, replicas: int) -> None:
    """The operator's Deployment has that many pods, all of them ready."""
    world.api.patch(DEPLOYMENT, {"spec": {"replicas": replicas}})

    def done() -> bool:
        ready = world.api.get(DEPLOYMENT)["status"].get("readyReplicas", 0)
        return ready == replicas and len(_operators(world)) == replicas

    world.until(done, seconds=READY_WITHIN, what=f"{replicas} operators")


def _operators(world: World) -> list[Object]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={OPERATOR}"
    found: list[Object] = world.api.get(path)["items"]
    return found


def _let_speak(world: World, probe: int) -> None:
    world.until(lambda: pending(probe, signal.SIGTERM), seconds=TERM_WITHIN, what="the kubelet's SIGTERM")
    os.kill(probe, signal.SIGCONT)


def _gone(world: World, pod: Object) -> None:
    name = pod["metadata"]["name"]
    world.until(
        lambda: world.pod(name, namespace=NAMESPACE) is None, seconds=GONE_WITHIN, what=f"{name} to be gone"
    )


def _ready(world: World) -> str:
    conditions = world.node_object()["status"]["conditions"]
    return str({c["type"]: c["status"] for c in conditions}["Ready"])
