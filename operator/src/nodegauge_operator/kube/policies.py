"""GPUValidationPolicies: list, and write their status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.kube.client import MERGE, Client, manager

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
