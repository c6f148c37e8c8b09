"""How the reading of a node begins and ends: its boot, its bus, its driver, a draft with each GPU in it.

What is read of the GPUs, and in which order, is each probe's own business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodegauge_contract.model import MAX_GPUS
from nodegauge_probes.collectors import inventory
from nodegauge_probes.host import boot, pci
from nodegauge_probes.nvml.device import Watch
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import Draft, GpuDraft, Grids

Gpus = list[tuple[Device, GpuDraft]]
"""Every GPU with its place in the draft, by index."""


@contextmanager
def opened(draft: Draft, *, watch: Watch, sysfs: Path, procfs: Path) -> Iterator[tuple[Nvml, Gpus]]:
    """NVML while it is read from; raises `NvmlUnusable`."""
    draft.host["boot_id"] = boot.boot_id(procfs)
    draft.host["boottime_ms"] = boot.boottime_ms()
    draft.bus = pci.bus(sysfs)
    nvml = Nvml(watch=watch, pause=time.sleep)
    nvml.open()
    try:
        inventory.versions(nvml, draft)
        devices = nvml.devices()[:MAX_GPUS]
        draft.gpus = [GpuDraft(device.index) for device in devices]
        draft.grids = Grids(len(devices))
        yield nvml, list(zip(devices, draft.gpus, strict=True))
    finally:
        nvml.close()


def unless_ill(
    nvml: Nvml, device: Device, gpu: GpuDraft, *, read: Callable[[Nvml, Device, GpuDraft], None]
) -> None:
    """Read on while the GPU answers; what is left out of one that does not stays "not read"."""
    if device.gone is None:
        read(nvml, device, gpu)
    gpu.problem = device.problem
