"""The floor of one cell: from an expectation that applies, else from what the links carry.

Link rates give a floor from 1 GiB on, where collectives approach full speed; a smaller cell has a floor only
from an expectation for its size.  The shares are thresholds of the policy.  A floor from link rates sets a
taint only if a published machine of the same kind reaches it: with NVSwitches one of `GpuModels.published`,
expectations of the same model and count for direct NVLinks.  Any other only warns.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.case import clip
from nodegauge_judge.gpu_models import NVLS, RINGS, is_model, known_models
from nodegauge_judge.model import InterconnectClass
from nodegauge_judge.nccl.expectations import PUBLISHED_KINDS, Expectation, Expectations
from nodegauge_judge.nccl.measurement import GIB, LANE_GBPS, MeasuredArm, MeasuredCell, Measurement
from nodegauge_judge.thresholds import Thresholds

HOPPER_SM, BLACKWELL_SM = 90, 100
"""Compute capability times ten of the first GPUs whose NVSwitches reduce (NVLink SHARP), and of B200."""
PCIE_GENERATIONS, PCIE_LANES = {10: 3, 80: 4, 90: 5, 103: 6}, 16
"""PCIe's generation from a compute capability times ten on, and the most lanes.  Source: NVIDIA's data sheets
of V100 and T4 (3), A100, A40 and L40S (4), H100 and B200 (5), B300 (6)."""
SHARP_RANKS = 8
"""The number of GPUs that the shares for NVLS are stated for."""
FEW_RANKS, FEW_RANKS_SHARE = 3, 2 / 3
"""Up to this many GPUs, compute capability 10 and later gets this part of the ring floor, because NCCL uses
LL128 there.  Source: NVIDIA/nccl pull request 2343: 382 to 386 of 900 GB/s on 2 B200 with NCCL 2.31.2, 479 on
3; 673 have been published for 4."""
_ALGORITHM = "NCCL did not log its algorithm (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,TUNING)"
_LINKS = "the log names the GPU, but not its links"
_FROM_LINKS = "(no expectation applies)"
_ONLY_WARNS = "; no such machine has been published, so this only warns"
_DERIVED = ", derived and not published for this size, so this only warns"


class Floor(Struct, frozen=True, kw_only=True):
    """GB/s below which a cell is too slow.

    `basis`: in words, how it was derived; `source`: that of the expectation, if one applied; `nvls`: the NVLS
    state that the expectation is for, null for either; `gates_below`: GB/s below which bandwidth may set a
    taint, 0 if it only warns; `assumed`: what is unknown, so that this is the lowest floor that could apply,
    empty if nothing is.
    """

    gbps: float
    basis: str
    source: str = ""
    nvls: bool | None = None
    gates_below: float = 0.0
    assumed: str = ""


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


def lowest_floor(
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, criteria: Criteria
) -> Floor | None:
    """The floor of the cell: from an expectation, else from link rates.

    Where the algorithm is unknown, it is the lower of the floors with NVLS and without; none if one of them
    is unknown, because that one may be the cell's.
    """
    machine = with_named_links(measurement)
    unknown = ran_nvls(cell, arm) is None
    cells = [replace(cell, algorithm=name) for name in (NVLS, RINGS)] if unknown else [cell]
    floors = [_floor(machine, candidate, arm, criteria=criteria) for candidate in cells]
    known = [floor for floor in floors if floor is not None]
    if len(known) < len(floors):
        return None
    lowest = min(known, key=lambda floor: floor.gbps)
    differ = lowest.gbps < max(floor.gbps for floor in known)
    assumed = [_ALGORITHM] if differ else []
    if machine is not measurement and not lowest.source:
        assumed.append(_LINKS)
    return replace(lowest, assumed=" and ".join(assumed))


def floor_with_nvls(
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, criteria: Criteria
) -> Floor | None:
    """The floor that an expectation gives the cell if it ran NVLS; None without one."""
    return by_expectation(measurement, replace(cell, algorithm=NVLS), arm, criteria=criteria)


def _floor(
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, criteria: Criteria
) -> Floor | None:
    """From an expectation, else from link rates.  A derived expectation warns, and never replaces a lower
    floor that may set a taint."""
    expected = by_expectation(measurement, cell, arm, criteria=criteria)
    if expected is not None and expected.gates_below:
        return expected
    links = by_link_rate(measurement, cell, arm, criteria=criteria)
    if expected is None or links is None:
        return expected or links
    return replace(expected, gates_below=min(links.gates_below, expected.gbps))


def with_named_links(measurement: Measurement) -> Measurement:
    """With the NVLinks that follow from name and bandwidth, for a log of nccl-tests, which names none.

    Two cards that exceed what PCIe carries are joined by NVLinks; any others may have no bridge.
    """
    model = known_models().find(measurement.gpu)
    board, ranks = model.board, measurement.ranks
    if not measurement.from_log:
        return measurement
    if board is None and ranks == 2 and model.nvlink is not None and _exceeds_pcie(measurement, model.sm):
        links = {"interconnect": InterconnectClass.NVLINK.value, "nvlink_gbps": model.nvlink_gbps}
        return replace(measurement, **links, sm=model.sm)
    if board is None or not board.tells(ranks):
        return measurement
    return replace(
        measurement,
        interconnect=InterconnectClass.NVLINK.value,
        nvlink_gbps=board.share(ranks) * model.nvlink_gbps,
        nvswitch=board.switched(ranks),
        sm=model.sm,
    )


def _exceeds_pcie(measurement: Measurement, sm: int) -> bool:
    """Whether two GPUs were faster than PCIe can be: bus bandwidth is then what each of them sends."""
    known = [generation for since, generation in PCIE_GENERATIONS.items() if since <= sm]
    most = LANE_GBPS[max(known, default=max(LANE_GBPS))] * PCIE_LANES
    return any((measurement.busbw(cell) or 0.0) > most for arm in measurement.arms for cell in arm.cells)


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
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, criteria: Criteria
) -> Floor | None:
    """The floor from what the links carry.

    None below 1 GiB, for unknown rates, and through the host (its memory, or P2P that leaves the PCIe
    switches), where the CPU decides and CPUs differ too much.
    """
    if cell.bytes < GIB or measurement.p2p_disabled:
        return None
    if measurement.interconnect == InterconnectClass.NVLINK:
        return _nvlink(measurement, cell, arm, criteria=criteria)
    pcie = measurement.pcie_gbps
    if measurement.interconnect and pcie and uses_p2p(arm) and not measurement.through_cpu:
        share = criteria.thresholds.busbw_pcie_share
        basis = f"{share:g} of the slowest PCIe link's {pcie:g} GB/s {_FROM_LINKS}"
        return Floor(gbps=share * pcie, basis=basis + _ONLY_WARNS)
    return None


def _nvlink(
    measurement: Measurement, cell: MeasuredCell, arm: MeasuredArm, *, criteria: Criteria
) -> Floor | None:
    rate, thresholds = measurement.nvlink_gbps, criteria.thresholds
    if not rate:
        return None
    sm, share, algorithm, scale = measurement.sm or 0, thresholds.busbw_ring_share, RINGS, 1.0
    sharp = cell.collective is Collective.ALL_REDUCE and measurement.nvswitch and ran_nvls(cell, arm)
    if sharp and sm >= HOPPER_SM:
        blackwell = sm >= BLACKWELL_SM
        share = thresholds.busbw_nvls_share_next if blackwell else thresholds.busbw_nvls_share
        algorithm, scale = NVLS, sharp_share(measurement.ranks)
    elif sm >= BLACKWELL_SM and measurement.ranks <= FEW_RANKS:
        share *= FEW_RANKS_SHARE
    basis = f"{share * scale:.3g} of the NVLinks' {rate:g} GB/s, for {algorithm} on {measurement.ranks} GPUs"
    floor = _gating(share * scale * rate, f"{basis} {_FROM_LINKS}")
    if not measurement.nvswitch:
        return _reached_on_direct_links(floor, measurement, criteria=criteria)
    reached = any(
        (machine.sm, machine.algorithm) == (sm, algorithm)
        and measurement.ranks in machine.ranks
        and machine.share >= share
        for machine in known_models().published()
    )
    return floor if reached else _only_warning(floor)


def _reached_on_direct_links(floor: Floor, measurement: Measurement, *, criteria: Criteria) -> Floor:
    """The floor that published machines of this model and count reach: never above what they measured.

    A card's NVLinks say little about what collectives reach: two H100 PCIe with bridges reach 115 of
    300 GB/s (NVIDIA/nccl issue 1161), two A100 PCIe more than 193.
    """
    alike = [
        expectation
        for expectation in criteria.expectations.published
        if expectation.link == "nvlink"
        and expectation.count == measurement.ranks
        and is_model(measurement.gpu, expectation.gpu)
    ]
    reached = max(
        (expectation.busbw for expectation in alike if expectation.kind in PUBLISHED_KINDS), default=0.0
    )
    complained = max(
        (expectation.busbw for expectation in alike if expectation.kind == "complaint"), default=0.0
    )
    most = reached or complained
    if 0 < most < floor.gbps:
        share = criteria.thresholds.busbw_expected_share
        basis = f"{share:g} of the {most:g} GB/s published for such a machine {_FROM_LINKS}"
        floor = _gating(share * most, basis)
    return floor if reached else _only_warning(floor)


def _gating(gbps: float, basis: str) -> Floor:
    return Floor(gbps=gbps, basis=basis, gates_below=gbps)


def _only_warning(floor: Floor) -> Floor:
    return replace(floor, basis=floor.basis + _ONLY_WARNS, gates_below=0.0)


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
    if expectation.kind == "derived":
        return Floor(gbps=gbps, basis=basis + _DERIVED, source=source, nvls=expectation.nvls)
    return replace(_gating(gbps, basis), source=source, nvls=expectation.nvls)
