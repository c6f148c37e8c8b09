"""GPUValidationPolicies: list, and write their status.

Their spec is people's: `apply` is for the tools that they install with, never for the operator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.kube.client import APPLY, MERGE, Client, manager

PATH = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}"


async def each(client: Client) -> AsyncIterator[dict[str, Any]]:
    """Every policy as it came: what cannot be parsed must be reported, not dropped."""
    async for page in client.pages(PATH):
        for item in page.get("items") or ():
            yield item


async def patch_status(client: Client, name: str, status: dict[str, Any]) -> None:
    """Replace the given fields of the status."""
    body = {"status": status}
    await client.call("PATCH", f"{PATH}/{quote(name)}/status", query=manager(), body=body, content_type=MERGE)


async def apply(client: Client, body: dict[str, Any], *, owner: str) -> None:
    """Server-side apply of a whole policy under the name of its owner; unknown fields are refused."""
    query = {"fieldManager": owner, "fieldValidation": "Strict"}
    path = f"{PATH}/{quote(body['metadata']['name'])}"
    await client.call("PATCH", path, query=query, body=body, content_type=APPLY)
