"""How a probe reads a node: its boot, its PCI bus, its driver, and each GPU's identity and interconnect.

The health probe and the NCCL probe start alike, so that both documents describe the node in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodegauge_contract import Unavailable
from nodegauge_contract.model import MAX_GPUS
from nodegauge_probes.collectors import inventory, topology
from nodegauge_probes.host import kernel, pci
from nodegauge_probes.nvml.library import Device, Nvml, Watch
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder, empty_pairs

Gpus = list[tuple[Device, GpuBuilder]]
"""Every GPU with its part of the result, by index."""


@contextmanager
def open_node(
    result: ResultBuilder, *, watch: Watch, sysfs: Path, procfs: Path
) -> Iterator[tuple[Nvml, Gpus]]:
    """An open NVML session and the node's GPUs; raises `NvmlUnusable`."""
    result.host.set(boot_id=kernel.boot_id(procfs))
    result.host.set(boottime_ms=kernel.boottime_ms())
    result.bus = pci.bus(sysfs)
    nvml = Nvml(watch=watch, pause=time.sleep)
    nvml.open()
    try:
        inventory.versions(nvml, result)
        devices = nvml.devices()[:MAX_GPUS]
        result.gpus = [GpuBuilder(device.index) for device in devices]
        result.pairs = empty_pairs(len(devices))
        yield nvml, list(zip(devices, result.gpus, strict=True))
    finally:
        nvml.close()


def read_interconnect(
    result: ResultBuilder, nvml: Nvml, gpus: Gpus, *, sysfs: Path
) -> list[pci.Location | Unavailable]:
    """Identity, pairs, links, fabric and PCIe of every GPU; returns the GPUs' PCI locations."""
    for device, gpu in gpus:
        read(nvml, device, gpu, collect=inventory.identity)
    topology.pairs(nvml, [device for device, _ in gpus], result)
    for device, gpu in gpus:
        for collect in (topology.links, topology.fabric, inventory.locality):
            read(nvml, device, gpu, collect=collect)
    locations = [pci.locate_gpu(sysfs, gpu.identity.pci) for gpu in result.gpus]
    for gpu, location in zip(result.gpus, locations, strict=True):
        gpu.identity.numa_node = pci.numa_node(location)
        topology.add_remote_types(gpu, sysfs)
    return locations


def read(
    nvml: Nvml, device: Device, gpu: GpuBuilder, *, collect: Callable[[Nvml, Device, GpuBuilder], None]
) -> None:
    """Collect unless the GPU is lost; what is left out stays "not read"."""
    if device.lost is None:
        collect(nvml, device, gpu)
    gpu.error = device.fault
