"""What a node lends to the pods that run on it, as plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands read this and need no client
    import aiohttp

    from testbed.kubelet.api import Api
    from testbed.kubelet.devices import Devices
    from testbed.kubelet.images import Image

ADDRESS = "127.0.0.1"
"""Address of every node: they share the host's network."""


def pod_address(uid: str) -> str:
    """The loopback address of one pod's own: two operators may both serve on port 8080."""
    first, second, third = hashlib.sha256(uid.encode()).digest()[:3]
    return f"127.{1 + first % 254}.{second}.{1 + third % 254}"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware that is plugged into a node.  `environment`: variables of driver and files; `gpu_capacity`:
    more than GPUs where they are shared; `node_labels`: of GPU feature discovery; `devices`: of DRA, which
    then stands in for device plugin, runtime class and those labels."""

    gpu_count: int
    gpu_product: str
    gpu_capacity: int
    environment: Mapping[str, str]
    node_labels: Mapping[str, str] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    name: str
    api: Api
    http: aiohttp.ClientSession
    images: Mapping[str, Image]
    directory: Path
    hardware: Hardware | None
    devices: Devices
