"""The pods of the chart: restricted, of a version, and handed values in words that the operator reads."""

from __future__ import annotations

import re

import pytest

from nodegauge_operator.api.policy import parse as parse_policy
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.settings import Settings, parse
from support.chart_tools import (
    ALL,
    FILES,
    KNOWN,
    NAMESPACE,
    RELEASE,
    Helm,
    HelmFailed,
    Object,
    of_kind,
    only,
    pods,
    variants,
)


def violations(pod: Object) -> list[str]:
    """What keeps a pod from being as restricted as ours must be: Pod Security "restricted", and more."""
    spec = pod["spec"]
    own = spec.get("securityContext", {})
    found = []
    if own.get("runAsNonRoot") is not True or own.get("runAsUser") != 65532 or own.get("runAsGroup") != 65532:
        found.append("runs as uid and gid 65532")
    if own.get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.append("seccomp RuntimeDefault")
    if {"hostNetwork", "hostPID", "hostIPC", "volumes", "initContainers"} & spec.keys():
        found.append("nothing of the host, no volumes")
    for container in spec["containers"]:
        restricted = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        if container.get("securityContext") != restricted:
            found.append(f"{container['name']}: restricted security context")
        if not container.get("resources", {}).get("limits", {}).get("memory"):
            found.append(f"{container['name']}: a memory limit")
    return found


@variants
def test_pods_are_restricted(helm: Helm, values: Object) -> None:
    """No pod of ours has root, capabilities, a writable root, anything of the host or unbounded memory."""
    found = pods(helm.objects(values))
    assert found
    assert {name: violations(pod) for name, pod in found.items()} == {name: [] for name in found}


def test_violations_are_seen(helm: Helm) -> None:
    """The check above sees a pod that is not restricted."""
    pod = pods(helm.objects())["Deployment/ng-nodegauge"]
    del pod["spec"]["securityContext"]["runAsNonRoot"]
    pod["spec"]["containers"][0]["securityContext"]["capabilities"] = {}
    assert len(violations(pod)) == 2


@variants
def test_images_name_a_version(helm: Helm, values: Object) -> None:
    """Every image has a tag or a digest, the probe's too."""
    objects = helm.objects(values)
    images = [c["image"] for pod in pods(objects).values() for c in pod["spec"]["containers"]]
    images.append(environment(objects)["NODEGAUGE_PROBE_IMAGE"])
    for image in images:
        name, _, version = image.replace("@sha256:", "@").rpartition("@" if "@" in image else ":")
        assert name
        assert version not in ("", "latest")
        assert "/" not in version


@pytest.mark.parametrize("which", ["operator", "probe"])
def test_latest_is_refused(helm: Helm, which: str) -> None:
    """The tag `latest` is refused, with the value named."""
    with pytest.raises(HelmFailed, match=rf"{which}\.image\.tag must not be latest"):
        helm.template({which: {"image": {"tag": "latest"}}})


def test_image_parts_are_put_together(helm: Helm) -> None:
    """Registry, repository, tag and digest end up in the reference, the digest winning over the tag."""
    objects = helm.objects(ALL)
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com:5000/op:9.9"
    assert environment(objects)["NODEGAUGE_PROBE_IMAGE"] == f"pr@sha256:{'0' * 64}"


def environment(objects: list[Object]) -> dict[str, str]:
    """The operator's environment, as a kubelet would make it, in which `$$` is a dollar."""
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert not re.search(r"(^|[^$])([$][$])*[$][(]", "\n".join(e.get("value", "") for e in container["env"]))
    fields = {"metadata.namespace": NAMESPACE, "metadata.name": "a-pod"}
    return {
        e["name"]: e["value"].replace("$$", "$")
        if "value" in e
        else fields[e["valueFrom"]["fieldRef"]["fieldPath"]]
        for e in container["env"]
    }


class Recorder(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(variables)
        self.asked: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """The variable, noted."""
        self.asked.add(name)
        return super().get(name, default)


def test_operator_reads_what_the_chart_writes(helm: Helm) -> None:
    """Each variable of the chart is one that the operator's settings read: no value is lost on a name."""
    recorder = Recorder(environment(helm.objects(ALL)))
    parse(recorder)
    assert set(recorder) - recorder.asked == set()


def test_defaults_are_the_operators(helm: Helm) -> None:
    """With default values the chart asks for the operator's own defaults."""
    found = parse(environment(helm.objects()))
    assert found == Settings(probe=found.probe, instance="a-pod")


def test_values_reach_the_operator(helm: Helm) -> None:
    """Every value of the operator and its probes arrives in its settings."""
    found = parse(environment(helm.objects(ALL)))
    assert (found.log_level, found.log_format, found.http_port) == ("debug", "text", 9090)
    assert found.node_label_selector == "nvidia.com/gpu.present=true"
    assert (found.api_rate, found.api_burst, found.workers) == (50.0, 75, 16)
    assert (found.sweep_interval, found.relist_interval) == (2.0, 60.0)
    probe = found.probe
    assert (probe.namespace, probe.instance, probe.image_pull_policy) == (NAMESPACE, RELEASE, "Never")
    assert (probe.runtime_class_name, probe.priority_class_name) == ("nvidia", "gauge-low")
    assert (probe.service_account_name, probe.image_pull_secrets) == (
        "gauge-probe",
        ("registry-a", "registry-b"),
    )


def test_free_values_reach_the_probes(helm: Helm) -> None:
    """Labels, annotations, tolerations and resources for probe pods arrive as they were written."""
    probe = parse(environment(helm.objects(ALL))).probe
    given = ALL["probe"]
    assert (probe.labels, probe.annotations) == (given["podLabels"], given["podAnnotations"])
    assert (probe.tolerations, probe.resources) == (given["tolerations"], given["resources"])
    awkward = {"podAnnotations": {"example.com/json": '{"a": "<b> & \'c\' \\"d\\" $(POD_NAME) $$"}'}}
    assert parse(environment(helm.objects({"probe": awkward}))).probe.annotations == awkward["podAnnotations"]


@pytest.mark.parametrize("name", FILES)
def test_a_probe_on_each_kind_of_cluster(helm: Helm, name: str) -> None:
    """With the values of a kind of cluster, the probe pod has what they say of it, and stays restricted."""
    objects = helm.objects(FILES[name], *KNOWN)
    probe = parse(environment(objects)).probe
    (body,) = of_kind(objects, "GPUValidationPolicy")
    node = NodeView(name="gpu-1", uid="u", resource_version="1", labels={})
    pod = probe_pod(node=node, policy=parse_policy(body), number=1, request="", defaults=probe)
    given = FILES[name].get("probe", {})
    spec = pod["spec"]
    assert violations(pod) == []
    assert spec.get("runtimeClassName", "") == given.get("runtimeClassName", "")
    assert spec.get("imagePullSecrets", []) == [{"name": n} for n in FILES[name].get("imagePullSecrets", [])]
    assert given.get("podLabels", {}).items() <= pod["metadata"]["labels"].items()
    assert given.get("podAnnotations", {}).items() <= pod["metadata"]["annotations"].items()
    tolerated = [t.get("key", "everything") for t in spec["tolerations"]]
    wanted = [t["key"] for t in given.get("tolerations", [])] or ["everything"]
    assert tolerated[: len(wanted)] == wanted


def test_sidecars_stay_off_pods_that_end(helm: Helm) -> None:
    """Values may put a sidecar beside the operator; never beside the pods that have to end."""
    found = pods(helm.objects(FILES["locked-down"]))
    assert len(found) == 4
    for name, pod in found.items():
        lives = name.startswith("Deployment/")
        metadata = pod["metadata"]
        assert metadata["labels"]["sidecar.istio.io/inject"] == ("true" if lives else "false")
        assert metadata["annotations"]["linkerd.io/inject"] == ("enabled" if lives else "disabled")
        assert metadata["labels"]["example.com/owner"] == "hpc"
        assert metadata["annotations"]["example.com/exempt"] == "yes"


def test_probe_names_exist(helm: Helm) -> None:
    """The account and the class that probe pods ask for are those that the chart makes."""
    objects = helm.objects()
    variables = environment(objects)
    accounts = [o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"]
    assert variables["NODEGAUGE_PROBE_SERVICE_ACCOUNT"] in accounts
    classes = [o["metadata"]["name"] for o in objects if o["kind"] == "PriorityClass"]
    assert variables["NODEGAUGE_PROBE_PRIORITY_CLASS"] in classes


def test_placement_reaches_every_pod(helm: Helm) -> None:
    """Node selector, tolerations, affinity, priority and pull secrets are on every pod of the chart."""
    for pod in pods(helm.objects(ALL)).values():
        spec = pod["spec"]
        assert spec["nodeSelector"] == ALL["operator"]["nodeSelector"]
        assert spec["tolerations"] == ALL["operator"]["tolerations"]
        assert spec["affinity"] == ALL["operator"]["affinity"]
        assert spec["priorityClassName"] == ALL["operator"]["priorityClassName"]
        assert spec["imagePullSecrets"] == [{"name": "registry-a"}, {"name": "registry-b"}]


def test_operator_runs_once(helm: Helm) -> None:
    """There is one operator at a time, upgrades included, and its health is asked for on its own port."""
    spec = only(helm.objects(ALL), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "nodegauge_operator"]
    assert container["ports"] == [{"name": "http", "containerPort": 9090}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
