"""Mode Watch on a real kubelet: seconds from a fault to its taint, with nobody asking for a run.

Each time begins with a fresh pod, whose container has reported once and runs again: that is how a fault meets
a node on which nothing has happened for ten minutes, when the kubelet's restart back-off starts anew.
"""

from __future__ import annotations

import os
import time
from typing import Any

from e2e.cluster import NAMESPACE, Cluster
from e2e.node_marks import POLICY, PREFIX, last_run, measure, taints
from e2e.scenario import LEAVE_RUNS, RECHECK

TIMES = int(os.environ.get("NODEGAUGE_E2E_WATCH_TIMES", "1"))
FAULTS = {
    "gpu-lost": f"{PREFIX}unhealthy=gpu-lost:NoSchedule",
    "xid": f"{PREFIX}unhealthy=xid:NoSchedule",
    "thermal-slowdown": f"{PREFIX}throttled=thermal:NoSchedule",
}
"""Fault to its taint: the last needs two runs under load, the others one."""
QUICK = {"busyFloor": 1, "swThermalWarnSeconds": 0.5, "swThermalFailSeconds": 0.8}
"""As in the demo: heat is judged after a second under load; by default after a minute of it."""
WATCH_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={PREFIX}watch-set"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def watches(cluster: Cluster) -> None:
    """Faults are tainted by what the resident container reports, and no pod is made for them."""
    set_mode(cluster, "Watch", recheck="10m")
    cluster.hardware.load(100)
    for fault, taint in FAULTS.items():
        times = [_from_fault_to_taint(cluster, fault, taint) for _ in range(TIMES)]
        cluster.say(f"{fault}: from fault to taint {', '.join(f'{seconds:.1f}' for seconds in times)} s")
    cluster.hardware.load(0)
    set_mode(cluster, "Periodic", recheck=RECHECK)
    cluster.until(lambda: not pods(cluster), what="the end of the watch pods")
    cluster.must_be(measure(cluster)["outcome"], "read", what="the outcome of a run in mode Periodic")


def _from_fault_to_taint(cluster: Cluster, fault: str, taint: str) -> float:
    fresh_pod(cluster)
    run, began = last_run(cluster)["number"], time.monotonic()
    cluster.hardware.fault(fault)
    cluster.until(lambda: taint in taints(cluster), what=f"the taint {taint}")
    took = time.monotonic() - began
    name = last_run(cluster)["podName"]
    cluster.must_be(name, pods(cluster)[0]["metadata"]["name"], what="the pod of the run that tainted")
    cluster.hardware.heal(fault)
    cluster.say(f"{fault}: {taint} after {took:.1f} s and run {run + 1} to {last_run(cluster)['number']}")
    for _ in range(2 * LEAVE_RUNS):
        if taints(cluster):
            measure(cluster)
    cluster.until(lambda: not taints(cluster), what="no taint after the repair")
    return took


def fresh_pod(cluster: Cluster) -> None:
    """Another pod, once its container has reported for the first time and runs again."""
    old = {pod["metadata"]["name"] for pod in pods(cluster)}
    for name in old:
        cluster.api.delete(f"{PODS}/{name}")
    cluster.until(
        lambda: any(runs_again(pod) for pod in pods(cluster) if pod["metadata"]["name"] not in old),
        what="a watch container that runs again after its first report",
    )
    [pod] = pods(cluster)
    cluster.until(
        lambda: last_run(cluster)["podName"] == pod["metadata"]["name"],
        what="the judgement of the first report",
    )


def runs_again(pod: dict[str, Any]) -> bool:
    [container] = pod["status"].get("containerStatuses") or [{}]
    return bool(container.get("restartCount")) and "running" in container.get("state", {})


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = cluster.api.get(WATCH_PODS)["items"]
    return result


def set_mode(cluster: Cluster, mode: str, *, recheck: str) -> None:
    health = {"mode": mode, "recheck": recheck}
    thresholds = dict.fromkeys(QUICK) if mode == "Periodic" else QUICK
    cluster.api.patch(POLICY, {"spec": {"probes": {"health": health}, "thresholds": thresholds}})
    cluster.say(f"mode {mode}")
