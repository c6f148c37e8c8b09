"""Which pods the admission policies let the operator make, and who may change them."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.core.probes.registry import KINDS
from support.guarded import ACCOUNT, NAMESPACE, NODE, PODS, Guarded, refusal, without_label
from testbed.errors import ApiError
from testbed.rest import STRATEGIC, Object
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

Change = Callable[[Object], Any]


def first(pod: Object) -> Object:
    container: Object = pod["spec"]["containers"][0]
    return container


def spec(**fields: Any) -> Change:
    return lambda pod: pod["spec"].update(fields)


def container(**fields: Any) -> Change:
    return lambda pod: first(pod).update(fields)


def volume(source: Object) -> Change:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more"} | source)


def context(**fields: Any) -> Change:
    return lambda pod: pod["spec"]["securityContext"].update(fields)


KEY = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
ASKS = {"httpGet": {"host": "169.254.169.254", "port": 80}}
CLAIM = {"name": "gpus"}
OURS = [
    CLAIM | {"resourceClaimTemplateName": "ng-gpus-admin"},
    CLAIM | {"resourceClaimTemplateName": "ng-gpus-all"},
    CLAIM | {"resourceClaimName": "nodegauge-health-1-gpus-x7k2p"},
    CLAIM | {"resourceClaimName": "ng-dra-watch-a-policy-gpux7k2p"},
]
"""Templates of ours, and claims as Kubernetes makes them from these; a name that is cut has one dash less."""
EMPTY = "mount only empty directories"
OF_POD, OF_CONTAINER = "(security context of the pod)", "(security context of the container)"
WRONG_PODS: dict[str, tuple[Change, str]] = {
    "no probe": (without_label, "makes only probe pods"),
    "an unknown probe": (
        lambda p: p["metadata"]["labels"].update({names.POD_PROBE: "shell"}),
        "makes only probe pods",
    ),
    "a longer image": (lambda p: first(p).update(image=first(p)["image"] + "0"), "admissionPolicies.images"),
    "a token": (spec(automountServiceAccountToken=True), "and no token"),
    "an account": (spec(serviceAccountName=ACCOUNT), "the probes' service account"),
    "a node": (spec(nodeName=NODE), "placed by the scheduler"),
    "a second container": (
        lambda p: p["spec"]["containers"].append(first(p) | {"name": "two"}),
        "has one container",
    ),
    "an init container": (
        lambda p: p["spec"].update(initContainers=[first(p) | {"name": "two"}]),
        "has one container",
    ),
    "a Secret beside a token": (volume({"projected": {"sources": [{"secret": {"name": "s"}}]}}), EMPTY),
    "a token for others": (
        volume({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}),
        EMPTY,
    ),
    "a ConfigMap": (volume({"projected": {"sources": [{"configMap": {"name": "other"}}]}}), EMPTY),
    "a Secret as environment": (container(envFrom=[{"secretRef": {"name": "s"}}]), "read no Secret"),
    "GPUs of jobs": (spec(resourceClaims=[OURS[1]]), "only from nodegauge's own templates"),
    "a key of a Secret": (lambda p: first(p)["env"].append(KEY), "read no Secret"),
}
"""Pods that Pod Security would take, with their refusal."""

WEAK_PODS: dict[str, tuple[Change, str]] = {
    "the host's network": (spec(hostNetwork=True), "of the host"),
    "the host's processes": (spec(hostPID=True), "of the host"),
    "the host's files": (volume({"hostPath": {"path": "/"}}), EMPTY),
    "a disk for another probe": (
        lambda p: p["spec"]["volumes"].append({"name": "nvme", "hostPath": {"path": "/mnt/read"}}),
        EMPTY,
    ),
    "root": (context(runAsNonRoot=False), OF_POD),
    "a type of SELinux": (context(seLinuxOptions={"type": "spc_t"}), OF_POD),
    "no seccomp": (context(seccompProfile={"type": "Unconfined"}), OF_POD),
    "privileged": (container(securityContext={"privileged": True}), OF_CONTAINER),
    "an address that its kubelet asks": (container(livenessProbe=ASKS), "asks only files of the container"),
    "an address that a hook asks": (container(lifecycle={"postStart": ASKS}), "asks only files"),
    "a capability": (
        lambda p: first(p)["securityContext"]["capabilities"].update(add=["NET_BIND_SERVICE"]),
        OF_CONTAINER,
    ),
    "a user of its own": (lambda p: first(p)["securityContext"].update(runAsUser=7), OF_CONTAINER),
}
"""Pods that weaken the restricted level, or nearly do."""


@pytest.fixture(scope="module")
def lenient(guarded: Guarded) -> Iterator[None]:
    """The namespace takes any pod for a while: Pod Security would refuse before our policies do."""
    path, host = f"/api/v1/namespaces/{NAMESPACE}", without_label(guarded.pod())
    host["spec"]["hostNetwork"] = True

    def taken() -> bool:
        try:
            guarded.admin.create(f"{PODS}?dryRun=All", host)
        except ApiError:
            return False
        return True

    def set_level(level: str) -> None:
        guarded.admin.patch(path, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}})
        wait_for(lambda: taken() is (level == "privileged"), what=f"the level {level}")

    set_level("privileged")
    yield
    set_level("restricted")


def refused_with(guarded: Guarded, change: Change) -> str:
    """What the operator's account reads when it makes a health probe's pod with this change."""
    pod = deepcopy(guarded.pod())
    change(pod)
    return refusal(guarded.operator.create, f"{PODS}?dryRun=All", pod)


@pytest.mark.parametrize("what", WRONG_PODS)
def test_the_operator_makes_only_probe_pods(guarded: Guarded, what: str) -> None:
    """Each other pod is refused with what is wrong with it."""
    change, message = WRONG_PODS[what]
    assert message in refused_with(guarded, change)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_probe_pod_passes(guarded: Guarded, kind: str) -> None:
    """In a namespace that enforces the level restricted."""
    pod = guarded.pod(kind)
    guarded.operator.create(f"{PODS}?dryRun=All", pod)
    first(pod)["image"] = "mirror.example.com/team/probe@sha256:0"
    guarded.operator.create(f"{PODS}?dryRun=All", pod)


def test_what_clusters_add_to_every_pod_passes(guarded: Guarded) -> None:
    """OpenShift gives each namespace a level of SELinux; others add tolerations, pull secrets, variables."""
    pod = guarded.pod()
    pod["spec"]["securityContext"]["seLinuxOptions"] = {"level": "s0:c26,c5"}
    pod["spec"]["imagePullSecrets"] = [{"name": "regcred"}]
    pod["spec"]["tolerations"].append({"key": "example.com/t", "operator": "Exists"})
    first(pod)["env"].append({"name": "KUBERNETES_SERVICE_HOST", "value": "example.com"})
    guarded.operator.create(f"{PODS}?dryRun=All", pod)


def test_a_probe_pod_stays_what_it_is(guarded: Guarded) -> None:
    """Its label, what it is for and its image stay, also for its kubelet; any other annotation may come."""
    name = guarded.operator.create(PODS, guarded.pod())["metadata"]["name"]
    path = f"{PODS}/{name}"
    for field, message in {
        "labels": "none ceases to be one",
        "annotations": "what a probe pod is for does not change",
    }.items():
        key = names.POD_PROBE if field == "labels" else names.POD_BOOT
        for value in ("other", None):
            body: Object = {"metadata": {field: {key: value}}}
            assert message in refusal(guarded.admin.patch, path, body)
            assert message in refusal(guarded.admin.patch, f"{path}/status", body)
    body = {"spec": {"containers": [{"name": names.PROBE_CONTAINER, "image": "other"}]}}
    message = refusal(guarded.admin.patch, path, body, content_type=STRATEGIC)
    assert "the image of a probe pod does not change" in message
    guarded.admin.patch(path, {"metadata": {"annotations": {"example.com/seen": "yes"}}})
    guarded.operator.delete(path, {"gracePeriodSeconds": 0})


def test_other_pods_of_the_namespace_are_left_alone(guarded: Guarded) -> None:
    """People make, change and delete theirs; the release's accounts delete none, and none becomes a probe."""
    pod = without_label(guarded.pod()) | {"metadata": {"name": "theirs"}}
    guarded.admin.create(PODS, pod)
    path = f"{PODS}/theirs"
    guarded.admin.patch(path, {"metadata": {"annotations": {names.POD_RUN: "1"}}})
    for rest in (guarded.operator, guarded.cleanup):
        assert "deletes only probe pods" in refusal(rest.delete, path)
    body = {"metadata": {"labels": {names.POD_PROBE: "health"}}}
    assert "does not become a probe pod" in refusal(guarded.admin.patch, path, body)
    guarded.admin.delete(path, {"gracePeriodSeconds": 0})


def test_nobody_else_has_a_claim_of_ours(guarded: Guarded) -> None:
    """It could share GPUs with whoever holds them."""
    pod, ask = without_label(guarded.pod()), f"{PODS}?dryRun=All"
    for claim in OURS:
        pod["spec"]["resourceClaims"] = [claim]
        assert "only probe pods have claims" in refusal(guarded.admin.create, ask, pod)
    pod["spec"]["resourceClaims"] = [CLAIM | {"resourceClaimName": "theirs-gpus-x7k2p"}]
    guarded.admin.create(ask, pod)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("what", WEAK_PODS)
def test_its_pods_are_restricted_in_any_namespace(guarded: Guarded, what: str) -> None:
    """Also where the namespace carries no level."""
    change, message = WEAK_PODS[what]
    assert message in refused_with(guarded, change)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(
    ("path", "write", "message"),
    [
        ("/mnt/read", False, ""),
        ("/mnt/write", True, ""),
        ("/mnt/read", True, "write only to folders that the chart's values allow"),
        ("/mnt/other", False, EMPTY),
    ],
)
def test_load_pods_mount_the_folders_of_the_values(
    guarded: Guarded, path: str, write: bool, message: str
) -> None:
    pod = guarded.pod("load", probes={"load": {"nvme": {"path": path, "write": write}}})
    if message:
        assert message in refusal(guarded.operator.create, f"{PODS}?dryRun=All", pod)
    else:
        guarded.operator.create(f"{PODS}?dryRun=All", pod)


@pytest.mark.parametrize("component", ["operator", "test"])
def test_the_clean_up_ends_an_operator_whose_kubelet_is_gone(guarded: Guarded, component: str) -> None:
    """And removes what a failed `helm test` left, or an uninstall would never end; the operator may not."""
    marks = {"app.kubernetes.io/part-of": "nodegauge", "app.kubernetes.io/component": component}
    guarded.admin.create(
        PODS, without_label(guarded.pod()) | {"metadata": {"name": component, "labels": marks}}
    )
    now = {"gracePeriodSeconds": 0}
    assert "deletes only probe pods" in refusal(guarded.operator.delete, f"{PODS}/{component}", now)
    guarded.cleanup.delete(f"{PODS}/{component}", now)
