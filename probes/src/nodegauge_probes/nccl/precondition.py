"""Whether this node can be measured now, and if not, why.  A skipped run is a result, and an old one stays
valid.

Next to a running job, an NCCL run would measure that job and slow it down; on a part of a GPU it would
measure the part.  The node is read by the health probe's collectors, so that interconnect class and bandwidth
describe the same moment.  NVML is closed before a child starts, because an open client is a process on every
GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import NOT_READ, Gpu, Int, LinkGroup, Skip, Unavailable
from nodegauge_contract.nccl import MAX_RANKS
from nodegauge_probes.collectors import topology
from nodegauge_probes.nccl.plan import Machine
from nodegauge_probes.nvml.library import Device, Nvml, Watch
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.session import Gpus, open_node, read_interconnect

PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"
MPS_PROCESSES = "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"
"""By version: the binding's call without a version raises if the driver lacks the newest one."""

VGPU_MODES = {2: "a vGPU", 3: "a vGPU host", 4: "a vSGA host"}
"""NVML_GPU_VIRTUALIZATION_MODE_*; 0 none and 1 passthrough are whole GPUs."""

IDLE_MIB = 1024
"""GPU memory in use, without the driver's reserve, above which the GPU counts as busy: PID namespaces hide
other containers' processes.  Chosen by this project: a CUDA context takes about 0.5 GiB, a desktop less than
1."""
BUSY_PERCENT = 5
"""NVML's utilisation from which a GPU counts as busy where its memory tells nothing (`holds_page_cache`).
Chosen by this project: an agent that reads counters stays below it."""
FI_C2C_LINKS = 170
"""NVML_FI_DEV_C2C_LINK_COUNT: links that join a GPU coherently with its CPU (GH200, GB200)."""


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU's current use: compute processes, memory in use and free (MiB), kind of virtualisation,
    utilisation (per cent); `c2c_links`: links to a coherent CPU."""

    processes: Int
    used_mib: Int
    free_mib: Int
    virtualization: Int
    utilization: Int = NOT_READ
    c2c_links: Int = NOT_READ


class Node(Struct, frozen=True, kw_only=True):
    """The node at the start of the run.  `uses` belong to `usable(gpus)`; `confidential`: 1 if confidential
    computing is on."""

    gpus: list[Gpu]
    uses: list[GpuUse]
    confidential: Int


class Skipped(Struct, frozen=True, kw_only=True):
    """Why nothing is measured, with a message."""

    reason: Skip
    message: str


def read_node(result: ResultBuilder, *, watch: Watch, sysfs: Path, procfs: Path) -> Node:
    """Read identity, pairs, links, fabric and PCIe into `result`; raises `NvmlUnusable`."""
    with open_node(result, watch=watch, sysfs=sysfs, procfs=procfs) as (nvml, gpus):
        read_interconnect(result, nvml, gpus, sysfs=sysfs)
        return describe(nvml, gpus)


def describe(nvml: Nvml, gpus: Gpus) -> Node:
    """The node as the builders of its GPUs have it, and the current use of its usable GPUs."""
    read = [(device, builder.build()) for device, builder in gpus]
    indices = {gpu.index for gpu in usable([gpu for _, gpu in read])}
    return Node(
        gpus=[gpu for _, gpu in read],
        uses=[read_use(nvml, device) for device, gpu in read if gpu.index in indices],
        confidential=read_confidential(nvml),
    )


def read_use(nvml: Nvml, device: Device) -> GpuUse:
    counts = [
        nvml.integer(device, newest, fallbacks=((older,),), pick=len)
        for newest, older in (PROCESSES, MPS_PROCESSES)
    ]
    known = [count for count in counts if isinstance(count, int)]
    return GpuUse(
        processes=sum(known) if known else counts[0],
        used_mib=nvml.memory_mib(device, what="used"),
        free_mib=nvml.memory_mib(device, what="free"),
        virtualization=nvml.integer(device, "nvmlDeviceGetVirtualizationMode"),
        utilization=nvml.integer(device, "nvmlDeviceGetUtilizationRates", pick=lambda rates: rates.gpu),
        c2c_links=nvml.whole_field(device, FI_C2C_LINKS),
    )


def holds_page_cache(gpu: Gpu, use: GpuUse) -> bool:
    """Whether the kernel may keep files in the GPU's memory, as on GH200, GB200 and GB10: it is a NUMA node
    of the machine, or the CPU reaches it coherently.

    Memory in use then says nothing about jobs, and page cache makes way for them ("Understanding Memory
    Management on Hardware-Coherent Platforms", NVIDIA developer blog).
    """
    numa_node = isinstance(gpu.gpu_numa_id, int) and gpu.gpu_numa_id >= 0
    return numa_node or (isinstance(use.c2c_links, int) and use.c2c_links > 0)


def read_confidential(nvml: Nvml) -> Int:
    return nvml.integer(None, "nvmlSystemGetConfComputeState", pick=lambda state: state.ccFeature)


def usable(gpus: Sequence[Gpu]) -> list[Gpu]:
    """GPUs that respond and have a UUID, by which a child requests them; in the order of NVML."""
    return [gpu for gpu in gpus if gpu.error is None and isinstance(gpu.uuid, str)][:MAX_RANKS]


def skip_reason(node: Node, *, expected: int, shared: str) -> Skipped | None:
    """Why the NCCL probe does not measure the node, if so."""
    if skipped := not_whole(node, shared=shared):
        return skipped
    gpus = usable(node.gpus)
    if len(gpus) < 2:
        total = max(expected, len(node.gpus))
        message = f"{len(gpus)} of {total} GPUs can be used; NCCL needs at least two"
        return Skipped(reason=Skip.SINGLE_GPU, message=message)
    return busy(gpus, node.uses)


def not_whole(node: Node, *, shared: str) -> Skipped | None:
    """Why the GPUs are not this node's whole and own GPUs, if so."""
    gpus = usable(node.gpus)
    if shared:
        return Skipped(reason=Skip.SHARED, message=f"the GPUs are shared: {shared}"[:240])
    if any(gpu.mig == 1 for gpu in gpus):
        return Skipped(reason=Skip.MIG, message="MIG is on: only parts of GPUs could be measured")
    for use in node.uses:
        if isinstance(use.virtualization, int) and use.virtualization in VGPU_MODES:
            message = f"according to NVML this is {VGPU_MODES[use.virtualization]}"
            return Skipped(reason=Skip.VGPU, message=message)
    if node.confidential == 1:
        message = "confidential computing is on: copies are encrypted"
        return Skipped(reason=Skip.CONFIDENTIAL, message=message)
    return None


def busy(gpus: Sequence[Gpu], uses: Sequence[GpuUse]) -> Skipped | None:
    """Who uses one of the usable GPUs, if anybody does."""
    for gpu, use in zip(gpus, uses, strict=True):
        if isinstance(use.processes, int) and use.processes > 0:
            plural = "es" if use.processes > 1 else ""
            message = f"GPU {gpu.index} is in use by {use.processes} compute process{plural}"
            return Skipped(reason=Skip.BUSY, message=message)
        if sign := _sign_of_use(gpu, use):
            message = f"{sign}, but no process is visible"
            return Skipped(reason=Skip.BUSY, message=message)
    return None


def _sign_of_use(gpu: Gpu, use: GpuUse) -> str:
    """What shows a job of a container whose processes are hidden; empty for nothing."""
    if holds_page_cache(gpu, use):
        busy = isinstance(use.utilization, int) and use.utilization >= BUSY_PERCENT
        return f"GPU {gpu.index} is at {use.utilization} % utilisation" if busy else ""
    in_use = isinstance(use.used_mib, int) and use.used_mib > IDLE_MIB
    return f"{use.used_mib} MiB of GPU {gpu.index} are in use" if in_use else ""


def missing(gpus: Sequence[Gpu], *, expected: int) -> str:
    """A message about the GPUs that do not take part; empty if all do."""
    total = max(expected, len(gpus))
    if len(usable(gpus)) >= total:
        return ""
    faulty = [f"GPU {gpu.index} {gpu.error.kind}" for gpu in gpus if gpu.error is not None]
    hidden = max(expected - len(gpus), 0)
    parts = [*faulty, *([f"{hidden} not visible"] if hidden else [])]
    return f"measured on {len(usable(gpus))} of {total} GPUs: {', '.join(parts)}"[:240]


def machine(node: Node) -> Machine:
    """The inputs of the plan: of the GPUs that take part, the least capable one decides."""
    gpus = usable(node.gpus)
    capabilities = [_capability(gpu) for gpu in gpus]
    known = [capability for capability in capabilities if capability is not None]
    return Machine(
        ranks=len(gpus),
        capability=min(known) if known and len(known) == len(gpus) else None,
        switched=bool(gpus) and all(_switched(gpu) for gpu in gpus),
        linked=bool(gpus) and all(any(map(_up, gpu.links)) for gpu in gpus),
        free_bytes=least_free(
            [use for gpu, use in zip(gpus, node.uses, strict=True) if not holds_page_cache(gpu, use)]
        ),
    )


def least_free(uses: Sequence[GpuUse]) -> int | None:
    """Bytes free on the fullest GPU; None if one of them is unknown."""
    free = [use.free_mib for use in uses if isinstance(use.free_mib, int)]
    return min(free) << 20 if free and len(free) == len(uses) else None


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    if isinstance(gpu.compute_capability, Unavailable):
        return None
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major), int(minor)


def _switched(gpu: Gpu) -> bool:
    """As in NCCL: a remote end is a switch, or it is hidden, which NCCL takes for a switch."""
    wired = isinstance(gpu.switch_links, int) and gpu.switch_links > 0
    up = [group for group in gpu.links if _up(group)]
    return wired or any(group.remote_type == topology.REMOTE_SWITCH or group.remote == "" for group in up)


def _up(group: LinkGroup) -> bool:
    return group.state in topology.UP
