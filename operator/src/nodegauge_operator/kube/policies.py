"""GPUValidationPolicies: list, and write their status.

Their spec belongs to users: only installation tools call `apply`, never the operator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.kube.client import APPLY, MERGE, Client, manager

PATH = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}"


async def each(client: Client) -> AsyncIterator[dict[str, Any]]:
    """Every policy, not parsed: an invalid one has to be reported."""
    async for page in client.pages(PATH):
        for item in page.get("items") or ():
            yield item


async def patch_status(client: Client, name: str, status: dict[str, Any]) -> None:
    """Replace the given fields of the status."""
    body = {"status": status}
    await client.call("PATCH", f"{PATH}/{quote(name)}/status", query=manager(), body=body, content_type=MERGE)


async def apply(client: Client, body: dict[str, Any], *, owner: str) -> None:
    """Server-side apply of a whole policy as its owner; unknown fields are refused."""
    query = {"fieldManager": owner, "fieldValidation": "Strict"}
    path = f"{PATH}/{quote(body['metadata']['name'])}"
    await client.call("PATCH", path, query=query, body=body, content_type=APPLY)
