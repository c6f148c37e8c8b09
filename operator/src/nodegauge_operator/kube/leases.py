"""The Lease by which installations see each other: one object, in a namespace that every cluster has.

Times are written for people; nobody compares them with a clock of their own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.kube.client import MERGE, Client, manager

PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE = f"{PATH}/{names.LEASE}"


class Lease(Struct, frozen=True, kw_only=True):
    """The Lease: who holds it, and the version that changes with each renewal."""

    holder: str
    version: str


async def get(client: Client) -> Lease:
    """The Lease; `NotFound` when there is none."""
    return _lease(await client.call("GET", LEASE))


async def create(client: Client, *, holder: str, now: float, seconds: float) -> Lease:
    """Make it; `AlreadyExists` if another was faster.  `seconds`: how long it lasts without a renewal."""
    metadata = {"name": names.LEASE, "labels": {"app.kubernetes.io/part-of": "nodegauge"}}
    spec = _spec(holder, now) | {"acquireTime": _micro(now), "leaseDurationSeconds": round(seconds)}
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }
    return _lease(await client.call("POST", PATH, query=manager(), body=body))


async def renew(client: Client, lease: Lease, *, holder: str, now: float) -> Lease:
    """Take or renew exactly this version of it; `Conflict` if it has changed since."""
    body = {"metadata": {"resourceVersion": lease.version}, "spec": _spec(holder, now)}
    return _lease(await client.call("PATCH", LEASE, query=manager(), body=body, content_type=MERGE))


async def delete(client: Client) -> None:
    """Remove it; `NotFound` when there is none."""
    await client.call("DELETE", LEASE)


def _spec(holder: str, now: float) -> dict[str, Any]:
    return {"holderIdentity": holder, "renewTime": _micro(now)}


def _micro(now: float) -> str:
    """A `MicroTime` of the Kubernetes API, from epoch seconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _lease(body: dict[str, Any]) -> Lease:
    return Lease(
        holder=(body.get("spec") or {}).get("holderIdentity") or "",
        version=body["metadata"]["resourceVersion"],
    )
