"""Mode Watch on a real kubelet: seconds from a fault to its taint, and the same node while things go wrong.

Each time begins with a fresh pod, whose container has reported once and runs again: that is how a fault meets
a node on which nothing has happened for ten minutes, when the kubelet's restart back-off starts anew.
Disturbances are a drain, the kernel's OOM killer, no API server, a killed kubelet, a driver that goes:
labels stay, and in the end the node carries what its hardware says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from functools import partial

from e2e.cluster import (
    HEALTHY,
    NAMESPACE,
    PREFIX,
    Cluster,
    Object,
    alive,
    find,
    first_status,
    process,
    runs,
    use_up_memory,
)
from e2e.scenario import LEAVE_RUNS, RECHECK
from nodegauge_operator.names import WATCH_SET
from testbed.errors import TestbedError

TIMES = int(os.environ.get("NODEGAUGE_E2E_WATCH_TIMES", "1"))
FAULT = "gpu-lost"
TAINT = f"{PREFIX}unhealthy={FAULT}:NoSchedule"
FAULTS = {
    FAULT: TAINT,
    "xid": f"{PREFIX}unhealthy=xid:NoSchedule",
    "thermal-slowdown": f"{PREFIX}throttled=thermal:NoSchedule",
}
"""Fault to its taint: the last needs two runs under load, the others one."""
QUICK = {"busyFloor": 1, "swThermalWarnSeconds": 0.5, "swThermalFailSeconds": 0.8}
"""As in the demo: heat is judged after a second under load; by default after a minute of it."""
WELL = {"labels": HEALTHY, "taints": []}


def watches(cluster: Cluster) -> None:
    """Faults are tainted by what the resident container reports, and no pod is made for them."""
    set_mode(cluster, "Watch")
    cluster.hardware.load(100)
    for fault, taint in FAULTS.items():
        times = [_from_fault_to_taint(cluster, fault, taint) for _ in range(TIMES)]
        cluster.say(f"{fault}: from fault to taint {', '.join(f'{seconds:.1f}' for seconds in times)} s")
    cluster.hardware.load(0)
    set_mode(cluster, "Periodic")
    cluster.must_be(cluster.measure()["outcome"], "read", what="the outcome of a run in mode Periodic")


def survives(cluster: Cluster) -> None:
    """One disturbance after the other, on one node."""
    set_mode(cluster, "Watch")
    fresh_pod(cluster)
    _cordon(cluster)
    _out_of_memory(cluster)
    _api_server_away(cluster)
    _kubelet_killed(cluster)
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"unschedulable": None}})
    _driver_away(cluster)
    set_mode(cluster, "Periodic")


def set_mode(cluster: Cluster, mode: str) -> None:
    """Change the mode; from Watch, the watch pods end."""
    watch = mode == "Watch"
    health = {"mode": mode, "recheck": "10m" if watch else RECHECK}
    cluster.policy(probes={"health": health}, thresholds=QUICK if watch else dict.fromkeys(QUICK))
    cluster.say(f"mode {mode}")
    if not watch:
        cluster.until(lambda: not pods(cluster), what="the end of the watch pods")


def pods(cluster: Cluster) -> list[Object]:
    """The watch pods."""
    return cluster.pods(WATCH_SET)


def name_of(cluster: Cluster) -> str:
    """Of the watch pod."""
    return str(pods(cluster)[0]["metadata"]["name"])


def fresh_pod(cluster: Cluster) -> None:
    """Another pod, once its container has reported for the first time and runs again."""
    old = {pod["metadata"]["name"] for pod in pods(cluster)}
    for name in old:
        cluster.delete_pod(name, namespace=NAMESPACE)

    def runs_again() -> bool:
        fresh = [pod for pod in pods(cluster) if pod["metadata"]["name"] not in old]
        return any(first_status(pod).get("restartCount") and runs(pod) for pod in fresh)

    cluster.until(runs_again, what="a watch container that runs again after its first report")
    [pod] = pods(cluster)
    name = pod["metadata"]["name"]
    cluster.until(lambda: cluster.last_run()["podName"] == name, what="the judgement of the first report")


def _from_fault_to_taint(cluster: Cluster, fault: str, taint: str) -> float:
    fresh_pod(cluster)
    run, began = cluster.last_run()["number"], time.monotonic()
    cluster.hardware.fault(fault)
    cluster.until(lambda: taint in cluster.taints(), what=f"the taint {taint}")
    took, last = time.monotonic() - began, cluster.last_run()
    cluster.must_be(last["podName"], name_of(cluster), what="the pod of the run that tainted")
    cluster.hardware.heal(fault)
    cluster.say(f"{fault}: {taint} after {took:.1f} s and run {run + 1} to {cluster.last_run()['number']}")
    _lift(cluster, at_most=2 * LEAVE_RUNS)
    return took


def _lift(cluster: Cluster, *, at_most: int) -> None:
    """The taint leaves after good runs, at most so many."""
    for _ in range(at_most):
        if cluster.taints():
            cluster.measure()
    cluster.until(lambda: not cluster.taints(), what="no taint after the repair")


def _cordon(cluster: Cluster) -> None:
    """A drain as administrators do it neither deletes the pod nor waits for it.

    Only watch pods are drained: this node is the operator's as well.
    """
    before = _uid(cluster)
    if (kubectl := shutil.which("kubectl")) is None:
        cluster.say("no kubectl on PATH: cordoned without a drain")
        cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"unschedulable": True}})
        return
    command = [kubectl, f"--kubeconfig={cluster.plane.kubeconfig}", "drain", cluster.node.name]
    command += ["--ignore-daemonsets", f"--pod-selector={WATCH_SET}", "--timeout=30s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode or "ignoring DaemonSet-managed Pods" not in done.stderr:
        raise TestbedError(f"kubectl drain ended with {done.returncode}: {done.stdout}{done.stderr}")
    cluster.say("; ".join((done.stdout + done.stderr).splitlines()))
    cluster.must_be(_uid(cluster), before, what="the watch pod after the drain")


def _out_of_memory(cluster: Cluster) -> None:
    """No run comes of it, and nothing on the node changes."""
    pod, run = _running(cluster), cluster.last_run()["number"]
    use_up_memory(pod)
    cluster.until(lambda: _end(cluster).get("reason") == "OOMKilled", what="OOMKilled")
    cluster.must_be(_end(cluster)["exitCode"], 137, what="the exit code of a container out of memory")
    cluster.must_be(cluster.last_run()["number"], run, what="the last run after an end without a result")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks after an end without a result")
    cluster.say("out of memory: OOMKilled (137), and no run")


def _api_server_away(cluster: Cluster) -> None:
    """The container's next life begins and ends while nobody can be told; the kubelet tells it afterwards."""
    [pod], run = pods(cluster), cluster.last_run()["number"]
    with cluster.plane.without_apiserver():
        cluster.hardware.fault(FAULT)
        number = cluster.until(lambda: find(pod), what="a container's start without API server")
        assert number is not None
        cluster.until(lambda: not alive(number), what="the container's end")
    began = time.monotonic()
    cluster.until(lambda: TAINT in cluster.taints(), what=f"the taint {TAINT}")
    cluster.must_be(cluster.last_run()["number"], run + 1, what="the run that tainted")
    cluster.say(f"API server away: {TAINT} {time.monotonic() - began:.1f} s after it was back")


def _kubelet_killed(cluster: Cluster) -> None:
    """The container goes on and ends by itself while there is no kubelet; the next one shows that end."""
    start = partial(cluster.node.start_kubelet, cluster.plane.node_kubeconfig())
    cluster.node.stop_kubelet()
    start()
    number = process(_running(cluster))
    cluster.node.stop_kubelet()
    cluster.hardware.heal(FAULT)
    cluster.until(lambda: not alive(number), what="the container's end without a kubelet")
    run = cluster.last_run()["number"]
    began = time.monotonic()
    start()
    cluster.until(lambda: cluster.last_run()["number"] > run, what="the judgement of that end")
    took = time.monotonic() - began
    cluster.say(f"kubelet killed: what ended without it is judged {took:.1f} s after a new one")
    _lift(cluster, at_most=LEAVE_RUNS)
    cluster.until(lambda: _marks(cluster) == WELL, what="a node as before its fault")


def _driver_away(cluster: Cluster) -> None:
    """NVML fails, then no container can start; neither changes the node, and the next reading is right."""
    fresh_pod(cluster)
    _running(cluster)
    state = cluster.hardware.directory / "driver.state"
    began = time.monotonic()
    state.rename(state.with_name("away"))

    def reported() -> bool:
        run = cluster.last_run()
        return run["outcome"] == "unknown" and "driver-not-loaded" in run["message"]

    cluster.until(reported, what="the judgement of a run without a driver")
    cluster.say(f"driver away: reported after {time.monotonic() - began:.1f} s")
    old = _uid(cluster)
    cluster.delete_pod(name_of(cluster), namespace=NAMESPACE)
    cluster.until(
        lambda: _uid(cluster) not in ("", old) and _end(cluster).get("reason") == "StartError",
        what="a container that cannot start",
    )
    # The DaemonSet controller may take longer than the 30 s after which a health pod tries again.
    is_a_run = cluster.last_run()["podName"] == name_of(cluster)
    cluster.must_be(is_a_run, False, what="whether a start that failed is a run")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks without a driver")
    began = time.monotonic()
    state.with_name("away").rename(state)
    watcher = name_of(cluster)

    def read() -> bool:  # a health pod may be first: one is due 30 s after a run that read nothing
        run = cluster.last_run()
        return bool(run["outcome"] == "read" and run["podName"] == watcher)

    cluster.until(read, what="the judgement of a run with the driver")
    cluster.say(f"driver back: read after {time.monotonic() - began:.1f} s")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks under the driver")


def _running(cluster: Cluster) -> Object:
    """The watch pod, once its container runs.

    Its process is asked for as well: the API server has the status that a killed kubelet wrote last.
    """
    result = cluster.until(
        lambda: next((pod for pod in pods(cluster) if runs(pod) and find(pod)), None),
        what="the watch container running",
    )
    assert result is not None
    return result


def _end(cluster: Cluster) -> Object:
    """How the watch container ended last; empty while it has not."""
    status = first_status(next(iter(pods(cluster)), None))
    ends = [status.get(state, {}).get("terminated") for state in ("state", "lastState")]
    return next((end for end in ends if end), {})


def _marks(cluster: Cluster) -> Object:
    """Our taints, and the labels that WELL names."""
    there = cluster.labels()
    return {"labels": {key: there.get(key) for key in HEALTHY}, "taints": cluster.taints()}


def _uid(cluster: Cluster) -> str:
    uids = [str(pod["metadata"]["uid"]) for pod in pods(cluster)]
    return uids[0] if len(uids) == 1 else ""
