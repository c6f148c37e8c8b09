"""NodeHistories: written without being read, listed by name alone, deleted long after their node.

They have no watch and no place in the cache: only who asks for one reads it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from msgspec import to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.node_history import NodeHistory, parse_node_history
from nodegauge_operator.core.actions import WriteHistory
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import MERGE, Client, manager
from nodegauge_operator.kube.deletion import delete_this
from nodegauge_operator.kube.errors import NotFound
from nodegauge_operator.kube.reports import without_nulls

PATH = f"/apis/{names.API_VERSION}/{names.HISTORY_PLURAL}"


async def write(client: Client, step: WriteHistory) -> None:
    """Merge into what is there, or make it.  Raises `NotFound` without the CRD."""
    status: dict[str, Any] = {
        "nodeUID": step.node.uid,
        "installation": step.installation,
        "days": step.days,
        "goneAt": None,
    }
    if step.record is not None:
        status["record"] = to_builtins(step.record)
    try:
        await _patch(client, step.node.name, status)
    except NotFound:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.HISTORY_KIND,
            "metadata": {"name": step.node.name},
            "status": without_nulls(status),
        }
        await client.call("POST", PATH, query=manager(), body=body)


async def note_gone(client: Client, history: NodeHistory, at: str) -> None:
    """Write since when the node is gone (RFC 3339, UTC)."""
    await _patch(client, history.name, {"goneAt": at})


async def each_name(client: Client) -> AsyncIterator[str]:
    """The name of every history."""
    async for page in client.pages(PATH, metadata_only=True):
        for item in page.get("items") or ():
            yield str(item["metadata"]["name"])


async def each(client: Client) -> AsyncIterator[NodeHistory]:
    """Every history, whole."""
    async for body in listing.each(client, PATH):
        yield parse_node_history(body)


async def get(client: Client, name: str) -> NodeHistory | None:
    """One history, None if there is none."""
    try:
        return parse_node_history(await client.call("GET", f"{PATH}/{quote(name)}"))
    except NotFound:
        return None


async def delete(client: Client, history: NodeHistory) -> None:
    """Delete exactly this object; one that was made since stays."""
    await delete_this(client, f"{PATH}/{quote(history.name)}", uid=history.uid)


async def _patch(client: Client, name: str, status: dict[str, Any]) -> None:
    await client.call(
        "PATCH",
        f"{PATH}/{quote(name)}",
        query=manager(),
        body={"status": status},
        content_type=MERGE,
    )
