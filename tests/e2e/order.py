"""What the outer program tells the inner one: a JSON file, read once."""

from __future__ import annotations

from pathlib import Path

import msgspec

PROFILE = "h100-sxm-8"
"""The machine that the node is."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Folders and programs, as absolute paths.

    `steps`: which to run, empty for all; `record`: write down what the real kubelet shows of the common pods,
    instead of comparing it.
    """

    directory: str
    runtime: str
    kubelet: str
    images: tuple[str, ...]
    steps: tuple[str, ...] = ()
    record: bool = False

    def write(self, path: Path) -> Path:
        """Put it into a file; the file's path."""
        path.write_bytes(msgspec.json.encode(self))
        return path


def read(path: Path) -> Order:
    """The order that was written."""
    return msgspec.json.decode(path.read_bytes(), type=Order)
