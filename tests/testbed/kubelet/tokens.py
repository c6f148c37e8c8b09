"""A pod's service account: a real TokenRequest token and a kubeconfig that points to it.

On a real node the token is a projected volume below /var/run/secrets.  Processes here share the host's file
system, so the same token is handed over as a file named by KUBECONFIG.  Whether a container gets one is
decided by what the API server's ServiceAccount admission put into the pod: a mounted projected volume with a
serviceAccountToken.  `automountServiceAccountToken: false` therefore means no token, with no rule of our own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.errors import ApiError
from testbed.kubelet.api import retry
from testbed.kubelet.context import NodeContext

Object = dict[str, Any]

log = logging.getLogger(__name__)

REFRESH_AT = 0.8
"""Share of a token's life after which a kubelet asks for a new one."""


def token_source(pod: Object, container: Object) -> Object | None:
    """The serviceAccountToken projection that this container mounts; None when it has no credentials."""
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    for volume in pod["spec"].get("volumes", []):
        if volume["name"] not in mounted:
            continue
        for source in volume.get("projected", {}).get("sources", []):
            if projection := source.get("serviceAccountToken"):
                result: Object = projection
                return result
    return None


class Credentials:
    """The files of one pod's service account below `directory`, kept fresh while `keep_fresh` runs."""

    def __init__(self, pod: Object, source: Object, node: NodeContext, *, directory: Path) -> None:
        self._pod = pod
        self._source = source
        self._node = node
        self._directory = directory
        self._life = 3600.0
        self.kubeconfig = directory / "kubeconfig"

    async def write(self) -> None:
        """Ask for a token and write kubeconfig, CA and token; ApiError when it is refused."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._write_token()
        authority = self._directory / "ca.crt"
        _replace(authority, self._node.api.authority)
        _replace(self.kubeconfig, json.dumps(self._document(authority), indent=1))

    async def keep_fresh(self) -> None:
        """Replace the token before it ends; runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._life * REFRESH_AT)
            try:
                await self._write_token()
            except ApiError as error:
                log.warning("token of %s not renewed: %s", self._pod["metadata"]["name"], error)
                self._life = 10.0

    async def _write_token(self) -> None:
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        request: Object = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "expirationSeconds": self._source.get("expirationSeconds", 3600),
                "audiences": [self._source["audience"]] if self._source.get("audience") else [],
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        account = spec.get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        answer = await retry(lambda: self._node.api.create(path, request))
        ends = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        self._life = max(1.0, (ends - datetime.now(UTC)).total_seconds())
        _replace(self._directory / "token", answer["status"]["token"])

    def _document(self, authority: Path) -> Object:
        cluster = {"server": self._node.api.server, "certificate-authority": str(authority)}
        context = {
            "cluster": "testbed",
            "user": "pod",
            "namespace": self._pod["metadata"]["namespace"],
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": "pod", "user": {"tokenFile": str(self._directory / "token")}}],
            "contexts": [{"name": "pod", "context": context}],
            "current-context": "pod",
        }


def _replace(path: Path, text: str) -> None:
    """Write a file that readers see whole, and only its owner."""
    fresh = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
