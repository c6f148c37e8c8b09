"""The operator's own Deployment: scale it to nothing and see its pods go (for the clean-up)."""

from __future__ import annotations

from nodegauge_operator.kube.client import MERGE, Client, manager
from nodegauge_operator.kube.errors import NotFound


async def scale_to_zero(client: Client, *, namespace: str, deployment: str) -> str | None:
    """Ask for 0 replicas; the label selector of its pods, or None when there is no such Deployment."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment}/scale"
    body = {"spec": {"replicas": 0}}
    try:
        scale = await client.call("PATCH", path, query=manager(), body=body, content_type=MERGE)
    except NotFound:
        return None
    return str((scale.get("status") or {}).get("selector", ""))


async def pods_left(client: Client, *, namespace: str, selector: str) -> int:
    """Pods that still match the selector, terminating ones included."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    page = await client.call("GET", path, query={"labelSelector": selector, "limit": 100})
    return len(page.get("items") or ())
