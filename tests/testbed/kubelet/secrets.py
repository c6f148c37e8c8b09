"""Secret volumes: their files, and where a container finds them.

On a real node they are mounted at a path of the container's own.  Processes here share the host's file
system: the files are written into the pod's folder, and every variable that names the mount's path names that
folder instead.  They are written when a container starts; a Secret that changes later is not written again.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from testbed.errors import ApiError
from testbed.kubelet.context import NodeContext
from testbed.kubelet.errors import ConfigMissing

Object = dict[str, Any]


async def mounted(
    container: Object, pod: Object, node: NodeContext, *, env: dict[str, str], directory: Path
) -> dict[str, str]:
    """Write the container's Secret volumes below `directory`; its environment with the paths of the host.

    ConfigMissing while a Secret is not there, unless the volume says that it is optional.
    """
    volumes = {
        volume["name"]: volume["secret"] for volume in pod["spec"].get("volumes", []) if "secret" in volume
    }
    paths: dict[str, Path] = {}
    for mount in container.get("volumeMounts", []):
        if mount["name"] in volumes:
            folder = directory / mount["name"]
            _write(await _data(volumes[mount["name"]], pod["metadata"]["namespace"], node), folder)
            paths[mount["mountPath"].rstrip("/")] = folder
    return {name: _moved(value, paths) for name, value in env.items()}


async def _data(volume: Object, namespace: str, node: NodeContext) -> dict[str, str]:
    try:
        secret = await node.api.get(f"/api/v1/namespaces/{namespace}/secrets/{volume['secretName']}")
    except ApiError as error:
        if error.status == 404 and volume.get("optional"):
            return {}
        raise ConfigMissing(str(error)) from error
    data: dict[str, str] = secret.get("data") or {}
    return data


def _write(data: dict[str, str], folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, value in data.items():
        (folder / name).write_bytes(base64.b64decode(value))


def _moved(value: str, paths: dict[str, Path]) -> str:
    for path, folder in paths.items():
        if value == path or value.startswith(f"{path}/"):
            return f"{folder}{value.removeprefix(path)}"
    return value
