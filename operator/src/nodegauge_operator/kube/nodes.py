"""Nodes: list, read, label, set the condition.  Only keys of ours are ever in a patch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.core.model import ConditionView, NodeView, node_view
from nodegauge_operator.kube.client import MERGE, STRATEGIC, Client, manager

PATH = "/api/v1/nodes"


async def each(client: Client, *, label_selector: str = "") -> AsyncIterator[NodeView]:
    """Every node, page by page, trimmed as it comes."""
    async for page in client.pages(PATH, label_selector=label_selector):
        for item in page.get("items") or ():
            yield node_view(item)


async def get(client: Client, name: str) -> NodeView:
    """One node; `NotFound` when there is none."""
    return node_view(await client.call("GET", f"{PATH}/{quote(name)}"))


async def selected(client: Client, name: str, label_selector: str) -> bool:
    """Whether the API server finds the node by this selector."""
    query = {"labelSelector": label_selector, "fieldSelector": f"metadata.name={name}", "limit": 1}
    return bool((await client.call("GET", PATH, query=query)).get("items"))


async def patch_labels(client: Client, node: NodeView, labels: dict[str, str | None]) -> NodeView:
    """One merge patch with the cached resourceVersion: `Conflict` when the node is another by now.

    A strategic patch or a forced apply would erase what others wrote meanwhile; this cannot.
    """
    body = {"metadata": {"resourceVersion": node.resource_version, "uid": node.uid, "labels": labels}}
    answer = await client.call(
        "PATCH", f"{PATH}/{quote(node.name)}", query=manager(), body=body, content_type=MERGE
    )
    return node_view(answer)


async def patch_condition(client: Client, node: NodeView, condition: ConditionView | None) -> NodeView:
    """Write or remove our condition alone: conditions merge by `type` in a strategic patch.

    The transition time moves only when the status does (Kubernetes' rule for conditions).
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry: dict[str, str]
    if condition is None:
        entry = {"type": names.CONDITION, "$patch": "delete"}
    else:
        entry = {
            "type": names.CONDITION,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
        }
        if node.condition is None or node.condition.status != condition.status:
            entry["lastTransitionTime"] = now
    body = {"metadata": {"uid": node.uid}, "status": {"conditions": [entry]}}
    answer = await client.call(
        "PATCH", f"{PATH}/{quote(node.name)}/status", query=manager(), body=body, content_type=STRATEGIC
    )
    return node_view(answer)
