"""Findings about NVLink: refused, missing, or not to be told.  With MIG on there is no opinion (NVML reports
links as down then)."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import Doubt, Unresolved
from nodegauge_judge import fabric, linksum, p2p
from nodegauge_judge.case import Case, Hit, clip, full_name, gather, links_in_words, short_name
from nodegauge_judge.findings import Code
from nodegauge_judge.linksum import Against, Shortfall
from nodegauge_judge.model import Finding, Scalar, Severity
from nodegauge_judge.p2p import PairP2p

FABRIC_WEIGHT = 10
"""The fabric speaks before the pairs: where it is not ready, pairs refuse because of it."""


def p2p_refused(case: Case) -> Iterator[Finding]:
    """Pairs with links that refuse P2P, and GPUs whose fabric disagrees: links that are up prove nothing."""
    if case.lanes.mig:
        return
    refused = [pair for pair in p2p.examine(case.result, case.lanes) if pair.refused]
    hits = [_refused(case.result.gpus, pair, count=len(refused)) for pair in refused]
    hits += [_fabric(gpu, words) for gpu in case.result.gpus if (words := fabric.disagreement(gpu))]
    yield from gather(Code.P2P_REFUSED, hits)


def nvlink_degraded(case: Case) -> Iterator[Finding]:
    """GPUs with fewer links than their siblings, or than they were seen with."""
    yield from gather(Code.NVLINK_DEGRADED, [_degraded(case, short) for short in linksum.shortfalls(case)])


def nvlink_unresolved(case: Case) -> Iterator[Finding]:
    """Links and P2P readings that cannot be told, on a node that was read as far as it goes.

    Where the run was cut off or a GPU gave an error, unread links are that finding's; where a link leads to a
    hidden GPU, it is `gpus-not-visible`'s.  A GPU alone has nobody to be linked to (virtual machines with one
    GPU of a bridged pair report such links).
    """
    cut_off = case.result.problem is not None or any(gpu.error for gpu in case.result.gpus)
    if case.lanes.mig or cut_off or len(case.result.gpus) < 2:
        return
    gpus = case.result.gpus
    explained = {short.place for short in linksum.shortfalls(case)}
    hits = [
        _doubt(gpus[doubt.gpu], doubt)
        for doubt in case.lanes.unresolved
        if doubt.doubt is not Doubt.HIDDEN and doubt.gpu not in explained
    ]
    hits += [
        _pair_hit(gpus, (i, j), said="claim P2P over NVLink, but no link between them is reported", links=0)
        for i, j in p2p.silently_joined(case.result, case.lanes)
        if not case.lanes.unresolved and not {i, j} & explained
    ]
    hits += [
        _pair_hit(gpus, (pair.i, pair.j), said=_unknown(pair), links=pair.links)
        for pair in p2p.examine(case.result, case.lanes)
        if pair.unknown and not pair.refused
    ]
    yield from gather(Code.NVLINK_UNRESOLVED, hits)


def _unknown(pair: PairP2p) -> str:
    return f"have NVLinks, but P2P cannot be told: {', '.join(pair.unknown)}"


def _refused(gpus: list[Gpu], pair: PairP2p, *, count: int) -> Hit:
    a, b = gpus[pair.i], gpus[pair.j]
    words = ", ".join(pair.refused)
    evidence: dict[str, Scalar] = {"links": pair.links, "refused": "; ".join(pair.refused), "pairs": count}
    return Hit(
        severity=Severity.FAIL,
        place=f"{full_name(a)} - {full_name(b)}",
        short=f"{a.index}-{b.index}",
        message=f"{links_in_words(pair.links)} up between them, but the driver refuses {words}.",
        evidence=evidence,
        weight=len(pair.refused),
    )


def _fabric(gpu: Gpu, words: str) -> Hit:
    values = {
        "fabric_state": gpu.fabric.state,
        "fabric_status": gpu.fabric.status,
        "fabric_health_mask": gpu.fabric.health_mask,
        "fabric_health_summary": gpu.fabric.health_summary,
    }
    return Hit(
        severity=Severity.FAIL,
        place=full_name(gpu),
        short=short_name(gpu),
        message=f"The GPU fabric does not agree that NVLink can be used: {words}.",
        evidence={name: value for name, value in values.items() if isinstance(value, int)},
        weight=FABRIC_WEIGHT,
    )


def _degraded(case: Case, short: Shortfall) -> Hit:
    gpu, limit = case.result.gpus[short.place], case.thresholds.nvlink_sum_ratio
    failed = short.ratio < limit
    source = "its siblings have" if short.against is Against.SIBLINGS else "it was seen with"
    against = f"below {limit:.0%}: no interconnect label" if failed else f"still {limit:.0%} or more"
    share = f"{short.ratio:.0%}, {against}"
    return Hit(
        severity=Severity.FAIL if failed else Severity.WARN,
        place=full_name(gpu),
        short=short_name(gpu),
        message=f"{links_in_words(short.have)} active; {source} {short.expected} ({share}).",
        evidence={
            "links": short.have,
            "expected": short.expected,
            "against": short.against.value,
            "limit": limit,
        },
        weight=1 - short.ratio,
    )


def _doubt(gpu: Gpu, doubt: Unresolved) -> Hit:
    many = links_in_words(len(doubt.links)) if doubt.links else "NVLinks"
    return Hit(
        severity=Severity.WARN,
        place=full_name(gpu),
        short=short_name(gpu),
        message=f"{many} cannot be resolved: {clip(doubt.reason)}.",
        evidence={"links": len(doubt.links), "doubt": doubt.doubt.value},
        weight=len(doubt.links),
    )


def _pair_hit(gpus: list[Gpu], pair: tuple[int, int], *, said: str, links: int) -> Hit:
    a, b = gpus[pair[0]], gpus[pair[1]]
    return Hit(
        severity=Severity.WARN,
        place=f"{full_name(a)} - {full_name(b)}",
        short=f"{a.index}-{b.index}",
        message=f"They {said}.",
        evidence={"links": links},
    )
