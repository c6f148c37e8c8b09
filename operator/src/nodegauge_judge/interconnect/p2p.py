"""May GPUs use their NVLinks?  The P2P status of each pair with links, and the state of the GPU fabric.

NCCL checks READ and WRITE for every hop and fails to initialise if a pair with NVLinks is not OK
(src/graph/paths.cc), so links without P2P are worthless.  An unreadable status is unknown.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import Fabric, Gpu, Result, Unavailable
from nodegauge_contract.model import Grid
from nodegauge_contract.nvlink import Lanes

OK, UNKNOWN = 0, 6
_REFUSALS = {
    1: "CNS: chipset not supported",
    2: "GNS: GPU not supported",
    3: "TNS: topology not supported",
    4: "DR: disabled by a registry key",
    5: "NS: not supported",
}
"""NVML_P2P_STATUS_*, with the letters of `nvidia-smi topo -p2p`."""

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


class PairP2p(Struct, frozen=True, kw_only=True):
    """A pair (positions i < j) with `links` NVLinks: what is refused and what is unknown, as text."""

    i: int
    j: int
    links: int
    refused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def examine(result: Result, lanes: Lanes) -> list[PairP2p]:
    """Every pair that has NVLinks, with its P2P status in both directions."""
    size = len(lanes.sums)
    return [
        _pair(result, i, j, links=max(lanes.pair[i][j], lanes.pair[j][i]))
        for i in range(size)
        for j in range(i + 1, size)
        if lanes.pair[i][j] or lanes.pair[j][i]
    ]


def silently_joined(result: Result, lanes: Lanes) -> list[tuple[int, int]]:
    """Pairs that claim P2P over NVLink while no link between them is reported: one of the two is wrong."""
    size = len(lanes.sums)
    return [
        (i, j)
        for i in range(size)
        for j in range(i + 1, size)
        if not lanes.pair[i][j] and _at(result.pairs.nvlink, i, j) == _at(result.pairs.nvlink, j, i) == OK
    ]


def _pair(result: Result, i: int, j: int, *, links: int) -> PairP2p:
    refused: dict[str, None] = {}
    unknown: dict[str, None] = {}
    grids = (("READ", result.pairs.read), ("WRITE", result.pairs.write), ("NVLINK", result.pairs.nvlink))
    for name, grid in grids:
        for status in (_at(grid, i, j), _at(grid, j, i)):
            if isinstance(status, int) and status in _REFUSALS:
                refused[f"{name} ({_REFUSALS[status]})"] = None
            elif status != OK:
                unknown[f"{name} ({_unknown_status(status)})"] = None
    return PairP2p(i=i, j=j, links=links, refused=tuple(refused), unknown=tuple(unknown))


def _unknown_status(status: int | Unavailable | None) -> str:
    if isinstance(status, Unavailable):
        return f"not readable: {status.unavailable[:80]}"
    if status is None:
        return "not in the document"
    return "U: unknown to the driver" if status == UNKNOWN else f"status {status}, not known here"


def _at(grid: Grid, i: int, j: int) -> int | Unavailable | None:
    return grid[i][j] if i < len(grid) and j < len(grid[i]) else None


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
