"""Does bandwidth agree with the interconnect that NVML reports, and is any single link slow?

Contradictions are sought only where they can be told from a box that is right: equality of the arms means
nothing where the ring crosses PCIe, since NCCL uses peer access only up to a PCIe switch (PXB) by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodegauge_contract import ArmName, Collective
from nodegauge_judge.case import Hit, gather, links_in_words
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Finding, InterconnectClass, Scalar, Severity
from nodegauge_judge.nccl.bandwidth import Graded, graded
from nodegauge_judge.nccl.grading import Grading, cell_in_words, gbps, of_node, size_in_words
from nodegauge_judge.nccl.headline import Figure, p2p_off, same_size, speaking
from nodegauge_judge.nccl.measurement import PairKind, PairSeen
from nodegauge_judge.nccl.model import Agreement

Said = tuple[Agreement, str]
_UNSURE = Agreement.UNSURE
_LABEL = {
    InterconnectClass.NVLINK.value: "a ring of NVLinks",
    InterconnectClass.NVLINK_PAIRS.value: "NVLinks between some pairs",
    InterconnectClass.PCIE.value: "no NVLink",
}


def agreement(grading: Grading) -> Said:
    """Whether bandwidth confirms or contradicts what NVML reports, and the sentence that says by which
    numbers."""
    measured = grading.measured
    ask = _BY_CLASS.get(measured.klass)
    figure = grading.figures.get(Collective.ALL_REDUCE)
    if ask is None:
        return _UNSURE, "NVML reports no interconnect class that bandwidth could confirm"
    if measured.told_off:
        return _UNSURE, "peer access is switched off by the policy's environment"
    if figure is None:
        return _UNSURE, "all_reduce was not measured at a size that tells"
    return ask(grading, figure)


def contradicted(grading: Grading) -> Iterator[Finding]:
    """The finding that goes with a contradiction."""
    said, message = agreement(grading)
    if said is Agreement.CONTRADICTED:
        figure = grading.figures[Collective.ALL_REDUCE]
        evidence: dict[str, Scalar] = {
            "reported": grading.measured.klass,
            "busbw_gbps": float(f"{figure.gbps:.4g}"),
            "nvlink_gbps": grading.measured.wire or 0.0,
            "pcie_gbps": grading.measured.pcie or 0.0,
        }
        without = p2p_off(grading.measured)
        if without is not None:
            evidence["p2p_off_gbps"] = float(f"{without[1]:.4g}")
        hit = of_node(Severity.WARN, f"Measured: {message}.", evidence=evidence)
        yield from gather(Code.INTERCONNECT_CONTRADICTED, [hit])


def slow_pairs(grading: Grading) -> Iterator[Finding]:
    """Pairs whose copies are slower than those of pairs with as many NVLinks, or than their NVLinks."""
    slow = [
        (kind, pair, floor, words)
        for kind in grading.measured.pairs
        if kind.nvlinks
        for pair in kind.slowest
        for floor, words in [_pair_floor(kind, grading)]
        if pair.gbps < floor
    ]
    shared = _in_all([pair for _, pair, _, _ in slow])
    hits = [_slow(kind, pair, words=words, shared=shared, floor=floor) for kind, pair, floor, words in slow]
    yield from gather(Code.PAIR_SLOW, _one_per_pair(hits))


def _nvlink(grading: Grading, figure: Figure) -> Said:
    for objection in (_at_pcie_speed, _no_better_without, _pairs_at_pcie_speed):
        words = objection(grading, figure)
        if words:
            return Agreement.CONTRADICTED, words
    own = _graded(grading, figure)
    if own is None:
        return _UNSURE, f"{_reached(figure)}; no row and no rule says what NVLink should reach here"
    if own.below:
        return (
            _UNSURE,
            f"{_reached(figure)}: below its floor of {gbps(own.floor.gbps)}, yet more than PCIe explains",
        )
    source = f" ({own.floor.source})" if own.floor.source else ""
    floor = f"the floor is {gbps(own.floor.gbps)}, {own.floor.words}{source}"
    return Agreement.CONFIRMED, f"{_reached(figure)} and confirms NVLink: {floor}"


def _pcie(grading: Grading, figure: Figure) -> Said:
    rate = grading.measured.pcie
    if rate is None:
        return _UNSURE, f"{_reached(figure)}; the rate of the PCIe links could not be read"
    if figure.gbps > rate:
        return (
            Agreement.CONTRADICTED,
            f"{_reached(figure)}, more than the slowest PCIe link carries ({gbps(rate)}), though NVML "
            f"reports {_LABEL[grading.measured.klass]}",
        )
    own = _graded(grading, figure)
    if own is not None and own.below:
        return _UNSURE, f"{_reached(figure)}: below its floor of {gbps(own.floor.gbps)}"
    return Agreement.CONFIRMED, f"{_reached(figure)}, which PCIe carries ({gbps(rate)} at most)"


def _some_pairs(grading: Grading, figure: Figure) -> Said:
    words = _pairs_at_pcie_speed(grading, figure)
    if words:
        return Agreement.CONTRADICTED, words
    kinds = [kind for kind in grading.measured.pairs if kind.nvlinks]
    if not kinds:
        return _UNSURE, f"{_reached(figure)}; copies between pairs were not measured"
    slowest = min(kinds, key=lambda kind: kind.typical)
    floor, _ = _pair_floor(slowest, grading)
    if slowest.typical < floor or (grading.measured.pcie or 0.0) >= slowest.typical:
        return _UNSURE, f"copies over {links_in_words(slowest.nvlinks)} reach {gbps(slowest.typical)}"
    reached = f"copies over {links_in_words(slowest.nvlinks)} reach {gbps(slowest.typical)}"
    return Agreement.CONFIRMED, f"{reached}, more than PCIe carries"


_BY_CLASS: dict[str, Callable[[Grading, Figure], Said]] = {
    InterconnectClass.NVLINK.value: _nvlink,
    InterconnectClass.NVLINK_PAIRS.value: _some_pairs,
    InterconnectClass.PCIE.value: _pcie,
}


def _at_pcie_speed(grading: Grading, figure: Figure) -> str:
    """all_reduce at no more than a share of NVLink's rate, which PCIe could carry as well."""
    limit = _pcie_speed(grading, wire=grading.measured.wire)
    if limit is None or figure.gbps >= limit:
        return ""
    return (
        f"{_reached(figure)}, which is PCIe's speed: NVML reports {_LABEL[grading.measured.klass]} with "
        f"{gbps(grading.measured.wire or 0)} per GPU"
    )


def _no_better_without(grading: Grading, figure: Figure) -> str:
    """all_reduce about as fast with peer access switched off."""
    measured, arm = grading.measured, grading.measured.arm(ArmName.P2P_OFF)
    without = p2p_off(measured)
    if without is None or arm is None or "P2P" in arm.transport.upper():
        return ""
    cell, off = without
    on = same_size(measured, cell)
    if on is None or on > (1 + grading.thresholds.p2p_min_gain) * off:
        return ""
    where = f"all_reduce at {size_in_words(cell.bytes)}"
    return (
        f"{where} reaches {gbps(on)}, and {gbps(off)} with peer access switched off: NVML reports "
        f"{_LABEL[measured.klass]}, and NCCL gains nothing from it"
    )


def _pairs_at_pcie_speed(grading: Grading, _: Figure) -> str:
    """Every pair with NVLinks copies at no more than PCIe's speed."""
    kinds = [kind for kind in grading.measured.pairs if kind.nvlinks]
    for kind in kinds:
        limit = _pcie_speed(grading, wire=kind.wire)
        if limit is None or kind.typical >= limit:
            return ""
    if not kinds:
        return ""
    best = max(kinds, key=lambda kind: kind.typical)
    return (
        f"copies over {links_in_words(best.nvlinks)} reach {gbps(best.typical)}, which is PCIe's speed: NVML "
        f"reports {gbps(best.wire or 0)}"
    )


def _pcie_speed(grading: Grading, *, wire: float | None) -> float | None:
    """GB/s below which a number may as well be PCIe's; None where a rate is not known."""
    if not wire or grading.measured.pcie is None:
        return None
    return min(grading.thresholds.contradicted_share * wire, grading.measured.pcie)


def _graded(grading: Grading, figure: Figure) -> Graded | None:
    """The figure beside its floor."""
    arm = speaking(grading.measured)
    return next((one for one in graded(grading) if one.arm is arm and one.cell == figure.cell), None)


def _reached(figure: Figure) -> str:
    return f"{cell_in_words(figure.cell)} reaches {gbps(figure.gbps)}"


def _pair_floor(kind: PairKind, grading: Grading) -> tuple[float, str]:
    """GB/s below which a pair of this kind is slow, and in words what that is."""
    limits = [(grading.thresholds.pair_share * kind.typical, f"pairs like it reach {gbps(kind.typical)}")]
    if kind.wire:
        words = f"its NVLinks carry {gbps(kind.wire)}"
        limits.append((grading.thresholds.pair_link_share * kind.wire, words))
    return max(limits)


def _in_all(pairs: list[PairSeen]) -> str:
    """The GPU that every one of several slow pairs has in common; empty for none."""
    common = set.intersection(*({pair.source, pair.target} for pair in pairs)) if pairs else set()
    several = len({frozenset((pair.source, pair.target)) for pair in pairs}) > 1
    return next(iter(common)) if several and len(common) == 1 else ""


def _slow(kind: PairKind, pair: PairSeen, *, words: str, shared: str, floor: float) -> Hit:
    both = f" {shared} is in every slow pair." if shared else ""
    if kind.typical < floor:
        both += f" Half of the {kind.count} ways between such pairs reach {gbps(kind.typical)} or less."
    return of_node(
        Severity.WARN,
        f"Copies from {pair.source} to {pair.target} reach {gbps(pair.gbps)} over "
        f"{links_in_words(kind.nvlinks)}; {words}.{both}",
        evidence={
            "gbps": pair.gbps,
            "typical_gbps": kind.typical,
            "nvlinks": kind.nvlinks,
            "wire_gbps": kind.wire or 0.0,
        },
        place=" and ".join(sorted((pair.source, pair.target))),
        weight=kind.typical - pair.gbps,
    )


def _one_per_pair(hits: list[Hit]) -> Iterator[Hit]:
    """The slower direction of each pair."""
    worst: dict[str, Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.weight):
        worst.setdefault(hit.location, hit)
    yield from worst.values()
