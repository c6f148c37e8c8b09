"""Does each GPU have as many NVLinks as it should, and may it use them?

Behind switches, siblings of the same model must have equal counts; on any node, a GPU must keep the count of
earlier runs.  Two comparisons would mislead: with the architecture's maximum (A800, H800 and H100 NVL have
fewer links by design), and pair with pair (a healthy mesh is uneven).

NCCL checks P2P READ and WRITE for every hop and fails to initialise if a pair with NVLinks is not OK
(src/graph/paths.cc), so links without P2P are worthless.  An unreadable status is unknown.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_contract import Fabric, Gpu, Result, Unavailable
from nodegauge_contract.model import Grid
from nodegauge_contract.nvlink import Doubt, Lanes
from nodegauge_judge.case import Case
from nodegauge_judge.visibility import is_complete


class Against(StrEnum):
    """What the expected sum comes from."""

    SIBLINGS = "siblings"
    HISTORY = "history"


class Shortfall(Struct, frozen=True, kw_only=True):
    """GPU `gpu_index` has `have` active links instead of `expected`."""

    gpu_index: int
    have: int
    expected: int
    against: Against

    @property
    def ratio(self) -> float:
        """Share of the expected links that is there."""
        return self.have / self.expected


def shortfalls(case: Case) -> list[Shortfall]:
    """Every GPU with fewer links than expected; none while MIG is on or its links are unclear."""
    if case.lanes.mig:
        return []
    return [
        short
        for gpu_index in range(len(case.lanes.sums))
        if (short := _shortfall(case, gpu_index)) is not None
    ]


def failed(case: Case) -> list[Shortfall]:
    """The shortfalls below the policy's share of the expected links, which remove the interconnect label."""
    return [short for short in shortfalls(case) if short.ratio < case.thresholds.nvlink_sum_ratio]


def uncertain(case: Case) -> frozenset[int]:
    """GPUs whose link sum is uncertain, because some of their links could not be resolved.

    A GPU with every link down is certain: zero is a fact.
    """
    return frozenset(doubt.gpu for doubt in case.lanes.unresolved if doubt.doubt is not Doubt.SILENT)


def _shortfall(case: Case, gpu_index: int) -> Shortfall | None:
    gpu, have = case.result.gpus[gpu_index], case.lanes.sums[gpu_index]
    if gpu.error is not None or case.result.problem is not None or gpu_index in uncertain(case):
        return None
    siblings, past = _siblings(case, gpu_index), _in_history(case, gpu_index)
    expected, against = max((siblings, Against.SIBLINGS), (past, Against.HISTORY), key=lambda e: e[0])
    return (
        Shortfall(gpu_index=gpu_index, have=have, expected=expected, against=against)
        if have < expected
        else None
    )


def _siblings(case: Case, gpu_index: int) -> int:
    """The largest sum among GPUs of the same model; 0 without switches, which make them equal."""
    if not case.lanes.switched:
        return 0
    name = case.result.gpus[gpu_index].name
    alike = (i for i, gpu in enumerate(case.result.gpus) if isinstance(name, str) and gpu.name == name)
    return max((case.lanes.sums[i] for i in alike), default=0)


def _in_history(case: Case, gpu_index: int) -> int:
    """The link sum of earlier runs; 0 if a peer is missing, since its links are gone with it."""
    past = case.past(gpu_index)
    if past is None or not (case.lanes.switched or is_complete(case)):
        return 0
    return past.links.sum


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
