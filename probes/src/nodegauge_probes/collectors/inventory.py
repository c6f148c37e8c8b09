"""What is there: versions, every GPU's identity, size, PCIe link, and the CPUs and memory next to it.

A GPU whose handle or whose first identity calls say that it is ill keeps its place in the list with the
error: a GPU that is missing from a result is another story than one that is broken.
"""

from __future__ import annotations

from typing import Any

from nodegauge_contract import Text, Unavailable
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.nvml.values import ranges
from nodegauge_probes.result_builder import Draft, GpuDraft

AFFINITY_WORDS, NODE_WORDS = 64, 16
"""64-bit words that are enough for 4,096 CPUs and 1,024 NUMA nodes, the kernel's largest on x86 and arm64."""

SCOPE_NODE = 0
"""NVML_AFFINITY_SCOPE_NODE: the CPUs and memory of the GPU's own NUMA node."""

_TEXTS = {
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "serial": "nvmlDeviceGetSerial",
    "vbios": "nvmlDeviceGetVbiosVersion",
}
_NUMBERS = {
    "minor": "nvmlDeviceGetMinorNumber",
    "architecture": "nvmlDeviceGetArchitecture",
    "gpu_numa_id": "nvmlDeviceGetNumaNodeId",
}
_PCIE = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "max_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "card_generation": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
}


def versions(nvml: Nvml, draft: Draft) -> None:
    draft.system["driver"] = nvml.text(None, "nvmlSystemGetDriverVersion")
    draft.system["nvml"] = nvml.text(None, "nvmlSystemGetNVMLVersion")
    draft.system["cuda"] = nvml.integer(None, "nvmlSystemGetCudaDriverVersion_v2")


def identity(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """Who this GPU is; these calls are the first that a lost GPU refuses."""
    gpu.own["pci"] = nvml.pci(device)
    for field, call in _TEXTS.items():
        gpu.own[field] = nvml.text(device, call)
    for field, call in _NUMBERS.items():
        gpu.own[field] = nvml.integer(device, call)
    gpu.own["compute_capability"] = nvml.text(
        device, "nvmlDeviceGetCudaComputeCapability", pick=lambda answer: f"{answer[0]}.{answer[1]}"
    )
    gpu.own["module_id"] = nvml.module_id(device)
    gpu.own["memory_mib"] = nvml.memory_mib(device)
    gpu.own["persistence"] = nvml.value(device, "nvmlDeviceGetPersistenceMode", pick=bool)
    gpu.own["mig"] = nvml.integer(device, "nvmlDeviceGetMigMode", pick=lambda modes: modes[0])


def surroundings(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """The CPUs and NUMA nodes next to the GPU, and its PCIe link."""
    older = (("nvmlDeviceGetCpuAffinity", AFFINITY_WORDS),)
    call = "nvmlDeviceGetCpuAffinityWithinScope"
    gpu.own["cpus"] = _set(nvml.value(device, call, AFFINITY_WORDS, SCOPE_NODE, otherwise=older, pick=list))
    call = "nvmlDeviceGetMemoryAffinity"
    gpu.own["memory_nodes"] = _set(nvml.value(device, call, NODE_WORDS, SCOPE_NODE, pick=list))
    for field, call in _PCIE.items():
        gpu.pcie[field] = nvml.integer(device, call)


def _set(words: Any) -> Text:
    if isinstance(words, Unavailable):
        return words
    text = ranges(words)
    if not text:
        return Unavailable("the driver answered an empty set")
    return text if len(text) <= 128 else Unavailable(f"too long to carry: {text[:80]}…")
