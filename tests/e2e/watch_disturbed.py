"""Mode Watch on a real kubelet while things go wrong: a drain, the kernel's OOM killer, no API server, a
kubelet that is killed, a driver that goes.

Labels stay, and in the end the node carries what its hardware says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable

from e2e.cluster import Cluster, Object
from e2e.containers import find, process, use_up_memory
from e2e.node_marks import HEALTHY, labels, last_run, measure, taints
from e2e.scenario import LEAVE_RUNS, RECHECK
from e2e.watch import FAULTS, PODS, fresh_pod, pods, set_mode
from nodegauge_operator.names import WATCH_SET
from testbed.errors import TestbedError

FAULT = "gpu-lost"
TAINT = FAULTS[FAULT]
WELL = {"labels": HEALTHY, "taints": []}


def survives(cluster: Cluster) -> None:
    """One disturbance after the other, on one node."""
    set_mode(cluster, "Watch", recheck="10m")
    fresh_pod(cluster)
    _cordon(cluster)
    _out_of_memory(cluster)
    _api_server_away(cluster)
    _kubelet_killed(cluster)
    _uncordon(cluster)
    _driver_away(cluster)
    set_mode(cluster, "Periodic", recheck=RECHECK)
    cluster.until(lambda: not pods(cluster), what="the end of the watch pods")


def _cordon(cluster: Cluster) -> None:
    """A drain as administrators do it neither deletes the pod nor waits for it.

    Only watch pods are drained: this node is the operator's as well.
    """
    before = _uid(cluster)
    if (kubectl := shutil.which("kubectl")) is None:
        cluster.say("no kubectl on PATH: cordoned without a drain")
        cluster.api.patch(_node(cluster), {"spec": {"unschedulable": True}})
        return
    command = [kubectl, f"--kubeconfig={cluster.plane.kubeconfig}", "drain", cluster.node.name]
    command += ["--ignore-daemonsets", f"--pod-selector={WATCH_SET}", "--timeout=30s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode or "ignoring DaemonSet-managed Pods" not in done.stderr:
        raise TestbedError(f"kubectl drain ended with {done.returncode}: {done.stdout}{done.stderr}")
    cluster.say("; ".join((done.stdout + done.stderr).splitlines()))
    cluster.must_be(_uid(cluster), before, what="the watch pod after the drain")


def _uncordon(cluster: Cluster) -> None:
    cluster.api.patch(_node(cluster), {"spec": {"unschedulable": None}})


def _out_of_memory(cluster: Cluster) -> None:
    """No run comes of it, and nothing on the node changes."""
    pod, run = _running(cluster), last_run(cluster)["number"]
    use_up_memory(pod)
    cluster.until(lambda: _end(cluster).get("reason") == "OOMKilled", what="OOMKilled")
    end = _end(cluster)
    cluster.must_be(end["exitCode"], 137, what="the exit code of a container out of memory")
    cluster.must_be(last_run(cluster)["number"], run, what="the last run after an end without a result")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks after an end without a result")
    cluster.say("out of memory: OOMKilled (137), and no run")


def _api_server_away(cluster: Cluster) -> None:
    """The container's next life begins and ends while nobody can be told; the kubelet tells it afterwards."""
    [pod], run = pods(cluster), last_run(cluster)["number"]
    with cluster.plane.without_apiserver():
        cluster.hardware.fault(FAULT)
        number = cluster.until(lambda: find(pod), what="a container's start without API server")
        assert number is not None
        cluster.until(lambda: not _alive(number), what="the container's end")
    began = time.monotonic()
    cluster.until(lambda: TAINT in taints(cluster), what=f"the taint {TAINT}")
    cluster.must_be(last_run(cluster)["number"], run + 1, what="the run that tainted")
    cluster.say(f"API server away: {TAINT} {time.monotonic() - began:.1f} s after it was back")


def _kubelet_killed(cluster: Cluster) -> None:
    """The container goes on and ends by itself while there is no kubelet; the next one shows that end."""
    cluster.node.stop_kubelet()
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())
    number = process(_running(cluster))
    cluster.node.stop_kubelet()
    cluster.hardware.heal(FAULT)
    cluster.until(lambda: not _alive(number), what="the container's end without a kubelet")
    run = last_run(cluster)["number"]
    began = time.monotonic()
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())
    cluster.until(lambda: last_run(cluster)["number"] > run, what="the judgement of that end")
    cluster.say(
        f"kubelet killed: what ended without it is judged {time.monotonic() - began:.1f} s after a new one"
    )
    _is_lifted(cluster)


def _driver_away(cluster: Cluster) -> None:
    """NVML fails, then no container can start; neither changes the node, and the next reading is right."""
    fresh_pod(cluster)
    _running(cluster)
    state = cluster.hardware.directory / "driver.state"
    began = time.monotonic()
    state.rename(state.with_name("away"))
    _run_that(cluster, lambda run: run["outcome"] == "unknown" and "driver-not-loaded" in run["message"])
    cluster.say(f"driver away: reported after {time.monotonic() - began:.1f} s")
    old = _uid(cluster)
    cluster.api.delete(f"{PODS}/{pods(cluster)[0]['metadata']['name']}")
    cluster.until(
        lambda: _uid(cluster) not in ("", old) and _end(cluster).get("reason") == "StartError",
        what="a container that cannot start",
    )
    # The DaemonSet controller may take longer than the 30 s after which a health pod tries again.
    is_a_run = last_run(cluster)["podName"] == pods(cluster)[0]["metadata"]["name"]
    cluster.must_be(is_a_run, False, what="whether a start that failed is a run")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks without a driver")
    began = time.monotonic()
    state.with_name("away").rename(state)
    watcher = pods(cluster)[0]["metadata"]["name"]
    # A health pod may read the node first: one is due 30 s after a run that read nothing.
    _run_that(cluster, lambda run: run["outcome"] == "read" and run["podName"] == watcher)
    cluster.say(f"driver back: read after {time.monotonic() - began:.1f} s")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks under the driver")


def _run_that(cluster: Cluster, is_it: Callable[[Object], bool]) -> None:
    cluster.until(lambda: is_it(last_run(cluster)), what="the judgement of a run")


def _is_lifted(cluster: Cluster) -> None:
    """The taint leaves after good runs."""
    for _ in range(LEAVE_RUNS):
        if taints(cluster):
            measure(cluster)
    cluster.until(lambda: _marks(cluster) == WELL, what="a node as before its fault")


def _running(cluster: Cluster) -> Object:
    """The watch pod, once its container runs."""

    def running() -> Object | None:
        for pod in pods(cluster):
            status = (pod["status"].get("containerStatuses") or [{}])[0]
            if "running" in status.get("state", {}):
                return pod
        return None

    result = cluster.until(running, what="the watch container running")
    assert result is not None
    return result


def _end(cluster: Cluster) -> Object:
    """How the watch container ended last; empty while it has not."""
    for pod in pods(cluster):
        status = (pod["status"].get("containerStatuses") or [{}])[0]
        ends = [status.get(state, {}).get("terminated") for state in ("state", "lastState")]
        result: Object = next((end for end in ends if end), {})
        return result
    return {}


def _marks(cluster: Cluster) -> Object:
    """Our taints, and the labels that WELL names."""
    there = labels(cluster)
    return {"labels": {key: there.get(key) for key in HEALTHY}, "taints": taints(cluster)}


def _uid(cluster: Cluster) -> str:
    uids = [str(pod["metadata"]["uid"]) for pod in pods(cluster)]
    return uids[0] if len(uids) == 1 else ""


def _node(cluster: Cluster) -> str:
    return f"/api/v1/nodes/{cluster.node.name}"


def _alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True
