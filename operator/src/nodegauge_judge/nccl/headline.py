"""Which numbers speak for a node: the cell of each collective that labels and floors are made of.

Labels are for 1 GiB.  A smaller size stands in from 256 MiB on (it claims too little: 83 and 90 % of full
speed have been published there); a larger one never does.  Where NVLS is broken, the arm without it speaks.
"""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from nodegauge_contract import ArmName, ArmOutcome, Collective, Phase
from nodegauge_judge.nccl.measurement import GIB, MIB, ArmSeen, CellSeen, Measured

SMALLEST = 256 * MIB
"""Bytes below which no label stands in for 1 GiB.  Own, by the payload curves of A100 and H200."""
COMPARED_FROM = 64 * MIB
"""Bytes from which two arms are compared: below it latency decides.  Own."""
BROKEN = (ArmOutcome.HUNG, ArmOutcome.CRASHED, ArmOutcome.FAILED, ArmOutcome.OUT_OF_MEMORY)
_BEFORE_MEASURING = ("", Phase.SPAWN, Phase.INIT, Phase.LOAD)


class Figure(Struct, frozen=True, kw_only=True):
    """The cell that speaks for a collective, the arm it is from, and the GB/s that count."""

    cell: CellSeen
    arm: ArmSeen
    gbps: float
    runs: tuple[float, ...]

    @property
    def unsettled(self) -> bool:
        """Two runs disagree and the third is not there yet."""
        return len(self.runs) == 2


def key(cell: CellSeen) -> str:
    """Under which `Measured.runs` keeps a figure."""
    return f"{cell.collective.value}/{cell.bytes}"


def settled(runs: tuple[float, ...]) -> float:
    """What counts of several runs: the median of three, the newest of two, the only one."""
    return median(runs) if len(runs) == 3 else runs[-1]


def following(before: tuple[float, ...] | None, gbps: float, *, limit: float) -> tuple[float, ...]:
    """The runs to keep once `gbps` has been measured too; `limit` is the share that runs may differ by."""
    if before is None:
        return (gbps,)
    if len(before) == 2:
        return (*before, gbps)
    last = settled(before)
    return (last, gbps) if abs(gbps - last) > limit * max(gbps, last) else (gbps,)


def fine(arm: ArmSeen | None) -> bool:
    """Whether the arm came to its end with numbers and without wrong data."""
    if arm is None or arm.outcome != ArmOutcome.DONE or not arm.cells:
        return False
    return not any(cell.wrong for cell in arm.cells)


def nvls_broken(measured: Measured) -> bool:
    """Whether NCCL could not start with NVLS and works without it."""
    default = measured.arm(ArmName.DEFAULT)
    if default is None or default.outcome not in BROKEN or default.nvls is False:
        return False
    early = default.phase in _BEFORE_MEASURING and not default.cells
    return early and fine(measured.arm(ArmName.NVLS_OFF))


def speaking(measured: Measured) -> ArmSeen | None:
    """The arm whose numbers are the node's."""
    return measured.arm(ArmName.NVLS_OFF if nvls_broken(measured) else ArmName.DEFAULT)


def figure(measured: Measured, collective: Collective) -> Figure | None:
    """What the node reaches in `collective`; None where nothing of a size that speaks was measured right."""
    arm = speaking(measured)
    sizes = [cell for cell in _right(arm) if cell.collective is collective and SMALLEST <= cell.bytes <= GIB]
    cell = max(sizes, key=lambda cell: cell.bytes, default=None)
    now = measured.busbw(cell) if cell is not None else None
    if arm is None or cell is None or now is None:
        return None
    runs = measured.runs.get(key(cell), (now,))
    return Figure(cell=cell, arm=arm, gbps=settled(runs), runs=runs)


def figures(measured: Measured) -> dict[Collective, Figure]:
    """By collective, in the order in which they are spoken of."""
    found = ((collective, figure(measured, collective)) for collective in Collective)
    return {collective: figure for collective, figure in found if figure is not None}


def p2p_off(measured: Measured) -> tuple[CellSeen, float] | None:
    """all_reduce without peer access at the largest size, and its GB/s."""
    sizes = [
        cell
        for cell in _right(measured.arm(ArmName.P2P_OFF))
        if cell.collective is Collective.ALL_REDUCE and cell.bytes >= COMPARED_FROM
    ]
    cell = max(sizes, key=lambda cell: cell.bytes, default=None)
    gbps = measured.busbw(cell) if cell is not None else None
    return (cell, gbps) if cell is not None and gbps is not None else None


def same_size(measured: Measured, cell: CellSeen) -> float | None:
    """GB/s of the speaking arm in the same collective at the same size."""
    alike = (
        c for c in _right(speaking(measured)) if (c.collective, c.bytes) == (cell.collective, cell.bytes)
    )
    found = next(alike, None)
    return measured.busbw(found) if found is not None else None


def _right(arm: ArmSeen | None) -> list[CellSeen]:
    """Cells of an arm that returned no wrong data at all: time that garbage took is no bandwidth."""
    if arm is None or any(cell.wrong for cell in arm.cells):
        return []
    return list(arm.cells)
