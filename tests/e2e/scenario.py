"""nodegauge installed by Helm as on a real cluster: runtime class, labels, a fault, upgrade, uninstall.

The chart goes into a namespace that enforces the Pod Security level `restricted`; its images are the
project's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from e2e.cluster import NAMESPACE, REPORTS, Cluster, terminated
from e2e.node_images import NCCL_REPOSITORY, NCCL_TAG, REGISTRY
from e2e.node_marks import HEALTHY, PREFIX, answered, ask, labels, last_run, measure, taints
from e2e.steps import CLOSED, container
from nodegauge_operator.api.policy import Hysteresis
from testbed.errors import ApiError, TestbedError

GPUS = 8
RELEASE = "nodegauge"
CHART = "charts/nodegauge"
TAINT = f"{PREFIX}unhealthy=p2p:NoSchedule"
UNVALIDATED = f"{PREFIX}unvalidated=:NoSchedule"
LEAVE_RUNS = 2
RECHECK = "5s"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
SEES = (
    "import ctypes, json, os\n"
    "def count():\n"
    "    try: n = ctypes.CDLL('libnvidia-ml.so.1')\n"
    "    except OSError: return 'no driver'\n"
    "    found = ctypes.c_uint()\n"
    "    n.nvmlInit_v2(); n.nvmlDeviceGetCount_v2(ctypes.byref(found))\n"
    "    return found.value\n"
    "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
    "try: open('/x', 'w'); root = 'writable'\n"
    "except OSError as e: root = e.strerror\n"
    "said = {'gpus': count(), 'uid': os.getuid(), 'root': root, 'caps': status['CapBnd'].strip(),\n"
    "        'seccomp': status['Seccomp'].strip(), 'no_new_privs': status['NoNewPrivs'].strip()}\n"
    "open('/dev/termination-log', 'w').write(json.dumps(said))\n"
)
CONFINED: dict[str, Any] = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}


def values(**policy: Any) -> dict[str, Any]:
    """The chart's values; `policy` is more of the policy's spec."""
    image = {"pullPolicy": "Never"}
    return {
        "image": {"registry": REGISTRY},
        # One node: the operator must be able to come back on it while it is tainted.
        "operator": {
            "image": image,
            "sweepInterval": "1s",
            "maxGatedNodes": "100%",
            "maxGatedNodesPerHour": "100%",
            "tolerations": [{"operator": "Exists"}],
        },
        "probe": {"image": image, "runtimeClassName": "nvidia"},
        "nccl": {
            "image": {"repository": NCCL_REPOSITORY, "tag": NCCL_TAG},
            # A core for each GPU is more than this machine may have.
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        },
        # pod_failures.py names images that are missing, cannot start or say too much.
        "admissionPolicies": {"images": [f"{REGISTRY}/nodegauge/*"]},
        "crds": {"keep": False},
        "policy": {
            "spec": {
                "probes": {
                    "health": {
                        "mode": "Periodic",  # watch.py and watch_disturbed.py are about mode Watch
                        "interval": "10m",
                        "recheck": RECHECK,
                        "deadline": "30s",
                        "window": "1s",
                    },
                    "nccl": {"enabled": True, "interval": "12h", "deadline": "60s", "recheck": "2s"},
                    "load": {"enabled": False},  # its own step switches it on
                },
                "budget": {"gatedNodes": "100%", "gatedNodesPerHour": "100%"},
                "hysteresis": {"dwell": "5s", "leaveRuns": LEAVE_RUNS},
                "thresholds": {"intervalFloor": 1},
                **policy,
            }
        },
    }


def gpus_on_the_node(cluster: Cluster) -> None:
    """An administrator's status patch gives the node eight GPUs; the kubelet's later writes keep them."""
    amount = {"nvidia.com/gpu": str(GPUS)}
    cluster.api.patch(
        f"/api/v1/nodes/{cluster.node.name}/status", {"status": {"capacity": amount, "allocatable": amount}}
    )
    beat = _heartbeat(cluster)
    cluster.until(lambda: _heartbeat(cluster) != beat, what="the kubelet's next status")
    status = cluster.node_object()["status"]
    for kind in ("capacity", "allocatable"):
        cluster.must_be(
            status[kind].get("nvidia.com/gpu"), str(GPUS), what=f"{kind} after the kubelet's next status"
        )
    cluster.say(f"the node has nvidia.com/gpu: {GPUS}, and the kubelet keeps it")


def runtime_class(cluster: Cluster) -> None:
    """The handler gives the driver to containers that ask for it, and to no others; `restricted` holds."""
    body = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", body)
    cluster.make_namespace("confined", labels=RESTRICTED)
    asked = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    confined = {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    }
    for name, env, gpus in (("asks", asked, GPUS), ("does-not-ask", {}, "no driver")):
        spec = {
            "restartPolicy": "Never",
            "tolerations": CLOSED,
            "runtimeClassName": "nvidia",
            "automountServiceAccountToken": False,
            "containers": [container(SEES, **env, **confined)],
            **CONFINED,
        }
        cluster.api.create("/api/v1/namespaces/confined/pods", {"metadata": {"name": name}, "spec": spec})
        find = partial(cluster.pod, name, namespace="confined")
        cluster.until(partial(_ended, find), what=f"pod {name}")
        end = terminated(find())
        wanted = {
            "gpus": gpus,
            "uid": 65532,
            "root": "Read-only file system",
            "caps": "0" * 16,
            "seccomp": "2",
            "no_new_privs": "1",
        }
        cluster.must_be(json.loads(end.get("message") or "{}"), wanted, what=f"what pod {name} saw")
        cluster.say(f"pod {name}: {end['message']}")


def helm_install(cluster: Cluster) -> None:
    """`helm install --wait` into a restricted namespace: the Deployment runs with its projected token."""
    cluster.must_be(taints(cluster), [UNVALIDATED], what="our taints on a node that has not passed")
    cluster.make_namespace(NAMESPACE, labels=RESTRICTED)
    _helm(cluster, "install", values())
    pods = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    operator = next(pod for pod in pods if pod["metadata"]["name"].startswith(f"{RELEASE}-"))
    volumes = [v["projected"]["sources"] for v in operator["spec"]["volumes"] if "projected" in v]
    if not any("serviceAccountToken" in source for sources in volumes for source in sources):
        raise TestbedError("the operator's pod has no projected token")
    cluster.say(f"operator {operator['metadata']['name']} is ready, with a projected token")


def labels_appear(cluster: Cluster) -> None:
    """The first pass: what the driver answers becomes the node's labels, and the node opens."""
    cluster.until(
        lambda: HEALTHY.items() <= labels(cluster).items() and not taints(cluster),
        what=f"the labels {HEALTHY}, and no taint of ours",
    )
    report = cluster.report()
    if not report.get("passedAt"):
        raise TestbedError(f"the node opened without a pass: {report}")
    cluster.must_be(len(report["gpus"]["items"]), GPUS, what="the number of GPUs in the report")
    cluster.say(f"the node is open; labels {labels(cluster)}; {report['summary']}")


def helm_test(cluster: Cluster) -> None:
    """`helm test` passes, where the chart has one."""
    templates = (cluster.checkout / CHART / "templates").rglob("*.yaml")
    if not any("helm.sh/hook: test" in file.read_text() for file in templates):
        cluster.say("the chart has no test")
        return
    cluster.plane.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "60s")


def fault_taints(cluster: Cluster) -> None:
    """A fault is switched on: after two bad runs the taint comes."""
    before = last_run(cluster)["number"]
    cluster.hardware.fault("p2p-refused")
    _until_tainted(cluster, [TAINT])
    _must_have_run(cluster, Hysteresis().enter_runs, after=before)


def healed_untaints(cluster: Cluster) -> None:
    """The fault is switched off: after two good runs the taint goes, and with it the label of the fault."""
    before = last_run(cluster)["number"]
    cluster.hardware.heal("p2p-refused")
    _until_tainted(cluster, [])
    _must_have_run(cluster, LEAVE_RUNS, after=before)
    cluster.until(lambda: HEALTHY.items() <= labels(cluster).items(), what=f"the labels {HEALTHY}")


def _until_tainted(cluster: Cluster, wanted: list[str]) -> None:
    """Ask for one run, in place of the wait for the interval; the operator asks for the others itself."""
    measure(cluster)
    cluster.until(lambda: taints(cluster) == wanted, what=f"the taints {wanted}")
    cluster.say(f"taints {taints(cluster)} after run {last_run(cluster)['number']}")


def _must_have_run(cluster: Cluster, runs: int, *, after: int) -> None:
    """The last run counts: the recheck brought the others, no interval passed."""
    cluster.must_be(last_run(cluster)["number"] - after, runs, what="runs until the taints changed")


def helm_upgrade(cluster: Cluster) -> None:
    """A changed value reaches the Deployment and the policy; labels, taints and the report stay."""
    watched = _carried(cluster)
    changed = values(hysteresis={"dwell": "6s", "leaveRuns": LEAVE_RUNS})
    changed["operator"]["logLevel"] = "debug"
    changed["policy"]["spec"]["probes"]["nccl"]["enabled"] = False  # as the NCCL probe's steps left it
    _helm(cluster, "upgrade", changed)
    policy = cluster.api.get("/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default")
    cluster.must_be(policy["spec"]["hysteresis"]["dwell"], "6s", what="the policy's dwell")
    mark = ask(cluster)

    def measured() -> bool:
        cluster.must_be(_carried(cluster), watched, what="what the node carries during the upgrade")
        return answered(cluster) == mark

    cluster.until(measured, what="the new operator's first run")
    cluster.must_be(taints(cluster), watched["taints"], what="the taints after the new operator's first run")
    cluster.say("the new operator runs; labels, taints and the report are as before")


def helm_uninstall(cluster: Cluster) -> None:
    """Nothing of ours stays: labels, taints, conditions, reports, pods, CRDs, cluster-wide objects."""
    cluster.plane.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
    cluster.until(lambda: not left(cluster), what="an empty cluster")
    cluster.say("nothing of nodegauge is left in the cluster")


def _ended(find: Callable[[], dict[str, Any] | None]) -> bool:
    return bool(terminated(find()))


def left(cluster: Cluster) -> list[str]:
    """Everything that is still there of the release."""
    result = [f"label {key}" for key in labels(cluster)] + [f"taint {taint}" for taint in taints(cluster)]
    conditions = cluster.node_object()["status"].get("conditions", [])
    result += [f"condition {one['type']}" for one in conditions if one["type"] == "GPUValidated"]
    for path in (
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        f"/api/v1/namespaces/{NAMESPACE}/services",
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    ):
        result += [f"{path}: {one['metadata']['name']}" for one in cluster.api.get(path)["items"]]
    for path in (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
    ):
        names = [one["metadata"]["name"] for one in cluster.api.get(path)["items"]]
        result += [f"{path}: {name}" for name in names if "nodegauge" in name]
    try:
        result += [f"report {one['metadata']['name']}" for one in cluster.api.get(REPORTS)["items"]]
    except ApiError as error:
        if error.status != 404:
            raise
    return result


def _helm(cluster: Cluster, verb: str, what: dict[str, Any]) -> None:
    file = cluster.directory / f"values-{verb}.json"
    file.write_text(json.dumps(what))
    wait = ["--wait", "--timeout", "120s"]
    cluster.plane.helm(
        verb, RELEASE, str(cluster.checkout / CHART), "--namespace", NAMESPACE, "--values", str(file), *wait
    )


def _heartbeat(cluster: Cluster) -> str:
    conditions = cluster.node_object()["status"]["conditions"]
    return str(next(c["lastHeartbeatTime"] for c in conditions if c["type"] == "Ready"))


def _carried(cluster: Cluster) -> dict[str, Any]:
    """What an upgrade must not touch; when it was last validated is another matter."""
    kept = {key: value for key, value in labels(cluster).items() if not key.endswith("/validated-at")}
    return {"labels": kept, "taints": taints(cluster), "report": _report_uid(cluster)}


def _report_uid(cluster: Cluster) -> str:
    result = cluster.find(f"{REPORTS}/{cluster.node.name}")
    return "" if result is None else str(result["metadata"]["uid"])


BEFORE = (gpus_on_the_node, runtime_class, helm_install, labels_appear)
AFTER = (
    fault_taints,
    helm_upgrade,
    healed_untaints,
    helm_uninstall,
)
