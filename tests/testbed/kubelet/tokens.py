"""A pod's service account: a real TokenRequest token, the API server's authority, and a kubeconfig that
points to both.

On a real node they are a projected volume.  Processes here share the host's file system: variables and
arguments that name the mount's path name the folder instead (`volumes`), and KUBECONFIG names the kubeconfig,
which programs find that look in a pod's usual place.  Whether a container gets one is
decided by what the API server's ServiceAccount admission put into the pod: a mounted projected volume with a
serviceAccountToken.  `automountServiceAccountToken: false` therefore means no token, with no rule of our own.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed.errors import ApiError
from testbed.kubeconfig import write_kubeconfig, write_private
from testbed.kubelet.api import retry
from testbed.kubelet.context import NodeContext

Object = dict[str, Any]

log = logging.getLogger(__name__)

REFRESH_AT = 0.8
"""Share of a token's life after which a kubelet asks for a new one."""


def token_mounts(pod: Object, container: Object) -> list[str]:
    """Paths at which this container mounts a projection with a token."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    return [
        mount["mountPath"].rstrip("/")
        for mount in container.get("volumeMounts", [])
        for source in volumes.get(mount["name"], {}).get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]


def token_source(pod: Object, container: Object) -> Object | None:
    """The serviceAccountToken projection that this container mounts; None when it has no credentials."""
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    volumes = [volume for volume in pod["spec"].get("volumes", []) if volume["name"] in mounted]
    sources = [source for volume in volumes for source in volume.get("projected", {}).get("sources", [])]
    return next((s["serviceAccountToken"] for s in sources if "serviceAccountToken" in s), None)


class Credentials:
    """The files of one pod's service account below `directory`, kept fresh while `keep_fresh` runs."""

    def __init__(self, pod: Object, source: Object, node: NodeContext, *, directory: Path) -> None:
        self._pod, self._source, self._node = pod, source, node
        self.directory = directory
        self._token = directory / "token"
        self._life = 3600.0
        self.kubeconfig = directory / "kubeconfig"

    async def write(self) -> None:
        """Ask for a token and write it, and a kubeconfig that names its file; ApiError when it is refused."""
        await self._write_token()
        (self.directory / "ca.crt").write_text(self._node.api.authority)
        write_kubeconfig(
            self.kubeconfig,
            server=self._node.api.server,
            authority=self._node.api.authority,
            user={"tokenFile": str(self._token)},
            namespace=self._pod["metadata"]["namespace"],
        )

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
        metadata = self._pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec = {
            "expirationSeconds": self._source.get("expirationSeconds", 3600),
            "audiences": [self._source["audience"]] if self._source.get("audience") else [],
            "boundObjectRef": bound,
        }
        account = self._pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        answer = await retry(lambda: self._node.api.create(path, {"spec": spec}))
        ends = datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        self._life = max(1.0, (ends - datetime.now(UTC)).total_seconds())
        write_private(self._token, answer["status"]["token"])
