"""ResourceSlices of NVIDIA's DRA driver, and the templates of our claims.

An API server serves them or does not: `NotFound` says so, whatever its version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.core.devices import SliceView, slice_view
from nodegauge_operator.kube import listing
from nodegauge_operator.kube.client import Client, manager
from nodegauge_operator.kube.errors import AlreadyExists, KubeError, NotFound
from nodegauge_operator.kube.listing import Unknown

PATH = f"/apis/{names.DRA_API}/{names.SLICE_PLURAL}"
OF_DRIVER = f"spec.driver={names.DRA_DRIVER}"
"""Field selector: the slices of other drivers may be many more."""


async def served(client: Client) -> bool:
    """Whether the API server serves slices, and lets us list them; False if it gives no answer."""
    try:
        await client.call("GET", PATH, query={"limit": 1})
    except KubeError:
        return False
    return True


async def each(client: Client, *, unknown: Unknown | None = None) -> AsyncIterator[SliceView]:
    """Every slice of the driver that lists devices of one node, or those that `unknown` asks for
    (`listing.each`).  Raises `KubeError`."""
    async for body in listing.each(client, PATH, field_selector=OF_DRIVER, unknown=unknown):
        if (view := slice_view(body)) is not None:
            yield view


def _path(namespace: str, name: str = "") -> str:
    path = f"/apis/{names.DRA_API}/namespaces/{namespace}/resourceclaimtemplates"
    return path + (f"/{name}" if name else "")


async def templates(client: Client, *, namespace: str, instance: str = "") -> list[dict[str, Any]]:
    """The templates of our claims; `instance`: of one release alone.  Raises `KubeError`."""
    selector = "app.kubernetes.io/name=nodegauge-probe"
    selector += f",app.kubernetes.io/instance={instance}" if instance else ""
    every: list[dict[str, Any]] = []
    async for page in client.pages(_path(namespace), label_selector=selector):
        every += page.get("items") or ()
    return every


async def create_template(client: Client, manifest: dict[str, Any], *, dry_run: bool = False) -> None:
    """Create a template, or only ask whether it could be.  One of its name that is there counts as made: the
    next look compares it."""
    path = _path(manifest["metadata"]["namespace"])
    query = manager() | ({"dryRun": "All"} if dry_run else {})
    try:
        await client.call("POST", path, query=query, body=manifest)
    except AlreadyExists:
        return


async def delete_template(client: Client, *, namespace: str, name: str, uid: str) -> None:
    """Delete exactly this template; claims that were made from it stay, and go with their pods."""
    try:
        await client.call("DELETE", _path(namespace, name), body={"preconditions": {"uid": uid}})
    except NotFound:
        return
