"""Promise 6 and 7: what a probe pod is, and what no policy can make of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.core.context import Context, NextRun, run_id
from nodegauge_operator.core.model import ProbeDefaults, pod_view
from nodegauge_operator.core.probes.pod import TOKEN_FOLDER, probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.core.probes.watch import daemon_set
from nodegauge_probes.nccl.plan import ENGINES
from nodegauge_probes.settings import parse
from support.nccl_nodes import IMAGE, INSTALLED
from support.nccl_nodes import NODE as GPU_NODE
from support.objects import DEFAULTS, TOKEN, ANode, APolicy, make_context, make_node, make_policy, make_report
from support.properties import tried

NODE = make_node("gpu-7.example.com")
OWN = names.PREFIX + "node"


def pod(policy: APolicy | None = None, defaults: ProbeDefaults = DEFAULTS, number: int = 3) -> dict[str, Any]:
    context = make_context(node=NODE, policy=policy or make_policy(), defaults=defaults)
    return probe_pod(context, KINDS[names.PROBE_HEALTH], run(context, number))


def run(context: Context, number: int) -> NextRun:
    return NextRun(number, run_id(report_uid=context.report.uid, probe=names.PROBE_HEALTH, number=number))


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (only,) = manifest["spec"]["containers"]
    return only


def env(manifest: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container(manifest)["env"]}


def at(manifest: dict[str, Any], path: str) -> Any:
    """The value at a path of the pod, of its metadata (`labels/...`), or of its only container."""
    kind, slash, key = path.partition("/")
    if slash:
        return manifest["metadata"][kind][key]
    here: Any = manifest | container(manifest) | {"env": env(manifest)}
    for key in path.split("."):
        here = here.get(key, MISSING)
    return here


MISSING: dict[str, Any] = {}
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "image": st.just("other:2"),
        "priorityClassName": st.just("low"),
        "runtimeClassName": st.just("nvidia"),
        "tolerations": st.just([{"key": "gpu", "operator": "Exists"}]),
        "labels": st.just({names.POD_PROBE: "evil", "app.kubernetes.io/managed-by": "evil", "team": "a"}),
        "annotations": st.just({names.POD_RUN: "99", names.POD_NODE: "evil", names.POD_NODE_UID: "evil"}),
        "resources": st.just({"limits": {"cpu": "2"}}),
    },
)


@given(template=TEMPLATES, probe=st.sampled_from(names.PROBES))
@tried(100)
def test_no_template_weakens_a_probe_pod(template: dict[str, Any], probe: str) -> None:
    manifest = nccl_pod(probe, policy=make_policy().of({"podTemplate": template}))
    spec, box = manifest["spec"], container(manifest)
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert box["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["activeDeadlineSeconds"] >= 60
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "nodeName", "nodeSelector"}
    *own, token = spec["volumes"]
    assert token == TOKEN
    assert not own or probe != names.PROBE_HEALTH
    assert all(volume.keys() == {"name", "emptyDir"} for volume in own)
    assert {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True} in box["volumeMounts"]
    gpus = {names.GPU_RESOURCE} if probe in (names.PROBE_NCCL, names.PROBE_LOAD) else set()
    for part in ("limits", "requests"):
        assert box["resources"][part].keys() == {"cpu", "memory"} | gpus
    view = pod_view(manifest)
    assert (view.probe, view.node, view.node_uid) == (probe, GPU_NODE.name, GPU_NODE.uid)
    assert view.number < 99
    [owner] = manifest["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("NodeReport", GPU_NODE.name, True)
    assert owner["blockOwnerDeletion"] is False, "true would need a right on the report's finalizers"
    assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "nodegauge"


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_kernels_log_is_mounted_only_where_the_policy_asks_for_it(is_asked: bool) -> None:
    """Read-only, with its group, in both pods that read health; nothing else changes."""
    log = {"enabled": is_asked, "path": "/var/log/gpu/kern.log", "group": 104}
    policy = make_policy().of({"probes": {"health": {"kernelLog": log}}})
    watching, plain = (daemon_set(p, DEFAULTS)["spec"]["template"] for p in (policy, make_policy()))
    for made, without in ((pod(policy), pod()), (watching, plain)):
        volumes = [v["hostPath"] for v in made["spec"]["volumes"] if "hostPath" in v]
        mounts = [m for m in container(made)["volumeMounts"] if m["name"] == "kernel-log"]
        added = [a for a in container(made)["args"] if a.startswith("--kernel-log=")]
        groups = made["spec"]["securityContext"].pop("supplementalGroups", [])
        assert (volumes, groups) == (([{"path": "/var/log/gpu"}], [104]) if is_asked else ([], []))
        assert [m["readOnly"] for m in mounts] == [True] * is_asked
        assert added == [f"--kernel-log={m['mountPath']}/kern.log" for m in mounts]
        assert made["spec"]["securityContext"] == without["spec"]["securityContext"]
        assert container(made)["securityContext"] == container(without)["securityContext"]


AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PINNED = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE.name]}]}]
LITTLE = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
UNSAID = [f"spec.{key}Name" for key in ("priorityClass", "runtimeClass", "serviceAccount")]
UNSAID += ["spec.imagePullSecrets", "imagePullPolicy"]
ISTIO = "sidecar.istio.io/inject"
MESHED = {"labels": {ISTIO: "true"}}


@pytest.mark.parametrize(
    ("template", "path", "value"),
    [
        pytest.param({}, AFFINITY, PINNED, id="pinned by name through the scheduler, so priority holds"),
        pytest.param({}, "resources", LITTLE, id="asks for little: without requests, limits would be some"),
        pytest.param({}, "spec.tolerations", [{"operator": "Exists"}], id="goes to tainted nodes too"),
        pytest.param({}, "env.NVIDIA_VISIBLE_DEVICES", "all", id="sees all GPUs"),
        pytest.param({}, "env.NVIDIA_DRIVER_CAPABILITIES", "utility", id="through NVML alone, without CUDA"),
        pytest.param({}, f"annotations/{names.SAFE_TO_EVICT}", "true", id="in no autoscaler's way"),
        *(
            pytest.param({}, f"annotations/{key}", value, id=f"no sidecar: annotation {key}")
            for key, value in names.NO_SIDECAR_ANNOTATIONS.items()
        ),
        *(
            pytest.param({}, f"labels/{key}", value, id=f"no sidecar: label {key}")
            for key, value in names.NO_SIDECAR_LABELS.items()
        ),
        pytest.param(MESHED, f"labels/{ISTIO}", "true", id="unless the policy wants one"),
        *(pytest.param({}, path, MISSING, id=f"nobody says {path}") for path in UNSAID),
    ],
)
def test_a_health_pod_is(template: dict[str, Any], path: str, value: Any) -> None:
    assert at(pod(make_policy().of({"podTemplate": template})), path) == value


def test_the_run_is_told_to_the_probe_as_the_operator_will_check_it() -> None:
    """Run id and node name by environment; the same for every try, another for another run or machine."""
    variables, expected = env(pod()), run_id(report_uid="", probe="health", number=3)
    assert (variables["NODEGAUGE_RUN"], variables["NODEGAUGE_NODE"]) == (expected, NODE.name)
    assert pod() == pod()
    assert pod()["metadata"]["name"].endswith(expected)
    others = {pod(number=n)["metadata"]["name"] for n in range(100)}
    assert len(others) == 100
    context = make_context(node=NODE, report=make_report(NODE))
    other = probe_pod(context, KINDS[names.PROBE_HEALTH], run(context, 3))
    assert other["metadata"]["name"] != pod()["metadata"]["name"]


@pytest.mark.parametrize(
    ("deadline", "kubelet", "own"),
    [("60s", 60, "48"), ("1m30s", 90, "72"), ("500ms", 1, "1"), ("2s", 2, "1.6")],
)
def test_the_probe_ends_itself_before_the_kubelet_does(deadline: str, kubelet: int, own: str) -> None:
    """So that its own words arrive; never 0, which the API refuses."""
    manifest = pod(make_policy().of({"probes": {"health": {"deadline": deadline, "window": "1500ms"}}}))
    assert manifest["spec"]["activeDeadlineSeconds"] == kubelet
    assert container(manifest)["args"] == ["--window=1.5", f"--deadline={own}"]


def test_the_probe_takes_the_longest_window_that_a_policy_may_ask_for() -> None:
    policy = make_policy().of({"probes": {"health": {"window": "10m", "deadline": "13m"}}})
    (resident,) = daemon_set(policy, DEFAULTS)["spec"]["template"]["spec"]["containers"]
    for probe, box in (("health", container(pod(policy))), ("watch", resident)):
        settings = parse([probe, *box["args"]], {}, probes=[probe], engines=["nccl4py"])
        assert max(settings.window, settings.slowed_window) == 600


SITE: ProbeDefaults = ProbeDefaults(
    namespace="ng",
    image="default:1",
    image_pull_policy="Always",
    image_pull_secrets=("a", "b"),
    priority_class_name="low",
    runtime_class_name="nvidia",
    service_account_name="probe",
    labels={"team": "site", "tier": "probe", "app.kubernetes.io/name": "other"},
    annotations={"a": "site", "b": "site", OWN: "elsewhere", names.SAFE_TO_EVICT: "false"},
    tolerations=[{"key": "site", "operator": "Exists"}],
    resources={"requests": {"cpu": "20m"}, "limits": {"memory": "512Mi"}},
)
TEMPLATE = {
    "image": "mine:2",
    "imagePullSecrets": [{"name": "c"}],
    "priorityClassName": "lower",
    "labels": {"team": "policy"},
    "annotations": {"b": "policy"},
    "tolerations": [{"key": "policy", "operator": "Exists"}],
    "resources": {"requests": {"cpu": "30m"}},
}


@pytest.mark.parametrize(
    ("path", "by_site", "by_policy"),
    [
        ("metadata.namespace", "ng", "ng"),
        ("image", "default:1", "mine:2"),
        ("imagePullPolicy", "Always", "Always"),
        ("spec.imagePullSecrets", [{"name": "a"}, {"name": "b"}], [{"name": "c"}]),
        ("spec.priorityClassName", "low", "lower"),
        ("spec.runtimeClassName", "nvidia", "nvidia"),
        ("spec.serviceAccountName", "probe", "probe"),
        ("labels/team", "site", "policy"),
        ("labels/tier", "probe", "probe"),
        ("labels/app.kubernetes.io/name", "nodegauge-probe", "nodegauge-probe"),
        ("annotations/a", "site", "site"),
        ("annotations/b", "site", "policy"),
        (f"annotations/{OWN}", NODE.name, NODE.name),
        (f"annotations/{names.SAFE_TO_EVICT}", "false", "false"),
        ("resources.requests", {"cpu": "20m", "memory": "32Mi"}, {"cpu": "30m", "memory": "32Mi"}),
        ("resources.limits", {"cpu": "1", "memory": "512Mi"}, {"cpu": "1", "memory": "512Mi"}),
    ],
)
def test_the_policy_wins_over_the_installation(path: str, by_site: Any, by_policy: Any) -> None:
    assert at(pod(defaults=SITE), path) == by_site
    assert at(pod(make_policy().of({"podTemplate": TEMPLATE}), defaults=SITE), path) == by_policy


def test_tolerations_of_the_policy_replace_those_of_the_installation() -> None:
    """But for our taints of any effect and value: else no gate would open."""
    assert {names.TAINT_THROTTLED, names.TAINT_UNHEALTHY, names.TAINT_UNVALIDATED} <= {*names.NODE_TAINTS}
    mine = pod(make_policy().of({"podTemplate": TEMPLATE}), defaults=SITE)
    for made, key in ((pod(defaults=SITE), "site"), (mine, "policy")):
        tolerated = [{"key": each, "operator": "Exists"} for each in (key, *names.NODE_TAINTS)]
        assert made["spec"]["tolerations"] == tolerated


NCCL_PROFILES = pytest.mark.parametrize("probe", [names.PROBE_PULL, names.PROBE_NCCL])


def nccl_pod(
    probe: str = names.PROBE_NCCL,
    node: ANode = GPU_NODE,
    policy: Policy | None = None,
    defaults: ProbeDefaults = INSTALLED,
) -> dict[str, Any]:
    context = make_context(node=node, policy=policy or make_policy(), defaults=defaults)
    return probe_pod(context, KINDS[probe], context.next_run(probe))


def tolerated(manifest: dict[str, Any]) -> set[str | None]:
    """Keys that it tolerates; None for all there are."""
    return {toleration.get("key") for toleration in manifest["spec"]["tolerations"]}


def test_an_nccl_run_holds_all_gpus_that_are_offered() -> None:
    for offered in (2, 7, 8, 16):
        made = nccl_pod(node=GPU_NODE.offering(offered, of=max(8, offered)))
        requests, limits = (container(made)["resources"][part] for part in ("requests", "limits"))
        whole = (requests[names.GPU_RESOURCE], limits[names.GPU_RESOURCE], requests["cpu"])
        assert whole == (str(offered),) * 3
        assert env(made)["NODEGAUGE_GPUS"] == str(max(8, offered))


def test_resources_of_an_nccl_run_are_the_users_but_for_the_gpus() -> None:
    """On fewer GPUs the number would be another one."""
    own = {"requests": {"cpu": "2"}, "limits": {names.GPU_RESOURCE: "1"}}
    installed = replace(INSTALLED, nccl_resources={"requests": {"cpu": "3", "memory": "1Gi"}})
    policy = make_policy().of({"podTemplate": {"ncclResources": own}})
    resources = container(nccl_pod(policy=policy, defaults=installed))["resources"]
    assert (resources["requests"]["cpu"], resources["requests"]["memory"]) == ("2", "1Gi")
    assert resources["limits"][names.GPU_RESOURCE] == "8"


def test_a_pull_holds_no_gpu_and_sees_none() -> None:
    made = nccl_pod(names.PROBE_PULL)
    for part in container(made)["resources"].values():
        assert names.GPU_RESOURCE not in part
    assert env(made)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert container(made)["image"] == IMAGE
    assert made["metadata"]["annotations"][names.POD_IMAGE] == IMAGE


def test_shared_memory_is_large_and_counted() -> None:
    """4 GiB at /dev/shm, and a memory limit that lies above it: it is charged to the pod."""
    made = nccl_pod()
    volumes = {volume["name"]: volume.get("emptyDir") for volume in made["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container(made)["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert volumes[mounts["/tmp"]] is not None
    limit = container(made)["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Mi")) > 4 * 1024


def test_an_nccl_run_can_be_preempted_by_everybody() -> None:
    installed = replace(INSTALLED, priority_class_name="nodegauge-probe")
    policy = make_policy().of({"podTemplate": {"priorityClassName": "mine"}})
    assert nccl_pod(defaults=installed, policy=policy)["spec"]["priorityClassName"] == "nodegauge-nccl"
    without = replace(installed, nccl_priority_class_name="")
    assert "priorityClassName" not in nccl_pod(defaults=without, policy=policy)["spec"], "nor of anybody else"


@NCCL_PROFILES
def test_no_cordon_is_tolerated(probe: str) -> None:
    node = GPU_NODE.cordoned().tainted(
        "nvidia.com/gpu=present", "team=a:NoExecute", "ToBeDeletedByClusterAutoscaler"
    )
    wanted = {"nvidia.com/gpu", "team", *names.NODE_TAINTS}
    everywhere = make_policy().of({"podTemplate": {"tolerations": [{"operator": "Exists"}]}})
    for policy in (make_policy(), everywhere):
        assert tolerated(nccl_pod(probe, node, policy)) == wanted


@NCCL_PROFILES
def test_tolerations_of_the_policy_are_all_there_are(probe: str) -> None:
    policy = make_policy().of({"podTemplate": {"tolerations": [{"key": "team", "operator": "Exists"}]}})
    assert tolerated(nccl_pod(probe, GPU_NODE.tainted("other"), policy)) == {"team", *names.NODE_TAINTS}


def test_the_policy_says_how_to_measure() -> None:
    how = {"engine": "nccl-tests", "processes": "one", "deadline": "10m"}
    policy = make_policy().of({"probes": {"nccl": how | {"environment": {"NCCL_ALGO": "Ring"}}}})
    made = nccl_pod(policy=policy)
    assert container(made)["command"] == ["python", "-m", "nodegauge_probes", "nccl"]
    *arguments, environment = container(made)["args"]
    assert arguments == ["--engine=nccl-tests", "--processes=one", "--deadline=540"]
    assert environment == '--environment={"NCCL_ALGO":"Ring"}'
    assert made["spec"]["activeDeadlineSeconds"] == 600
    assert container(nccl_pod(names.PROBE_PULL, policy=policy))["args"] == ["--engine=nccl-tests"]


def test_arguments_are_what_the_probe_takes() -> None:
    for probe in (names.PROBE_PULL, names.PROBE_NCCL):
        made = container(nccl_pod(probe))
        module, name = made["command"][2:]
        assert (module, name) == ("nodegauge_probes", probe)
        settings = parse([name, *made["args"]], env(nccl_pod(probe)), probes=[name], engines=list(ENGINES))
        assert settings.probe == probe
