"""Probe pods: create, list, delete, all in the operator's own namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.core.model import PodView, pod_view
from nodegauge_operator.core.watch_pod import WatchView, watch_view
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import Client, manager
from nodegauge_operator.kube.errors import AlreadyExists, Conflict, NotFound, Refused, Unavailable
from nodegauge_operator.kube.listing import Unknown

CREATE_SECONDS = 8
"""The API server gives up a create by then: before our own time is up, so that it can name a hung webhook."""


def _path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


async def each(client: Client, *, namespace: str, unknown: Unknown | None = None) -> AsyncIterator[PodView]:
    """Every probe pod of ours that makes one run, or those that `unknown` asks for (`listing.each`)."""
    of_runs = f"{names.POD_PROBE},{names.POD_PROBE}!={names.PROBE_WATCH}"
    async for body in listing.each(client, _path(namespace), label_selector=of_runs, unknown=unknown):
        view = pod_view(body)
        if view is not None:
            yield view


async def each_watch(
    client: Client, *, namespace: str, unknown: Unknown | None = None
) -> AsyncIterator[WatchView]:
    """Every pod of a watch DaemonSet that is bound to a node, or those that `unknown` asks for."""
    path = _path(namespace)
    async for body in listing.each(client, path, label_selector=names.WATCH_SET, unknown=unknown):
        view = watch_view(body)
        if view is not None:
            yield view


async def create(client: Client, manifest: dict[str, Any]) -> PodView:
    """Create the pod, or adopt the existing pod of the same run, whose name identifies it.

    Raises `Refused` if somebody else's pod has the name: it is left alone.
    """
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    query = manager() | {"timeout": f"{CREATE_SECONDS}s"}
    try:
        body = await client.call("POST", _path(namespace), query=query, body=manifest)
    except AlreadyExists:
        body = await client.call("GET", _path(namespace, name))
    view, wanted = pod_view(body), pod_view(manifest)
    assert wanted is not None, "a probe pod has our marks"
    if view is None or view.on_node not in ("", view.node) or _identity(view) != _identity(wanted):
        text = (
            f"pod {namespace}/{name} exists, and nodegauge did not make it: the next try takes another name"
        )
        raise Refused(text)
    return view


def _identity(pod: PodView) -> tuple[object, ...]:
    return pod.owner_uid, pod.node, pod.node_uid, pod.probe, pod.number


async def delete(
    client: Client, pod: PodView | WatchView, *, namespace: str, grace: int | None
) -> PodView | None:
    """Delete exactly this pod (UID precondition); the pod while it terminates, None once it is gone."""
    answer = await delete_exactly(client, _path(namespace, pod.name), uid=pod.uid, grace=grace)
    grace_left = (answer.get("metadata") or {}).get("deletionGracePeriodSeconds")
    return pod_view(answer) if answer.get("kind") == "Pod" and grace_left else None


async def delete_exactly(client: Client, path: str, *, uid: str, grace: int | None) -> dict[str, Any]:
    """Delete the pod of this UID; the API server's answer, empty if the pod is gone already.

    Raises `Unavailable` after a conflict on this very pod.
    """
    options: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    try:
        return await client.call("DELETE", path, body=options)
    except NotFound:
        return {}
    except Conflict as error:
        if await _is_there(client, path, uid=uid):
            raise Unavailable(str(error), status=error.status, reason=error.reason) from None
        return {}  # another pod has its name


async def _is_there(client: Client, path: str, *, uid: str) -> bool:
    """Whether this very pod still exists: only its UID answers that, not that a delete met a conflict.

    It is listed: the clean-up may not get pods.
    """
    collection, _, name = path.rpartition("/")
    page = await client.call("GET", collection, query={"fieldSelector": f"metadata.name={name}", "limit": 1})
    return any(item["metadata"].get("uid") == uid for item in page.get("items") or ())
