"""Findings about NVLink: refused, missing, failing, or not to be told.  With MIG on there is no opinion (NVML
reports links as down then)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import Doubt, Unresolved
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, HealthRule, clip, full_name, links_in_words, of_gpu, short_name
from nodegauge_judge.history.growth import GpuGrowth
from nodegauge_judge.interconnect import fabric, link_counts, p2p
from nodegauge_judge.interconnect.link_counts import Against, Shortfall
from nodegauge_judge.interconnect.p2p import PairP2p
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules.steps import DRIVER_LOG, RESET

FABRIC_WEIGHT = 10
"""The fabric speaks before the pairs: where it is not ready, pairs refuse because of it."""


def p2p_refused(case: Case) -> Iterable[Observation]:
    """Pairs with links that refuse P2P, and GPUs whose fabric disagrees: links that are up prove nothing."""
    if case.lanes.mig:
        return []
    refused = [pair for pair in p2p.examine(case.result, case.lanes) if pair.refused]
    hits = [_refused(case.result.gpus, pair, count=len(refused)) for pair in refused]
    hits += [_fabric(gpu, words) for gpu in case.result.gpus if (words := fabric.disagreement(gpu))]
    return hits


def nvlink_degraded(case: Case) -> Iterable[Observation]:
    """GPUs with fewer links than their siblings, or than they were seen with; and links that make errors."""
    hits = [_degraded(case, short) for short in link_counts.shortfalls(case)]
    if not case.lanes.mig:
        pairs = zip(case.result.gpus, case.growth.gpus, strict=True)
        hits += [hit for gpu, grown in pairs for hit in _link_errors(gpu, grown)]
    return hits


def links_read(case: Case) -> bool:
    """Whether every GPU's links could be counted."""
    whole = visibility.is_complete(case) and not case.lanes.mig
    return whole and not link_counts.uncertain(case)


def p2p_read(case: Case) -> bool:
    """Whether P2P could be told for every pair that has links."""
    unknown = any(pair.unknown for pair in p2p.examine(case.result, case.lanes))
    return links_read(case) and not unknown


def nvlink_unresolved(case: Case) -> Iterable[Observation]:
    """Links and P2P readings that cannot be told, on a node that was read as far as it goes.

    Where the run was cut off or a GPU gave an error, unread links are that finding's; where GPUs were not
    shown, they are `gpus-not-visible`'s.  A GPU alone has nobody to be linked to (virtual machines with one
    GPU of a bridged pair report such links).
    """
    cut_off = case.result.problem is not None or any(gpu.error for gpu in case.result.gpus)
    if case.lanes.mig or cut_off or len(case.result.gpus) < 2 or visibility.missing(case):
        return []
    gpus = case.result.gpus
    explained = {short.gpu_index for short in link_counts.shortfalls(case)}
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
    return hits


def _unknown(pair: PairP2p) -> str:
    return f"have NVLinks, but P2P cannot be told: {', '.join(pair.unknown)}"


def _refused(gpus: list[Gpu], pair: PairP2p, *, count: int) -> Observation:
    a, b = gpus[pair.i], gpus[pair.j]
    words = ", ".join(pair.refused)
    evidence: dict[str, Scalar] = {"links": pair.links, "refused": "; ".join(pair.refused), "pairs": count}
    return Observation(
        severity=Severity.FAIL,
        location=f"{full_name(a)} - {full_name(b)}",
        short=f"{a.index}-{b.index}",
        message=f"{links_in_words(pair.links)} up between them, but the driver refuses {words}.",
        evidence=evidence,
        weight=len(pair.refused),
    )


def _fabric(gpu: Gpu, words: str) -> Observation:
    values = {
        "fabric_state": gpu.fabric.state,
        "fabric_status": gpu.fabric.status,
        "fabric_health_mask": gpu.fabric.health_mask,
        "fabric_health_summary": gpu.fabric.health_summary,
    }
    return of_gpu(
        gpu,
        Severity.FAIL,
        message=f"The GPU fabric does not agree that NVLink can be used: {words}.",
        evidence={name: value for name, value in values.items() if isinstance(value, int)},
        weight=FABRIC_WEIGHT,
    )


def _degraded(case: Case, short: Shortfall) -> Observation:
    gpu, limit = case.result.gpus[short.gpu_index], case.thresholds.nvlink_sum_ratio
    failed = short.ratio < limit
    source = "its siblings have" if short.against is Against.SIBLINGS else "it was seen with"
    against = f"below {limit:.0%}: no interconnect label" if failed else f"still {limit:.0%} or more"
    share = f"{short.ratio:.0%}, {against}"
    return of_gpu(
        gpu,
        Severity.FAIL if failed else Severity.WARN,
        message=f"{links_in_words(short.have)} active; {source} {short.expected} ({share}).",
        evidence={
            "links": short.have,
            "expected": short.expected,
            "against": short.against.value,
            "limit": limit,
        },
        weight=1 - short.ratio,
    )


def _link_errors(gpu: Gpu, grown: GpuGrowth) -> Iterator[Observation]:
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
) -> Observation:
    return Observation(
        severity=severity,
        location=full_name(gpu),
        short=f"{short_name(gpu)} errors",
        message=message,
        evidence=evidence,
        weight=weight,
    )


def _doubt(gpu: Gpu, doubt: Unresolved) -> Observation:
    many = links_in_words(len(doubt.links)) if doubt.links else "NVLinks"
    return of_gpu(
        gpu,
        Severity.WARN,
        message=f"{many} cannot be resolved: {clip(doubt.reason)}.",
        evidence={"links": len(doubt.links), "doubt": doubt.doubt.value},
        weight=len(doubt.links),
    )


def _pair_hit(gpus: list[Gpu], pair: tuple[int, int], *, said: str, links: int) -> Observation:
    a, b = gpus[pair[0]], gpus[pair[1]]
    return Observation(
        severity=Severity.WARN,
        location=f"{full_name(a)} - {full_name(b)}",
        short=f"{a.index}-{b.index}",
        message=f"They {said}.",
        evidence={"links": links},
    )


P2P_REFUSED = HealthRule(
    code="p2p-refused",
    title="peer access over NVLink is refused",
    meaning=(
        "NVLinks are up between two GPUs, but the driver refuses peer access over them (P2P status "
        "READ, WRITE or NVLINK is not OK), or the GPU fabric says that it is not ready. Links train in "
        "hardware whatever the fabric manager does, so links that are up prove nothing: NCCL fails its "
        "initialisation or falls back to host memory, many times slower."
    ),
    when={Severity.FAIL: "a pair with active NVLinks refuses READ, WRITE or NVLINK, or the fabric disagrees"},
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.P2P),
    next_step=(
        "with NVSwitch, check `systemctl status nvidia-fabricmanager` on the node; without it, IOMMU "
        "and ACS settings."
    ),
    way_out=(
        "NVSwitch machines: `systemctl status nvidia-fabricmanager` on the node; its version must equal "
        "the driver's (`cat /proc/driver/nvidia/version`). Restart it with no job running.",
        "`nvidia-smi -q | grep -A 6 -i fabric` must say Completed and Success on every GPU.",
        "Without NVSwitch: `nvidia-smi topo -p2p n`, then IOMMU and ACS settings, and `cat "
        "/proc/driver/nvidia/params` for registry keys that disable peer access.",
        DRIVER_LOG,
    ),
    check=p2p_refused,
    readable=p2p_read,
)
NVLINK_DEGRADED = HealthRule(
    code="nvlink-degraded",
    title="NVLinks are missing or make errors",
    meaning=(
        "A GPU has fewer active NVLinks than it should have: fewer than its siblings of the same model "
        "behind the same switches, or fewer than this very GPU has been seen with. It is never compared "
        "with the architecture's maximum (H800 and H100 NVL have fewer on purpose), and pairs are never "
        "compared with each other (healthy meshes are uneven). Links that are up but make errors are "
        "found by the growth of their counters."
    ),
    when={
        Severity.WARN: (
            "the link sum is below what it is compared with; or CRC, replay or recovery errors since the "
            "last run; or a failed recovery with no earlier reading to compare with"
        ),
        Severity.FAIL: (
            "the link sum is below `nvlinkSumRatio` (default 0.75) of that: no interconnect label; or a "
            "link recovery failed since the last run"
        ),
    },
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NVLINK),
    next_step=("run `nvidia-smi nvlink -s` on the node and reseat the bridge or board if a link stays down."),
    way_out=(
        "`nvidia-smi nvlink -s` shows the link that is down, `nvidia-smi nvlink -e` its error counters.",
        DRIVER_LOG + " Xid 74 is an NVLink error.",
        "Bridged cards: power off and reseat the bridge. " + RESET,
        "If the hardware was changed on purpose: `kubectl delete nodereport NODE` forgets what was seen.",
    ),
    check=nvlink_degraded,
    readable=links_read,
)
NVLINK_UNRESOLVED = HealthRule(
    code="nvlink-unresolved",
    title="NVLinks cannot be told apart",
    meaning=(
        "NVLinks are there, but where they lead or whether they can be used could not be read: a "
        "virtual machine that hides the far end, a link asleep or with traffic disabled, a P2P status "
        "that the driver does not know. Nothing is proven broken, so there is only no interconnect "
        "label."
    ),
    when={Severity.WARN: "a link or a pair's P2P status cannot be resolved (never while MIG is on)"},
    next_step="compare `nvidia-smi nvlink -s` and `nvidia-smi topo -p2p n` on the node.",
    way_out=(
        "`nvidia-smi nvlink -s`, `nvidia-smi nvlink -R` (far ends) and `nvidia-smi topo -p2p n` on the node.",
        "In a virtual machine: ask the provider for a topology-aware instance type.",
        "A newer driver reports more; a measured bandwidth settles it.",
    ),
    check=nvlink_unresolved,
)

RULES = (
    P2P_REFUSED,
    NVLINK_DEGRADED,
    NVLINK_UNRESOLVED,
)
