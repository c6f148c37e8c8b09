"""Secrets and empty directories: a folder of the pod stands behind each, and outlives the container.

On a real node they are mounted at a path of the container's own.  Processes here share the host's file
system: variables and arguments that name the mount's path name that folder instead.  A Secret's files are
written when a container starts; one that changes later is not written again.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from testbed.errors import ApiError
from testbed.kubelet.context import NodeContext
from testbed.kubelet.errors import ConfigMissing

Object = dict[str, Any]


async def mounted(container: Object, pod: Object, node: NodeContext, *, below: Path) -> dict[str, Path]:
    """Path of each mount of a Secret or an empty directory, and the folder behind it, which is there.

    ConfigMissing while a Secret is not there, unless the volume says that it is optional.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    result: dict[str, Path] = {}
    for mount in container.get("volumeMounts", []):
        volume, folder = volumes[mount["name"]], below / mount["name"]
        if volume.keys() & {"secret", "emptyDir"}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            result[mount["mountPath"].rstrip("/")] = folder
        if secret := volume.get("secret"):
            for name, value in (await _data(secret, pod["metadata"]["namespace"], node)).items():
                (folder / name).write_bytes(base64.b64decode(value))
    return result


async def _data(volume: Object, namespace: str, node: NodeContext) -> dict[str, str]:
    try:
        secret = await node.api.get(f"/api/v1/namespaces/{namespace}/secrets/{volume['secretName']}")
    except ApiError as error:
        if error.status == 404 and volume.get("optional"):
            return {}
        raise ConfigMissing(str(error)) from error
    return secret.get("data") or {}


def moved(word: str, behind: dict[str, Path]) -> str:
    """`PATH` or `--option=PATH` with the folder in place of the mount's path."""
    option, equals, value = word.rpartition("=")
    for path, folder in behind.items():
        if value == path or value.startswith(f"{path}/"):
            return f"{option}{equals}{folder}{value.removeprefix(path)}"
    return word
