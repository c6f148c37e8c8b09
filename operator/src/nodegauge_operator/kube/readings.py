"""NodeReadings: probes write them, the operator reads them, and deletes those of nodes that are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.core.reading_view import ReadingView, reading_view
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.deletion import delete_this
from nodegauge_operator.kube.errors import NotFound
from nodegauge_operator.kube.listing import Unknown

PATH = f"/apis/{names.API_VERSION}/{names.READING_PLURAL}"


async def each(client: Client, *, unknown: Unknown | None = None) -> AsyncIterator[ReadingView]:
    """Every NodeReading, or those that `unknown` asks for (`listing.each`)."""
    async for body in listing.each(client, PATH, unknown=unknown):
        yield reading_view(body)


async def get(client: Client, name: str) -> ReadingView | None:
    """What is there now; None if nothing is."""
    try:
        return reading_view(await client.call("GET", f"{PATH}/{quote(name)}"))
    except NotFound:
        return None


async def delete(client: Client, name: str, *, uid: str = "") -> None:
    """Delete what the probes of a node have written, if there is anything; with a `uid`, exactly that object:
    a node of the same name may have joined meanwhile, and its probes have written."""
    await delete_this(client, f"{PATH}/{quote(name)}", uid=uid)
