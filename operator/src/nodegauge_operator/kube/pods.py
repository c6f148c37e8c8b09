"""Probe pods: create, list, delete, all in the operator's own namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.core.model import PodView, pod_view
from nodegauge_operator.kube.client import Client, manager
from nodegauge_operator.kube.errors import AlreadyExists, Conflict, KubeError, NotFound


def _path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


async def each(client: Client, *, namespace: str) -> AsyncIterator[PodView]:
    """Every probe pod of ours."""
    async for page in client.pages(_path(namespace), label_selector=names.POD_PROBE):
        for item in page.get("items") or ():
            view = pod_view(item)
            if view is not None:
                yield view


async def create(client: Client, manifest: dict[str, Any]) -> PodView:
    """Create the pod, or adopt the existing pod of the same name: the name identifies the run."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    try:
        body = await client.call("POST", _path(namespace), query=manager(), body=manifest)
    except AlreadyExists:
        body = await client.call("GET", _path(namespace, name))
    view = pod_view(body)
    if view is None:
        raise KubeError(f"pod {namespace}/{name} exists and is not a probe pod: delete or rename it")
    return view


async def delete(client: Client, pod: PodView, *, namespace: str, grace: int | None) -> PodView | None:
    """Delete exactly this pod (UID precondition); the pod while it terminates, None once it is gone."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.uid}, "propagationPolicy": "Background"}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    try:
        answer = await client.call("DELETE", _path(namespace, pod.name), body=options)
    except (NotFound, Conflict):
        return None  # gone already, or another pod has its name
    grace_left = (answer.get("metadata") or {}).get("deletionGracePeriodSeconds")
    return pod_view(answer) if answer.get("kind") == "Pod" and grace_left else None
