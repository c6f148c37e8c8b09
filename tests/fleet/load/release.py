"""The chart on a control plane without kubelets: everything but pods."""

from collections.abc import Mapping
from pathlib import Path

from nodegauge_operator import names
from support.cluster_under_test import GROUP
from testbed.audit import service_account
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.operatorprocess import CHECKOUT
from testbed.rest import Rest
from testbed.wait import wait_for

NAMESPACE = RELEASE = "nodegauge"
OPERATOR, PROBES = service_account(NAMESPACE, RELEASE), service_account(NAMESPACE, f"{RELEASE}-probe")
VALUES = ("image.registry=registry.example.com", "policy.create=false")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
WITHOUT_LIMIT = {"NODEGAUGE_API_RATE": "10000", "NODEGAUGE_API_BURST": "100000"}
"""Calls a second, and at once, that are as good as no limit: what limits must be the operator itself."""
LOCAL = {"NODEGAUGE_HTTP_PORT": "0", "NODEGAUGE_HTTP_HOST": "127.0.0.1"}
NAMESPACED = f"/api/v1/namespaces/{NAMESPACE}"
PODS = f"{NAMESPACED}/pods"
READINGS = f"{GROUP}/{names.READING_PLURAL}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def install(plane: ControlPlane) -> Mapping[str, str]:
    """Without its hooks; its Deployment is taken away, and its environment returned."""
    api = plane.rest()
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
    chart = str(CHECKOUT / "charts" / "nodegauge")
    values = [part for value in VALUES for part in ("--set", value)]
    plane.helm("install", RELEASE, chart, "--namespace", NAMESPACE, "--no-hooks", *values)
    plane.await_objects(namespace=NAMESPACE)
    [container] = api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    api.delete(DEPLOYMENT, {"propagationPolicy": "Foreground"})
    wait_for(lambda: not api.get(PODS)["items"], what="no pod of the Deployment")
    wait_for(lambda: in_force(api), what="the admission policies in force")
    return {one["name"]: one["value"].replace("$$", "$") for one in container["env"] if "value" in one}


def kubeconfig(plane: ControlPlane) -> Path:
    return plane.user_kubeconfig("operator", token=plane.service_account_token(NAMESPACE, RELEASE))


def in_force(api: Rest) -> bool:
    """Whether the policies are: the API server loads new ones some moments after their creation."""
    if not all(one.get("status", {}).get("observedGeneration") for one in api.get(ADMISSION)["items"]):
        return False
    reading = {"apiVersion": names.API_VERSION, "kind": names.READING_KIND, "metadata": {"name": "nobody"}}
    try:
        api.create(f"{READINGS}?dryRun=All", reading)
    except ApiError as error:
        return "ValidatingAdmissionPolicy" in str(error)
    return False
