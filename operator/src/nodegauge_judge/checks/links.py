"""Findings about NVLink: refused, missing, failing, or not to be told.  With MIG on there is no opinion (NVML
reports links as down then)."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import Doubt, Unresolved
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, Hit, clip, full_name, gather, links_in_words, short_name
from nodegauge_judge.findings import Code
from nodegauge_judge.history.growth import GpuGrowth
from nodegauge_judge.interconnect import fabric, link_counts, p2p
from nodegauge_judge.interconnect.link_counts import Against, Shortfall
from nodegauge_judge.interconnect.p2p import PairP2p
from nodegauge_judge.model import Finding, Scalar, Severity

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
    """GPUs with fewer links than their siblings, or than they were seen with; and links that make errors."""
    hits = [_degraded(case, short) for short in link_counts.shortfalls(case)]
    if not case.lanes.mig:
        pairs = zip(case.result.gpus, case.growth.gpus, strict=True)
        hits += [hit for gpu, grown in pairs for hit in _link_errors(gpu, grown)]
    yield from gather(Code.NVLINK_DEGRADED, hits)


def links_read(case: Case) -> bool:
    """Whether every GPU's links could be counted."""
    whole = visibility.is_complete(case) and not case.lanes.mig
    return whole and not link_counts.uncertain(case)


def p2p_read(case: Case) -> bool:
    """Whether P2P could be told for every pair that has links."""
    unknown = any(pair.unknown for pair in p2p.examine(case.result, case.lanes))
    return links_read(case) and not unknown


def nvlink_unresolved(case: Case) -> Iterator[Finding]:
    """Links and P2P readings that cannot be told, on a node that was read as far as it goes.

    Where the run was cut off or a GPU gave an error, unread links are that finding's; where GPUs were not
    shown, they are `gpus-not-visible`'s.  A GPU alone has nobody to be linked to (virtual machines with one
    GPU of a bridged pair report such links).
    """
    cut_off = case.result.problem is not None or any(gpu.error for gpu in case.result.gpus)
    if case.lanes.mig or cut_off or len(case.result.gpus) < 2 or visibility.missing(case):
        return
    gpus = case.result.gpus
    explained = {short.place for short in link_counts.shortfalls(case)}
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


def _link_errors(gpu: Gpu, grown: GpuGrowth) -> Iterator[Hit]:
    """Errors since the last run; a failed recovery that nobody can date only warns."""
    failed, count = grown.link_recovery_failed, gpu.link_errors.recovery_failed
    if failed:
        message = f"{_times('NVLink recovery', failed)} failed since the last run."
        yield _error_hit(gpu, Severity.FAIL, message, {"recovery_failed": failed}, weight=1 + failed)
    elif failed is None and isinstance(count, int) and count > 0:
        why = grown.why("link_recovery_failed") or "there is no earlier reading to compare with"
        message = (
            f"{_times('NVLink recovery', count)} failed since the driver was loaded; whether any is new is "
            f"not known: {why}."
        )
        yield _error_hit(gpu, Severity.WARN, message, {"recovery_failed": count}, weight=0)
    if grown.link_errors:
        message = f"{_times('NVLink error', grown.link_errors)} (CRC, replay, recovery) since the last run."
        yield _error_hit(gpu, Severity.WARN, message, {"errors": grown.link_errors}, weight=0)


def _times(what: str, count: int) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count} {what if count == 1 else plural}"


def _error_hit(
    gpu: Gpu, severity: Severity, message: str, evidence: dict[str, Scalar], *, weight: float
) -> Hit:
    return Hit(
        severity=severity,
        place=full_name(gpu),
        short=f"{short_name(gpu)} errors",
        message=message,
        evidence=evidence,
        weight=weight,
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
