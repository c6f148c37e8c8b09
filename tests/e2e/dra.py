"""A node with DRA alone: no runtime class, no nvidia.com/gpu, no GFD.  A claim brings the driver, by CDI; the
plugin (tests/testbed/go/draplugin) has the rights of the node's own user."""

import json
from pathlib import Path
from typing import Any

from e2e import nccl, scenario, watch
from e2e.cluster import HEALTHY, NAMESPACE, PREFIX, WORKLOADS, Cluster, terminated
from e2e.node import CDI, FLAGS
from e2e.scenario import CLAIMS, GPUS, RESTRICTED
from testbed import watching
from testbed.errors import ApiError, TestbedError
from testbed.hardware.dra import API, DEVICE_CLASS, DRIVER, template
from testbed.rest import Object

ADMIN = {"resource.kubernetes.io/admin-access": "true"}
SHARED, EXCLUSIVE = "nodegauge-gpus-admin", "nodegauge-gpus-all"
"""Templates that the operator keeps."""
TAKEN = {"pull": "", "health": SHARED, "watch": SHARED, "nccl": EXCLUSIVE, "load": EXCLUSIVE}
"""Of each probe's pods, by what they take GPUs."""
CLAIMED = "claimed"
"""Namespace of hand-made pods, restricted and with the label for admin claims."""
SAYS = """\
import ctypes, json, os
names = ("NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
result = {"uid": os.getuid(), "env": {name: os.environ.get(name, "") for name in names}}
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
result["caps"] = int(status["CapEff"], 16)
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    count = ctypes.c_uint()
    result["init"] = nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    result["gpus"] = count.value
except OSError:
    result["gpus"] = "no library"
try:
    os.close(os.open("/dev/nvidiactl", os.O_RDWR))
    result["device"] = "opened"
except OSError as error:
    result["device"] = error.strerror
open("/dev/termination-log", "w").write(json.dumps(result))
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
        cluster.api.create(_claims("templates"), template(name, **more))
    info = cluster.node_object()["status"]["nodeInfo"]
    cluster.say(f"DRA alone: kubelet {info['kubeletVersion']}, {info['containerRuntimeVersion']}, {DRIVER}")


def claims_bring_the_driver(cluster: Cluster) -> None:
    """An unprivileged container loads the driver by an admin claim, by an exclusive one, and not without."""
    by = {claim: _message_of(cluster, claim) for claim in ("admin", "all", "")}
    whole = {"uid": HARDENED["runAsUser"], "caps": 0, "init": 0, "gpus": GPUS, "device": "opened"}
    for claim in ("admin", "all"):
        env = by[claim].pop("env")
        cluster.must_be(by[claim], whole, what=f"what a pod with the claim {claim} says")
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
    cluster.must_be(_message_of(cluster, "admin")["gpus"], GPUS, what="GPUs of an admin claim beside a job")
    _make(cluster, "next", "all", SAYS)
    cluster.until(lambda: "cannot allocate all claims" in _why_pending(cluster, "next"), what="it to wait")
    cluster.delete_pod("job", namespace=CLAIMED, gracePeriodSeconds=0)
    cluster.until(lambda: _phase(cluster, "next") == "Succeeded", what="the pod that waited to end")
    cluster.delete_pod("next", namespace=CLAIMED)
    _await_no_claims(cluster)


def runs_by_claims(cluster: Cluster) -> None:
    """Every probe of the installed chart has the driver by a claim alone, although its values name a runtime
    class; a job gets the GPUs; nobody else gets one of its claims, and nothing of it stays."""
    cluster.make_namespace(NAMESPACE, labels=RESTRICTED | ADMIN)
    cluster.make_namespace(WORKLOADS)
    cluster.api.create(_claims("templates", namespace=WORKLOADS), template(EXCLUSIVE))  # a job's own
    cluster.all_gpus = EXCLUSIVE
    with watching.pods(cluster.plane, namespace=NAMESPACE, selector=nccl.PROBE) as seen:
        scenario.helm(cluster, "install", scenario.values())
        scenario.labels_appear(cluster)
        cluster.must_be(cluster.labels()[f"{PREFIX}driver-access"], "dra", what="the way to the driver")
        nccl.measures(cluster)
        nccl.gives_way(cluster)
        cluster.policy(probes={"nccl": {"enabled": False}})  # it would come back first
        cluster.delete_pod(nccl.JOB)
        nccl.loads(cluster)
        watch.set_mode(cluster, "Watch")
        watch.judged(cluster, after=set())
        cluster.must_be(HEALTHY.items() - cluster.labels().items(), set(), what="labels that are missing")
        _others_are_refused(cluster)
    bodies = [event.body for event in seen]
    taken = {(pod["metadata"]["labels"][nccl.PROBE], nccl.taken(pod)) for pod in bodies}
    cluster.must_be(taken, set(TAKEN.items()), what="by what each probe's pods take GPUs")
    classes = {pod["spec"].get("runtimeClassName") for pod in bodies}
    cluster.must_be(classes, {None}, what="runtime classes of probe pods")
    cluster.say(f"without runtime class and nvidia.com/gpu: {taken}")
    scenario.helm_uninstall(cluster)
    cluster.until(lambda: not list(CDI.glob("*")), what="the claims' CDI specs to go")


def _others_are_refused(cluster: Cluster) -> None:
    """Nobody else shares GPUs with their holders, in the namespace that allows it."""
    mine = template("mine", adminAccess=True)
    [pod] = watch.pods(cluster)
    used = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    tried = (
        (_claims("templates", namespace=NAMESPACE), mine, "only nodegauge's templates share"),
        (_claims(namespace=NAMESPACE), mine | mine["spec"], "only nodegauge's templates share"),
        (pods, _pod("mine", SAYS, resourceClaimTemplateName=SHARED), "only probe pods have claims"),
        (pods, _pod("mine", SAYS, resourceClaimName=used), "only probe pods have claims"),
    )
    for path, body, refusal in tried:
        try:
            cluster.api.create(path, body)
        except ApiError as error:
            if refusal not in str(error):
                raise
        else:
            raise TestbedError(f"{path} took {body}")
    cluster.say(f"refused to others: {used}, its template, and claims and templates like them")


def _claims(suffix: str = "s", *, namespace: str = CLAIMED) -> str:
    return CLAIMS.format(namespace) + suffix


def _devices(cluster: Cluster) -> list[Object]:
    slices = cluster.api.get(f"{API}/resourceslices")["items"]
    return [device for one in slices for device in one["spec"].get("devices", ())]


def _make(cluster: Cluster, name: str, template: str, program: str) -> None:
    source = {"resourceClaimTemplateName": template} if template else {}
    cluster.api.create(f"/api/v1/namespaces/{CLAIMED}/pods", _pod(name, program, **source))


def _pod(name: str, program: str, **source: str) -> Object:
    """With a claim from this source, or without one."""
    main: Object = {
        "name": "main",
        "image": "localhost/nodegauge/probe:0.1.0",
        "imagePullPolicy": "Never",
        "command": ["python", "-c", program],
        "securityContext": HARDENED,
    }
    spec: Object = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [main]}
    if source:
        main["resources"] = {"claims": [{"name": "gpus"}]}
        spec["resourceClaims"] = [{"name": "gpus", **source}]
    return {"metadata": {"name": name}, "spec": spec}


def _message_of(cluster: Cluster, template: str) -> dict[str, Any]:
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
