"""Does the GPU fabric (Hopper and later, behind NVSwitch) agree that NVLink can be used?

Source: nvml.h, nvmlGpuFabricInfo_v3_t and NVML_GPU_FABRIC_HEALTH_MASK_*.  State NOT_SUPPORTED, and anything
that could not be read, is no opinion: DGX-1, A100, PCIe cards and virtual GPUs have no such fabric.
"""

from __future__ import annotations

from nodegauge_contract import Fabric, Gpu

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = 0, 1, 2, 3
_STATES = {NOT_STARTED: "has not started", IN_PROGRESS: "is still in progress"}
_UNHEALTHY = 2
_SUMMARISED = (1, 3)
"""Health summaries that vouch for the fabric: healthy, and limited capacity (works, with less)."""

_BAD_BITS = (
    ("routes are unhealthy", 4, 0x3, 1),
    ("an access timed out", 6, 0x3, 1),
    ("no partition is assigned", 12, 0x3, 2),
    ("the fabric manager is disconnected", 14, 0x3, 2),
)
_PASSING_BITS = (("bandwidth is degraded", 0, 0x3, 1), ("routes are being recovered", 2, 0x3, 1))
"""Words, shift, width and the bad value.  The passing ones count only where no summary vouches."""
_CONFIGURATION_SHIFT, _CONFIGURATION_WIDTH, _CONFIGURATION_FINE = 8, 0xF, (0, 1)


def disagreement(gpu: Gpu) -> str:
    """Why this GPU's fabric disagrees with using NVLink, in words; empty when it agrees or has no opinion."""
    fabric = gpu.fabric
    if not isinstance(fabric.state, int) or fabric.state == NOT_SUPPORTED:
        return ""
    if fabric.state != COMPLETED:
        return f"registration with the fabric {_STATES.get(fabric.state, f'is in state {fabric.state}')}"
    if isinstance(fabric.status, int) and fabric.status != 0:
        return f"registration with the fabric completed with error {fabric.status}"
    return _health(fabric)


def _health(fabric: Fabric) -> str:
    mask = fabric.health_mask if isinstance(fabric.health_mask, int) else 0
    bits = _BAD_BITS if fabric.health_summary in _SUMMARISED else _BAD_BITS + _PASSING_BITS
    words = [word for word, shift, width, bad in bits if (mask >> shift) & width == bad]
    configuration = (mask >> _CONFIGURATION_SHIFT) & _CONFIGURATION_WIDTH
    if configuration not in _CONFIGURATION_FINE:
        words.append(f"its configuration is wrong (code {configuration})")
    if fabric.health_summary == _UNHEALTHY and not words:
        words.append("it calls itself unhealthy")
    return f"the fabric is not fit for use: {', '.join(words)}" if words else ""
