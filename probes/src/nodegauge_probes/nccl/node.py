"""The node as NVML shows it, right before children take the GPUs, by the health probe's own readers.

The judge derives class, links and switches from the document that holds the bandwidth, so both are of one
moment.  NVML is closed again before a child starts: an open client is one more process on every GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import NOT_READ, Gpu, Int, LinkGroup, Unavailable
from nodegauge_probes.collectors import inventory, topology
from nodegauge_probes.host import sysfs
from nodegauge_probes.nccl import precondition
from nodegauge_probes.nccl.plan import Machine
from nodegauge_probes.nccl.precondition import Use
from nodegauge_probes.nvml.device import Watch
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import Draft, GpuDraft
from nodegauge_probes.session import Gpus, opened, unless_ill

SWITCH = topology.REMOTE_SWITCH
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"
MPS_PROCESSES = "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"
"""By version: the binding's call without one raises where the driver lacks the newest."""


class Node(Struct, frozen=True, kw_only=True):
    """What the draft has no place for.  `uses` belong to the usable GPUs, in their order."""

    gpus: list[Gpu]
    uses: list[Use]
    confidential: Int


def read(draft: Draft, *, watch: Watch, sysfs_root: Path, procfs: Path) -> Node:
    """Identity, pairs, links, fabric and PCIe into `draft`; raises `NvmlUnusable`."""
    with opened(draft, watch=watch, sysfs=sysfs_root, procfs=procfs) as (nvml, gpus):
        return _read(draft, nvml, gpus, sysfs_root)


def _read(draft: Draft, nvml: Nvml, gpus: Gpus, root: Path) -> Node:
    _ask(nvml, gpus, inventory.identity)
    topology.pairs(nvml, [device for device, _ in gpus], draft)
    for reader in (topology.links, topology.fabric, inventory.surroundings):
        _ask(nvml, gpus, reader)
    for gpu in draft.gpus:
        gpu.own["numa_node"] = sysfs.numa_node(sysfs.gpu_place(root, gpu.own.get("pci", NOT_READ)))
        topology.name_far_ends(gpu, root)
    read = [(device, draft_of.gpu()) for device, draft_of in gpus]
    able = {gpu.index for gpu in precondition.usable([gpu for _, gpu in read])}
    uses = [_use(nvml, device) for device, gpu in read if gpu.index in able]
    return Node(gpus=[gpu for _, gpu in read], uses=uses, confidential=confidential(nvml))


def _ask(nvml: Nvml, gpus: Gpus, reader: Callable[[Nvml, Device, GpuDraft], None]) -> None:
    for device, gpu in gpus:
        unless_ill(nvml, device, gpu, read=reader)


def confidential(nvml: Nvml) -> Int:
    """1 where confidential computing is on."""
    return nvml.integer(None, "nvmlSystemGetConfComputeState", pick=lambda state: state.ccFeature)


def _use(nvml: Nvml, device: Device) -> Use:
    counts = [
        nvml.integer(device, newest, otherwise=((older,),), pick=len)
        for newest, older in (PROCESSES, MPS_PROCESSES)
    ]
    known = [count for count in counts if isinstance(count, int)]
    return Use(
        processes=sum(known) if known else counts[0],
        used_mib=nvml.memory_mib(device, what="used"),
        free_mib=nvml.memory_mib(device, what="free"),
        virtualization=nvml.integer(device, "nvmlDeviceGetVirtualizationMode"),
    )


def machine(node: Node) -> Machine:
    """What the plan depends on: of the GPUs that take part, the least able ones decide."""
    able = precondition.usable(node.gpus)
    capabilities = [_capability(gpu) for gpu in able]
    known = [capability for capability in capabilities if capability is not None]
    return Machine(
        ranks=len(able),
        capability=min(known) if known and len(known) == len(able) else None,
        switched=bool(able) and all(_switched(gpu) for gpu in able),
        linked=bool(able) and all(any(map(_up, gpu.links)) for gpu in able),
        free_bytes=precondition.least_free(node.uses),
    )


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    if isinstance(gpu.compute_capability, Unavailable):
        return None
    major, _, minor = gpu.compute_capability.partition(".")
    return int(major), int(minor)


def _switched(gpu: Gpu) -> bool:
    """As NCCL sees it: a far end is a switch, or is hidden, which it takes for one."""
    told = isinstance(gpu.switch_links, int) and gpu.switch_links > 0
    return told or any(group.remote_type == SWITCH or group.remote == "" for group in gpu.links if _up(group))


def _up(group: LinkGroup) -> bool:
    return group.state in topology.UP
