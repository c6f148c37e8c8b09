"""The rights that the chart gives, as a real API server answers: enough for the work, useless to a thief."""

from __future__ import annotations

import pytest

from support.chart_cluster import eventually, install
from support.chart_tools import NAMESPACE, Helm
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

OPERATOR = [
    ("list", "", "nodes", "", True),
    ("patch", "", "nodes", "", True),
    ("patch", "", "nodes/status", "", True),
    ("watch", "nodegauge.dev", "gpuvalidationpolicies", "", True),
    ("patch", "nodegauge.dev", "gpuvalidationpolicies/status", "", True),
    ("patch", "nodegauge.dev", "nodereports/status", "", True),
    ("create", "nodegauge.dev", "nodereports", "", True),
    ("watch", "apiextensions.k8s.io", "customresourcedefinitions", "", True),
    ("create", "", "pods", NAMESPACE, True),
    ("delete", "", "pods", NAMESPACE, True),
    ("create", "events.k8s.io", "events", "default", True),
    ("patch", "nodegauge.dev", "nodereports", "", False),
    ("patch", "events.k8s.io", "events", "default", False),
    ("list", "", "pods", "default", False),
    ("create", "", "pods", "kube-system", False),
    ("create", "", "pods/exec", NAMESPACE, False),
    ("get", "", "secrets", NAMESPACE, False),
    ("delete", "", "nodes", "", False),
    ("update", "", "nodes", "", False),
    ("patch", "nodegauge.dev", "gpuvalidationpolicies", "", False),
    ("create", "", "serviceaccounts/token", NAMESPACE, False),
    ("patch", "apps", "deployments", NAMESPACE, False),
]


def allowed(rest: Rest, account: str, *, verb: str, group: str, resource: str, namespace: str) -> bool:
    """Whether the API server would let a service account of the release do that."""
    kind, _, below = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": kind, "subresource": below, "namespace": namespace}
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    spec = {
        "user": user,
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": asked,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = rest.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def test_rights_are_those_of_the_operator(cluster: Helm, rest: Rest) -> None:
    """The operator's account may do what its work needs, and nothing that a thief would want."""
    install(cluster)
    words = ("verb", "group", "resource", "namespace")
    for *question, wanted in OPERATOR:
        asked = dict(zip(words, question, strict=True))
        eventually(lambda asked=asked, wanted=wanted: allowed(rest, "ng-nodegauge", **asked) is wanted)  # type: ignore[misc]


def test_probes_have_no_rights(cluster: Helm, rest: Rest) -> None:
    """The probes' account may do nothing that not every account may."""
    install(cluster)
    words = ("verb", "group", "resource", "namespace")
    for *question, _ in OPERATOR:
        assert not allowed(rest, "ng-nodegauge-probe", **dict(zip(words, question, strict=True)))
