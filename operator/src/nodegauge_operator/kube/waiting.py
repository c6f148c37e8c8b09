"""Pods of all namespaces that the scheduler has not placed, as they come and go, and their claims.

The field selector leaves out all that run: the API server keeps watches with `spec.nodeName` apart, so that
this one costs nothing for a pod that is bound (kubernetes, pkg/registry/core/pod, NodeNameTriggerFunc).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from nodegauge_operator.core.waiting import ClaimName
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.decoding import decoded_pod_event
from nodegauge_operator.kube.errors import Unavailable, error_of

PODS = "/api/v1/pods"
NOT_PLACED = "status.phase=Pending,spec.nodeName="
WATCH_SECONDS = 300.0
"""A watch is begun anew after that: its token may have changed."""


async def listed(client: Client) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
    """Pages of pods that are not placed, each with the version of the list.  Raises `KubeError`."""
    async for page in client.pages(PODS, field_selector=NOT_PLACED, shape="waiting pods"):
        yield page.get("items") or [], (page.get("metadata") or {}).get("resourceVersion", "")


async def changes(client: Client, *, since: str) -> AsyncIterator[tuple[bool, dict[str, Any]]]:
    """Each change after this version: whether the pod is still not placed, and the pod; an empty one for a
    mark that nothing changed.  Ends when the API server ends the watch.  Raises `KubeError`: after it, list
    again."""
    query = {"fieldSelector": NOT_PLACED, "resourceVersion": since, "allowWatchBookmarks": "true"}
    async for line in client.watch(PODS, query=query, within=WATCH_SECONDS):
        try:
            kind, body = decoded_pod_event(line)
        except msgspec.MsgspecError:
            raise Unavailable(f"watch {PODS}: no event: {line[:80]!r}") from None
        if kind == "ERROR":
            raise error_of(int(body.get("code") or 500), "", f"watch {PODS}: {body.get('message', '')}")
        yield kind != "DELETED", body


async def claim(client: Client, name: ClaimName) -> dict[str, Any]:
    """The claim.  Raises `KubeError`."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{name.namespace}/resourceclaims/{name.name}"
    return await client.call("GET", path)
