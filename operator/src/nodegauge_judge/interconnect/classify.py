"""The interconnect class and `nvlink-gbps`: the label that schedulers believe.

A pair counts as NVLink only if it has links and P2P READ, WRITE and NVLINK are all OK.  The class is `nvlink`
only if a ring of such pairs joins ALL GPUs, which is what NCCL needs.  If the sources disagree or one of them
is unreadable, there is no class: a wrong label costs a job more than a missing one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import floor

from msgspec.structs import replace

from nodegauge_contract.model import PASTED
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, clip, short_name
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.interconnect import board, fabric, nvlink_state, p2p
from nodegauge_judge.model import Evidence, Interconnect, InterconnectClass

RATE_TOLERANCE = 0.08
"""How far a raw signalling rate may be from one that a GPU model has.  Drivers report H100 as 26.562 (6.2 %
over its 25) and B200 as 53.125; the nearest two rates are 20 % apart.  Chosen by this project."""

MAX_GPUS = 16
"""The most GPUs in one NVLink domain of a single machine (DGX-2, HGX-2); larger nodes get no class."""


class Reason(StrEnum):
    """Why there is this class, or none."""

    NVLINK_RING = "NvlinkRing"
    NVLINK_SOME_PAIRS = "NvlinkSomePairs"
    NO_NVLINK = "NoNvlink"
    NO_TABLE = "NoTable"
    PROBE_INCOMPLETE = "ProbeIncomplete"
    GPUS_NOT_VISIBLE = "GpusNotVisible"
    GPU_UNREADABLE = "GpuUnreadable"
    SINGLE_GPU = "SingleGpu"
    MIG_ENABLED = "MigEnabled"
    VIRTUAL_GPU = "VirtualGpu"
    FABRIC_DISAGREES = "FabricDisagrees"
    CLIQUES_DIFFER = "CliquesDiffer"
    P2P_REFUSED = "P2pRefused"
    LINKS_UNRESOLVED = "LinksUnresolved"
    LINKS_DEGRADED = "LinksDegraded"
    LINKS_DOWN = "LinksDown"
    P2P_UNREADABLE = "P2pUnreadable"
    TOO_MANY_GPUS = "TooManyGpus"


def snapped(mbps: int) -> float | None:
    """The advertised GB/s per link and direction for a raw rate in MB/s; None when none is within 8 %."""
    raw = mbps / 1000
    nearest = min(known_models().rates(), key=lambda rate: abs(raw - rate) / rate)
    return nearest if abs(raw - nearest) <= RATE_TOLERANCE * nearest else None


def nvlink_gbps(case: Case) -> int | None:
    """GB/s one way of the weakest GPU: min over GPUs of (link sum x rate), floored; None without all
    rates."""
    per_gpu: list[float] = []
    for links, mbps in zip(case.lanes.sums, case.lanes.rates, strict=True):
        rate = snapped(mbps) if mbps is not None else None
        if rate is None:
            return None
        per_gpu.append(links * rate)
    return floor(min(per_gpu)) if per_gpu else None


def decide(case: Case) -> Interconnect:
    """The interconnect of a node: the first objection wins; without one the links decide."""
    for object_to in _OBJECTIONS:
        objection = object_to(case)
        if objection is not None:
            reason, message = objection
            return Interconnect(reason=reason.value, message=message)
    interconnect = _class(case)
    if case.result.probe != PASTED:
        return interconnect
    message = f"{interconnect.message} ({nvlink_state.pasted_evidence(case.result)})"
    return replace(interconnect, evidence=Evidence.PASTED, message=message)


def _class(case: Case) -> Interconnect:
    size = len(case.lanes.sums)
    if not any(case.lanes.sums):
        message = f"no GPU of {size} has an active NVLink: they talk over PCIe"
        return _classified(InterconnectClass.PCIE, Reason.NO_NVLINK, message)
    joined = [[False] * size for _ in range(size)]
    for pair in case.p2p:
        joined[pair.i][pair.j] = joined[pair.j][pair.i] = True
    if ring(joined) is Ring.YES:
        gbps = nvlink_gbps(case)
        speed = f"{gbps} GB/s per GPU one way" if gbps is not None else "link rate not readable"
        what = (
            "both GPUs are joined by NVLink" if size == 2 else f"NVLink alone joins all {size} GPUs in a ring"
        )
        message = f"{what}, {speed}"
        return _classified(InterconnectClass.NVLINK, Reason.NVLINK_RING, message, gbps=gbps)
    count = sum(sum(row) for row in joined) // 2
    message = (
        f"{count} of {size * (size - 1) // 2} pairs have NVLink; a ring over all {size} GPUs crosses PCIe"
    )
    return _classified(InterconnectClass.NVLINK_PAIRS, Reason.NVLINK_SOME_PAIRS, message)


def _classified(
    klass: InterconnectClass, reason: Reason, message: str, *, gbps: int | None = None
) -> Interconnect:
    return Interconnect(
        klass=klass, nvlink_gbps=gbps, evidence=Evidence.REPORTED, reason=reason.value, message=message
    )


Objection = tuple[Reason, str] | None


def _incomplete(case: Case) -> Objection:
    problem = case.result.problem
    if problem is None:
        return None
    what = "the paste is incomplete" if case.result.probe == PASTED else "the probe did not read everything"
    return Reason.PROBE_INCOMPLETE, f"{what}: {clip(problem.message or problem.kind)}"


def _not_visible(case: Case) -> Objection:
    reasons = visibility.missing(case)
    return (Reason.GPUS_NOT_VISIBLE, reasons[0]) if reasons else None


def _lost(case: Case) -> Objection:
    count = visibility.lost(case)
    lost = "a GPU" if count == 1 else f"{count} GPUs"
    how = (
        "fell off the bus in this boot"
        if case.node.expected_gpus is None
        else "fewer than the policy expects"
    )
    return (Reason.GPU_UNREADABLE, f"{lost} {how}") if count else None


def _unreadable(case: Case) -> Objection:
    bad = [gpu for gpu in case.result.gpus if gpu.error is not None]
    if not bad:
        return None
    return Reason.GPU_UNREADABLE, f"{', '.join(short_name(gpu) for gpu in bad[:8])} could not be read"


def _single(case: Case) -> Objection:
    return (Reason.SINGLE_GPU, "one GPU: there is nothing to join") if len(case.result.gpus) == 1 else None


def _mig(case: Case) -> Objection:
    on = [short_name(case.result.gpus[gpu_index]) for gpu_index in case.lanes.mig]
    return (Reason.MIG_ENABLED, f"MIG is on ({', '.join(on[:8])}): NVLinks read as down") if on else None


def _virtual(case: Case) -> Objection:
    """A GPU that is passed through is a whole one: its links and its P2P status count as they are read."""
    for gpu in case.result.gpus:
        if kind := board.shared(gpu):
            return (
                Reason.VIRTUAL_GPU,
                f"{short_name(gpu)} is {kind}: the hypervisor hides what joins the GPUs",
            )
    return None


def _no_table(case: Case) -> Objection:
    if not nvlink_state.without_table(case.result):
        return None
    return Reason.NO_TABLE, "the paste has no table of `nvidia-smi topo -m`"


def _fabric(case: Case) -> Objection:
    for gpu in case.result.gpus:
        if problem := fabric.fabric_problem(gpu):
            return Reason.FABRIC_DISAGREES, f"{short_name(gpu)}: {problem}"
    return None


def _limited(case: Case) -> Objection:
    for gpu in case.result.gpus:
        if problem := fabric.limited(gpu):
            return Reason.LINKS_DEGRADED, f"{short_name(gpu)}: the fabric works, but {problem}"
    return None


def _cliques(case: Case) -> Objection:
    cliques = fabric.cliques(case)
    if not cliques:
        return None
    return Reason.CLIQUES_DIFFER, f"the GPUs are in {len(cliques)} cliques of the fabric"


def _refused(case: Case) -> Objection:
    refused = [pair for pair in case.p2p if pair.refused]
    if not refused:
        return None
    gpus, first = case.result.gpus, refused[0]
    pair = f"{short_name(gpus[first.i])} and {short_name(gpus[first.j])}"
    return Reason.P2P_REFUSED, f"NVLinks are up, but P2P is refused between {pair}: {first.refused[0]}"


def _unresolved(case: Case) -> Objection:
    for doubt in case.lanes.unresolved:
        return (
            Reason.LINKS_UNRESOLVED,
            f"NVLinks of {short_name(case.result.gpus[doubt.gpu])}: {clip(doubt.reason)}",
        )
    for i, j in p2p.silently_joined(case.result, case.lanes):
        pair = f"{short_name(case.result.gpus[i])} and {short_name(case.result.gpus[j])}"
        return (
            Reason.LINKS_UNRESOLVED,
            f"P2P over NVLink is OK between {pair}, but no link between them is reported",
        )
    return None


def _degraded(case: Case) -> Objection:
    limit = case.thresholds.nvlink_sum_ratio
    failed = (short for short in nvlink_state.shortfalls(case) if short.takes_label(limit))
    short = min(failed, key=lambda s: s.ratio, default=None)
    if short is None:
        return None
    name = short_name(case.result.gpus[short.gpu_index])
    return Reason.LINKS_DEGRADED, f"{name} has {short.have} of {short.expected} NVLinks"


def _down(case: Case) -> Objection:
    down = nvlink_state.without_links(case)
    if down:
        names = ", ".join(short_name(case.result.gpus[gpu_index]) for gpu_index in down[:8])
        return Reason.LINKS_DOWN, f"no NVLink is active on {names}"
    healthy = nvlink_state.all_short(case)
    if healthy is None:
        return None
    return Reason.LINKS_DOWN, f"no GPU has more than {max(case.lanes.sums)} of its {healthy} NVLinks"


def _p2p_unreadable(case: Case) -> Objection:
    for pair in case.p2p:
        if pair.unknown:
            names = f"{short_name(case.result.gpus[pair.i])} and {short_name(case.result.gpus[pair.j])}"
            return Reason.P2P_UNREADABLE, f"P2P between {names}: {pair.unknown[0]}"
    return None


def _too_many(case: Case) -> Objection:
    if len(case.result.gpus) <= MAX_GPUS or not any(case.lanes.sums):
        return None
    return Reason.TOO_MANY_GPUS, f"{len(case.result.gpus)} GPUs: rings are searched for up to {MAX_GPUS} GPUs"


_OBJECTIONS: tuple[Callable[[Case], Objection], ...] = (
    _incomplete,
    _not_visible,
    _lost,
    _unreadable,
    _single,
    _mig,
    _virtual,
    _no_table,
    _fabric,
    _limited,
    _cliques,
    _refused,
    _degraded,
    _down,
    _unresolved,
    _p2p_unreadable,
    _too_many,
)


class Ring(StrEnum):
    """Whether a cycle over all GPUs exists (for two GPUs: whether the pair is joined)."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def ring(joined: Sequence[Sequence[bool]]) -> Ring:
    """Whether the graph (square, symmetric adjacency) has a Hamiltonian cycle: NCCL needs one of NVLinks.

    Exact, so that neither the order of GPUs nor luck in a search decides about a label.  16 GPUs cost about a
    quarter of a million steps; more are refused.  A graph that joins every GPU to at least half of them, as
    switches do, always has one (Dirac's theorem, 1952).
    """
    size = len(joined)
    if size > MAX_GPUS:
        return Ring.UNKNOWN
    if size < 2:
        return Ring.NO
    if size == 2:
        return Ring.YES if joined[0][1] else Ring.NO
    edges = [sum(1 << j for j in range(size) if j != i and joined[i][j]) for i in range(size)]
    if any(edge.bit_count() < 2 for edge in edges):
        return Ring.NO
    if all(edge.bit_count() * 2 >= size for edge in edges):
        return Ring.YES
    return Ring.YES if _cycle(edges) else Ring.NO


def _cycle(edges: list[int]) -> bool:
    """The Held-Karp table over subsets: `ends[s]` holds the vertices at which a path from vertex 0 through
    exactly the vertices of s can end."""
    full = (1 << len(edges)) - 1
    ends = [0] * (full + 1)
    ends[1] = 1
    for subset in range(1, full, 2):
        here = ends[subset]
        if not here:
            continue
        outside = full & ~subset
        while outside:
            bit = outside & -outside
            outside ^= bit
            if edges[bit.bit_length() - 1] & here:
                ends[subset | bit] |= bit
    return bool(ends[full] & edges[0])
