"""Rendered objects have valid names, labels and namespaces; hooks and CRDs are as they should be."""

import re

import pytest
import yaml

from nodegauge_operator.kube.workloads import OPERATOR
from support.chart import (
    ALL,
    COLLECTIONS,
    KNOWN,
    NAMESPACE,
    RELEASE,
    VARIANTS,
    Helm,
    HelmFailed,
    Object,
    component,
    events,
    of_kind,
    only,
    pods,
    variants,
)
from support.crds import CRDS

CLUSTER_WIDE = {kind for kind, path in COLLECTIONS.items() if "{}" not in path}
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
RECOMMENDED = ("name", "instance", "version", "managed-by", "part-of", "component")


@variants
def test_every_object_is_named_and_labelled(helm: Helm, values: Object) -> None:
    """The policy may be rendered twice: one hook creates it, another deletes it."""
    objects = helm.objects(values)
    identities = [
        (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"], "pre-delete" in events(o))
        for o in objects
    ]
    assert len(identities) == len(set(identities))
    for o in objects:
        metadata = o["metadata"]
        labels = metadata["labels"]
        assert o["kind"] == "CustomResourceDefinition" or NAME.fullmatch(metadata["name"])
        assert {f"app.kubernetes.io/{word}" for word in RECOMMENDED} <= labels.keys()
        assert all(isinstance(v, str) and LABEL_VALUE.fullmatch(v) for v in labels.values())
        assert ("namespace" in metadata) == (o["kind"] not in CLUSTER_WIDE), metadata["name"]
        assert metadata.get("namespace", NAMESPACE) in (NAMESPACE, "default")


def test_long_release_names_fit(helm: Helm) -> None:
    for o in helm.objects(release="r" * 53):
        if o["kind"] != "CustomResourceDefinition":
            assert NAME.fullmatch(o["metadata"]["name"]), o["metadata"]["name"]


def test_common_labels_are_on_everything(helm: Helm) -> None:
    """And win over `podLabels`."""
    objects = helm.objects(ALL)
    labelled = [o["metadata"]["labels"] for o in (*objects, *pods(objects).values())]
    assert [labels for labels in labelled if labels.get("team") != "hpc"] == []
    assert only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]["tier"] == "infra"


@pytest.mark.parametrize("keep", [True, False])
def test_crds_are_those_of_the_project(helm: Helm, keep: bool) -> None:
    """Plus labels and, with `crds.keep`, Helm's keep annotation."""
    rendered = {
        o["metadata"]["name"]: o for o in helm.objects({"crds": {"keep": keep}}) if "crds" in component(o)
    }
    written = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(CRDS.glob("*.yaml"))]
    assert len(rendered) == len(written) == 5
    for source in written:
        metadata = rendered[source["metadata"]["name"]]["metadata"]
        assert rendered[source["metadata"]["name"]] | {"metadata": source["metadata"]} == source
        assert metadata.get("annotations", {}) == ({"helm.sh/resource-policy": "keep"} if keep else {})


def test_what_is_off_is_not_rendered(helm: Helm) -> None:
    """Left are the operator's Deployment and roles, and what lets probes write readings."""
    objects = helm.objects(VARIANTS["off"])
    of_probes = ["ClusterRole", "ClusterRoleBinding"]
    always = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 2
    roles = ["ClusterRole", "ClusterRoleBinding", "Deployment", "Role", "Role", "RoleBinding", "RoleBinding"]
    assert sorted(o["kind"] for o in objects) == sorted([*roles, *of_probes, *always])
    assert sorted(o["kind"] for o in objects if component(o) == "probe") == of_probes
    kept = {"readings.nodegauge.dev", "lease.nodegauge.dev"}
    assert {o["metadata"]["name"] for o in objects if o["kind"] in always} == kept


@pytest.mark.parametrize(("of", "name"), [("", "my-gauge"), ("bmc", "my-gauge-bmc")])
def test_a_service_selects_one_pod_and_its_monitor_that_service(helm: Helm, of: str, name: str) -> None:
    """On a port that exists."""
    objects = helm.objects(ALL)
    service, monitor = only(objects, "Service", of=of), only(objects, "ServiceMonitor", of=of)
    wanted = service["spec"]["selector"].items()
    selected = [name for name, pod in pods(objects).items() if wanted <= pod["metadata"]["labels"].items()]
    assert selected == [f"Deployment/{name}"]
    (container,) = only(objects, "Deployment", of=of)["spec"]["template"]["spec"]["containers"]
    assert service["spec"]["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    assert [o for o in of_kind(objects, "Service") if chosen <= o["metadata"]["labels"].items()] == [service]
    assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]


def test_priority_classes_give_way(helm: Helm) -> None:
    """To ordinary pods; they preempt none, and the cluster autoscaler calls them expendable."""
    classes = of_kind(helm.objects(release="nodegauge"), "PriorityClass")
    assert {o["metadata"]["name"] for o in classes} == {"nodegauge-nccl", "nodegauge-probe"}
    for o in classes:
        assert o["value"] < -10  # cluster autoscaler: --expendable-pods-priority-cutoff
        assert o["preemptionPolicy"] == "Never"
        assert o["globalDefault"] is False


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"name": "batch", "value": -1000000000}, {"batch": -1000000000}),
        ({"create": False, "name": "batch"}, {}),
        ({"create": False}, {}),
    ],
    ids=["named", "one that exists", "none"],
)
@pytest.mark.parametrize("of", ["probe", "nccl"])
def test_priority_classes_are_made_or_named(
    helm: Helm, of: str, values: Object, wanted: dict[str, int]
) -> None:
    """A class has the given name and value, even a large one; with `create` false none is created."""
    classes = of_kind(helm.objects({of: {"priorityClass": values}}), "PriorityClass")
    other = {"probe": "ng-nodegauge-nccl", "nccl": "ng-nodegauge-probe"}[of]
    assert {o["metadata"]["name"]: o["value"] for o in classes if o["metadata"]["name"] != other} == wanted


def test_the_selector_of_a_release_never_changes(helm: Helm) -> None:
    selector = only(helm.objects(ALL), "Deployment")["spec"]["selector"]["matchLabels"]
    assert set(selector) == {f"app.kubernetes.io/{word}" for word in ("name", "instance", "component")}


HOOKS = {
    "cleanup": (["pre-delete"], ["ServiceAccount", "ClusterRole", "Role", "RoleBinding", "Job"]),
    "policy-writer": (
        ["post-install", "post-upgrade", "pre-rollback"],
        ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"],
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_everything_around_a_job_is_a_hook(helm: Helm, name: str) -> None:
    when, order = HOOKS[name]
    objects = [o for o in helm.objects() if component(o) == name]
    assert [events(o) for o in objects] == [when] * len(objects)
    weight = {o["kind"]: int(o["metadata"]["annotations"]["helm.sh/hook-weight"]) for o in objects}
    assert weight.keys() >= set(order)
    assert [weight[kind] for kind in order] == sorted(weight[kind] for kind in order)
    assert weight[order[-3]] < weight[order[-2]] < weight["Job"]
    policies = {o["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for o in objects}
    assert policies == {"before-hook-creation,hook-succeeded"}
    job = only(objects, "Job")["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (4, "Never")


def test_hooks_suit_a_cluster_that_has_or_lacks_the_crds(helm: Helm) -> None:
    """Helm would fail at a custom resource whose CRD is gone."""
    objects = helm.objects({}, *KNOWN)
    custom = [o for o in objects if o["apiVersion"].startswith("nodegauge.dev/")]
    assert [o for o in custom if "pre-delete" in events(o)] == []
    assert "policy-writer" not in map(component, objects)


def test_namespace_override(helm: Helm) -> None:
    """Every namespaced object, subject and argument moves, except the role for events."""
    values = {"namespaceOverride": "elsewhere"}
    text, objects = helm.template(values), helm.objects(values)
    namespaces = {o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]}
    assert namespaces == {"elsewhere", "default"}
    mark = rf"\"meta.helm.sh/release-namespace\":\"{NAMESPACE}\""
    assert NAMESPACE not in text.replace(mark, "")


@pytest.mark.parametrize(
    ("version", "accepted"), [("1.31.9", False), ("1.32.0", True), ("1.32.0-gke.1", True)]
)
def test_older_clusters_are_refused(helm: Helm, version: str, accepted: bool) -> None:
    """Before Kubernetes 1.32 a token does not name its node, and no reading can be proved."""
    if accepted:
        assert helm.template({}, "--kube-version", version)
        return
    with pytest.raises(HelmFailed, match=r"requires kubeVersion: >=1\.32"):
        helm.template({}, "--kube-version", version)


def test_helm_test_needs_no_extra_rights(helm: Helm) -> None:
    objects = helm.objects(ALL)
    (pod,) = [o for o in objects if "test" in events(o)]
    deployment = only(objects, "Deployment")["spec"]["template"]["spec"]
    spec = pod["spec"]
    (container,), (operator,) = spec["containers"], deployment["containers"]
    assert (spec["restartPolicy"], spec["serviceAccountName"]) == ("Never", deployment["serviceAccountName"])
    assert container["image"] == operator["image"]
    assert container["command"] == ["python", "-m", "nodegauge_cli", "check"]
    arguments = [f"--namespace={NAMESPACE}", f"--instance={RELEASE}", "--port=9090", "--timeout=30s"]
    assert container["args"] == arguments
    assert [o["kind"] for o in objects if component(o) == "test"] == ["Pod"]


@variants
def test_operators_are_found_by_their_labels(helm: Helm, values: Object) -> None:
    """`nodegauge cleanup` finds the operator's pods, and no others, by labels that no value changes."""
    wanted = dict(word.split("=") for word in OPERATOR.split(",")).items()
    objects = helm.objects(values)
    deployment = only(objects, "Deployment")
    assert wanted <= deployment["metadata"]["labels"].items()
    selected = [name for name, pod in pods(objects).items() if wanted <= pod["metadata"]["labels"].items()]
    assert selected == [f"Deployment/{deployment['metadata']['name']}"]


def test_cleanup_stops_this_operator(helm: Helm) -> None:
    """The release's Deployment, which does not select the clean-up's own pod."""
    objects = helm.objects(ALL, *KNOWN)
    job, deployment = only(objects, "Job"), only(objects, "Deployment")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "nodegauge_cli", "cleanup"]
    name = deployment["metadata"]["name"]
    arguments = [f"--namespace={NAMESPACE}", f"--deployment={name}", "--release=ng"]
    assert container["args"] == [*arguments, "--policy=fleet", "--timeout=60s"]
    own = job["spec"]["template"]["metadata"]["labels"]
    assert not deployment["spec"]["selector"]["matchLabels"].items() <= own.items()
