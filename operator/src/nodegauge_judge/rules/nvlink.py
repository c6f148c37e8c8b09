"""Rules about NVLink: refused, missing or unclear links; `nvlink_errors` judges what links count.

None applies with MIG on (NVML then reports every link as down) or to virtual GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodegauge_contract import Gpu
from nodegauge_contract.nvlink import Doubt, Unresolved
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, HealthRule, clip, links_in_words, of_gpu, of_pair
from nodegauge_judge.interconnect import board, fabric, nvlink_state, p2p
from nodegauge_judge.interconnect.nvlink_state import Against, Shortfall
from nodegauge_judge.interconnect.p2p import PairP2p
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, RESET, SAVE, SAVE_FIRST, Observation

FABRIC_WEIGHT = 10
"""A fabric that is not ready is named before the pairs: they refuse because of it."""

_SOURCES = {
    Against.SIBLINGS: "its siblings have",
    Against.HISTORY: "earlier runs saw",
    Against.MODEL: "its siblings have more, its model has",
    Against.WIRING: "its board or its bridges carry",
}


def p2p_refused(case: Case) -> Iterator[Observation]:
    """Pairs with NVLinks that refuse P2P, and GPUs whose fabric is not ready though it had its time."""
    if not fabric.may_start(case):
        yield from not_joined(case)


def not_joined(case: Case) -> Iterator[Observation]:
    """Pairs with NVLinks that refuse P2P, and GPUs whose fabric is not ready, at any time after boot."""
    if board.hides_links(case):
        return
    refused = [pair for pair in case.p2p if pair.refused]
    for pair in refused:
        a, b = case.result.gpus[pair.i], case.result.gpus[pair.j]
        yield of_pair(
            a,
            b,
            Severity.FAIL,
            message=(
                f"{links_in_words(pair.links)} up between them, but the driver refuses "
                f"{', '.join(pair.refused)}."
            ),
            evidence={"links": pair.links, "refused": "; ".join(pair.refused), "pairs": len(refused)},
            weight=len(pair.refused),
        )
    for gpu in case.result.gpus:
        if problem := fabric.fabric_problem(gpu):
            yield _fabric(gpu, problem)


def nvlink_degraded(case: Case) -> Iterator[Observation]:
    """GPUs with fewer links than their siblings, their own history or their model, and a fabric of limited
    capacity."""
    if not fabric.may_start(case):
        yield from short_of_links(case)


def short_of_links(case: Case) -> Iterator[Observation]:
    """GPUs with fewer links than expected, or whose fabric gives less than they should, at any time."""
    for shortfall in nvlink_state.shortfalls(case):
        yield _degraded(case, shortfall)
    for gpu in () if board.hides_links(case) else case.result.gpus:
        if problem := fabric.limited(gpu):
            message = f"The GPU fabric works, but {problem}: no interconnect label."
            yield of_gpu(gpu, Severity.WARN, message, evidence=_fabric_values(gpu))


def links_read(case: Case) -> bool:
    """Whether every GPU's links could be counted."""
    complete = visibility.is_complete(case) and not board.hides_links(case)
    early = fabric.may_start(case) and any((*not_joined(case), *short_of_links(case)))
    return complete and not early and not nvlink_state.uncertain(case)


def p2p_read(case: Case) -> bool:
    """Whether the P2P status of every pair with links is known."""
    unknown = any(pair.unknown for pair in case.p2p)
    return links_read(case) and not unknown


def nvlink_unresolved(case: Case) -> Iterable[Observation]:
    """Links and P2P readings that are unclear although the node was read completely.

    If the run was cut off, a GPU gave an error or GPUs were hidden, unread links belong to those findings.  A
    single GPU has no peer (a virtual machine with one GPU of a bridged pair reports such links).
    """
    cut_off = case.result.problem is not None or any(gpu.error for gpu in case.result.gpus)
    if board.hides_links(case) or cut_off or len(case.result.gpus) < 2 or visibility.missing(case):
        return []
    gpus = case.result.gpus
    explained = {shortfall.gpu_index for shortfall in nvlink_state.shortfalls(case)}
    explained |= set(nvlink_state.without_links(case))
    links = [
        _unresolved(gpus[doubt.gpu], doubt)
        for doubt in case.lanes.unresolved
        if doubt.doubt is not Doubt.HIDDEN and doubt.gpu not in explained
    ]
    claims = [
        _pair(gpus, (i, j), "They claim P2P over NVLink, but no link between them is reported.", links=0)
        for i, j in p2p.silently_joined(case.result, case.lanes)
        if not case.lanes.unresolved and not {i, j} & explained
    ]
    unknown = [
        _pair(gpus, (pair.i, pair.j), _unknown_p2p(pair), links=pair.links)
        for pair in case.p2p
        if pair.unknown and not pair.refused
    ]
    return links + claims + unknown


def _unknown_p2p(pair: PairP2p) -> str:
    return f"They have NVLinks, but their P2P status is unknown: {', '.join(pair.unknown)}."


def _fabric_values(gpu: Gpu) -> dict[str, Scalar]:
    values = {
        "fabric_state": gpu.fabric.state,
        "fabric_status": gpu.fabric.status,
        "fabric_health_mask": gpu.fabric.health_mask,
        "fabric_health_summary": gpu.fabric.health_summary,
    }
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _fabric(gpu: Gpu, problem: str) -> Observation:
    return of_gpu(
        gpu,
        Severity.FAIL,
        f"The GPU fabric is not ready for NVLink: {problem}.",
        evidence=_fabric_values(gpu),
        weight=FABRIC_WEIGHT,
    )


def _degraded(case: Case, shortfall: Shortfall) -> Observation:
    limit = case.thresholds.nvlink_sum_ratio
    failed = shortfall.ratio < limit
    against = f"below {limit:.0%}" if failed else f"still {limit:.0%} or more"
    against += ": no interconnect label" if shortfall.takes_label(limit) else ""
    return of_gpu(
        case.result.gpus[shortfall.gpu_index],
        Severity.FAIL if failed else Severity.WARN,
        f"{links_in_words(shortfall.have)} active; {_SOURCES[shortfall.against]} {shortfall.expected} "
        f"({shortfall.ratio:.0%}, {against}).",
        evidence={
            "links": shortfall.have,
            "expected": shortfall.expected,
            "against": shortfall.against.value,
            "limit": limit,
        },
        weight=1 - shortfall.ratio,
    )


def _unresolved(gpu: Gpu, doubt: Unresolved) -> Observation:
    links = links_in_words(len(doubt.links)) if doubt.links else "NVLinks"
    return of_gpu(
        gpu,
        Severity.WARN,
        f"{links} cannot be resolved: {clip(doubt.reason)}.",
        evidence={"links": len(doubt.links), "doubt": doubt.doubt.value},
        weight=len(doubt.links),
    )


def _pair(gpus: list[Gpu], pair: tuple[int, int], message: str, *, links: int) -> Observation:
    a, b = gpus[pair[0]], gpus[pair[1]]
    return of_pair(a, b, Severity.WARN, message, evidence={"links": links})


RULES = (
    HealthRule(
        code="p2p-refused",
        title="peer access over NVLink is refused",
        meaning=(
            "NVLinks are up between two GPUs, but the driver refuses peer access over them (P2P status READ, "
            "WRITE or NVLINK is not OK), or the GPU fabric is not ready. Links train in hardware even if the "
            "fabric manager is down, so active links prove nothing. NCCL fails to initialise, or falls back "
            "to host memory and runs many times slower."
        ),
        when={
            Severity.FAIL: (
                "a pair with active NVLinks refuses READ, WRITE or NVLINK, or the GPU fabric is not ready"
            )
        },
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
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.P2P),
        check=p2p_refused,
        readable=p2p_read,
    ),
    HealthRule(
        code="nvlink-degraded",
        title="NVLinks are missing",
        meaning=(
            "A GPU has fewer active NVLinks than its siblings of the same model behind the same switches, "
            "than earlier runs counted on this GPU, or than its model has: every GPU of a whole board "
            "without switches has all its links, and bridges carry fixed numbers (an A100 PCIe pair has 4, 8 "
            "or 12). nodegauge does not expect the architecture's maximum (H800 and H100 NVL have fewer "
            "links by design), and does not compare pairs with each other (a healthy mesh is uneven). Or "
            "the fabric says that its bandwidth or capacity is limited."
        ),
        when={
            Severity.WARN: (
                "the GPU has fewer links than expected; or its fabric has degraded bandwidth or limited "
                "capacity, which also removes the interconnect label"
            ),
            Severity.FAIL: (
                "the GPU has fewer than `nvlinkSumRatio` (default 0.75) of the expected links, which also "
                "removes the interconnect label if its model or its history tells how many it should have"
            ),
        },
        next_step=(
            "run `nvidia-smi nvlink -s -i INDEX`. If a link stays down, "
            f"{SAVE_FIRST}; then drain, and reset the GPU or reseat its bridge."
        ),
        way_out=(
            "`nvidia-smi nvlink -s -i INDEX` shows the link that is down.",
            SAVE,
            DRIVER_LOG + " Xid 74 is an NVLink error.",
            DRAIN,
            "Bridged cards: power off and reseat the bridge. " + RESET,
            "If the hardware was changed on purpose: `kubectl delete nodereport NODE` clears the history.",
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NVLINK),
        check=nvlink_degraded,
        readable=links_read,
    ),
    HealthRule(
        code="nvlink-unresolved",
        title="NVLinks cannot be resolved",
        meaning=(
            "The GPUs have NVLinks, but nodegauge could not read where they lead or whether they work: a "
            "virtual machine hides the far end, a link sleeps or has its traffic disabled, or the driver "
            "does not know a P2P status. Nothing is proven broken; the node only gets no interconnect label."
        ),
        when={Severity.WARN: "a link or a pair's P2P status cannot be resolved (ignored while MIG is on)"},
        next_step="compare `nvidia-smi nvlink -s` and `nvidia-smi topo -p2p n` on the node.",
        way_out=(
            "`nvidia-smi nvlink -s`, `nvidia-smi nvlink -R` (far ends) and `nvidia-smi topo -p2p n` on the "
            "node.",
            "In a virtual machine: ask the provider for a topology-aware instance type.",
            "A newer driver reports more. An NCCL run shows what the links really carry.",
        ),
        check=nvlink_unresolved,
    ),
)
