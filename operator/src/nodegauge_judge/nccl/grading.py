"""What a grading works with: the headline bandwidth of each collective, the policy's criteria, the peers.

Labels are for 1 GiB.  A smaller size can replace it down to 256 MiB, which understates the bandwidth (83 and
90 % of full speed have been published there); a larger size only does in a log, which has no labels.  Where
NVLS is broken, the headline comes from the arm without it.
"""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from nodegauge_contract import ArmName, ArmOutcome, Collective, Phase
from nodegauge_judge.case import clip
from nodegauge_judge.model import GpuIdentity, NodeFacts, Scalar, Severity, Sharing
from nodegauge_judge.nccl.floors import Criteria
from nodegauge_judge.nccl.measurement import GIB, MIB, MeasuredArm, MeasuredCell, Measurement
from nodegauge_judge.peers import Peers
from nodegauge_judge.rule import Observation, Rule
from nodegauge_judge.thresholds import Thresholds

NODE = "node"
SMALLEST_LABEL_SIZE = 256 * MIB
"""Smallest size in bytes that a label may use in place of 1 GiB.  Chosen by this project from the payload
curves of A100 and H200: below it bandwidth falls steeply."""
SMALLEST_COMPARED_SIZE = 64 * MIB
"""Size in bytes from which two arms are compared.  Chosen by this project: below it latency dominates."""
BROKEN_OUTCOMES = (ArmOutcome.HUNG, ArmOutcome.CRASHED, ArmOutcome.FAILED, ArmOutcome.OUT_OF_MEMORY)
_WITH_NVLS = ("", Phase.INIT, Phase.LOAD)
"""Phases before measuring in which NCCL sets up or first uses NVLS."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Headline(Struct, frozen=True, kw_only=True):
    """The cell that represents a collective, its arm, the GB/s that count, and the runs behind them."""

    cell: MeasuredCell
    arm: MeasuredArm
    gbps: float
    runs: tuple[float, ...]

    @property
    def runs_disagree(self) -> bool:
        """Whether the last two runs disagree and a third is needed."""
        return len(self.runs) == 2


class Grading(Struct, frozen=True, kw_only=True):
    """The inputs of one grading, and the headlines that follow from them."""

    measurement: Measurement
    criteria: Criteria
    node: NodeFacts
    peers: Peers
    headlines: dict[Collective, Headline]

    @classmethod
    def from_measurement(
        cls, measurement: Measurement, *, criteria: Criteria, node: NodeFacts, peers: Peers
    ) -> Grading:
        """The grading of one measurement."""
        return cls(
            measurement=measurement,
            criteria=criteria,
            node=node,
            peers=peers,
            headlines=headlines(measurement),
        )

    @property
    def thresholds(self) -> Thresholds:
        """The policy's thresholds."""
        return self.criteria.thresholds

    @property
    def expected(self) -> int:
        """GPUs that the node should have; 0 if unknown."""
        capacity = self.node.gpu_capacity if self.node.sharing is Sharing.EXCLUSIVE else None
        return max(self.measurement.expected, capacity or 0)


NcclRule = Rule[Grading]
"""A rule about what an NCCL run measured."""


def run_key(cell: MeasuredCell) -> str:
    """The key of a cell in `Measurement.runs`."""
    return f"{cell.collective.value}/{cell.bytes}"


def effective_gbps(runs: tuple[float, ...]) -> float:
    """The value that counts: the median of three runs, else the newest."""
    return median(runs) if len(runs) == 3 else runs[-1]


def updated_runs(previous: tuple[float, ...] | None, gbps: float, *, limit: float) -> tuple[float, ...]:
    """The runs to keep after one of `gbps`; runs that differ by more than the share `limit` disagree."""
    if previous is None:
        return (gbps,)
    if len(previous) == 2:
        return (*previous, gbps)
    last = effective_gbps(previous)
    return (last, gbps) if abs(gbps - last) > limit * max(gbps, last) else (gbps,)


def succeeded(arm: MeasuredArm | None) -> bool:
    """Whether the arm finished with numbers and without wrong data."""
    if arm is None or arm.outcome != ArmOutcome.DONE or not arm.cells:
        return False
    return not any(cell.wrong for cell in arm.cells)


def nvls_broken(measurement: Measurement) -> bool:
    """Whether NCCL cannot start with NVLS and works without it.

    P2P disabled also means NVLS disabled: if that arm does not start either, NVLS makes no difference.
    """
    default, p2p_off = measurement.arm(ArmName.DEFAULT), measurement.arm(ArmName.P2P_OFF)
    if default is None or default.nvls is False or not succeeded(measurement.arm(ArmName.NVLS_OFF)):
        return False
    return _did_not_start(default) and (p2p_off is None or not _did_not_start(p2p_off))


def _did_not_start(arm: MeasuredArm) -> bool:
    """Whether the arm ended while NCCL set itself up.  One slow start proves nothing: the first arm meets a
    cold disk, so it is started again after the others."""
    slow_again = arm.outcome == ArmOutcome.START_SLOW and arm.starts > 1
    return (arm.outcome in BROKEN_OUTCOMES or slow_again) and arm.phase in _WITH_NVLS and not arm.cells


def headline_arm(measurement: Measurement) -> MeasuredArm | None:
    """The arm that the node's numbers come from."""
    return measurement.arm(ArmName.NVLS_OFF if nvls_broken(measurement) else ArmName.DEFAULT)


def compared_headline(headlines: dict[Collective, Headline]) -> Headline | None:
    """What comparable nodes are compared by: all_reduce at 1 GiB, and no other size."""
    headline = headlines.get(Collective.ALL_REDUCE)
    return headline if headline is not None and headline.cell.bytes == GIB else None


def headlines(measurement: Measurement) -> dict[Collective, Headline]:
    """By collective, for those with a correct cell of a size that labels accept."""
    every = ((collective, _headline(measurement, collective)) for collective in Collective)
    return {collective: headline for collective, headline in every if headline is not None}


def _headline(measurement: Measurement, collective: Collective) -> Headline | None:
    arm = headline_arm(measurement)
    sizes = [
        cell
        for cell in _correct_cells(arm)
        if cell.collective is collective
        and cell.bytes >= SMALLEST_LABEL_SIZE
        and (cell.bytes <= GIB or measurement.from_log)
    ]
    cell = max(sizes, key=lambda cell: (cell.bytes <= GIB, cell.bytes), default=None)
    now = measurement.busbw(cell) if cell is not None else None
    if arm is None or cell is None or now is None:
        return None
    runs = measurement.runs.get(run_key(cell), (now,))
    return Headline(cell=cell, arm=arm, gbps=effective_gbps(runs), runs=runs)


def p2p_off_busbw(measurement: Measurement) -> tuple[MeasuredCell, float] | None:
    """all_reduce with P2P disabled: the largest cell and its GB/s."""
    sizes = [
        cell
        for cell in _correct_cells(measurement.arm(ArmName.P2P_OFF))
        if cell.collective is Collective.ALL_REDUCE and cell.bytes >= SMALLEST_COMPARED_SIZE
    ]
    cell = max(sizes, key=lambda cell: cell.bytes, default=None)
    gbps = measurement.busbw(cell) if cell is not None else None
    return (cell, gbps) if cell is not None and gbps is not None else None


def busbw_at_size_of(measurement: Measurement, cell: MeasuredCell) -> float | None:
    """GB/s of the headline arm in the same collective at the same size."""
    same = (
        other
        for other in _correct_cells(headline_arm(measurement))
        if (other.collective, other.bytes) == (cell.collective, cell.bytes)
    )
    match = next(same, None)
    return measurement.busbw(match) if match is not None else None


def _correct_cells(arm: MeasuredArm | None) -> list[MeasuredCell]:
    """The arm's cells; none if any of them has wrong data, whose time means nothing."""
    if arm is None or any(cell.wrong for cell in arm.cells):
        return []
    return list(arm.cells)


def size_text(size: int) -> str:
    """`1 GiB`, `64 KiB`, `12 bytes`."""
    for unit, name in _UNITS:
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def gbps_text(value: float) -> str:
    """`462 GB/s`, `4.03 GB/s`."""
    return f"{value:.0f} GB/s" if value >= 100 else f"{value:.3g} GB/s"


def cell_text(cell: MeasuredCell) -> str:
    """`all_reduce at 1 GiB (NVLS)`."""
    algorithm = f" ({clip(cell.algorithm)})" if cell.algorithm else ""
    return f"{cell.collective.value} at {size_text(cell.bytes)}{algorithm}"


def of_node(
    severity: Severity,
    message: str,
    *,
    evidence: dict[str, Scalar],
    location: str = NODE,
    weight: float = 0.0,
    gpus: tuple[GpuIdentity, ...] = (),
) -> Observation:
    """An observation about the whole node, or about the part of it named in `location`."""
    return Observation(
        severity=severity,
        location=location,
        message=message,
        evidence=evidence,
        weight=weight,
        gpus=gpus,
    )
