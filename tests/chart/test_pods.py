"""The chart's pods are restricted, have versioned images, and pass every value to the operator."""

import json
from unittest.mock import Mock

import pytest

from nodegauge_operator.api.policy import parse as parse_policy
from nodegauge_operator.core.context import Snapshot
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import EVERY, KINDS
from nodegauge_operator.names import NODE_TAINTS
from nodegauge_operator.settings import Settings, parse
from support.chart import (
    ALL,
    CLUSTERS,
    KNOWN,
    NAMESPACE,
    RELEASE,
    Helm,
    Object,
    environment,
    of_kind,
    only,
    pods,
    variants,
)
from support.objects import TOKEN

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def violations(pod: Object, *, token: Object | None = None) -> list[str]:
    """What a pod violates of Pod Security "restricted" and of this project's stricter rules; `token`: the
    volume that it must have."""
    spec = pod["spec"]
    own = spec.get("securityContext", {})
    violated = []
    if own.get("runAsNonRoot") is not True or own.get("runAsUser") != 65532 or own.get("runAsGroup") != 65532:
        violated.append("runs as uid and gid 65532")
    if own.get("seccompProfile") != {"type": "RuntimeDefault"}:
        violated.append("seccomp RuntimeDefault")
    if {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys():
        violated.append("no host access")
    volumes = spec.get("volumes", [])
    if token is not None and token not in volumes:
        violated.append("its own token")
    if any(volume.keys() != {"name", "secret"} for volume in volumes if volume != token):
        violated.append("no volumes but a Secret")
    for container in spec["containers"]:
        if container.get("securityContext") != RESTRICTED:
            violated.append(f"{container['name']}: restricted security context")
        if not container.get("resources", {}).get("limits", {}).get("memory"):
            violated.append(f"{container['name']}: a memory limit")
    return violated


@variants
def test_pods_are_restricted(helm: Helm, values: Object) -> None:
    """No pod has root, capabilities, a writable root file system, host access or unlimited memory."""
    rendered = pods(helm.objects(values))
    assert rendered
    assert {name: violations(pod) for name, pod in rendered.items()} == {name: [] for name in rendered}


def test_operator_reads_what_the_chart_writes(helm: Helm) -> None:
    variables = environment(helm.objects(ALL))
    environ = Mock(get=Mock(side_effect=variables.get))
    parse(environ)
    assert variables.keys() <= {call.args[0] for call in environ.get.call_args_list}


def test_defaults_are_those_of_the_operator(helm: Helm) -> None:
    """Not one value differs."""
    settings = parse(environment(helm.objects()))
    keys = ("nodegauge.dev/interconnect", "interconnect")
    gpus = ("nvidia.com/gpu", "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com")
    assert settings == Settings(
        probe=settings.probe, instance="a-pod", interconnect_keys=keys, give_way_to=gpus
    )


def test_values_reach_the_operator(helm: Helm) -> None:
    settings = parse(environment(helm.objects(ALL)))
    assert (settings.log_level, settings.log_format, settings.http_port) == ("debug", "text", 9090)
    assert settings.node_label_selector == "nvidia.com/gpu.present=true"
    assert (settings.api_rate, settings.api_burst, settings.workers) == (50.0, 75, 16)
    assert (settings.sweep_interval, settings.relist_interval) == (2.0, 60.0)
    assert "fabric" in settings.interconnect_keys
    assert (settings.max_concurrent_probes, settings.max_concurrent_nccl_probes) == (300, 7)
    probe = settings.probe
    assert (probe.namespace, probe.instance, probe.image_pull_policy) == (NAMESPACE, RELEASE, "Never")
    assert (probe.runtime_class_name, probe.priority_class_name) == ("nvidia", "gauge-low")
    assert probe.service_account_name == "gauge-probe"
    assert probe.image_pull_secrets == ("registry-a", "registry-b")


def test_free_form_values_reach_the_probes(helm: Helm) -> None:
    probe = parse(environment(helm.objects(ALL))).probe
    given = ALL["probe"]
    assert probe.nccl_resources == ALL["nccl"]["resources"]
    assert (probe.labels, probe.annotations) == (given["podLabels"], given["podAnnotations"])
    assert (probe.tolerations, probe.resources) == (given["tolerations"], given["resources"])
    awkward = {"podAnnotations": {"example.com/json": '{"a": "<b> & \'c\' \\"d\\" $(POD_NAME) $$"}'}}
    assert parse(environment(helm.objects({"probe": awkward}))).probe.annotations == awkward["podAnnotations"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_probe_pods_follow_the_values_of_each_cluster(helm: Helm, name: str) -> None:
    """They are restricted, and mount their own token alone."""
    objects = helm.objects(CLUSTERS[name], *KNOWN)
    probe = parse(environment(objects)).probe
    (body,) = of_kind(objects, "GPUValidationPolicy")
    node = NodeView(name="gpu-1", uid="u", resource_version="1", labels={})
    context = Snapshot(
        kinds=EVERY, node=node, policy=parse_policy(body), report=None, now=0.0, defaults=probe
    ).context
    assert context is not None
    pod = probe_pod(context, KINDS["health"], context.next_run("health"))
    given = CLUSTERS[name].get("probe", {})
    spec = pod["spec"]
    assert violations(pod, token=TOKEN) == []
    (container,) = spec["containers"]
    assert (len(spec["volumes"]), spec["automountServiceAccountToken"]) == (1, False)
    assert [(m["name"], m["readOnly"]) for m in container["volumeMounts"]] == [("token", True)]
    assert spec.get("runtimeClassName", "") == given.get("runtimeClassName", "")
    secrets = [{"name": n} for n in CLUSTERS[name].get("imagePullSecrets", [])]
    assert spec.get("imagePullSecrets", []) == secrets
    assert given.get("podLabels", {}).items() <= pod["metadata"]["labels"].items()
    assert given.get("podAnnotations", {}).items() <= pod["metadata"]["annotations"].items()
    tolerated = [t.get("key", "everything") for t in spec["tolerations"]]
    wanted = [t["key"] for t in given.get("tolerations", [])] or ["everything"]
    assert tolerated[: len(wanted)] == wanted


def test_hook_pods_have_no_sidecar(helm: Helm) -> None:
    rendered = pods(helm.objects(CLUSTERS["locked-down"]))
    assert len(rendered) == 4
    for name, pod in rendered.items():
        lives = name.startswith("Deployment/")
        metadata = pod["metadata"]
        assert metadata["labels"]["sidecar.istio.io/inject"] == ("true" if lives else "false")
        assert metadata["annotations"]["linkerd.io/inject"] == ("enabled" if lives else "disabled")
        assert ("consul.hashicorp.com/connect-inject" in metadata["annotations"]) is not lives
        assert metadata["labels"]["example.com/owner"] == "hpc"
        assert metadata["annotations"]["example.com/exempt"] == "yes"


def test_every_pod_has_the_placement_values(helm: Helm) -> None:
    """Also pull secrets, written as names or as objects."""
    for pod in pods(helm.objects(ALL)).values():
        spec = pod["spec"]
        assert spec["nodeSelector"] == ALL["operator"]["nodeSelector"]
        assert spec["tolerations"][-1:] == ALL["operator"]["tolerations"]
        assert spec["affinity"] == ALL["operator"]["affinity"]
        assert spec["priorityClassName"] == ALL["operator"]["priorityClassName"]
        assert spec["imagePullSecrets"] == [{"name": "registry-a"}, {"name": "registry-b"}]


OURS = [{"key": key, "operator": "Exists"} for key in NODE_TAINTS]
"""Tolerations of our own taints, whatever their effect."""


@variants
def test_no_taint_of_ours_keeps_the_operator_or_a_hook_away(helm: Helm, values: Object) -> None:
    """Else it could evict itself by NoExecute, and no clean-up could start."""
    for name, pod in pods(helm.objects(values)).items():
        assert [t for t in pod["spec"].get("tolerations", []) if t in OURS] == OURS, name


@pytest.mark.parametrize(
    ("of", "program"), [("", "nodegauge_operator"), ("bmc", "nodegauge_operator.bmc_reader")]
)
def test_one_operator_runs_at_a_time(helm: Helm, of: str, program: str) -> None:
    """Even during upgrades, and its port serves the health checks.  Two readers would take each BMC's few
    sessions twice."""
    spec = only(helm.objects(ALL), "Deployment", of=of)["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", program]
    assert container["ports"] == [{"name": "http", "containerPort": 9090}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


@pytest.mark.parametrize(
    ("asked", "more", "folders"),
    [
        ({}, [], []),
        ({"enabled": True}, [], ["/var/log"]),
        ({"enabled": True, "path": "/var/log/gpu/kern.log"}, ["/var/log/a"], ["/var/log/a", "/var/log/gpu"]),
        ({"enabled": False, "path": "/var/log/gpu/kern.log"}, [], []),
    ],
)
def test_only_the_folder_of_the_kernels_log_may_be_mounted(
    helm: Helm, asked: Object, more: list[str], folders: list[str]
) -> None:
    policy = {"spec": {"probes": {"health": {"kernelLog": asked}}}}
    allowed, rules = mountable(helm, policy, {"kernelLogFolders": more}, volume="kernel-log")
    assert not any("control-groups" in rule for rule in rules)
    assert allowed == ([folders] if folders else [])
    assert len([rule for rule in rules if "readOnly" in rule]) == bool(folders)


@pytest.mark.parametrize(
    "values",
    [
        {"policy": {"spec": {"probes": {"feed": {"controlGroups": True}}}}},
        {"admissionPolicies": {"controlGroups": True}},
    ],
)
def test_control_groups_may_be_mounted_where_a_value_says_so(helm: Helm, values: Object) -> None:
    policy, more = values.get("policy", {}), values.get("admissionPolicies", {})
    _, rules = mountable(helm, policy, more, volume="control-groups")
    assert any("hostPath.path == '/sys/fs/cgroup'" in rule for rule in rules)
    assert any("readOnly" in rule for rule in rules)


@pytest.mark.parametrize(
    ("asked", "more", "read", "written"),
    [
        ({}, {}, [], []),
        ({"path": "/mnt/a"}, {}, ["/mnt/a"], []),
        ({"path": "/mnt/a", "write": True}, {}, ["/mnt/a"], ["/mnt/a"]),
        ({}, {"nvmePaths": ["/b"], "nvmeWritePaths": ["/c"]}, ["/b", "/c"], ["/c"]),
    ],
)
def test_only_named_folders_of_disks_may_be_mounted_and_written(
    helm: Helm, asked: Object, more: Object, read: list[str], written: list[str]
) -> None:
    """By load pods alone."""
    policy = {"spec": {"probes": {"load": {"nvme": asked}}}}
    allowed, rules = mountable(helm, policy, more, volume="nvme")
    assert allowed == ([read, written] if read else [])
    assert all("variables.probe == 'load'" in rule or "readOnly" in rule for rule in rules)


def mountable(helm: Helm, policy: Object, more: Object, *, volume: str) -> tuple[list[list[str]], list[str]]:
    """The lists of folders that the operator's pods may mount by this volume, and the rules about it."""
    [own] = [
        o
        for o in helm.objects({"policy": policy, "admissionPolicies": more})
        if o["metadata"]["name"].endswith("-own-pods") and "matchConstraints" in o["spec"]
    ]
    rules = [rule["expression"] for rule in own["spec"]["validations"] if f"'{volume}'" in rule["expression"]]
    lists = [rule.partition("path in ")[2].partition(")")[0] for rule in rules if "path in " in rule]
    return [json.loads(each) for each in lists], rules
