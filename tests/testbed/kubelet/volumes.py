"""What stands behind a container's mounts.  Variables and arguments that name a mount's path name a folder of
the pod instead.  A service account has a real TokenRequest token, the API server's authority, and a
kubeconfig."""

import asyncio
import base64
import logging
from datetime import UTC, datetime
from pathlib import Path

from testbed.errors import ApiError
from testbed.kubeconfig import write_kubeconfig, write_private
from testbed.kubelet.api import retry
from testbed.kubelet.context import NodeContext
from testbed.kubelet.errors import ConfigMissing
from testbed.rest import Object

log = logging.getLogger(__name__)

REFRESH_AT = 0.8
"""Share of a token's life after which a kubelet asks for a new one."""


async def mounted(container: Object, pod: Object, node: NodeContext, *, below: Path) -> dict[str, Path]:
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    result: dict[str, Path] = {}
    for mount in container.get("volumeMounts", []):
        volume, folder = volumes[mount["name"]], below / mount["name"]
        if volume.keys() & {"secret", "emptyDir"}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            result[mount["mountPath"].rstrip("/")] = folder
        if named := volume.get("secret"):
            secrets = f"/api/v1/namespaces/{pod['metadata']['namespace']}/secrets"
            try:
                data = (await node.api.get(f"{secrets}/{named['secretName']}")).get("data") or {}
            except ApiError as error:
                if error.status != 404 or not named.get("optional"):
                    raise ConfigMissing(str(error)) from error
                data = {}
            for name, value in data.items():
                (folder / name).write_bytes(base64.b64decode(value))
    return result


def moved(word: str, behind: dict[str, Path]) -> str:
    option, equals, value = word.rpartition("=")
    for path, folder in behind.items():
        if value == path or value.startswith(f"{path}/"):
            return f"{option}{equals}{folder}{value.removeprefix(path)}"
    return word


def token_mounts(pod: Object, container: Object) -> dict[str, Object]:
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    return {
        mount["mountPath"].rstrip("/"): source["serviceAccountToken"]
        for mount in container.get("volumeMounts", [])
        for source in volumes.get(mount["name"], {}).get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    }


class Credentials:
    def __init__(self, pod: Object, source: Object, node: NodeContext, *, directory: Path) -> None:
        self._pod, self._source, self._node = pod, source, node
        self.directory = directory
        self._token = directory / "token"
        self._life = 3600.0
        self.kubeconfig = directory / "kubeconfig"

    async def write(self) -> None:
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
