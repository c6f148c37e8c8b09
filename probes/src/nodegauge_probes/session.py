"""How a probe reads a node: its boot, its PCI bus, its driver, and each GPU's identity and interconnect.

The health probe and the NCCL probe start alike, so that both documents describe the node in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodegauge_contract import Text, Unavailable
from nodegauge_contract.model import MAX_GPUS
from nodegauge_probes.collectors import topology
from nodegauge_probes.host import kernel, pci
from nodegauge_probes.nvml.library import NOTHING, Device, Nvml, Skip, Watch
from nodegauge_probes.nvml.results import ranges
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder, empty_pairs

Gpus = list[tuple[Device, GpuBuilder]]
"""Every GPU with its part of the result, by index."""


@contextmanager
def open_node(
    result: ResultBuilder, *, watch: Watch, sysfs: Path, procfs: Path, skip: Skip = NOTHING
) -> Iterator[tuple[Nvml, Gpus]]:
    """An open NVML session and the node's GPUs; raises `NvmlUnusable`."""
    result.host.set(boot_id=kernel.boot_id(procfs))
    result.host.set(boottime_ms=kernel.boottime_ms())
    synchronised, error = kernel.clock_discipline()
    result.host.set(kernel=kernel.release(), clock_synchronised=synchronised, clock_error_us=error)
    result.bus = pci.bus(sysfs, procfs=procfs)
    nvml = Nvml(watch=watch, pause=time.sleep, skip=skip, access=result.access)
    nvml.open()
    try:
        versions(nvml, result)
        devices = nvml.devices()[:MAX_GPUS]
        result.gpus = [GpuBuilder(device.index) for device in devices]
        yield nvml, list(zip(devices, result.gpus, strict=True))
    finally:
        nvml.close()


def read_interconnect(
    result: ResultBuilder, nvml: Nvml, gpus: Gpus, *, sysfs: Path
) -> list[pci.Location | Unavailable]:
    """Identity, pairs, links, fabric and PCIe of every GPU; returns the GPUs' PCI locations."""
    for device, gpu in gpus:
        read(nvml, device, gpu, collect=identity)
    result.pairs = empty_pairs(len(gpus))
    topology.pairs(nvml, [device for device, _ in gpus], result)
    for device, gpu in gpus:
        for collect in (topology.links, topology.fabric, locality):
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


AFFINITY_WORDS, NODE_WORDS = 64, 16
"""64-bit words for 4,096 CPUs and 1,024 NUMA nodes, the kernel's maximum on x86 and arm64."""

SCOPE_NODE = 0
"""NVML_AFFINITY_SCOPE_NODE: the CPUs and memory of the GPU's NUMA node."""


def versions(nvml: Nvml, result: ResultBuilder) -> None:
    result.system.set(driver=nvml.text(None, "nvmlSystemGetDriverVersion"))
    result.system.set(nvml=nvml.text(None, "nvmlSystemGetNVMLVersion"))
    result.system.set(cuda=nvml.integer(None, "nvmlSystemGetCudaDriverVersion_v2"))


def identity(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Names and numbers of the GPU; a lost GPU refuses these calls first."""
    own = gpu.identity
    own.pci = nvml.pci(device)
    own.uuid = nvml.text(device, "nvmlDeviceGetUUID")
    own.name = nvml.text(device, "nvmlDeviceGetName")
    own.serial = nvml.text(device, "nvmlDeviceGetSerial")
    own.vbios = nvml.text(device, "nvmlDeviceGetVbiosVersion")
    own.minor = nvml.integer(device, "nvmlDeviceGetMinorNumber")
    own.architecture = nvml.integer(device, "nvmlDeviceGetArchitecture")
    own.gpu_numa_id = nvml.integer(device, "nvmlDeviceGetNumaNodeId")
    own.compute_capability = nvml.text(
        device, "nvmlDeviceGetCudaComputeCapability", pick=lambda answer: f"{answer[0]}.{answer[1]}"
    )
    own.module_id = nvml.module_id(device)
    own.memory_mib = nvml.memory_mib(device)
    own.persistence = nvml.value(device, "nvmlDeviceGetPersistenceMode", pick=bool)
    own.mig = nvml.integer(device, "nvmlDeviceGetMigMode", pick=lambda modes: modes[0])
    own.compute_mode = nvml.integer(device, "nvmlDeviceGetComputeMode")
    own.virtualization = nvml.integer(device, "nvmlDeviceGetVirtualizationMode")


def locality(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """The CPUs and NUMA nodes next to the GPU, and its PCIe link."""
    older = (("nvmlDeviceGetCpuAffinity", AFFINITY_WORDS),)
    call = "nvmlDeviceGetCpuAffinityWithinScope"
    cpus = nvml.value(device, call, AFFINITY_WORDS, SCOPE_NODE, fallbacks=older, pick=list)
    gpu.identity.cpus = _set_of(cpus)
    memory = nvml.value(device, "nvmlDeviceGetMemoryAffinity", NODE_WORDS, SCOPE_NODE, pick=list)
    gpu.identity.memory_nodes = _set_of(memory)
    gpu.pcie.set(generation=nvml.integer(device, "nvmlDeviceGetCurrPcieLinkGeneration"))
    gpu.pcie.set(width=nvml.integer(device, "nvmlDeviceGetCurrPcieLinkWidth"))
    gpu.pcie.set(max_generation=nvml.integer(device, "nvmlDeviceGetMaxPcieLinkGeneration"))
    gpu.pcie.set(max_width=nvml.integer(device, "nvmlDeviceGetMaxPcieLinkWidth"))
    gpu.pcie.set(card_generation=nvml.integer(device, "nvmlDeviceGetGpuMaxPcieLinkGeneration"))


def _set_of(mask: Any) -> Text:
    if isinstance(mask, Unavailable):
        return mask
    text = ranges(mask)
    if not text:
        return Unavailable("the driver returned an empty set")
    return text if len(text) <= 128 else Unavailable(f"too long to carry: {text[:80]}…")
