"""Mode Watch on a real kubelet: seconds from a fault to its taint, and the same while things go wrong."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from e2e.cluster import (
    HEALTHY,
    NAMESPACE,
    POLICY,
    PREFIX,
    READINGS,
    Cluster,
    find,
    first_status,
    process,
    runs,
    taints_of,
    use_up_memory,
)
from e2e.scenario import LEAVE_RUNS, RECHECK
from nodegauge_operator.names import WATCH_SET
from testbed import watching
from testbed.errors import TestbedError
from testbed.rest import Object

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
HANGS: dict[str, str | int] = {"call": "nvmlDeviceGetTotalEccErrors", "gpu": 7}
"""One call that each look makes, of another GPU than the one that is lost."""
WELL = {"labels": HEALTHY, "taints": []}
NAMESPACE_PATH, SETS = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
LOG = Path("/var/log/kern.log")
"""Of the node's own /var, not of the machine's; its group is adm, as syslog daemons make it."""
ADM = 4
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
XID = "NVRM: Xid (PCI:0000:07:00): 79, pid=1, GPU has fallen off the bus."


def watches(cluster: Cluster) -> None:
    """Faults are tainted by what the resident container writes, and no pod is made for them."""
    set_mode(cluster, "Watch")
    judged(cluster, after=set())
    cluster.hardware.load(100)
    for fault, taint in FAULTS.items():
        fault_and_repair(cluster, fault, taint)
    cluster.hardware.load(0)
    set_mode(cluster, "Periodic")
    cluster.must_be(cluster.measure()["outcome"], "read", what="the outcome of a run in mode Periodic")


def survives(cluster: Cluster) -> None:
    _watchers_missing(cluster)
    _cordon(cluster)
    _out_of_memory(cluster)
    _api_server_away(cluster)
    _kubelet_killed(cluster)
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}", {"spec": {"unschedulable": None}})
    _rolled_out(cluster)
    _kernel_log(cluster)
    _call_hangs(cluster)
    _driver_away(cluster)
    set_mode(cluster, "Periodic")


def set_mode(cluster: Cluster, mode: str) -> None:
    watch = mode == "Watch"
    health = {"mode": mode, "recheck": "10m" if watch else RECHECK}
    cluster.policy(probes={"health": health}, thresholds=QUICK if watch else dict.fromkeys(QUICK))
    cluster.say(f"mode {mode}")
    if not watch:
        cluster.until(lambda: not pods(cluster), what="the end of the watch pods")


def pods(cluster: Cluster) -> list[Object]:
    return cluster.pods(WATCH_SET)


def name_of(cluster: Cluster) -> str:
    return str(pods(cluster)[0]["metadata"]["name"])


def judged(cluster: Cluster, *, after: set[str]) -> None:
    """Until the one watch pod is none of these, its container runs, and its first reading was judged."""

    def is_judged() -> bool:
        there = pods(cluster)
        if len(there) != 1 or there[0]["metadata"]["name"] in after or not runs(there[0]):
            return False
        name = there[0]["metadata"]["name"]
        return bool(cluster.reading().get("pod") == name == cluster.last_run().get("podName"))

    cluster.until(is_judged, what="the judgement of a watch pod's first reading")


def life(cluster: Cluster) -> Object:
    [pod] = pods(cluster)
    status = first_status(pod)
    return {
        "pod": pod["metadata"]["name"],
        "container": status.get("containerID"),
        "restarts": status.get("restartCount"),
    }


def fault_and_repair(cluster: Cluster, fault: str, taint: str) -> None:
    """A reading taints the node, the repair lifts the taint, and the container stays the same."""
    run, before, whose = cluster.last_run()["number"], cluster.reading(), life(cluster)
    began = time.monotonic()
    cluster.hardware.fault(fault)
    cluster.until(lambda: taint in cluster.taints(), what=f"the taint {taint}")
    took = time.monotonic() - began
    cluster.until(lambda: cluster.last_run()["number"] > run, what="the run in the report")
    reading, last = cluster.reading(), cluster.last_run()
    cluster.must_be(last["podName"], whose["pod"], what="the pod of the run that tainted")
    cluster.must_be(reading["podUID"], _uid(cluster), what="who wrote the reading")
    if reading["podUID"] == before["podUID"] and reading["sequence"] <= before["sequence"]:
        raise TestbedError(f"reading {reading['sequence']} came after reading {before['sequence']}")
    cluster.hardware.heal(fault)
    cluster.say(
        f"{fault}: {taint} after {took:.1f} s and run {run + 1} to {last['number']}: {reading['reason']}"
    )
    lift(cluster, at_most=2 * LEAVE_RUNS)
    cluster.must_be(life(cluster), whose, what="the watch container after fault and repair")
    cluster.must_be(whose["restarts"], 0, what="how often it was started again")


def lift(cluster: Cluster, *, at_most: int) -> None:
    for _ in range(at_most):
        if cluster.taints():
            cluster.measure()
    cluster.until(lambda: not cluster.taints(), what="no taint after the repair")


def says(cluster: Cluster, kind: str) -> str:
    conditions = cluster.api.get(POLICY)["status"]["conditions"]
    return " ".join(f"{c['status']} {c['reason']} {c['message']}" for c in conditions if c["type"] == kind)


def _watchers_missing(cluster: Cluster) -> None:
    """A quota refuses the DaemonSet's pod, then somebody deletes the DaemonSet."""
    quotas, began = f"{NAMESPACE_PATH}/resourcequotas", time.monotonic()
    cluster.api.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    cluster.policy(limits={"notStarted": "5s"})
    set_mode(cluster, "Watch")
    refused = f"{NAMESPACE_PATH}/events?fieldSelector=reason=FailedCreate"
    cluster.until(lambda: cluster.api.get(refused)["items"], what="a pod that the quota refuses")
    cluster.until(lambda: says(cluster, "Ready").startswith("False ContainersMissing"), what="Ready False")
    cluster.must_be("no pod was made" in says(cluster, "WatchersReady"), True, what="whether it says why")
    cluster.say(f"a quota: {says(cluster, 'WatchersReady')} after {time.monotonic() - began:.1f} s")
    cluster.api.delete(f"{quotas}/none")
    cluster.policy(limits={"notStarted": None})
    [old], began = cluster.api.get(SETS)["items"], time.monotonic()
    cluster.api.delete(f"{SETS}/{old['metadata']['name']}")
    events = "/api/v1/namespaces/default/events?fieldSelector=reason=DaemonSetChanged"
    cluster.until(lambda: cluster.api.get(events)["items"], what="the event DaemonSetChanged")
    judged(cluster, after=set())
    uids = [made["metadata"]["uid"] for made in cluster.api.get(SETS)["items"]]
    cluster.must_be(old["metadata"]["uid"] in uids, False, what="whether it is the old DaemonSet")
    cluster.say(f"DaemonSet deleted: a pod of the next one is judged after {time.monotonic() - began:.1f} s")


def _cordon(cluster: Cluster) -> None:
    """Only watch pods are drained: this node is the operator's as well."""
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
    """The container comes again in the same pod and goes on with what it knew."""
    pod, before, whose = _running(cluster), cluster.reading(), life(cluster)
    with watching.watch(cluster.api, READINGS) as seen:
        use_up_memory(pod)
        cluster.until(lambda: _end(cluster).get("reason") == "OOMKilled", what="OOMKilled")
        cluster.must_be(_end(cluster)["exitCode"], 137, what="the exit code of a container out of memory")
        cluster.until(lambda: life(cluster)["restarts"] == 1 and _running(cluster), what="the next life")
        cluster.until(lambda: is_ready(cluster), what="a watch pod that is ready")
    reading = {(e.body["health"]["podUID"], e.body["health"]["reason"].partition(":")[0]) for e in seen}
    # The first reading is confirmed in any life.
    usual = {(before["podUID"], why) for why in (before["reason"].partition(":")[0], "confirmed")}
    cluster.must_be(reading - usual, set(), what="readings that an end without last words brings")
    cluster.must_be(life(cluster)["pod"], whose["pod"], what="the pod")
    cluster.must_be(cluster.last_run()["outcome"], "read", what="the last run's outcome")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks after an end without a reading")
    cluster.say("out of memory: OOMKilled (137), and the next life goes on where it was")


def _api_server_away(cluster: Cluster) -> None:
    """What is seen while nobody can be told is told afterwards, by the same container."""
    before, whose = cluster.reading(), life(cluster)
    with cluster.plane.without_apiserver():
        cluster.hardware.fault(FAULT)
        cluster.until(
            lambda: "is not written" in cluster.node.logs(NAMESPACE, whose["pod"]),
            what="a reading that cannot be written",
        )
    began = time.monotonic()
    cluster.until(lambda: TAINT in cluster.taints(), what=f"the taint {TAINT}")
    took, reading = time.monotonic() - began, cluster.reading()
    cluster.must_be(reading["podUID"], before["podUID"], what="who wrote the reading")
    cluster.must_be(life(cluster), whose, what="the watch container after an API server was away")
    cluster.say(f"API server away: {TAINT} {took:.1f} s after it was back, by reading {reading['sequence']}")


def _kubelet_killed(cluster: Cluster) -> None:
    """The container goes on, writes and is judged without a kubelet; the next kubelet takes it over."""
    whose, number = life(cluster), process(_running(cluster))
    cluster.node.stop_kubelet()
    run, began = cluster.last_run()["number"], time.monotonic()
    reading = cluster.reading()["sequence"]
    cluster.hardware.heal(FAULT)
    cluster.until(lambda: cluster.reading()["sequence"] > reading, what="a reading without a kubelet")
    cluster.until(lambda: cluster.last_run()["number"] > run, what="its judgement")
    cluster.say(f"kubelet killed: the repair is judged without it after {time.monotonic() - began:.1f} s")
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())
    lift(cluster, at_most=LEAVE_RUNS)
    cluster.until(lambda: _marks(cluster) == WELL, what="a node as before its fault")
    cluster.until(lambda: is_ready(cluster), what="a watch pod that is ready")
    there = Path(f"/proc/{number}").exists(), life(cluster)
    cluster.must_be(there, (True, whose), what="the watch container after all that")


def _rolled_out(cluster: Cluster) -> None:
    """The new template reads the kernel's log, so that the namespace cannot enforce `restricted`."""
    _enforce(cluster, "privileged")
    LOG.touch(mode=0o640)
    os.chown(LOG, 0, ADM)
    [old] = pods(cluster)
    sequence = cluster.reading()["sequence"]
    with watching.watch(cluster.api, "/api/v1/nodes") as seen:
        cluster.policy(probes={"health": {"kernelLog": {"enabled": True}}})
        judged(cluster, after={old["metadata"]["name"]})
    spoiled = [e.body["metadata"]["resourceVersion"] for e in seen if _marks_of(e.body) != WELL]
    cluster.must_be(spoiled, [], what="versions of the node without its marks during a roll-out")
    cluster.until(lambda: is_ready(cluster), what="a watch pod that is ready")
    cluster.until(lambda: says(cluster, "WatchersReady").startswith("True"), what="WatchersReady True")
    cluster.must_be(life(cluster)["restarts"], 0, what="restarts of the container that took over")
    cluster.say(f"rolled out: readings {sequence} and {cluster.reading()['sequence']} are of two pods")


def _enforce(cluster: Cluster, level: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level}
    cluster.api.patch(NAMESPACE_PATH, {"metadata": {"labels": labels}})


def _kernel_log(cluster: Cluster) -> None:
    """What NVML cannot tell is a finding and no taint; then the policy no longer asks for it."""
    began, at = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    with LOG.open("a", encoding="utf-8") as log:
        log.writelines(f"Nov 27 10:00:00 gpu-1 kernel: [{at:12.6f}] {line}\n" for line in (SXID, XID))

    both = "nvidia-nvswitch3 and 1 more [kernel-log]"
    cluster.until(lambda: both in cluster.probe()["summary"], what="both lines in the report")
    cluster.must_be(cluster.taints(), [], what="taints for lines of the kernel's log")
    cluster.say(f"{cluster.probe()['summary']} {time.monotonic() - began:.1f} s after the lines")
    old = name_of(cluster)
    cluster.policy(probes={"health": {"kernelLog": None}})
    _enforce(cluster, "restricted")
    judged(cluster, after={old})
    cluster.until(lambda: _marks(cluster) == WELL, what="a node as before")


def _call_hangs(cluster: Cluster) -> None:
    """Only the end of the process ends such a call, and SIGTERM ends the process."""
    cluster.policy(probes={"health": {"unreadAfter": "30s"}})
    whose, began = life(cluster), time.monotonic()
    cluster.hardware.fault("hung-call", **HANGS)
    cluster.until(
        lambda: cluster.reading()["reason"].startswith("hung: "), what="a reading that tells of the call"
    )
    cluster.say(f"a driver call hangs: {cluster.reading()['reason']} after {time.monotonic() - began:.1f} s")
    cluster.until(lambda: str(HANGS["call"]) in cluster.report()["summary"], what="the call in the report")
    cluster.until(lambda: _validated(cluster) == ("Unknown", "Unreadable"), what="the condition Unknown")
    cluster.must_be(_marks(cluster)["labels"][f"{PREFIX}health"], None, what="the label health")
    cluster.say(f"{cluster.report()['summary']} Unknown after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    cluster.hardware.fault(FAULT)
    cluster.until(lambda: TAINT in cluster.taints(), what=f"the taint {TAINT} beside a call that hangs")
    cluster.say(f"another GPU is lost: {TAINT} after {time.monotonic() - began:.1f} s")
    cluster.must_be(life(cluster), whose, what="the watch container while a call hangs")
    cluster.hardware.heal(FAULT)
    cluster.hardware.heal("hung-call")
    cluster.policy(probes={"health": {"unreadAfter": None}})
    cluster.delete_pod(whose["pod"], namespace=NAMESPACE)
    judged(cluster, after={whose["pod"]})
    lift(cluster, at_most=2 * LEAVE_RUNS)
    cluster.until(lambda: _marks(cluster) == WELL, what="a node as before its faults")


def _driver_away(cluster: Cluster) -> None:
    """NVML fails, then no container can start; neither changes the node, and the next reading is right."""
    whose, state = life(cluster), cluster.hardware.directory / "driver.state"
    began = time.monotonic()
    state.rename(state.with_name("away"))

    def reported() -> bool:
        run = cluster.last_run()
        return run["outcome"] == "unknown" and "driver-not-loaded" in run["message"]

    cluster.until(reported, what="the judgement of a reading without a driver")
    cluster.say(f"driver away: reported after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    state.with_name("away").rename(state)
    cluster.until(lambda: _is_read(cluster, whose["pod"]), what="the judgement of a reading with the driver")
    cluster.say(f"driver back: read after {time.monotonic() - began:.1f} s")
    cluster.must_be(life(cluster), whose, what="the watch container after its driver was away")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks after its driver was away")
    state.rename(state.with_name("away"))
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
    # A health pod may be first: one is due 30 s after a run that read nothing.
    watcher = name_of(cluster)
    cluster.until(lambda: _is_read(cluster, watcher), what="the judgement of a run with the driver")
    cluster.say(f"driver back: read after {time.monotonic() - began:.1f} s by a new pod")
    cluster.must_be(_marks(cluster), WELL, what="the node's marks under the driver")


def _is_read(cluster: Cluster, pod: str) -> bool:
    run = cluster.last_run()
    return bool(run["outcome"] == "read" and run["podName"] == pod)


def is_ready(cluster: Cluster) -> bool:
    """Whether the kubelet calls the one watch pod ready: its container has written a reading."""
    there = pods(cluster)
    return len(there) == 1 and bool(first_status(there[0]).get("ready"))


def _running(cluster: Cluster) -> Object:
    result = cluster.until(
        lambda: next((pod for pod in pods(cluster) if runs(pod) and find(pod)), None),
        what="the watch container running",
    )
    assert result is not None
    return result


def _end(cluster: Cluster) -> Object:
    status = first_status(next(iter(pods(cluster)), None))
    ends = [status.get(state, {}).get("terminated") for state in ("state", "lastState")]
    return next((end for end in ends if end), {})


def _validated(cluster: Cluster) -> tuple[str, str]:
    conditions = cluster.node_object()["status"]["conditions"]
    return next((c["status"], c["reason"]) for c in conditions if c["type"] == "GPUValidated")


def _marks(cluster: Cluster) -> Object:
    return _marks_of(cluster.node_object())


def _marks_of(node: Object) -> Object:
    there = node["metadata"].get("labels", {})
    return {"labels": {key: there.get(key) for key in HEALTHY}, "taints": taints_of(node)}


def _uid(cluster: Cluster) -> str:
    uids = [str(pod["metadata"]["uid"]) for pod in pods(cluster)]
    return uids[0] if len(uids) == 1 else ""
