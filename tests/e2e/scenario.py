"""The host joins closed; nodegauge by Helm in a `restricted` namespace: labels, a fault, an upgrade."""

import json
from pathlib import Path
from typing import Any

from e2e.cluster import HEALTHY, NAMESPACE, POLICY, PREFIX, READINGS, REPORTS, WORKLOADS, Cluster
from e2e.node import FLAGS
from e2e.node_parts import NCCL_REPOSITORY, NCCL_TAG, REGISTRY
from nodegauge_operator.api.policy import Hysteresis
from nodegauge_operator.names import TAINT_UNVALIDATED
from support.chart import left_behind
from support.playbook import Ansible, stage
from testbed import watching
from testbed.errors import TestbedError
from testbed.marks import labels_of, taints_of
from testbed.rest import Object

GPUS = 8
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaim"
LABELS = {"nvidia.com/gpu.present": "true"}
RELEASE = "nodegauge"
CHART = Path(__file__).resolve().parents[2] / "charts" / "nodegauge"
TAINT = f"{PREFIX}unhealthy=p2p:NoSchedule"
UNVALIDATED = f"{PREFIX}unvalidated=:NoSchedule"
LEAVE_RUNS = 2
RECHECK = "5s"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


HEALTH = {"mode": "Periodic", "interval": "10m", "recheck": RECHECK, "deadline": "30s", "window": "1s"}
"""watch.py is about mode Watch."""
PROBES: dict[str, dict[str, Any]] = {
    "health": HEALTH,
    "nccl": {"enabled": True, "interval": "12h", "deadline": "60s", "recheck": "2s"},
    "load": {"enabled": False},  # its own step switches it on
}


def values(**policy: Any) -> dict[str, Any]:
    image = {"pullPolicy": "Never"}
    # One node: the operator must be able to come back on it while it is tainted.
    operator = {"image": image, "sweepInterval": "1s", "tolerations": [{"operator": "Exists"}]}
    spec = {
        "probes": PROBES,
        "budget": {"gatedNodes": "100%", "gatedNodesPerHour": "100%"},
        "hysteresis": {"dwell": "5s", "leaveRuns": LEAVE_RUNS},
        "thresholds": {"intervalFloor": 1},
    }
    # A core for each GPU is more than this machine may have.
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return {
        "image": {"registry": REGISTRY},
        "operator": {**operator, "maxGatedNodes": "100%", "maxGatedNodesPerHour": "100%"},
        "probe": {"image": image, "runtimeClassName": "nvidia"},
        "nccl": {"image": {"repository": NCCL_REPOSITORY, "tag": NCCL_TAG}, "resources": resources},
        # pod_failures.py names images that are missing, cannot start or say too much.
        # And watch.py has the kernel's log read.
        "admissionPolicies": {"images": [f"{REGISTRY}/nodegauge/*"], "kernelLogFolders": ["/var/log"]},
        "crds": {"keep": False},
        "policy": {"spec": spec | policy},
    }


def host_prepared(cluster: Cluster) -> None:
    """The role `nodegauge.gpu.join_gate` sets taint and label of what will register."""
    folder = cluster.directory / "ansible"
    folder.mkdir()
    stage(folder)
    role = {"join_gate_method": "kubeadm", "join_gate_flags_file": str(FLAGS), "join_gate_labels": LABELS}
    task = {"ansible.builtin.include_role": {"name": "nodegauge.gpu.join_gate"}, "vars": role}
    play = {"hosts": "all", "gather_facts": False, "tasks": [task]}
    Path(FLAGS).parent.mkdir(parents=True, exist_ok=True)
    done = Ansible(folder).play([play], {cluster.node.name: {}})
    if done.code:
        raise TestbedError(f"the role join_gate failed:\n{done.output}")
    cluster.must_be(len(done.changed), 1, what="the number of tasks that changed something")
    cluster.say(f"the role join_gate wrote {FLAGS.read_text().strip()}")


def node_ready(cluster: Cluster) -> None:
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())

    def ready() -> bool:
        node = cluster.find(f"/api/v1/nodes/{cluster.node.name}")
        if node is None:
            return False
        states = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
        known = [taint["key"] for taint in node["spec"].get("taints") or ()]
        return states.get("Ready") == "True" and known == [TAINT_UNVALIDATED]

    cluster.until(ready, what=f"the node to be Ready, with {TAINT_UNVALIDATED} alone")
    cluster.make_namespace(WORKLOADS)
    registered = cluster.node_object()["metadata"]["labels"]
    cluster.must_be(LABELS.items() - registered.items(), set(), what="labels that are missing")
    info = cluster.node_object()["status"]["nodeInfo"]
    versions = f"kubelet {info['kubeletVersion']}, {info['containerRuntimeVersion']}, {info['osImage']}"
    cluster.say(f"node {cluster.node.name} is Ready and closed: {versions}")


def gpus_on_the_node(cluster: Cluster) -> None:
    """An administrator gives the node eight GPUs by a status patch, and the runtime class for the driver."""
    amount = {"nvidia.com/gpu": str(GPUS)}
    status = {"capacity": amount, "allocatable": amount}
    cluster.api.patch(f"/api/v1/nodes/{cluster.node.name}/status", {"status": status})
    body = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", body)


def helm_install(cluster: Cluster) -> None:
    cluster.must_be(cluster.taints(), [UNVALIDATED], what="our taints on a node that has not passed")
    cluster.make_namespace(NAMESPACE, labels=RESTRICTED)
    helm(cluster, "install", values())
    operator = next(pod for pod in cluster.pods("") if pod["metadata"]["name"].startswith(f"{RELEASE}-"))
    volumes = [v["projected"]["sources"] for v in operator["spec"]["volumes"] if "projected" in v]
    if not any("serviceAccountToken" in source for sources in volumes for source in sources):
        raise TestbedError("the operator's pod has no projected token")
    cluster.say(f"operator {operator['metadata']['name']} is ready, with a projected token")


def labels_appear(cluster: Cluster) -> None:
    cluster.until(
        lambda: HEALTHY.items() <= cluster.labels().items() and not cluster.taints(),
        what=f"the labels {HEALTHY}, and no taint of ours",
    )
    # The report follows the node.
    cluster.until(
        lambda: cluster.report().get("passedAt"), what="the pass in the report of a node that opened"
    )
    report = cluster.report()
    cluster.must_be(len(report["gpus"]["items"]), GPUS, what="the number of GPUs in the report")
    cluster.say(f"the node is open; labels {cluster.labels()}; {report['summary']}")


def helm_test(cluster: Cluster) -> None:
    cluster.plane.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", "60s")


def fault_taints(cluster: Cluster) -> None:
    before = cluster.last_run()["number"]
    cluster.hardware.fault("p2p-refused")
    _until_tainted(cluster, [TAINT])
    _must_have_run(cluster, Hysteresis().enter_runs, after=before)


def healed_untaints(cluster: Cluster) -> None:
    """The fault is switched off: after two good runs the taint goes, and with it the label of the fault."""
    before = cluster.last_run()["number"]
    cluster.hardware.heal("p2p-refused")
    _until_tainted(cluster, [])
    _must_have_run(cluster, LEAVE_RUNS, after=before)
    cluster.until(lambda: HEALTHY.items() <= cluster.labels().items(), what=f"the labels {HEALTHY}")


def _until_tainted(cluster: Cluster, wanted: list[str]) -> None:
    """Ask for one run, in place of the wait for the interval; the operator asks for the others itself."""
    cluster.measure()
    cluster.until(lambda: cluster.taints() == wanted, what=f"the taints {wanted}")


def _must_have_run(cluster: Cluster, runs: int, *, after: int) -> None:
    """The last run counts: the recheck brought the others, no interval passed."""
    # The report follows the node.
    cluster.until(lambda: cluster.last_run()["number"] - after >= runs, what=f"{runs} runs after {after}")
    cluster.must_be(cluster.last_run()["number"] - after, runs, what="runs until the taints changed")
    cluster.say(f"taints {cluster.taints()} after run {cluster.last_run()['number']}")


def helm_upgrade(cluster: Cluster) -> None:
    before = _marks(cluster.node_object())
    uid = cluster.api.get(f"{REPORTS}/{cluster.node.name}")["metadata"]["uid"]
    changed = values(hysteresis={"dwell": "6s", "leaveRuns": LEAVE_RUNS})
    changed["operator"]["logLevel"] = "debug"
    as_left = PROBES["nccl"] | {"enabled": False}  # by the steps of the NCCL probe
    changed["policy"]["spec"]["probes"] = PROBES | {"nccl": as_left}
    with (
        watching.watch(cluster.api, "/api/v1/nodes") as nodes,
        watching.watch(cluster.api, REPORTS) as reports,
    ):
        helm(cluster, "upgrade", changed)
        policy = cluster.api.get(POLICY)
        cluster.must_be(policy["spec"]["hysteresis"]["dwell"], "6s", what="the policy's dwell")
        cluster.measure()
    spoiled = [e.body["metadata"]["resourceVersion"] for e in nodes if _marks(e.body) != before]
    cluster.must_be(spoiled, [], what="versions of the node without its marks during the upgrade")
    cluster.must_be({e.body["metadata"]["uid"] for e in reports}, {uid}, what="reports during the upgrade")
    cluster.say("the new operator runs; labels, taints and the report are as before")


def helm_uninstall(cluster: Cluster) -> None:
    """Nothing of ours stays: labels, taints, conditions, pods, our objects, CRDs, cluster-wide objects."""
    helm(cluster, "uninstall")
    cluster.until(lambda: not left(cluster), what="an empty cluster")
    cluster.say("nothing of nodegauge is left in the cluster")


def left(cluster: Cluster) -> list[str]:
    result = [f"label {key}" for key in cluster.labels()] + [f"taint {taint}" for taint in cluster.taints()]
    conditions = cluster.node_object()["status"].get("conditions", [])
    result += [f"condition {one['type']}" for one in conditions if one["type"] == "GPUValidated"]
    result += [f"{kind} {name}" for kind, name in left_behind(cluster.api, of=NAMESPACE)]
    core = f"/api/v1/namespaces/{NAMESPACE}"
    claims = [f"{CLAIMS.format(NAMESPACE)}{kind}" for kind in ("s", "templates")]
    for path in (f"{core}/pods", f"{core}/secrets", *claims, REPORTS, READINGS):
        items = cluster.api.find(path).get("items", ())  # no report and no reading without its CRD
        result += [f"{path}: {one['metadata']['name']}" for one in items]
    return result


def helm(cluster: Cluster, verb: str, what: dict[str, Any] | None = None) -> None:
    """The release of the chart, with these values; without any it is uninstalled."""
    options: tuple[str, ...] = ("--namespace", NAMESPACE, "--wait", "--timeout", "120s")
    if what is None:
        cluster.plane.helm(verb, RELEASE, *options)
        return
    file = cluster.directory / f"values-{verb}.json"
    file.write_text(json.dumps(what))
    options += ("--values", str(file))
    cluster.plane.helm(verb, RELEASE, str(CHART), *options)


def _marks(node: Object) -> tuple[dict[str, str], list[str]]:
    """What an upgrade must not touch."""
    return labels_of(node["metadata"]["labels"]), taints_of(node)


BEFORE = (gpus_on_the_node, helm_install, labels_appear)
AFTER = (fault_taints, helm_upgrade, healed_untaints, helm_uninstall)
