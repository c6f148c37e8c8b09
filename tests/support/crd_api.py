"""An API session for tests of the CRDs: installs them once per API server, and asks without storing.

Applies and never deletes: other tests may work on the same API server.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from nodegauge_operator import names
from support.crd_schema import crd
from testbed.kubelet.api import Api
from testbed.kubelet.errors import ApiError

APPLY = "application/apply-patch+yaml"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}"
REPORTS = f"/apis/{names.API_VERSION}/{names.REPORT_PLURAL}"
KINDS = {POLICIES: names.POLICY_KIND, REPORTS: names.REPORT_KIND}

_applied: set[Path] = set()


async def install_crds(api: Api, kubeconfig: Path) -> None:
    """Have the CRDs of this checkout served by the API server; `TimeoutError` after 20 s."""
    if kubeconfig in _applied and await served(api):
        return
    for plural in (names.POLICY_PLURAL, names.REPORT_PLURAL):
        manifest = crd(plural)
        await api.patch(f"{CRD_PATH}/{manifest['metadata']['name']}?force=true", manifest, kind=APPLY)
    async with asyncio.timeout(20):
        while True:
            if await served(api):
                break
            await asyncio.sleep(0.05)
    _applied.add(kubeconfig)


async def served(api: Api) -> bool:
    """Whether both resources answer."""
    try:
        await api.get(POLICIES, limit="1")
        await api.get(REPORTS, limit="1")
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def manifest(path: str, spec: object) -> dict[str, Any]:
    """An object of ours under a name of its own."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": KINDS[path],
        "metadata": {"name": f"test-{uuid.uuid4().hex[:8]}"},
        "spec": spec,
    }


async def tried(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the API server would make of the object, with nothing stored; unknown fields are errors."""
    return await api.create(f"{path}?dryRun=All&fieldValidation=Strict", body)
