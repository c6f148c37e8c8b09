"""The operator's own Deployment and pods, found by the chart's labels.

Every installation has these labels, whatever its names (charts/nodegauge/templates/_helpers.tpl,
"nodegauge.labels").  No other pod is touched.

And our CRDs: are they served?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.kube.client import MERGE, Client, manager
from nodegauge_operator.kube.errors import KubeError, NotFound
from nodegauge_operator.kube.pods import delete_exactly

OPERATOR = "app.kubernetes.io/part-of=nodegauge,app.kubernetes.io/component=operator"
"""Label selector of the operator's Deployments and pods, in any namespace."""
TEST = "app.kubernetes.io/part-of=nodegauge,app.kubernetes.io/component=test"
"""Label selector of the pods of `helm test`; Helm leaves failed ones."""


class OperatorPod(Struct, frozen=True, kw_only=True):
    """A pod of the operator.  `grace`: its grace period in seconds while it is being deleted, else None.

    `ip`: its address; empty before it has one.  `account`: its service account.
    """

    namespace: str
    name: str
    uid: str
    grace: float | None = None
    ip: str = ""
    account: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def operator_of(release: str) -> str:
    """The same of one Helm release."""
    return f"{OPERATOR},app.kubernetes.io/instance={release}"


async def deployments(client: Client, *, namespace: str, selector: str = OPERATOR) -> list[str]:
    """Names of the operator's Deployments in a namespace, by their labels."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    page = await client.call("GET", path, query={"labelSelector": selector, "limit": 100})
    return [item["metadata"]["name"] for item in page.get("items") or ()]


async def scale_to_zero(client: Client, *, namespace: str, deployment: str) -> str | None:
    """Scale to 0; the label selector of its pods, or None if there is no such Deployment."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}/scale"
    body = {"spec": {"replicas": 0}}
    try:
        scale = await client.call("PATCH", path, query=manager(), body=body, content_type=MERGE)
    except NotFound:
        return None
    selector = str((scale.get("status") or {}).get("selector", ""))
    if not selector:  # an empty one would match every pod of the namespace
        raise KubeError(f"Deployment {namespace}/{deployment} has no selector: its pods cannot be identified")
    return selector


async def pods(client: Client, *, namespace: str = "", selector: str = OPERATOR) -> list[OperatorPod]:
    """Matching pods that have not ended, including terminating ones; without a namespace, in all of them."""
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    page = await client.call("GET", path, query={"labelSelector": selector, "limit": 100})
    return [_pod(item) for item in page.get("items") or () if not _ended(item)]


async def remove_tests(client: Client, *, namespace: str) -> int:
    """Delete the pods of `helm test`, including ended ones; their number."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    page = await client.call("GET", path, query={"labelSelector": TEST, "limit": 100})
    test_pods = [_pod(item) for item in page.get("items") or ()]
    for pod in test_pods:
        await remove(client, pod)
    return len(test_pods)


async def remove(client: Client, pod: OperatorPod) -> None:
    """Delete exactly this pod without waiting for its kubelet.

    The pod's token is revoked with the pod (Kubernetes: bound service account tokens), so a process that
    survives behind an unresponsive kubelet can no longer write.
    """
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    await delete_exactly(client, path, uid=pod.uid, grace=0)


def _pod(body: Mapping[str, Any]) -> OperatorPod:
    metadata = body["metadata"]
    deleting = metadata.get("deletionTimestamp")
    return OperatorPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        grace=float(metadata.get("deletionGracePeriodSeconds") or 0) if deleting else None,
        ip=(body.get("status") or {}).get("podIP") or "",
        account=(body.get("spec") or {}).get("serviceAccountName") or "default",
    )


def _ended(body: Mapping[str, Any]) -> bool:
    return (body.get("status") or {}).get("phase") in ("Succeeded", "Failed")


async def missing_crds(client: Client, needed: Sequence[str] = names.CRD_NAMES) -> list[str]:
    """Names of our CRDs that the API server does not serve; every account may read that."""
    try:
        listed = await client.call("GET", f"/apis/{names.API_VERSION}")
    except NotFound:
        listed = {}
    served = {r.get("name") for r in listed.get("resources") or ()}
    return [n for n in needed if n.split(".")[0] not in served]


def missing(crds: Sequence[str]) -> str:
    """What is wrong, and what to do."""
    return f"CRDs missing: install {' and '.join(crds)} (kubectl apply -f crds/)"
