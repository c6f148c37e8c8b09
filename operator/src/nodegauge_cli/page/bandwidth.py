"""A node's bandwidth beside what is expected of it, from the record of its last NCCL run."""

from __future__ import annotations

from nodegauge_cli.judging import Criteria
from nodegauge_cli.page.model import Collective
from nodegauge_contract import ArmName
from nodegauge_contract import Collective as Name
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.measurement import GIB, Measurement, PairGroup
from nodegauge_operator.api.bandwidth_status import BandwidthStatus


def collectives(
    measured: Measurement | None, status: BandwidthStatus, criteria: Criteria
) -> list[Collective]:
    """Those at 1 GiB, each with its floor; by the report's numbers alone if the record cannot be read."""
    arm = measured.arm(ArmName.DEFAULT) if measured is not None else None
    if measured is None or arm is None:
        known = {
            Name.ALL_REDUCE: status.all_reduce,
            Name.ALL_GATHER: status.all_gather,
            Name.REDUCE_SCATTER: status.reduce_scatter,
        }
        return [Collective(name=name, gbps=gbps) for name, gbps in known.items() if gbps is not None]
    graded = floors.Criteria(expectations=criteria.expectations, thresholds=criteria.thresholds)
    cells = []
    for cell in arm.cells:
        gbps = measured.busbw(cell) if cell.bytes == GIB else None
        if gbps is not None:
            floor = floors.lowest_floor(measured, cell, arm, criteria=graded)
            one = Collective(name=cell.collective, gbps=round(gbps, 1))
            if floor is not None:
                one.floor, one.basis = round(floor.gbps, 1), floor.basis
            cells.append(one)
    return cells


def pairs(measured: Measurement | None) -> str:
    """Copies between two GPUs, in a sentence; empty if none was measured."""
    return " ".join(map(_group, measured.pairs)) if measured is not None else ""


def _group(group: PairGroup) -> str:
    way = f"{group.nvlinks} NVLinks" if group.nvlinks else "PCIe"
    carries = f" of {group.nvlink_gbps:.0f}" if group.nvlink_gbps else ""
    slowest = "; ".join(f"{pair.source} to {pair.target} {pair.gbps:.0f}" for pair in group.slowest[:3])
    return (
        f"{group.count} directions over {way}: median {group.median_gbps:.0f}{carries} GB/s"
        f"{f', slowest {slowest}' if slowest else ''}."
    )
