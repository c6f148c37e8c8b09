"""The GPU fabric (Hopper and later, behind NVSwitch): is each GPU registered, and are all in one clique?"""

from __future__ import annotations

from nodegauge_contract import Fabric, Gpu
from nodegauge_judge.case import Case, clip, short_name

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = 0, 1, 2, 3
_STATES = {NOT_STARTED: "has not started", IN_PROGRESS: "is still in progress"}
_UNHEALTHY = 2
_SUMMARISED = (1, 3)
"""Health summaries of a fabric that works: healthy, and limited capacity."""

_BAD_BITS = (
    ("routes are unhealthy", 4, 0x3, 1),
    ("an access timed out", 6, 0x3, 1),
    ("no partition is assigned", 12, 0x3, 2),
    ("the fabric manager is disconnected", 14, 0x3, 2),
)
_PASSING_BITS = (("bandwidth is degraded", 0, 0x3, 1), ("routes are being recovered", 2, 0x3, 1))
"""Text, shift, mask and the bad value.  The passing ones count only without such a summary.  Source: nvml.h,
NVML_GPU_FABRIC_HEALTH_MASK_*."""
_CONFIGURATION_SHIFT, _CONFIGURATION_WIDTH, _CONFIGURATION_FINE = 8, 0xF, (0, 1)


def fabric_problem(gpu: Gpu) -> str:
    """Why the fabric of this GPU (Hopper and later, behind NVSwitch) is not ready; empty if it is.

    A state of NOT_SUPPORTED or an unreadable one is no problem: DGX-1, A100, PCIe cards and virtual GPUs have
    no such fabric.  Source: nvml.h, nvmlGpuFabricInfo_v3_t.
    """
    fabric = gpu.fabric
    if not isinstance(fabric.state, int) or fabric.state == NOT_SUPPORTED:
        return ""
    if fabric.state != COMPLETED:
        return f"registration with the fabric {_STATES.get(fabric.state, f'is in state {fabric.state}')}"
    if isinstance(fabric.status, int) and fabric.status != 0:
        return f"registration with the fabric completed with error {fabric.status}"
    return _fabric_health(fabric)


def _fabric_health(fabric: Fabric) -> str:
    mask = fabric.health_mask if isinstance(fabric.health_mask, int) else 0
    bits = _BAD_BITS if fabric.health_summary in _SUMMARISED else _BAD_BITS + _PASSING_BITS
    problems = [text for text, shift, width, bad in bits if (mask >> shift) & width == bad]
    configuration = (mask >> _CONFIGURATION_SHIFT) & _CONFIGURATION_WIDTH
    if configuration not in _CONFIGURATION_FINE:
        problems.append(f"its configuration is wrong (code {configuration})")
    if fabric.health_summary == _UNHEALTHY and not problems:
        problems.append("it reports itself as unhealthy")
    return f"the fabric is unhealthy: {', '.join(problems)}" if problems else ""


def cliques(case: Case) -> dict[str, list[str]]:
    """Short names of GPUs by clique, if the node's GPUs are in more than one; empty otherwise.

    GPUs of one cluster and one clique reach each other over NVLink, others do not (nvml.h,
    nvmlGpuFabricInfo_v3_t: clusterUuid, cliqueId).  A clique is named as GFD's label nvidia.com/gpu.clique
    is, CLUSTER.CLIQUE.  A GPU that has not completed its registration, has no fabric or does not tell its
    clique is in none.  HGX machines complete with an all-zero cluster and clique 0, which all their GPUs
    share.
    """
    by_name: dict[str, list[str]] = {}
    for gpu in case.result.gpus:
        uuid, clique = gpu.fabric.cluster_uuid, gpu.fabric.clique
        if gpu.fabric.state == COMPLETED and isinstance(uuid, str) and isinstance(clique, int):
            name = f"{clip(uuid.replace('-', '').lower())}.{clique}"
            by_name.setdefault(name, []).append(short_name(gpu))
    return by_name if len(by_name) > 1 else {}
