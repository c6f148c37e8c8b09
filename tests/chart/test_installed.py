"""One default install on a real API server: its objects, its rights, and what the API server accepts."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from support.chart import (
    COLLECTIONS,
    KNOWN,
    NAMESPACE,
    PODS,
    VARIANTS,
    Helm,
    events,
    left_behind,
    pods,
    policies,
)
from testbed.errors import ApiError
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def test_one_install_creates_every_object(helm: Helm, installed: str, rest: Rest) -> None:
    """On an empty cluster one `helm install` creates all rendered objects, including the policy; its hook
    leaves nothing behind."""
    assert "kubectl get nodes -L interconnect" in installed
    assert "kubectl get nodereports" in installed
    wanted = {(o["kind"], o["metadata"]["name"]) for o in helm.objects({}, *KNOWN) if not events(o)}
    wait_for(lambda: wanted == left_behind(rest), what=f"{wanted}, and no job")
    spec = policies(rest)["default"]["spec"]
    assert spec["nodeSelector"] == {"matchLabels": {"nvidia.com/gpu.present": "true"}}
    assert spec["probes"]["health"]["interval"] == "15m"


@pytest.mark.usefixtures("installed")
def test_the_api_server_accepts_every_object(helm: Helm, rest: Rest) -> None:
    """Each object of each set of values, and each pod alone, in a namespace that enforces Pod Security level
    `restricted`; the Prometheus operator's CRDs are not here."""
    tried = set()
    for variant, values in VARIANTS.items():
        objects = [*helm.objects(values), *helm.objects(values, *KNOWN)]
        bare = [{"apiVersion": "v1", "kind": "Pod"} | deepcopy(pod) for pod in pods(objects).values()]
        for o in [*objects, *bare]:
            if o["kind"] in ("ServiceMonitor", "PrometheusRule", "CustomResourceDefinition"):
                continue
            if o["kind"] == "Pod":
                o["spec"]["serviceAccountName"] = "default"  # a dry run creates no account for it
                o["metadata"]["namespace"] = NAMESPACE
            o["metadata"]["name"] = f"try-{o['metadata'].get('name', 'pod')}"
            if (body := json.dumps(o, sort_keys=True)) in tried:
                continue
            tried.add(body)
            path = COLLECTIONS[o["kind"]].format(o["metadata"].get("namespace", ""))
            made = rest.create(f"{path}?dryRun=All&fieldValidation=Strict", o)
            assert made["metadata"]["name"] == o["metadata"]["name"], variant
    o["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(ApiError, match="violates PodSecurity"):
        rest.create(f"{PODS}?dryRun=All", o)


PEOPLE = [
    ("view", "get", "nodereports", True),
    ("view", "watch", "gpuvalidationpolicies", True),
    ("view", "list", "nodereadings", True),
    ("edit", "patch", "nodereadings", False),
    ("view", "patch", "gpuvalidationpolicies", False),
    ("view", "patch", "nodereports", False),
    ("edit", "patch", "gpuvalidationpolicies", True),
    ("edit", "get", "nodereports", True),
    ("edit", "patch", "nodereports", True),
    ("edit", "patch", "nodereports/status", False),
    ("edit", "patch", "nodes", False),
    ("admin", "patch", "gpuvalidationpolicies", True),
    ("admin", "patch", "nodereports/status", False),
]
"""Role of the cluster, verb, resource, and whether who is bound to that role may do it."""


def allowed(rest: Rest, account: str, verb: str, resource: str) -> bool:
    """Whether the API server lets a service account do that."""
    kind, _, below = resource.partition("/")
    group = "" if resource == "nodes" else "nodegauge.dev"
    spec = {
        "user": f"system:serviceaccount:{NAMESPACE}:{account}",
        "resourceAttributes": {"verb": verb, "group": group, "resource": kind, "subresource": below},
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = rest.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


@pytest.mark.usefixtures("installed")
def test_the_roles_of_the_cluster_take_in_ours(rest: Rest) -> None:
    """view reads and writes nothing; edit changes policies; nobody writes a status."""
    bindings = COLLECTIONS["ClusterRoleBinding"]
    for role in ("view", "edit", "admin"):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        subject = {"kind": "ServiceAccount", "name": f"a-{role}", "namespace": NAMESPACE}
        body = {"metadata": {"name": f"a-{role}"}, "roleRef": reference, "subjects": [subject]}
        rest.create(bindings, body)
    try:
        for role, verb, resource, wanted in PEOPLE:
            wait_for(
                lambda r=role, v=verb, of=resource, w=wanted: allowed(rest, f"a-{r}", v, of) is w,  # type: ignore[misc]
                what=f"{role}: {verb} {resource} allowed: {wanted}",
            )
    finally:
        for role in ("view", "edit", "admin"):
            rest.delete(f"{bindings}/a-{role}")
