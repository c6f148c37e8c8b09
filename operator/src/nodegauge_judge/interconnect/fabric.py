"""The GPU fabric (Hopper and later, behind NVSwitch): is each GPU registered, and are all in one clique?

The fabric manager starts after boot and takes its time, so what it has not done yet is no fault at first.
"""

from __future__ import annotations

from nodegauge_contract import Fabric, Gpu
from nodegauge_judge.case import Case, clip, short_name
from nodegauge_judge.gpu_models import known_models

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = 0, 1, 2, 3
_STATES = {NOT_STARTED: "has not started", IN_PROGRESS: "is still in progress"}
_UNHEALTHY, _LIMITED = 2, 3
_SUMMARISED = (1, _LIMITED)
"""Health summaries of a fabric that works: healthy, and limited capacity."""
START_SECONDS = 300.0
"""Seconds after boot that the fabric manager has for its start.  Source: NVIDIA/NVSentinel,
docs/designs/050-system-services-monitor-scope.md: its monitor of the fabric manager suppresses alerts for
300 s after boot."""

_BAD_BITS = (
    ("routes are unhealthy", 4, 0x3, 1),
    ("an access timed out", 6, 0x3, 1),
    ("no partition is assigned", 12, 0x3, 2),
    ("the fabric manager is disconnected", 14, 0x3, 2),
)
_DEGRADED = ("bandwidth is degraded", 0, 0x3, 1)
_PASSING_BITS = (_DEGRADED, ("routes are being recovered", 2, 0x3, 1))
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


def limited(gpu: Gpu) -> str:
    """How a fabric that works falls short of its bandwidth; empty if it does not.  leptonai/gpud reports the
    same two: the degraded bandwidth and the limited capacity."""
    fabric = gpu.fabric
    if fabric.state != COMPLETED or fabric_problem(gpu):
        return ""
    text, shift, width, bad = _DEGRADED
    mask = fabric.health_mask if isinstance(fabric.health_mask, int) else 0
    if (mask >> shift) & width == bad:
        return text
    return "its capacity is limited" if fabric.health_summary == _LIMITED else ""


def may_start(case: Case) -> bool:
    """Whether the node was booted so lately that the fabric manager may still be at work: links may be down,
    P2P refused and GPUs unregistered.  GPUs that are joined directly need no fabric manager."""
    up = case.result.host.boottime_ms
    if not isinstance(up, int) or not 0 <= up < START_SECONDS * 1000:
        return False
    states = {gpu.fabric.state for gpu in case.result.gpus}
    if states == {COMPLETED} or (any(case.lanes.sums) and not case.lanes.switched):
        return False
    models = (known_models().find(gpu.name) for gpu in case.result.gpus)
    return case.lanes.switched or not states.isdisjoint(_STATES) or any(m.links_behind_switch for m in models)


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
        if name := clique_name(gpu):
            by_name.setdefault(name, []).append(short_name(gpu))
    return by_name if len(by_name) > 1 else {}


def clique_name(gpu: Gpu) -> str:
    """Its clique as CLUSTER.CLIQUE, without dashes; empty for a GPU that is in none."""
    uuid, clique = gpu.fabric.cluster_uuid, gpu.fabric.clique
    known = gpu.fabric.state == COMPLETED and isinstance(uuid, str) and isinstance(clique, int)
    return f"{clip(str(uuid).replace('-', '').lower())}.{clique}" if known else ""
