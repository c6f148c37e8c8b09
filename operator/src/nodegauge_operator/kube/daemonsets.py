"""The DaemonSets of mode Watch: applied, listed and deleted in the operator's own namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.kube.client import APPLY, JSON_PATCH, Client, manager
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


async def replace_spec(client: Client, manifest: dict[str, Any], *, uid: str) -> dict[str, Any]:
    """Take back whatever others wrote into the spec of exactly this DaemonSet; its metadata.

    An apply leaves alone what others own.  What the API server fills in, it fills in again: where nobody
    wrote anything, nothing changes.
    """
    metadata = manifest["metadata"]
    path = _path(metadata["namespace"], metadata["name"])
    body = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "replace", "path": "/spec", "value": manifest["spec"]},
    ]
    answer = await client.call("PATCH", path, query=manager(), body=body, content_type=JSON_PATCH)
    result: dict[str, Any] = answer["metadata"]
    return result


async def find(client: Client, *, namespace: str, name: str) -> dict[str, Any] | None:
    """Metadata of the DaemonSet of this name, whoever made it; None if there is none.  It is listed: the
    operator may not get one."""
    query = {"fieldSelector": f"metadata.name={name}", "limit": 1}
    page = await client.call("GET", _path(namespace), query=query)
    return next((item["metadata"] for item in page.get("items") or ()), None)


def changed_by(metadata: dict[str, Any]) -> str:
    """Who wrote to the spec last beside us, as their program calls itself; empty if nobody did."""
    others = [
        entry
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") != names.FIELD_MANAGER and "f:spec" in (entry.get("fieldsV1") or {})
    ]
    last: dict[str, Any] = max(others, key=lambda entry: str(entry.get("time", "")), default={})
    return str(last.get("manager", ""))[:60]


async def delete(client: Client, *, namespace: str, name: str, uid: str) -> None:
    """Delete exactly this DaemonSet; the garbage collector deletes its pods."""
    options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    try:
        await client.call("DELETE", _path(namespace, name), body=options)
    except NotFound:
        return
