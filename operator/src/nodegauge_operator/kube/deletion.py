"""Delete one object, and not another that has its name by now."""

from __future__ import annotations

from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, NotFound, Unavailable


async def delete_this(client: Client, path: str, *, uid: str) -> None:
    """Delete the object of this UID, if it is there; without a UID, whatever has this path.

    Raises `Unavailable` after a conflict on this very object: somebody wrote it in between.
    """
    try:
        await client.call("DELETE", path, body={"preconditions": {"uid": uid}} if uid else None)
    except NotFound:
        return
    except Conflict as error:
        if await _uid_at(client, path) == uid:
            raise Unavailable(str(error), status=error.status, reason=error.reason) from None


async def _uid_at(client: Client, path: str) -> str | None:
    try:
        return str((await client.call("GET", path))["metadata"]["uid"])
    except NotFound:
        return None
