"""ChassisReadings in the cluster: applied, marked as failed, deleted; and the names of the nodes.

A reading is applied whole (server-side apply), so that nothing of an older one remains.  A failed try patches
only its own fields: the last reading stays.  Only objects with this release's label are ever deleted.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from nodegauge_bmc.inventory import Target
from nodegauge_operator import names
from nodegauge_operator.api.chassis import ChassisStatus, parse_chassis
from nodegauge_operator.kube.client import APPLY, MERGE, Client
from nodegauge_operator.kube.errors import Conflict, NotFound

PATH = f"/apis/{names.API_VERSION}/{names.CHASSIS_PLURAL}"
NODES = "/api/v1/nodes"
MANAGER = {"fieldManager": names.BMC_FIELD_MANAGER}


class Objects:
    """The objects of one release."""

    def __init__(self, client: Client, *, instance: str) -> None:
        self._client = client
        self._labels = {names.BMC_READER: instance, "app.kubernetes.io/part-of": "nodegauge"}

    async def nodes(self, selector: str = "") -> dict[str, str]:
        """Names of nodes, and their UIDs."""
        return await self._names(NODES, selector)

    async def ours(self) -> dict[str, str]:
        """Names of this release's objects, and their UIDs."""
        return await self._names(PATH, f"{names.BMC_READER}={self._labels[names.BMC_READER]}")

    async def _names(self, path: str, selector: str) -> dict[str, str]:
        listed: dict[str, str] = {}
        async for page in self._client.pages(path, label_selector=selector, metadata_only=True):
            listed |= {item["metadata"]["name"]: item["metadata"]["uid"] for item in page.get("items") or ()}
        return listed

    async def number(self, node: str) -> int:
        """How many readings of this node's BMC worked so far; 0 without an object."""
        try:
            return parse_chassis(await self._client.call("GET", f"{PATH}/{quote(node)}")).status.number
        except NotFound:
            return 0

    async def write(self, target: Target, status: ChassisStatus) -> None:
        """Apply a reading."""
        body = self._body(target.node, target.node_uid) | {"status": _plain(status)}
        await self._client.call(
            "PATCH",
            f"{PATH}/{quote(target.node)}",
            query=MANAGER | {"force": "true"},
            body=body,
            content_type=APPLY,
        )

    async def failed(self, node: str, node_uid: str, status: ChassisStatus) -> None:
        """Note why the last try failed, beside the last reading."""
        changed = {"problem": status.problem, "triedAt": status.tried_at}
        if status.address:
            changed["address"] = status.address
        try:
            await self._client.call(
                "PATCH",
                f"{PATH}/{quote(node)}",
                query=MANAGER,
                body={"status": changed},
                content_type=MERGE,
            )
        except NotFound:
            body = self._body(node, node_uid) | {"status": changed}
            await self._client.call("POST", PATH, query=MANAGER, body=body)

    async def delete(self, node: str, uid: str) -> None:
        """Delete this very object, if it is still there."""
        try:
            await self._client.call("DELETE", f"{PATH}/{quote(node)}", body={"preconditions": {"uid": uid}})
        except (NotFound, Conflict):
            return

    def _body(self, node: str, node_uid: str) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.CHASSIS_KIND,
            "metadata": {"name": node, "labels": self._labels, "ownerReferences": [owner]},
        }


def _plain(status: ChassisStatus) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return {name: value for name, value in plain.items() if value is not None} | {"problem": status.problem}
