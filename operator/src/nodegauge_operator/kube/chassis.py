"""ChassisReadings: the operator only lists and watches them; the BMC reader writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nodegauge_operator import names
from nodegauge_operator.core.model import ChassisView, chassis_view
from nodegauge_operator.kube.client import Client

PATH = f"/apis/{names.API_VERSION}/{names.CHASSIS_PLURAL}"


async def each(client: Client) -> AsyncIterator[ChassisView]:
    """What every BMC said last."""
    async for page in client.pages(PATH):
        for item in page.get("items") or ():
            yield chassis_view(item)
