"""The floor of one cell: from a row where one fits, else from what the links carry.

The rule holds from 1 GiB on, the size at which collectives come near their full speed; a smaller cell has a
floor only by a row of its own size.  Own numbers, all of them thresholds; a test holds every published
measurement above the floor that the rule would give it.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.case import clip
from nodegauge_judge.model import InterconnectClass
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.nccl.measurement import GIB, ArmSeen, CellSeen, Measured
from nodegauge_judge.nccl.model import Expectation
from nodegauge_judge.thresholds import Thresholds

SHARP_SINCE, SHARP_NEXT = 90, 100
"""Compute capabilities (times ten) from which NVSwitches reduce, and from which they are B200's."""
SHARP_RANKS = 8
"""GPUs for which the shares with NVLS are meant."""
FEW_RANKS, FEW_RANKS_PART = 3, 2 / 3
"""Up to so many GPUs, compute capability 10 and later has this part of the floor of rings: NCCL takes LL128
there.  Source: NVIDIA/nccl pull request 2343: 382 to 386 of 900 GB/s on 2 B200 with NCCL 2.31.2, 479 on 3;
673 have been published for 4."""


class Floor(Struct, frozen=True, kw_only=True):
    """GB/s below which a cell is too slow, in `words` where that is from, and the row's `source` if one;
    `nvls`: the state that the row is for, null for whichever."""

    gbps: float
    words: str
    source: str = ""
    nvls: bool | None = None


class Asked(Struct, frozen=True, kw_only=True):
    """What a floor is sought by."""

    expectations: Expectations
    thresholds: Thresholds


def nvls_of(cell: CellSeen, arm: ArmSeen) -> bool | None:
    """Whether this cell ran NVLS, by what NCCL said or was told; None where it did not say."""
    if cell.algorithm:
        return cell.algorithm.upper().startswith("NVLS")
    if arm.name in (ArmName.P2P_OFF, ArmName.NVLS_OFF) or arm.nvls is False:
        return False
    return None


def uses_peer_access(arm: ArmSeen) -> bool | None:
    """Whether every pair of ranks is joined by peer access; None where NCCL did not say."""
    ways = [way.strip().upper() for way in arm.transport.split("+") if way.strip()]
    return all(way.startswith("P2P") for way in ways) if ways else None


def link_of(measured: Measured) -> str:
    """The `link` of rows that fit: a ring that must cross PCIe is a PCIe ring."""
    if measured.klass == InterconnectClass.NVLINK:
        return "nvlink"
    return "pcie" if measured.klass else ""


def by_row(
    measured: Measured, cell: CellSeen, arm: ArmSeen, *, asked: Asked, own: bool = False
) -> Floor | None:
    """The floor by the first row that fits; with `own`, and where the policy's environment changes what NCCL
    may use, by the policy's rows alone."""
    row = asked.expectations.floor_row(
        gpu=measured.gpu,
        count=measured.ranks,
        collective=cell.collective,
        bytes=cell.bytes,
        nvls=nvls_of(cell, arm),
        link=link_of(measured),
        own=own or measured.told_off,
    )
    return _of_row(row, asked.thresholds) if row is not None else None


def by_rule(measured: Measured, cell: CellSeen, arm: ArmSeen, *, thresholds: Thresholds) -> Floor | None:
    """The floor by what the links carry; None for what has none: below 1 GiB, through the host (its memory,
    or peer access that leaves the PCIe switches: CPUs differ too much), or where a rate was not read."""
    if cell.bytes < GIB or measured.told_off:
        return None
    if measured.klass == InterconnectClass.NVLINK:
        return _nvlink(measured, cell, arm, thresholds=thresholds)
    if measured.klass and measured.pcie and uses_peer_access(arm) and not measured.through_cpu:
        share = thresholds.busbw_pcie_share
        words = f"{share:g} of the slowest PCIe link's {measured.pcie:g} GB/s"
        return Floor(gbps=share * measured.pcie, words=f"{words} (no row fits)")
    return None


def _nvlink(measured: Measured, cell: CellSeen, arm: ArmSeen, *, thresholds: Thresholds) -> Floor | None:
    if not measured.wire:
        return None
    sm, share, how = measured.sm or 0, thresholds.busbw_ring_share, "rings"
    sharp = cell.collective is Collective.ALL_REDUCE and measured.switched and nvls_of(cell, arm)
    if sharp and sm >= SHARP_SINCE:
        newer = sm >= SHARP_NEXT
        share = thresholds.busbw_nvls_share_next if newer else thresholds.busbw_nvls_share
        share, how = share * sharp_part(measured.ranks), f"NVLS on {measured.ranks} GPUs"
    elif sm >= SHARP_NEXT and measured.ranks <= FEW_RANKS:
        share, how = share * FEW_RANKS_PART, f"rings of {measured.ranks} GPUs"
    words = f"{share:.3g} of the NVLinks' {measured.wire:g} GB/s, for {how} (no row fits)"
    return Floor(gbps=share * measured.wire, words=words)


def sharp_part(ranks: int) -> float:
    """Bus bandwidth of all_reduce with NVLS on fewer than 8 GPUs, as a share of that on 8.

    A GPU sends its buffer to the switches and the n-th part of the sum back through them, 1 + 1/n of the size
    in all; with the factor 2(n-1)/n of bus bandwidth that makes 2(n-1)/(n+1).  It agrees with what has been
    published for 8, 7, 6 and 5 H200 (482, 460, 436, 414 GB/s) within 2 per cent.
    """
    whole = (SHARP_RANKS - 1) / (SHARP_RANKS + 1)
    return min((ranks - 1) / (ranks + 1) / whole, 1.0)


def _of_row(row: Expectation, thresholds: Thresholds) -> Floor:
    source = clip(row.source) or "the policy"
    if row.floor:
        words, gbps = f"the floor of a row of {row.busbw:g} GB/s", row.floor
    elif row.kind == "accept-floor":
        words, gbps = "an acceptance floor", row.busbw
    else:
        share = thresholds.busbw_expected_share
        words, gbps = f"{share:g} of {row.busbw:g} GB/s", share * row.busbw
    return Floor(gbps=gbps, words=words, source=source, nvls=row.nvls)
