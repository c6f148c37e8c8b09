"""A node with DRA alone: no runtime class, no nvidia.com/gpu, no GFD.  A claim brings the driver, by CDI; the
plugin (tests/testbed/go/draplugin) has the rights of the node's own user."""

import json
from pathlib import Path
from typing import Any

from e2e.cluster import (
    HEALTHY,
    NAMESPACE,
    PREFIX,
    Cluster,
    Object,
    terminated,
)
from e2e.nccl import BUSBW, LOAD
from e2e.node import CDI, FLAGS
from e2e.scenario import GPUS, RELEASE, RESTRICTED, helm, left, values
from nodegauge_probes.load.probe import CHILD
from testbed import watching
from testbed.hardware.dra import DEVICE_CLASS, DRIVER
from testbed.processes import with_argument

API = "/apis/resource.k8s.io/v1"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
CLAIMED = "claimed"
"""Namespace of hand-made pods, restricted and with the label for admin claims."""
SAYS = """\
import ctypes, json, os
names = ("NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
said = {"uid": os.getuid(), "env": {name: os.environ.get(name, "") for name in names}}
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
said["caps"] = int(status["CapEff"], 16)
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    count = ctypes.c_uint()
    said["init"] = nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    said["gpus"] = count.value
except OSError:
    said["gpus"] = "no library"
try:
    os.close(os.open("/dev/nvidiactl", os.O_RDWR))
    said["device"] = "opened"
except OSError as error:
    said["device"] = error.strerror
open("/dev/termination-log", "w").write(json.dumps(said))
"""
STAYS = "import time; time.sleep(3600)"
HARDENED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
NOT_LOADED = "no library"


def node_with_dra(cluster: Cluster) -> None:
    Path(FLAGS).parent.mkdir(parents=True, exist_ok=True)
    Path(FLAGS).write_text("")
    kubeconfig = cluster.plane.node_kubeconfig()
    cluster.node.start_kubelet(kubeconfig)
    cluster.until(
        lambda: cluster.find(f"/api/v1/nodes/{cluster.node.name}") and cluster.node_is_ready() == "True",
        what="the node to be Ready",
    )
    cluster.node.start_dra_driver(kubeconfig, cluster.hardware)
    cluster.api.create(f"{API}/deviceclasses", DEVICE_CLASS)
    cluster.until(lambda: len(_devices(cluster)) == GPUS, what=f"{GPUS} devices in ResourceSlices")
    offered = {*cluster.node_object()["status"]["capacity"], *cluster.node_object()["metadata"]["labels"]}
    cluster.must_be([w for w in offered if w.startswith("nvidia.com/")], [], what="nvidia.com/ of the node")
    cluster.make_namespace(CLAIMED, labels=RESTRICTED | ADMIN)
    for name, more in (("admin", {"adminAccess": True}), ("all", {})):
        cluster.api.create(_claims("templates"), _template(name, **more))
    info = cluster.node_object()["status"]["nodeInfo"]
    cluster.say(f"DRA alone: kubelet {info['kubeletVersion']}, {info['containerRuntimeVersion']}, {DRIVER}")


def claims_bring_the_driver(cluster: Cluster) -> None:
    """An unprivileged container loads the driver by an admin claim, by an exclusive one, and not without."""
    by = {template: _said(cluster, template) for template in ("admin", "all", "")}
    whole = {"uid": HARDENED["runAsUser"], "caps": 0, "init": 0, "gpus": GPUS, "device": "opened"}
    for template in ("admin", "all"):
        env = by[template].pop("env")
        cluster.must_be(by[template], whole, what=f"what a pod with the claim {template} says")
        cluster.must_be(env["NVIDIA_VISIBLE_DEVICES"], "void", what="NVIDIA_VISIBLE_DEVICES")
    cluster.must_be(by[""]["gpus"], NOT_LOADED, what="GPUs that a pod without a claim sees")
    _await_no_claims(cluster)
    cluster.say(
        f"uid {whole['uid']}, no capability: {GPUS} GPUs by an admin or an exclusive claim, else none"
    )


def jobs_share_with_admins(cluster: Cluster) -> None:
    """While a job holds all devices, an admin claim has them, too, and an exclusive one waits."""
    _make(cluster, "job", "all", STAYS)
    cluster.until(lambda: _phase(cluster, "job") == "Running", what="the job to run")
    cluster.must_be(_said(cluster, "admin")["gpus"], GPUS, what="GPUs of an admin claim beside a job")
    _make(cluster, "next", "all", SAYS)
    cluster.until(lambda: "cannot allocate all claims" in _why_pending(cluster, "next"), what="it to wait")
    cluster.delete_pod("job", namespace=CLAIMED, gracePeriodSeconds=0)
    cluster.until(lambda: _phase(cluster, "next") == "Succeeded", what="the pod that waited to end")
    cluster.delete_pod("next", namespace=CLAIMED)
    _await_no_claims(cluster)


def runs_by_claims(cluster: Cluster) -> None:
    """The chart's health, NCCL and load runs and its watch container, without runtime class; then nothing."""
    cluster.make_namespace(NAMESPACE, labels=RESTRICTED | ADMIN)
    what = values()
    what["probe"].pop("runtimeClassName")
    helm(cluster, "install", what | {"driverAccess": "DRA"})
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=f"{PREFIX}probe") as seen:
        cluster.until(lambda: HEALTHY.items() <= cluster.labels().items(), what=f"the labels {HEALTHY}")
        cluster.until(lambda: cluster.last_run("nccl").get("outcome") == "read", what="an NCCL run")
        cluster.until(lambda: {f"{PREFIX}{name}" for name in BUSBW} <= cluster.labels().keys(), what="busbw")
        _loads(cluster)
        _watches(cluster)
    bodies = [event.body for event in seen]
    by = {(one["metadata"]["labels"][f"{PREFIX}probe"], *_templates(one)) for one in bodies}
    claims = {("health", f"{RELEASE}-gpus-admin"), ("watch", f"{RELEASE}-gpus-admin")}
    claims |= {(name, f"{RELEASE}-gpus-all") for name in ("nccl", "load")}
    cluster.must_be(by - {("pull",)}, claims, what="which probe has which claim")
    runtimes = {one["spec"].get("runtimeClassName") for one in bodies}
    cluster.must_be(runtimes, {None}, what="runtime classes of the probes")
    helm(cluster, "uninstall")
    cluster.until(lambda: not left(cluster) and not _ours(cluster), what="an empty cluster")
    cluster.until(lambda: not list(CDI.glob("*")), what="no CDI spec of a claim")
    cluster.say("health, watch, nccl and load ran by claims alone; nothing is left")


def _loads(cluster: Cluster) -> None:
    cluster.policy(probes={"load": LOAD, "nccl": {"enabled": False}})
    cluster.ask()
    cluster.until(lambda: with_argument(CHILD), what="the process that drives the GPUs")
    cluster.hardware.load(100)
    cluster.until(lambda: cluster.probe("load").get("verdict") == "pass", what="a load run that passes")
    cluster.hardware.load(0)


def _watches(cluster: Cluster) -> None:
    """A fault is tainted and healed by what the resident container writes."""
    cluster.policy(probes={"health": {"mode": "Watch"}, "load": {"enabled": False}})
    cluster.until(
        lambda: cluster.reading("watch") or cluster.reading(), what="a reading of a watch container"
    )
    cluster.hardware.fault("gpu-lost")
    cluster.until(lambda: f"{PREFIX}unhealthy=gpu-lost:NoSchedule" in cluster.taints(), what="the taint")
    cluster.hardware.heal("gpu-lost")
    cluster.until(lambda: not cluster.taints(), what="the taint to go")


def _template(name: str, **more: object) -> Object:
    exactly = {"deviceClassName": DRIVER, "allocationMode": "All", **more}
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [_request(exactly)]}}}}


def _request(exactly: Object) -> Object:
    return {"name": "gpus", "exactly": exactly}


def _claims(suffix: str = "s", *, namespace: str = CLAIMED) -> str:
    return f"{API}/namespaces/{namespace}/resourceclaim{suffix}"


def _devices(cluster: Cluster) -> list[Object]:
    slices = cluster.api.get(f"{API}/resourceslices")["items"]
    return [device for one in slices for device in one["spec"].get("devices", ())]


def _make(cluster: Cluster, name: str, template: str, program: str) -> None:
    main: Object = {
        "name": "main",
        "image": "localhost/nodegauge/probe:0.1.0",
        "imagePullPolicy": "Never",
        "command": ["python", "-c", program],
        "securityContext": HARDENED,
    }
    spec: Object = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [main]}
    if template:
        main["resources"] = {"claims": [{"name": "gpus"}]}
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
    cluster.make_pod(name, spec, namespace=CLAIMED)


def _said(cluster: Cluster, template: str) -> dict[str, Any]:
    name = f"says-{template or 'none'}"
    _make(cluster, name, template, SAYS)
    cluster.until(lambda: _phase(cluster, name) in ("Succeeded", "Failed"), what=f"the end of pod {name}")
    pod = cluster.pod(name, namespace=CLAIMED)
    cluster.delete_pod(name, namespace=CLAIMED)
    message = terminated(pod).get("message", "")
    cluster.say(f"a pod with the claim {template or '-'}: {message}")
    result: dict[str, Any] = json.loads(message)
    return result


def _phase(cluster: Cluster, name: str) -> str:
    return str((cluster.pod(name, namespace=CLAIMED) or {"status": {}})["status"].get("phase"))


def _why_pending(cluster: Cluster, name: str) -> str:
    status = (cluster.pod(name, namespace=CLAIMED) or {"status": {}})["status"]
    return "".join(one.get("message", "") for one in status.get("conditions", []))


def _await_no_claims(cluster: Cluster) -> None:
    cluster.until(lambda: not cluster.api.get(_claims())["items"], what="claims to go with their pods")
    cluster.until(lambda: not list(CDI.glob("*")), what="the claims' CDI specs to go")


def _templates(pod: Object) -> list[str]:
    return [one["resourceClaimTemplateName"] for one in pod["spec"].get("resourceClaims", ())]


def _ours(cluster: Cluster) -> list[str]:
    kinds = ("s", "templates")
    return [
        one["metadata"]["name"]
        for kind in kinds
        for one in cluster.api.get(_claims(kind, namespace=NAMESPACE))["items"]
    ]
