"""Is it fast enough: against its floor, against nodes like it, against its own run before?

A cell of 1 GiB has a floor by a row or by the rule; where that size is missing, the largest size that has a
row of its own speaks.  A policy's rows hold at every size that they name.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.case import Hit, gather
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Answer, Finding, InterconnectClass, Scalar, Severity
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.floors import Floor
from nodegauge_judge.nccl.grading import Grading, cell_in_words, gbps, of_node
from nodegauge_judge.nccl.headline import key, settled, speaking
from nodegauge_judge.nccl.measurement import GIB, ArmSeen, CellSeen, Measured

CFS_PERIOD_MS = 100
"""What one throttled period can cost.  Source: the kernel's default cpu.cfs_period_us."""
PEERS_NEEDED = 3
"""Nodes of a kind, this one among them, from which a median means something."""


Found = tuple[ArmSeen, CellSeen, Floor]


class Graded(Struct, frozen=True, kw_only=True):
    """One cell and its floor."""

    cell: CellSeen
    arm: ArmSeen
    gbps: float
    floor: Floor

    @property
    def below(self) -> bool:
        """Whether it is too slow."""
        return self.gbps < self.floor.gbps


def graded(grading: Grading) -> list[Graded]:
    """Every cell that has a floor, the farthest below it first."""
    found: dict[tuple[str, str], Graded] = {}
    for arm, cell, floor in (*_by_own_rows(grading), *_by_worth(grading)):
        reached = _counts(grading.measured, arm, cell)
        if reached is not None:
            found.setdefault((arm.name, key(cell)), Graded(cell=cell, arm=arm, gbps=reached, floor=floor))
    return sorted(found.values(), key=lambda one: one.gbps / one.floor.gbps)


def busbw_low(grading: Grading) -> Iterator[Finding]:
    """Collectives below their floor."""
    yield from gather(Code.BUSBW_LOW, [_low(grading, one) for one in graded(grading) if one.below])


def answer_busbw(grading: Grading) -> Answer:
    """Bad below a floor; good where all that has one is above it, or where there can be none."""
    found = graded(grading)
    if any(one.below for one in found):
        return Answer.UNSURE if _stalled(found[0].arm, grading.measured) else Answer.BAD
    if any(one.cell.collective is Collective.ALL_REDUCE for one in found):
        return Answer.GOOD
    return Answer.GOOD if has_no_floor(grading) else Answer.UNSURE


def has_no_floor(grading: Grading) -> bool:
    """Whether there is no floor by rule: GPUs that talk through the host are as fast as that is."""
    measured, arm = grading.measured, speaking(grading.measured)
    if Collective.ALL_REDUCE not in grading.figures or arm is None:
        return False
    by_peers = floors.uses_peer_access(arm)
    through_host = by_peers is False or (by_peers is True and measured.through_cpu)
    return measured.told_off or (through_host and measured.klass in (*_PCIE,))


def below_peers(grading: Grading) -> Iterator[Finding]:
    """Slower than nodes of its kind."""
    figure = grading.figures.get(Collective.ALL_REDUCE)
    if figure is None or figure.cell.bytes != GIB:
        return
    others = [value for value in grading.peers(grading.measured.fingerprint) if 0 < value < float("inf")]
    if len(others) + 1 < PEERS_NEEDED:
        return
    middle, share = median([*others, figure.gbps]), grading.thresholds.busbw_peers_share
    if figure.gbps >= share * middle:
        return
    hit = of_node(
        Severity.WARN,
        f"{cell_in_words(figure.cell)} reaches {gbps(figure.gbps)}; the median of {len(others) + 1} nodes "
        f"like it is {gbps(middle)}, and below {share:g} of that is a finding.",
        evidence={
            "busbw_gbps": _rounded(figure.gbps),
            "median_gbps": _rounded(middle),
            "nodes": len(others) + 1,
        },
    )
    yield from gather(Code.BUSBW_BELOW_PEERS, [hit])


def disagrees(grading: Grading) -> Iterator[Finding]:
    """Collectives whose last two runs disagree."""
    hits = [
        of_node(
            Severity.INFO,
            f"{cell_in_words(figure.cell)}: {gbps(figure.runs[0])} the run before, {gbps(figure.runs[1])} "
            "now; a third run decides.",
            evidence={"before_gbps": _rounded(figure.runs[0]), "now_gbps": _rounded(figure.runs[1])},
            place=collective.value,
            weight=abs(figure.runs[0] - figure.runs[1]),
        )
        for collective, figure in grading.figures.items()
        if figure.unsettled
    ]
    yield from gather(Code.BUSBW_DISAGREES, hits)


_PCIE = (InterconnectClass.PCIE.value, InterconnectClass.NVLINK_PAIRS.value)


def _counts(measured: Measured, arm: ArmSeen, cell: CellSeen) -> float | None:
    """GB/s that count for the cell, of several runs where there were some; None next to wrong data."""
    now = None if any(c.wrong for c in arm.cells) else measured.busbw(cell)
    runs = measured.runs.get(key(cell)) if arm is speaking(measured) else None
    return settled(runs) if runs and now is not None else now


def _by_own_rows(grading: Grading) -> Iterator[Found]:
    """Cells that the policy has a row for.  In the arm with NVLS off only rows that say so fit: others are
    about what NCCL chooses."""
    spoken = speaking(grading.measured)
    for arm in grading.measured.arms:
        for cell in arm.cells if arm is spoken or arm.name == ArmName.NVLS_OFF else ():
            floor = floors.by_row(grading.measured, cell, arm, asked=grading.asked, own=True)
            if floor is not None and (arm is spoken or floor.nvls is False):
                yield arm, cell, floor


def _by_worth(grading: Grading) -> Iterator[Found]:
    """Of each collective 1 GiB, or else the largest size that has a floor."""
    arm = speaking(grading.measured)
    if arm is None:
        return
    for collective in Collective:
        cells = [cell for cell in arm.cells if cell.collective is collective]
        for cell in sorted(cells, key=lambda cell: (cell.bytes != GIB, -cell.bytes)):
            floor = _floor(grading, cell, arm)
            if floor is not None:
                yield arm, cell, floor
                break


def _floor(grading: Grading, cell: CellSeen, arm: ArmSeen) -> Floor | None:
    by_row = floors.by_row(grading.measured, cell, arm, asked=grading.asked)
    return by_row or floors.by_rule(grading.measured, cell, arm, thresholds=grading.thresholds)


def _stalled(arm: ArmSeen, measured: Measured) -> bool:
    """Whether the CPU limit held the pod back for so long that half of the batches, and so the median, may
    have felt it."""
    return measured.throttled * CFS_PERIOD_MS * 2 >= (arm.measure_ms or 0) and measured.throttled > 0


def _low(grading: Grading, one: Graded) -> Hit:
    measured = grading.measured
    stalled = _stalled(one.arm, measured)
    again = Code.BUSBW_LOW.value in measured.bad
    floor, source = one.floor, f" ({one.floor.source})" if one.floor.source else ""
    why = f" Its CPU limit held the pod back {measured.throttled} times meanwhile." if stalled else ""
    evidence: dict[str, Scalar] = {
        "collective": one.cell.collective.value,
        "bytes": one.cell.bytes,
        "ranks": measured.ranks,
        "busbw_gbps": _rounded(one.gbps),
        "floor_gbps": _rounded(floor.gbps),
        "floor": floor.words,
        "arm": one.arm.name,
    }
    if one.cell.algorithm:
        evidence["algorithm"] = one.cell.algorithm
    if floor.source:
        evidence["row"] = floor.source
    return of_node(
        Severity.FAIL if again and not stalled else Severity.WARN,
        f"{cell_in_words(one.cell)} reaches {gbps(one.gbps)} on {measured.ranks} GPUs; the floor is "
        f"{gbps(floor.gbps)}: {floor.words}{source}.{why}",
        evidence=evidence,
        weight=floor.gbps / max(one.gbps, 1e-9),
        place=one.cell.collective.value,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
