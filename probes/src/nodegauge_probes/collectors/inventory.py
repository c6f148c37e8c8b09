"""Driver versions, and each GPU's identity, size, PCIe link, and the CPUs and memory next to it."""

from __future__ import annotations

from typing import Any

from nodegauge_contract import Text, Unavailable
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.values import ranges
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder

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
