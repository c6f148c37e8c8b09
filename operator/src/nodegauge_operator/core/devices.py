"""The GPUs of a node as NVIDIA's DRA driver publishes them: devices in ResourceSlices (resource.k8s.io/v1).

Source of the attributes: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go.  Only
slices of one node count: network-attached devices belong to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from nodegauge_operator import names

GPU, MIG = "gpu", "mig"
"""Values of the attribute `type`: a whole GPU, and a MIG device."""
_PCI = ("resource.kubernetes.io/pciBusID", "pciBusID")
"""The bus id, under the standard name or the driver's own."""


class Device(Struct, frozen=True, kw_only=True):
    """One device of a slice; a text is empty where the driver does not publish it."""

    driver: str
    """The DRA driver, `gpu.nvidia.com`."""
    pool: str
    """Pool of the slice, mostly the node's name."""
    name: str
    """Name within the pool, such as `gpu-0`: a claim's allocation names it."""
    uuid: str = ""
    """NVML's UUID."""
    pci: str = ""
    """PCI bus id, such as `0000:0f:00.0`."""
    product: str = ""
    """NVML's product name."""
    type: str = ""
    """`gpu`, `mig`, `vfio` and the like."""


class SliceView(Struct, frozen=True, kw_only=True):
    """A ResourceSlice, trimmed."""

    name: str
    """Its name."""
    resource_version: str
    """Version of the object that was read."""
    node: str
    """The node whose devices it lists."""
    pool: str
    """Its pool, of which several slices may be parts."""
    generation: int
    """Of the pool: only the slices of the highest one count."""
    devices: tuple[Device, ...]
    """In the driver's order."""


def slice_view(body: Mapping[str, Any]) -> SliceView | None:
    """The view of a ResourceSlice; None for one of another driver, or of no single node."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    driver, node = spec.get("driver", ""), spec.get("nodeName") or ""
    if driver != names.DRA_DRIVER or not node:
        return None
    pool = spec.get("pool") or {}
    return SliceView(
        name=metadata["name"],
        resource_version=metadata.get("resourceVersion", ""),
        node=node,
        pool=pool.get("name", ""),
        generation=int(pool.get("generation", 0)),
        devices=tuple(_device(item, pool=pool.get("name", "")) for item in spec.get("devices") or ()),
    )


def current(slices: Iterable[SliceView]) -> tuple[Device, ...]:
    """The devices of a node's slices, without those that a newer generation of their pool has replaced."""
    every = sorted(slices, key=lambda view: view.name)
    newest: dict[str, int] = {}
    for view in every:
        newest[view.pool] = max(view.generation, newest.get(view.pool, view.generation))
    return tuple(device for view in every if view.generation == newest[view.pool] for device in view.devices)


def _device(body: Mapping[str, Any], *, pool: str) -> Device:
    attributes = body.get("attributes") or {}

    def text(*keys: str) -> str:
        """The first of these attributes that is a text; one without a domain is the driver's own."""
        spelled = (name for key in keys for name in (key, f"{names.DRA_DRIVER}/{key}"))
        texts = (str((attributes.get(name) or {}).get("string") or "") for name in spelled)
        return next((value for value in texts if value), "")

    return Device(
        driver=names.DRA_DRIVER,
        pool=_shared(pool),
        name=_shared(body.get("name", "")),
        uuid=text("uuid"),
        pci=_shared(text(*_PCI)),
        product=_shared(text("productName")),
        type=_shared(text("type")),
    )


@lru_cache(maxsize=1 << 14)
def _shared(text: str) -> str:
    """The same text as one object: the devices of thousands of nodes are named alike."""
    return text
