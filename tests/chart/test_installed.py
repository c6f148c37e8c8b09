"""One default install on a real API server: its objects, its rights, and what the API server accepts."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from nodegauge_operator.names import NODE_TAINTS
from support.chart import (
    COLLECTIONS,
    KNOWN,
    NAMESPACE,
    NODE,
    PODS,
    VARIANTS,
    Helm,
    component,
    events,
    left_behind,
    pods,
    policies,
)
from testbed.errors import ApiError
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

RIGHTS = [
    ("list", "", "nodes", "", True),
    ("patch", "", "nodes/status", "", True),
    ("watch", "nodegauge.dev", "gpuvalidationpolicies", "", True),
    ("patch", "nodegauge.dev", "nodereports/status", "", True),
    ("get", "nodegauge.dev", "nodereadings", "", True),
    ("delete", "nodegauge.dev", "nodereadings", "", True),
    ("create", "", "pods", NAMESPACE, True),
    ("create", "", "events", "default", True),
    ("create", "nodegauge.dev", "nodereadings", "", False),
    ("patch", "nodegauge.dev", "nodereadings", "", False),
    ("list", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", False),
    ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", False),
    ("watch", "apiextensions.k8s.io", "customresourcedefinitions", "", False),
    ("list", "", "namespaces", "", False),
    ("list", "", "pods", "default", False),
    ("create", "", "pods", "kube-system", False),
    ("create", "", "pods/exec", NAMESPACE, False),
    ("get", "", "secrets", NAMESPACE, False),
    ("delete", "", "nodes", "", False),
    ("create", "", "serviceaccounts/token", NAMESPACE, False),
]
"""Verb, group, resource, namespace, and whether the operator may do it; test_rights.py has every write."""


OTHER = {"terminationGracePeriodSeconds": 0, "containers": [{"name": "a", "image": "localhost/a:1"}]}
"""A pod that tolerates nothing."""


def allowed(rest: Rest, account: str, question: tuple[str, str, str, str]) -> bool:
    """Whether the API server lets a service account of the release do that."""
    verb, group, resource, namespace = question
    kind, _, below = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": kind, "subresource": below, "namespace": namespace}
    spec = {
        "user": f"system:serviceaccount:{NAMESPACE}:{account}",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": asked,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = rest.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


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
            group = "" if resource == "nodes" else "nodegauge.dev"
            question = (verb, group, resource, "")
            wait_for(
                lambda r=role, q=question, w=wanted: allowed(rest, f"a-{r}", q) is w,  # type: ignore[misc]
                what=f"{role}: {verb} {resource} allowed: {wanted}",
            )
    finally:
        for role in ("view", "edit", "admin"):
            rest.delete(f"{bindings}/a-{role}")


@pytest.mark.usefixtures("installed")
def test_the_operator_has_the_rights_that_it_needs_and_no_others(rest: Rest) -> None:
    """The operator's account may do its work, and nothing that an attacker would want."""
    for *question, wanted in RIGHTS:
        wait_for(
            lambda q=question, w=wanted: allowed(rest, "ng-nodegauge", tuple(q)) is w,  # type: ignore[misc]
            what=f"{question} allowed: {wanted}",
        )


PROBE_RIGHTS = [
    ("create", "nodegauge.dev", "nodereadings", "", True),
    ("patch", "nodegauge.dev", "nodereadings", "", True),
    ("get", "nodegauge.dev", "nodereadings", "", False),
    ("list", "nodegauge.dev", "nodereadings", "", False),
    ("delete", "nodegauge.dev", "nodereadings", "", False),
    ("patch", "nodegauge.dev", "nodereports", "", False),
    ("get", "", "nodes", "", False),
    ("patch", "", "nodes", "", False),
    ("create", "", "pods", NAMESPACE, False),
    ("create", "", "serviceaccounts/token", NAMESPACE, False),
]
"""The same of the probes."""


@pytest.mark.usefixtures("installed")
def test_probes_write_readings_and_read_nothing(rest: Rest) -> None:
    """The account of the pods that run on each node may do nothing else."""
    for *question, wanted in PROBE_RIGHTS:
        wait_for(
            lambda q=question, w=wanted: allowed(rest, "ng-nodegauge-probe", tuple(q)) is w,  # type: ignore[misc]
            what=f"{question} allowed: {wanted}",
        )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("taint", NODE_TAINTS)
def test_no_taint_of_ours_evicts_the_operator(rest: Rest, taint: str) -> None:
    """NoExecute of our own evicts another pod from the operator's node, and the operator stays."""
    other = {"metadata": {"name": "other"}, "spec": {"nodeName": NODE} | OTHER}
    rest.create("/api/v1/namespaces/default/pods", other)
    (operator,) = [p["metadata"]["uid"] for p in rest.get(PODS)["items"] if component(p) == "operator"]
    rest.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]}})
    try:
        wait_for(
            lambda: not rest.get("/api/v1/namespaces/default/pods")["items"],
            what="the eviction of the other pod",
        )
        left = [p["metadata"] for p in rest.get(PODS)["items"] if p["metadata"]["uid"] == operator]
        assert [p.get("deletionTimestamp") for p in left] == [None]
    finally:
        rest.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
