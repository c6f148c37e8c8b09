"""The DaemonSets of mode Watch: applied, listed and deleted in the operator's own namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.kube.client import APPLY, Client, manager
from nodegauge_operator.kube.errors import NotFound


def _path(namespace: str, name: str = "") -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets" + (f"/{name}" if name else "")


async def each(client: Client, *, namespace: str, instance: str = "") -> AsyncIterator[dict[str, Any]]:
    """Metadata of every watch DaemonSet; `instance`: of one release alone."""
    release = f",app.kubernetes.io/instance={instance}" if instance else ""
    async for page in client.pages(_path(namespace), label_selector=names.WATCH_SET + release):
        for item in page.get("items") or ():
            yield item["metadata"]


async def apply(client: Client, manifest: dict[str, Any]) -> dict[str, Any]:
    """Make the DaemonSet as the manifest says, whoever changed it; its metadata."""
    metadata = manifest["metadata"]
    path = _path(metadata["namespace"], metadata["name"])
    query = manager() | {"force": "true"}
    body = await client.call("PATCH", path, query=query, body=manifest, content_type=APPLY)
    result: dict[str, Any] = body["metadata"]
    return result


async def delete(client: Client, *, namespace: str, name: str, uid: str) -> None:
    """Delete exactly this DaemonSet; the garbage collector deletes its pods."""
    options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    try:
        await client.call("DELETE", _path(namespace, name), body=options)
    except NotFound:
        return
