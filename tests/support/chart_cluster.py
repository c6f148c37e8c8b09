"""The chart on a cluster, as tests install and look at it.  Asserts only that what it waits for comes."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.chart_tools import CHART, NAMESPACE, RELEASE, Helm, Object
from testbed.errors import ApiError
from testbed.rest import Rest

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies"
PART_OF = "app.kubernetes.io/part-of"
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Pod": "/api/v1/namespaces/{}/pods",
    "CustomResourceDefinition": CRDS,
    "GPUValidationPolicy": POLICIES,
}


def eventually(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """Poll until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not within the time"
        time.sleep(0.05)


def installed_crds(rest: Rest) -> list[str]:
    """Names of our CRDs."""
    return [o["metadata"]["name"] for o in rest.get(CRDS)["items"] if o["spec"]["group"] == "nodegauge.dev"]


def is_served(rest: Rest) -> bool:
    """Whether the API server still knows our group."""
    return "nodegauge.dev" in [group["name"] for group in rest.get("/apis")["groups"]]


def clear(helm: Helm, rest: Rest) -> None:
    """Take the release and its CRDs off, and wait until the API server and the node have none of it."""
    if helm.run("list", "--namespace", NAMESPACE, "--short").strip():
        helm.run("uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks")
    for name in installed_crds(rest):
        rest.delete(f"{CRDS}/{name}")
    jobs = PLACES["Job"].format(NAMESPACE)
    for job in rest.get(jobs)["items"]:
        rest.delete(f"{jobs}/{job['metadata']['name']}", {"propagationPolicy": "Foreground"})
    pods = PLACES["Pod"].format(NAMESPACE)
    eventually(lambda: not (installed_crds(rest) or is_served(rest) or rest.get(pods)["items"]))


def install(helm: Helm, values: Object | None = None) -> str:
    """`helm install`; what it said."""
    return helm.run("install", RELEASE, str(CHART), "--namespace", NAMESPACE, values=values)


def upgrade(helm: Helm, values: Object | None = None) -> str:
    """`helm upgrade` to exactly these values."""
    return helm.run("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--reset-values", values=values)


def policies(rest: Rest) -> dict[str, Object]:
    """Policies by name."""
    return {o["metadata"]["name"]: o for o in rest.get(POLICIES)["items"]}


def path_of(o: Object) -> str:
    """Where the API server has an object's siblings."""
    return PLACES[o["kind"]].format(o["metadata"].get("namespace", ""))


def left_behind(rest: Rest) -> set[tuple[str, str]]:
    """Kind and name of everything of the release that is still there."""
    found = set()
    for kind, place in PLACES.items():
        if kind == "Pod":
            continue  # a Deployment's pods come and go with it
        for namespace in (NAMESPACE, "default") if "{}" in place else ("",):
            try:
                items = rest.get(place.format(namespace))["items"]
            except ApiError:
                continue  # the CRD is gone
            ours = [
                o
                for o in items
                if o["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") == "nodegauge"
            ]
            found |= {(kind, o["metadata"]["name"]) for o in ours}
    return found
