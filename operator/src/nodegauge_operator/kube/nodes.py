"""Nodes: list, read, label, taint, set the condition.

A patch contains only our own labels.  Taints are a list, which a patch can only replace whole: it repeats the
taints of others, and the node's resourceVersion ensures that these are up to date.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.model import ConditionView, NodeView, Taint, node_view
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import MERGE, STRATEGIC, Client, manager
from nodegauge_operator.kube.listing import Unknown

PATH = "/api/v1/nodes"


async def each(
    client: Client, *, label_selector: str = "", unknown: Unknown | None = None
) -> AsyncIterator[NodeView]:
    """Every node, or those that `unknown` asks for (`listing.each`), trimmed as it comes."""
    async for body in listing.each(client, PATH, label_selector=label_selector, unknown=unknown):
        yield node_view(body)


async def get(client: Client, name: str) -> NodeView:
    """One node; `NotFound` when there is none."""
    return node_view(await client.call("GET", f"{PATH}/{quote(name)}"))


async def selected(client: Client, name: str, label_selector: str) -> bool:
    """Whether the selector matches the node."""
    query = {"labelSelector": label_selector, "fieldSelector": f"metadata.name={name}", "limit": 1}
    return bool((await client.call("GET", PATH, query=query)).get("items"))


async def patch(
    client: Client, node: NodeView, *, labels: dict[str, str | None], taints: tuple[Taint, ...] | None = None
) -> NodeView:
    """One merge patch with the cached resourceVersion: `Conflict` if the node has changed since.

    `taints`: the whole new list, None to leave it alone.  A strategic patch or a forced apply could erase
    what others wrote meanwhile; this patch cannot.
    """
    body: dict[str, Any] = {"metadata": {"resourceVersion": node.resource_version, "uid": node.uid}}
    if labels:
        body["metadata"]["labels"] = labels
    if taints is not None:
        body["spec"] = {"taints": [_taint(taint) for taint in taints]}
    answer = await client.call(
        "PATCH", f"{PATH}/{quote(node.name)}", query=manager(), body=body, content_type=MERGE
    )
    return node_view(answer)


def _taint(taint: Taint) -> dict[str, str]:
    """The taint in the API's form: every set field of v1.Taint."""
    fields = {"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.added}
    return {name: value for name, value in fields.items() if value}


async def patch_condition(client: Client, node: NodeView, condition: ConditionView | None) -> NodeView:
    """Write or remove only our condition: a strategic patch merges conditions by `type`.

    The transition time moves only when the status does (Kubernetes' rule for conditions).
    """
    now = stamp(client.now())
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
