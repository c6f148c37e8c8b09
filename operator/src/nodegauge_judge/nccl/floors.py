"""The floor of one cell: from an expectation that applies, else from what the links carry.

Link rates give a floor from 1 GiB on, where collectives approach full speed; a smaller cell has a floor only
from an expectation for its size.  The shares are thresholds of the policy.  A test keeps every published
measurement above the floor that its link rates would give.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.case import clip
from nodegauge_judge.model import InterconnectClass
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.measurement import GIB, MeasuredArm, MeasuredCell, Measurement
from nodegauge_judge.thresholds import Thresholds

HOPPER_SM, BLACKWELL_SM = 90, 100
"""Compute capability times ten of the first GPUs whose NVSwitches reduce (NVLink SHARP), and of B200."""
SHARP_RANKS = 8
"""The number of GPUs that the shares for NVLS are stated for."""
FEW_RANKS, FEW_RANKS_SHARE = 3, 2 / 3
"""Up to this many GPUs, compute capability 10 and later gets this part of the ring floor, because NCCL uses
LL128 there.  Source: NVIDIA/nccl pull request 2343: 382 to 386 of 900 GB/s on 2 B200 with NCCL 2.31.2, 479 on
3; 673 have been published for 4."""
_FROM_LINKS = "(no expectation applies)"


class Floor(Struct, frozen=True, kw_only=True):
    """GB/s below which a cell is too slow.

    `basis`: in words, how it was derived; `source`: that of the expectation, if one applied; `nvls`: the NVLS
    state that the expectation is for, null for either.
    """

    gbps: float
    basis: str
    source: str = ""
    nvls: bool | None = None


class Criteria(Struct, frozen=True, kw_only=True):
    """What a policy grades bandwidth by."""

    expectations: Expectations
    thresholds: Thresholds


def ran_nvls(cell: MeasuredCell, arm: MeasuredArm) -> bool | None:
    """Whether this cell ran NVLS; None if NCCL did not log the algorithm and could have chosen it."""
    if cell.algorithm:
        return cell.algorithm.upper().startswith("NVLS")
    if arm.name in (ArmName.P2P_OFF, ArmName.NVLS_OFF) or arm.nvls is False:
        return False
    return None


def uses_p2p(arm: MeasuredArm) -> bool | None:
    """Whether every pair of ranks uses P2P; None if NCCL did not log its transports."""
    transports = [name.strip().upper() for name in arm.transport.split("+") if name.strip()]
    return all(name.startswith("P2P") for name in transports) if transports else None


def link_of(measurement: Measurement) -> str:
    """The `link` of expectations that apply: a ring with any PCIe hop counts as PCIe."""
    if measurement.interconnect == InterconnectClass.NVLINK:
        return "nvlink"
    return "pcie" if measurement.interconnect else ""


def by_expectation(
    measurement: Measurement,
    cell: MeasuredCell,
    arm: MeasuredArm,
    *,
    criteria: Criteria,
    policy_only: bool = False,
) -> Floor | None:
    """The floor from the first expectation that applies.

    Published expectations are for machines that may use all they have, so only the policy's apply where its
    environment disables P2P.
    """
    expectation = criteria.expectations.find(
        gpu=measurement.gpu,
        count=measurement.ranks,
        collective=cell.collective,
        bytes=cell.bytes,
        nvls=ran_nvls(cell, arm),
        link=link_of(measurement),
        policy_only=policy_only or measurement.p2p_disabled,
    )
    return _expected(expectation, criteria.thresholds) if expectation is not None else None


def by_link_rate(
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, thresholds: Thresholds
) -> Floor | None:
    """The floor from what the links carry.

    None below 1 GiB, for unknown rates, and through the host (its memory, or P2P that leaves the PCIe
    switches), where the CPU decides and CPUs differ too much.
    """
    if cell.bytes < GIB or measurement.p2p_disabled:
        return None
    if measurement.interconnect == InterconnectClass.NVLINK:
        return _nvlink(measurement, cell, arm, thresholds=thresholds)
    pcie = measurement.pcie_gbps
    if measurement.interconnect and pcie and uses_p2p(arm) and not measurement.through_cpu:
        share = thresholds.busbw_pcie_share
        return Floor(
            gbps=share * pcie, basis=f"{share:g} of the slowest PCIe link's {pcie:g} GB/s {_FROM_LINKS}"
        )
    return None


def _nvlink(
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, thresholds: Thresholds
) -> Floor | None:
    rate = measurement.nvlink_gbps
    if not rate:
        return None
    sm, share, algorithm = measurement.sm or 0, thresholds.busbw_ring_share, "rings"
    sharp = cell.collective is Collective.ALL_REDUCE and measurement.nvswitch and ran_nvls(cell, arm)
    if sharp and sm >= HOPPER_SM:
        blackwell = sm >= BLACKWELL_SM
        share = thresholds.busbw_nvls_share_next if blackwell else thresholds.busbw_nvls_share
        share, algorithm = share * sharp_share(measurement.ranks), f"NVLS on {measurement.ranks} GPUs"
    elif sm >= BLACKWELL_SM and measurement.ranks <= FEW_RANKS:
        share, algorithm = share * FEW_RANKS_SHARE, f"rings of {measurement.ranks} GPUs"
    basis = f"{share:.3g} of the NVLinks' {rate:g} GB/s, for {algorithm} {_FROM_LINKS}"
    return Floor(gbps=share * rate, basis=basis)


def sharp_share(ranks: int) -> float:
    """Bus bandwidth of all_reduce with NVLS on fewer than 8 GPUs, as a share of that on 8.

    A GPU sends its buffer to the switches and the n-th part of the sum back through them, 1 + 1/n of the size
    in all; with the factor 2(n-1)/n of bus bandwidth that makes 2(n-1)/(n+1).  It agrees with what has been
    published for 8, 7, 6 and 5 H200 (482, 460, 436, 414 GB/s) within 2 per cent.
    """
    on_all = (SHARP_RANKS - 1) / (SHARP_RANKS + 1)
    return min((ranks - 1) / (ranks + 1) / on_all, 1.0)


def _expected(expectation: Expectation, thresholds: Thresholds) -> Floor:
    source = clip(expectation.source) or "the policy"
    if expectation.floor:
        basis, gbps = f"the floor stated for an expected {expectation.busbw:g} GB/s", expectation.floor
    elif expectation.kind == "accept-floor":
        basis, gbps = "an acceptance floor", expectation.busbw
    else:
        share = thresholds.busbw_expected_share
        basis, gbps = f"{share:g} of {expectation.busbw:g} GB/s", share * expectation.busbw
    return Floor(gbps=gbps, basis=basis, source=source, nvls=expectation.nvls)
