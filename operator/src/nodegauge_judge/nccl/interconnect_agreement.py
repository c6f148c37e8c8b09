"""Does the bandwidth agree with the interconnect that NVML reports, and is any single link slow?

Equal bandwidth with and without P2P contradicts NVLink only for a ring of NVLinks.  A ring that crosses PCIe
may be equal in both, because NCCL by default uses P2P only up to a PCIe switch (PXB).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.case import gpu_named, links_in_words
from nodegauge_judge.model import InterconnectClass, Scalar, Severity
from nodegauge_judge.nccl.bandwidth import GradedCell, graded_cells
from nodegauge_judge.nccl.grading import (
    Grading,
    Headline,
    NcclRule,
    busbw_at_size_of,
    cell_text,
    gbps_text,
    headline_arm,
    of_node,
    p2p_off_busbw,
    size_text,
)
from nodegauge_judge.nccl.measurement import Agreement, MeasuredPair, PairGroup
from nodegauge_judge.rule import DRIVER_LOG, OWN_RUN, VENDOR, Observation, Probe

Assessment = tuple[Agreement, str]
"""The agreement, and one sentence with the numbers behind it."""
_REPORTED = {
    InterconnectClass.NVLINK.value: "a ring of NVLinks",
    InterconnectClass.NVLINK_PAIRS.value: "NVLinks between some pairs",
    InterconnectClass.PCIE.value: "no NVLink",
}


def assess(grading: Grading) -> Assessment:
    """Whether bandwidth confirms or contradicts the interconnect class that NVML reports."""
    measurement = grading.measurement
    assess_class = _BY_CLASS.get(measurement.interconnect)
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if assess_class is None:
        return Agreement.UNSURE, "NVML reports no interconnect class to confirm"
    if measurement.p2p_disabled:
        return Agreement.UNSURE, "the policy's environment disables P2P"
    if headline is None:
        return Agreement.UNSURE, "all_reduce has no valid result at 256 MiB or more"
    return assess_class(grading, headline)


def contradicted(grading: Grading) -> Iterator[Observation]:
    """The finding for a contradiction."""
    agreement, message = assess(grading)
    if agreement is Agreement.CONTRADICTED:
        headline = grading.headlines[Collective.ALL_REDUCE]
        evidence: dict[str, Scalar] = {
            "reported": grading.measurement.interconnect,
            "busbw_gbps": float(f"{headline.gbps:.4g}"),
            "nvlink_gbps": grading.measurement.nvlink_gbps or 0.0,
            "pcie_gbps": grading.measurement.pcie_gbps or 0.0,
        }
        p2p_off = p2p_off_busbw(grading.measurement)
        if p2p_off is not None:
            evidence["p2p_off_gbps"] = float(f"{p2p_off[1]:.4g}")
        yield of_node(Severity.WARN, f"Measured: {message}.", evidence=evidence)


def slow_pairs(grading: Grading) -> Iterator[Observation]:
    """Pairs that copy slower than other pairs with as many NVLinks, or than their NVLinks carry."""
    slow = [
        (group, pair)
        for group in grading.measurement.pairs
        if group.nvlinks
        for pair in group.slowest
        if pair.gbps < _pair_floor(group, grading)[0]
    ]
    common = _common_gpu([pair for _, pair in slow])
    observations = [_slow_pair(grading, group, pair, common=common) for group, pair in slow]
    yield from _one_per_pair(observations)


def _nvlink(grading: Grading, headline: Headline) -> Assessment:
    for objection in (_at_pcie_speed, _no_gain_from_p2p, _pairs_at_pcie_speed):
        message = objection(grading, headline)
        if message:
            return Agreement.CONTRADICTED, message
    graded = _graded_headline(grading, headline)
    reaches = _reaches(headline)
    if graded is None:
        return Agreement.UNSURE, f"{reaches}; no floor is known for NVLink on this machine"
    floor = graded.floor
    if graded.below:
        below = f"below its floor of {gbps_text(floor.gbps)}, but more than PCIe can explain"
        return Agreement.UNSURE, f"{reaches}: {below}"
    source = f" ({floor.source})" if floor.source else ""
    basis = f"the floor is {gbps_text(floor.gbps)}, {floor.basis}{source}"
    return Agreement.CONFIRMED, f"{reaches} and confirms NVLink: {basis}"


def _pcie(grading: Grading, headline: Headline) -> Assessment:
    rate, reaches = grading.measurement.pcie_gbps, _reaches(headline)
    if rate is None:
        return Agreement.UNSURE, f"{reaches}; the rate of the PCIe links could not be read"
    if headline.gbps > rate:
        return (
            Agreement.CONTRADICTED,
            f"{reaches}, more than the slowest PCIe link carries ({gbps_text(rate)}), but NVML reports "
            f"{_REPORTED[grading.measurement.interconnect]}",
        )
    graded = _graded_headline(grading, headline)
    if graded is not None and graded.below:
        return Agreement.UNSURE, f"{reaches}: below its floor of {gbps_text(graded.floor.gbps)}"
    return Agreement.CONFIRMED, f"{reaches}, within what PCIe carries ({gbps_text(rate)})"


def _nvlink_pairs(grading: Grading, headline: Headline) -> Assessment:
    message = _pairs_at_pcie_speed(grading, headline)
    if message:
        return Agreement.CONTRADICTED, message
    groups = [group for group in grading.measurement.pairs if group.nvlinks]
    if not groups:
        return Agreement.UNSURE, f"{_reaches(headline)}; copies between pairs were not measured"
    slowest = min(groups, key=lambda group: group.median_gbps)
    floor, _ = _pair_floor(slowest, grading)
    reaches = f"copies over {links_in_words(slowest.nvlinks)} reach {gbps_text(slowest.median_gbps)}"
    if slowest.median_gbps < floor or (grading.measurement.pcie_gbps or 0.0) >= slowest.median_gbps:
        return Agreement.UNSURE, reaches
    return Agreement.CONFIRMED, f"{reaches}, more than PCIe carries"


_BY_CLASS: dict[str, Callable[[Grading, Headline], Assessment]] = {
    InterconnectClass.NVLINK.value: _nvlink,
    InterconnectClass.NVLINK_PAIRS.value: _nvlink_pairs,
    InterconnectClass.PCIE.value: _pcie,
}


def _at_pcie_speed(grading: Grading, headline: Headline) -> str:
    """Set if all_reduce reaches only a small share of NVLink's rate, which PCIe carries too."""
    rate = grading.measurement.nvlink_gbps
    limit = _pcie_limit(grading, nvlink_gbps=rate)
    if limit is None or headline.gbps >= limit:
        return ""
    reported = _REPORTED[grading.measurement.interconnect]
    return (
        f"{_reaches(headline)}, which is PCIe speed, but NVML reports {reported} with "
        f"{gbps_text(rate or 0)} per GPU"
    )


def _no_gain_from_p2p(grading: Grading, _: Headline) -> str:
    """Set if all_reduce is about as fast with P2P disabled."""
    measurement, arm = grading.measurement, grading.measurement.arm(ArmName.P2P_OFF)
    p2p_off = p2p_off_busbw(measurement)
    if p2p_off is None or arm is None or "P2P" in arm.transport.upper():
        return ""
    cell, off = p2p_off
    on = busbw_at_size_of(measurement, cell)
    if on is None or on > (1 + grading.thresholds.p2p_min_gain) * off:
        return ""
    return (
        f"all_reduce at {size_text(cell.bytes)} reaches {gbps_text(on)}, and {gbps_text(off)} with P2P "
        f"disabled: NVML reports {_REPORTED[measurement.interconnect]}, but NCCL gains nothing from it"
    )


def _pairs_at_pcie_speed(grading: Grading, _: Headline) -> str:
    """Set if every pair with NVLinks copies no faster than PCIe."""
    groups = [group for group in grading.measurement.pairs if group.nvlinks]
    for group in groups:
        limit = _pcie_limit(grading, nvlink_gbps=group.nvlink_gbps)
        if limit is None or group.median_gbps >= limit:
            return ""
    if not groups:
        return ""
    best = max(groups, key=lambda group: group.median_gbps)
    return (
        f"copies over {links_in_words(best.nvlinks)} reach {gbps_text(best.median_gbps)}, which is PCIe "
        f"speed, but NVML reports {gbps_text(best.nvlink_gbps or 0)}"
    )


def _pcie_limit(grading: Grading, *, nvlink_gbps: float | None) -> float | None:
    """GB/s below which PCIe alone could explain a number; None if a rate is unknown."""
    if not nvlink_gbps or grading.measurement.pcie_gbps is None:
        return None
    return min(grading.thresholds.contradicted_share * nvlink_gbps, grading.measurement.pcie_gbps)


def _graded_headline(grading: Grading, headline: Headline) -> GradedCell | None:
    """The headline's cell with its floor."""
    arm = headline_arm(grading.measurement)
    cells = graded_cells(grading)
    return next((graded for graded in cells if graded.arm is arm and graded.cell == headline.cell), None)


def _reaches(headline: Headline) -> str:
    return f"{cell_text(headline.cell)} reaches {gbps_text(headline.gbps)}"


def _pair_floor(group: PairGroup, grading: Grading) -> tuple[float, str]:
    """GB/s below which a pair of this group is slow, and the reason for that number."""
    typical = f"similar pairs reach {gbps_text(group.median_gbps)}"
    floors = [(grading.thresholds.pair_share * group.median_gbps, typical)]
    if group.nvlink_gbps:
        carried = f"its NVLinks carry {gbps_text(group.nvlink_gbps)}"
        floors.append((grading.thresholds.pair_link_share * group.nvlink_gbps, carried))
    return max(floors)


def _common_gpu(pairs: list[MeasuredPair]) -> str:
    """The one GPU that is in all of several slow pairs; empty if there is none."""
    common = set.intersection(*({pair.source, pair.target} for pair in pairs)) if pairs else set()
    several = len({frozenset((pair.source, pair.target)) for pair in pairs}) > 1
    return next(iter(common)) if several and len(common) == 1 else ""


def _slow_pair(grading: Grading, group: PairGroup, pair: MeasuredPair, *, common: str) -> Observation:
    floor, reason = _pair_floor(group, grading)
    both = sorted((pair.source, pair.target))
    scope = f" {common} is in every slow pair." if common else ""
    if group.median_gbps < floor:
        scope += f" Half of the {group.count} measured directions reach at most "
        scope += f"{gbps_text(group.median_gbps)}."
    return of_node(
        Severity.WARN,
        f"Copies from {pair.source} to {pair.target} reach {gbps_text(pair.gbps)} over "
        f"{links_in_words(group.nvlinks)}; {reason}.{scope}",
        evidence={
            "gbps": pair.gbps,
            "typical_gbps": group.median_gbps,
            "nvlinks": group.nvlinks,
            "nvlink_gbps": group.nvlink_gbps or 0.0,
        },
        location=" and ".join(both),
        weight=group.median_gbps - pair.gbps,
        gpus=tuple(gpu_named(name) for name in both),
    )


def _one_per_pair(observations: list[Observation]) -> Iterator[Observation]:
    """The slower direction of each pair."""
    worst: dict[str, Observation] = {}
    for observation in sorted(observations, key=lambda observation: -observation.weight):
        worst.setdefault(observation.location, observation)
    yield from worst.values()


INTERCONNECT_CONTRADICTED = NcclRule(
    code="interconnect-contradicted",
    title="bandwidth contradicts the reported interconnect",
    meaning=(
        "The measured bandwidth cannot come from the interconnect that the driver reports. Either NVLinks "
        "are up, but collectives are no faster than PCIe, or no faster than with P2P disabled; or there is "
        "no NVLink, but collectives are faster than PCIe can be. nodegauge removes the interconnect labels "
        "until the two agree: otherwise a job that asks for NVLink could land on a node without it. A "
        "machine whose GPUs communicate through the host with and without P2P is no contradiction."
    ),
    when={
        Severity.WARN: (
            "a ring of NVLinks is reported, and all_reduce is below `contradictedShare` (default 0.4) of "
            "their rate and within the rate of the slowest PCIe link, or at most `p2pMinGain` (default 0.15) "
            "faster than with P2P disabled; or all pairs with NVLinks copy that slowly; or no NVLink is "
            "reported, and all_reduce is faster than the slowest PCIe link"
        )
    },
    next_step="on the node, see whether NCCL uses the links: `NCCL_DEBUG=INFO` names the transport.",
    way_out=(
        OWN_RUN + " `via P2P` means the links, `via SHM` the host's memory.",
        "NVSwitch machines: `systemctl status nvidia-fabricmanager`, and `nvidia-smi -q | grep -A 6 -i "
        "fabric` must say Completed and Success.",
        "`nvidia-smi nvlink -s`; `nvidia-smi topo -p2p n`; `NCCL_P2P_*` in an /etc/nccl.conf.",
        "A good run clears it. The next run comes after `spec.probes.nccl.recheck`, then less often.",
    ),
    probe=Probe.NCCL,
    check=contradicted,
)
PAIR_SLOW = NcclRule(
    code="pair-slow",
    title="the link between two GPUs is slow",
    meaning=(
        "Copies between two GPUs are slower than between other pairs with as many NVLinks. One such pair "
        "slows a ring over all GPUs, and a collective alone does not show which."
    ),
    when={
        Severity.WARN: (
            "one direction of a pair is below `pairShare` (default 0.8) of the median of the pairs with as "
            "many NVLinks, or below `pairLinkShare` (default 0.5) of what its NVLinks carry"
        )
    },
    next_step="`nvidia-smi nvlink -e -i INDEX`, then `nvidia-smi nvlink -e -i OTHER`: errors name it.",
    way_out=(
        "`nvidia-smi nvlink -e -i INDEX` and `nvidia-smi nvlink -e -i OTHER` count errors. " + DRIVER_LOG,
        "If one GPU is in every slow pair, suspect its board or bridge, not the other GPUs.",
        "Power off; reseat the bridge or the board. " + VENDOR,
    ),
    probe=Probe.NCCL,
    check=slow_pairs,
)
