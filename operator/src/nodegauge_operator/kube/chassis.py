"""ChassisReadings: the operator only lists and watches them; the BMC reader writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nodegauge_operator import names
from nodegauge_operator.core.model import ChassisView, chassis_view
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.listing import Unknown

PATH = f"/apis/{names.API_VERSION}/{names.CHASSIS_PLURAL}"


async def each(client: Client, *, unknown: Unknown | None = None) -> AsyncIterator[ChassisView]:
    """What every BMC said last, or what `unknown` asks for (`listing.each`)."""
    async for body in listing.each(client, PATH, unknown=unknown):
        yield chassis_view(body)
