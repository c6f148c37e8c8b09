"""Checks before the start: may CRDs be watched, and are ours installed?"""

from __future__ import annotations

from enum import Enum

from nodegauge_operator import names
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Scanning(Enum):
    """Whether this account may watch CRDs."""

    ALLOWED = "allowed"
    REFUSED = "refused"


async def check_access(client: Client) -> Scanning:
    """Whether CRDs may be listed.  If not and ours are not installed, raises `KubeError` with their names."""
    try:
        await client.call("GET", CRDS, query={"limit": 1})
    except Forbidden:
        await _require_crds(client)
        return Scanning.REFUSED
    return Scanning.ALLOWED


async def missing_crds(client: Client) -> list[str]:
    """Names of our CRDs that the API server does not serve; every account may read that."""
    try:
        listed = await client.call("GET", f"/apis/{names.API_VERSION}")
    except NotFound:
        listed = {}
    served = {r.get("name") for r in listed.get("resources") or ()}
    return [n for n in names.CRD_NAMES if n.split(".")[0] not in served]


async def _require_crds(client: Client) -> None:
    missing = await missing_crds(client)
    if missing:
        raise KubeError(
            f"CRD {' and '.join(missing)} missing, and this account may not watch CRDs: install them "
            "(kubectl apply -f crds/), or grant get, list and watch on customresourcedefinitions."
        )
