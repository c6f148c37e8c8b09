"""Empty directories: a folder of the pod stands behind each, and outlives the container that writes there.

Processes here share the host's file system, so an argument that names the mount's path names that folder
instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

Object = dict[str, Any]


def folders(pod: Object, container: Object, *, below: Path) -> dict[str, Path]:
    """Path of each mount of an empty directory, and the folder behind it, which is there."""
    empty = {volume["name"] for volume in pod["spec"].get("volumes", []) if "emptyDir" in volume}
    result = {
        mount["mountPath"].rstrip("/"): below / "scratch" / mount["name"]
        for mount in container.get("volumeMounts", [])
        if mount["name"] in empty
    }
    for folder in result.values():
        folder.mkdir(parents=True, exist_ok=True)
    return result


def relocated(arguments: list[str], behind: dict[str, Path]) -> list[str]:
    """The arguments, `PATH` and `--option=PATH`, with the folder in place of the mount's path."""
    return [_moved(word, behind) for word in arguments]


def _moved(word: str, behind: dict[str, Path]) -> str:
    option, equals, value = word.rpartition("=")
    for path, folder in behind.items():
        if value == path or value.startswith(f"{path}/"):
            return f"{option}{equals}{folder}{value.removeprefix(path)}"
    return word
