"""From a result document to a `Measured`: what the benchmark, and NVML beside it, said.

The interconnect class is that of the very same document and of the GPUs in it alone: what the cluster says of
the node, and GPUs that were held back from the benchmark, are other findings' business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from statistics import median

from msgspec.structs import replace

from nodegauge_contract import Arm, ArmName, Bus, Cell, Collective, Gpu, NcclResult, Result, Unavailable
from nodegauge_judge.case import Case, clip, full_name, number, text
from nodegauge_judge.history.model import History, uuid_start
from nodegauge_judge.interconnect import classify
from nodegauge_judge.model import NodeFacts
from nodegauge_judge.nccl.measurement import (
    MOST_GBPS,
    VERSION,
    ArmSeen,
    CellSeen,
    Measured,
    PairKind,
    PairSeen,
)
from nodegauge_judge.thresholds import Thresholds

LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.984375, 4: 1.96875, 5: 3.9375, 6: 7.5625}
"""GB/s one way of one PCIe lane by generation.  Source: PCI-SIG's raw rates with their encoding; x16 carries
15.75 (3), 31.5 (4), 63 (5) and 121 (6)."""
SLOWEST = 6
"""Pairs of each kind that are kept by name."""
PEER_ACCESS_OFF = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("0", "LOC")}
"""Values by which an environment keeps NCCL from peer access.  Source: NCCL's user guide, environment."""
_NO_LATENCY_BELOW = 1 << 20
_SWITCHES = 20
"""NVML_TOPOLOGY_MULTIPLE: up to here PCIe switches alone are between two GPUs (PIX, PXB).  What leaves them
goes through a CPU, whose make decides how fast (NCCL's own model: 6 to 40 GB/s, src/graph/topo.h)."""


def _links_were_read(gpus: list[Gpu]) -> bool:
    """Whether NVML was asked: a benchmark's log names GPUs, and says nothing of what joins them."""
    return any(isinstance(gpu.uuid, str) for gpu in gpus)


def told_off(environment: Mapping[str, str]) -> bool:
    """Whether the policy's environment switches peer access off."""
    return any(environment.get(name, "").strip().upper() in off for name, off in PEER_ACCESS_OFF.items())


def measure(result: Result, *, history: History, environment: Mapping[str, str]) -> Measured:
    """What `result.nccl` says, with what NVML said of the same GPUs; without memory of runs before."""
    nccl = result.nccl or NcclResult()
    case = Case.of(
        replace(result, bus=Bus(), problem=None),
        thresholds=Thresholds(),
        history=History(),
        node=NodeFacts(),
        interval=0.0,
    )
    joined = classify.decide(case)
    sums = Counter(case.lanes.sums)
    problem = result.problem
    return Measured(
        version=VERSION,
        engine=text(nccl.engine)[:128],
        nccl=_word(nccl.nccl),
        driver=_word(result.system.driver).partition(".")[0],
        gpu=_product(result.gpus),
        set=_digest(nccl.uuids or [gpu.uuid for gpu in result.gpus if isinstance(gpu.uuid, str)]),
        sm=_sm(result.gpus),
        ranks=_small(nccl.ranks or len(nccl.uuids)),
        expected=_small(nccl.expected),
        nodes=max(0, min(nccl.nodes, 2**53)),
        klass=joined.klass.value if joined.klass is not None and _links_were_read(result.gpus) else "",
        wire=None if joined.nvlink_gbps is None else float(joined.nvlink_gbps),
        links=",".join(f"{links}x{gpus}" for links, gpus in sorted(sums.items(), reverse=True))[:64],
        switched=case.lanes.switched,
        pcie=_pcie(result.gpus),
        through_cpu=_through_cpu(result, nccl),
        told_off=told_off(environment),
        missing=_missing(result, nccl, history),
        arms=tuple(_arm(arm, stalled=_stalled(nccl)) for arm in nccl.arms),
        pairs=tuple(_pairs(case, nccl)),
        omitted=tuple(name for name in result.omitted if name.startswith("bench")),
        cut=tuple(clip(cell) for cell in nccl.cut),
        throttled=_stalled(nccl),
        problem=clip(problem.message or problem.kind) if problem is not None else "",
    )


def _arm(arm: Arm, *, stalled: int) -> ArmSeen:
    times = [number(arm.init_ms), number(arm.load_ms)]
    read = [time for time in times if time is not None and time >= 0]
    cells = (_cell(cell, arm) for cell in arm.cells if not stalled or cell.bytes >= _NO_LATENCY_BELOW)
    return ArmSeen(
        name=text(arm.name)[:128],
        outcome=text(arm.outcome)[:128],
        phase=text(arm.phase)[:128],
        message=clip(arm.message),
        start_ms=_whole(sum(read)) if read else None,
        measure_ms=_whole(number(arm.measure_ms)),
        transport=_word(arm.transport),
        nvls=arm.nvls if isinstance(arm.nvls, bool) else None,
        cells=tuple(cell for cell in cells if cell is not None),
    )


def _cell(cell: Cell, arm: Arm) -> CellSeen | None:
    us = number(cell.us)
    if cell.collective not in tuple(Collective) or not 1 <= cell.bytes <= 2**53:
        return None
    if us is None or not 0 < us <= 1e12:
        return None
    return CellSeen(
        Collective(cell.collective),
        cell.bytes,
        float(f"{us:.6g}"),
        _whole(number(cell.wrong)),
        _word(cell.algorithm)[:16],
    )


def _pairs(case: Case, nccl: NcclResult) -> Iterator[PairKind]:
    """Pairs by the number of NVLinks between them, the most first; without any where there is no matrix."""
    places = {gpu.uuid: place for place, gpu in enumerate(case.result.gpus) if isinstance(gpu.uuid, str)}
    arm = next((arm for arm in nccl.arms if arm.name == ArmName.DEFAULT), None)
    kinds: dict[int, list[PairSeen]] = {}
    for i, row in enumerate(arm.pairs if arm is not None else ()):
        for j, value in enumerate(row):
            gbps = number(value)
            if i == j or gbps is None or not 0 <= gbps <= MOST_GBPS or max(i, j) >= len(nccl.uuids):
                continue
            a, b = places.get(nccl.uuids[i]), places.get(nccl.uuids[j])
            if a is None or b is None:
                continue
            source, target = (full_name(case.result.gpus[place])[:64] for place in (a, b))
            pair = PairSeen(source, target, round(float(gbps), 2))
            kinds.setdefault(case.lanes.pair[a][b], []).append(pair)
    rates = [classify.snapped(mbps) for mbps in case.lanes.rates if mbps is not None]
    rate = min((rate for rate in rates if rate is not None), default=None)
    for nvlinks, seen in sorted(kinds.items(), reverse=True):
        yield PairKind(
            nvlinks=nvlinks,
            count=len(seen),
            typical=_typical(seen, whole="bench.pairs" not in case.result.omitted),
            wire=nvlinks * rate if rate is not None and nvlinks else None,
            slowest=tuple(sorted(seen, key=lambda pair: pair.gbps)[:SLOWEST]) if nvlinks else (),
        )


def _typical(seen: list[PairSeen], *, whole: bool) -> float:
    """What pairs of a kind reach: their median.  Of a matrix that was cut down to the rows of two GPUs the
    faster row speaks: where one of them is slow to everybody, most of what is left would be slow pairs."""
    if whole:
        return median(pair.gbps for pair in seen)
    rows: dict[str, list[float]] = {}
    for pair in seen:
        rows.setdefault(pair.source, []).append(pair.gbps)
    return max(median(row) for row in rows.values())


def _missing(result: Result, nccl: NcclResult, history: History) -> tuple[str, ...]:
    """GPUs that are known and took no part: those of the document by name, others by the start of a UUID."""
    if not nccl.uuids:
        return ()
    took = set(nccl.uuids)
    names = {gpu.uuid: full_name(gpu)[:64] for gpu in result.gpus if isinstance(gpu.uuid, str)}
    seen = [name for uuid, name in names.items() if uuid not in took]
    known = {uuid_start(key) for key in history.gpus}
    gone = [
        start for start in sorted(known) if not any(uuid.startswith(start) for uuid in took | names.keys())
    ]
    return tuple(clip(name)[:64] for name in (*seen, *gone))[:16]


def _product(gpus: list[Gpu]) -> str:
    """The GPUs' model; several joined with a plus sign, by name."""
    return " + ".join(sorted({name for gpu in gpus if (name := text(gpu.name))}))[:128]


def _sm(gpus: list[Gpu]) -> int | None:
    """The lowest compute capability, times ten."""
    found: list[int] = []
    for gpu in gpus:
        major, _, minor = text(gpu.compute_capability).partition(".")
        if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
            return None
        found.append(min(int(major[:3]) * 10 + int(minor[:1]), 4096))
    return min(found, default=None)


def _pcie(gpus: list[Gpu]) -> float | None:
    """GB/s one way of the slowest GPU's link, by the most that card and slot can do together."""
    rates: list[float] = []
    for gpu in gpus:
        lane, width = number(gpu.pcie.max_generation), number(gpu.pcie.max_width)
        if lane not in LANE_GBPS or width is None or not 1 <= width <= 32:
            return None
        rates.append(LANE_GBPS[int(lane)] * width)
    return min(rates, default=None)


def _through_cpu(result: Result, nccl: NcclResult) -> bool:
    """Whether two GPUs that took part are not joined by PCIe switches alone, as far as anybody knows."""
    took = [place for place, gpu in enumerate(result.gpus) if gpu.uuid in nccl.uuids]
    grid = result.pairs.ancestor
    pairs = ((i, j) for i in took for j in took if i != j)
    near = ((grid[i][j] if i < len(grid) and j < len(grid[i]) else None) for i, j in pairs)
    return not all(isinstance(value, int) and 0 <= value <= _SWITCHES for value in near)


def _digest(uuids: list[str]) -> str:
    return sha256("\n".join(sorted(uuids)).encode(errors="replace")).hexdigest()[:12] if uuids else ""


def _stalled(nccl: NcclResult) -> int:
    return _whole(number(nccl.throttled_periods)) or 0


def _word(value: str | Unavailable) -> str:
    return text(value)[:64]


def _small(value: int) -> int:
    return max(0, min(value, 4096))


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value <= 2**53 else None
