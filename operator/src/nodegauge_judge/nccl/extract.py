"""From a result to a `Measurement`: what the NCCL run measured, and what NVML reported in the same result.

The interconnect class is that of the GPUs in this result alone.  Other findings compare them with what the
cluster says about the node and with GPUs that took no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from statistics import median

from msgspec.structs import replace

from nodegauge_contract import (
    Arm,
    ArmName,
    ArmOutcome,
    Bus,
    Cell,
    Collective,
    Gpu,
    NcclResult,
    Phase,
    Result,
    Unavailable,
)
from nodegauge_judge.case import Case, clip, full_name, number, text
from nodegauge_judge.history.model import History, uuid_start
from nodegauge_judge.interconnect import board, classify
from nodegauge_judge.model import NodeFacts
from nodegauge_judge.nccl.measurement import (
    LANE_GBPS,
    MAX_GBPS,
    VERSION,
    MeasuredArm,
    MeasuredCell,
    MeasuredPair,
    Measurement,
    PairGroup,
)
from nodegauge_judge.thresholds import Thresholds

SLOWEST_KEPT = 6
"""Pairs of each group that are kept by name."""
P2P_OFF_VALUES = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("0", "LOC")}
"""Values that keep NCCL from using P2P.  Source: NCCL user guide, environment variables."""
_BANDWIDTH_FROM = 1 << 20
_SWITCHES_ONLY = 20
"""NVML_TOPOLOGY_MULTIPLE: up to this level only PCIe switches lie between two GPUs (PIX, PXB).  Beyond it
traffic crosses a CPU, whose model decides the speed (NCCL assumes 6 to 40 GB/s, src/graph/topo.h)."""


def p2p_disabled(environment: Mapping[str, str]) -> bool:
    """Whether the policy's environment disables P2P."""
    return any(environment.get(name, "").strip().upper() in off for name, off in P2P_OFF_VALUES.items())


def nvls_disabled(environment: Mapping[str, str]) -> bool:
    """Whether the policy's environment keeps NCCL from using NVLS.

    NCCL_ALGO lists the algorithms to use, or after `^` those to avoid.  Source: NCCL user guide.
    """
    algorithms = environment.get("NCCL_ALGO", "").strip().upper()
    avoided = bool(algorithms) and (("NVLS" in algorithms) == ("^" in algorithms))
    return environment.get("NCCL_NVLS_ENABLE", "").strip() == "0" or avoided


def measure(result: Result, *, history: History, environment: Mapping[str, str]) -> Measurement:
    """The measurement in `result`, without anything from earlier runs; `environment`: the policy's, to
    which a log adds its own."""
    nccl = result.nccl or NcclResult()
    logged = {name: value for arm in nccl.arms for name, value in _variables(arm).items()}
    environment = {**logged, **environment}
    case = Case.from_result(
        replace(result, bus=Bus(), problem=None),
        thresholds=Thresholds(),
        history=History(),
        node=NodeFacts(),
        interval=0.0,
    )
    joined = classify.decide(case)
    link_counts = sorted(Counter(case.lanes.sums).items(), reverse=True)
    throttled = _whole(number(nccl.throttled_periods)) or 0
    problem = result.problem
    return Measurement(
        version=VERSION,
        engine=text(nccl.engine)[:128],
        nccl=_short(nccl.nccl),
        driver=_short(result.system.driver).partition(".")[0],
        gpu=_gpu_names(result.gpus),
        gpu_set=_digest(nccl.uuids or [gpu.uuid for gpu in result.gpus if isinstance(gpu.uuid, str)]),
        sm=_lowest_sm(result.gpus),
        ranks=_bounded(nccl.ranks or len(nccl.uuids)),
        expected=_bounded(nccl.expected),
        nodes=max(0, min(nccl.nodes, 2**53)),
        interconnect=joined.klass.value if joined.klass is not None and _nvml_was_read(result.gpus) else "",
        nvlink_gbps=None if joined.nvlink_gbps is None else float(joined.nvlink_gbps),
        link_counts=",".join(f"{links}x{gpus}" for links, gpus in link_counts)[:64],
        nvswitch=case.lanes.switched,
        pcie_gbps=_slowest_pcie(result.gpus),
        through_cpu=_through_cpu(result, nccl),
        p2p_disabled=p2p_disabled(environment),
        nvls_disabled=nvls_disabled(environment),
        virtual=_virtual(result, nccl),
        missing=_missing(result, nccl, history),
        arms=tuple(
            _arm(arm, throttled=throttled, without_nvls=nvls_disabled(_variables(arm))) for arm in nccl.arms
        ),
        pairs=tuple(_pair_groups(case, nccl)),
        cut=tuple(clip(cell) for cell in nccl.cut),
        throttled=throttled,
        problem=clip(problem.message or problem.kind) if problem is not None else "",
    )


def _nvml_was_read(gpus: list[Gpu]) -> bool:
    """Whether NVML was read: a log of nccl-tests names GPUs without UUIDs and without links."""
    return any(isinstance(gpu.uuid, str) for gpu in gpus)


def _variables(arm: Arm) -> dict[str, str]:
    """NCCL's variables as a log of nccl-tests shows them, value by name."""
    return {name: value for name, _, value in (variable.partition("=") for variable in arm.environment)}


def _arm(arm: Arm, *, throttled: int, without_nvls: bool) -> MeasuredArm:
    times = [number(arm.init_ms), number(arm.load_ms)]
    known = [time for time in times if time is not None and time >= 0]
    # Throttling stalls the threads that launch kernels, so latencies are worthless; bandwidths are not.
    cells = (_cell(cell) for cell in arm.cells if not throttled or cell.bytes >= _BANDWIDTH_FROM)
    return MeasuredArm(
        name=text(arm.name)[:128],
        outcome=_outcome(arm)[:128],
        phase=text(arm.phase)[:128],
        message=clip(arm.message),
        start_ms=_whole(sum(known)) if known else None,
        measure_ms=_whole(number(arm.measure_ms)),
        transport=_short(arm.transport),
        nvls=False if without_nvls else arm.nvls if isinstance(arm.nvls, bool) else None,
        multicast=arm.multicast if isinstance(arm.multicast, bool) else None,
        cells=tuple(cell for cell in cells if cell is not None),
        starts=_bounded(arm.starts),
    )


def _outcome(arm: Arm) -> str:
    """The outcome; contract 1.2 called a start that took too long a hang."""
    if arm.outcome == ArmOutcome.HUNG and arm.phase in (Phase.SPAWN, Phase.INIT):
        return ArmOutcome.START_SLOW
    return text(arm.outcome)


def _cell(cell: Cell) -> MeasuredCell | None:
    us = number(cell.us)
    if cell.collective not in tuple(Collective) or not 1 <= cell.bytes <= 2**53:
        return None
    if us is None or not 0 < us <= 1e12:
        return None
    return MeasuredCell(
        Collective(cell.collective),
        cell.bytes,
        float(f"{us:.6g}"),
        _whole(number(cell.wrong)),
        _short(cell.algorithm)[:16],
        cell.launch_bound,
    )


def _pair_groups(case: Case, nccl: NcclResult) -> Iterator[PairGroup]:
    """Pairs grouped by the NVLinks between them, most NVLinks first; none without a pair matrix."""
    by_nvlinks: dict[int, list[MeasuredPair]] = {}
    for nvlinks, pair in _pairs(case, nccl):
        by_nvlinks.setdefault(nvlinks, []).append(pair)
    rates = [classify.snapped(mbps) for mbps in case.lanes.rates if mbps is not None]
    rate = min((rate for rate in rates if rate is not None), default=None)
    for nvlinks, pairs in sorted(by_nvlinks.items(), reverse=True):
        yield PairGroup(
            nvlinks=nvlinks,
            count=len(pairs),
            median_gbps=median(pair.gbps for pair in pairs),
            nvlink_gbps=nvlinks * rate if rate is not None and nvlinks else None,
            slowest=tuple(sorted(pairs, key=lambda pair: pair.gbps)[:SLOWEST_KEPT]) if nvlinks else (),
        )


def _pairs(case: Case, nccl: NcclResult) -> Iterator[tuple[int, MeasuredPair]]:
    """Each measured direction with its number of NVLinks; ranks are matched to NVML's GPUs by UUID."""
    positions = {gpu.uuid: i for i, gpu in enumerate(case.result.gpus) if isinstance(gpu.uuid, str)}
    arm = next((arm for arm in nccl.arms if arm.name == ArmName.DEFAULT), None)
    for i, row in enumerate(arm.pairs if arm is not None else ()):
        for j, value in enumerate(row):
            gbps = number(value)
            if i == j or gbps is None or not 0 <= gbps <= MAX_GBPS or max(i, j) >= len(nccl.uuids):
                continue
            a, b = positions.get(nccl.uuids[i]), positions.get(nccl.uuids[j])
            if a is None or b is None:
                continue
            source, target = (full_name(case.result.gpus[position])[:64] for position in (a, b))
            yield case.lanes.pair[a][b], MeasuredPair(source, target, round(float(gbps), 2))


def _missing(result: Result, nccl: NcclResult, history: History) -> tuple[str, ...]:
    """Known GPUs that took no part: by name if they are in the result, else by the start of their UUID."""
    if not nccl.uuids:
        return ()
    participants = set(nccl.uuids)
    names = {gpu.uuid: full_name(gpu)[:64] for gpu in result.gpus if isinstance(gpu.uuid, str)}
    idle = [name for uuid, name in names.items() if uuid not in participants]
    remembered = sorted({uuid_start(key) for key in history.gpus})
    present = participants | names.keys()
    gone = [start for start in remembered if not any(uuid.startswith(start) for uuid in present)]
    return tuple(clip(name)[:64] for name in (*idle, *gone))[:16]


def _gpu_names(gpus: list[Gpu]) -> str:
    """The GPUs' model; different models in alphabetical order, joined with a plus sign."""
    return " + ".join(sorted({name for gpu in gpus if (name := text(gpu.name))}))[:128]


def _lowest_sm(gpus: list[Gpu]) -> int | None:
    """The lowest compute capability, times ten; None if any is unknown."""
    capabilities: list[int] = []
    for gpu in gpus:
        major, _, minor = text(gpu.compute_capability).partition(".")
        if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
            return None
        capabilities.append(min(int(major[:3]) * 10 + int(minor[:1]), 4096))
    return min(capabilities, default=None)


def _slowest_pcie(gpus: list[Gpu]) -> float | None:
    """GB/s one way of the slowest GPU's link, at the best that card and slot support together."""
    rates: list[float] = []
    for gpu in gpus:
        lane, width = number(gpu.pcie.max_generation), number(gpu.pcie.max_width)
        if lane not in LANE_GBPS or width is None or not 1 <= width <= 32:
            return None
        rates.append(LANE_GBPS[int(lane)] * width)
    return min(rates, default=None)


def _virtual(result: Result, nccl: NcclResult) -> bool:
    """Whether a participant was passed through to a virtual machine."""
    return any(gpu.virtualization == board.PASSTHROUGH for gpu in result.gpus if gpu.uuid in nccl.uuids)


def _through_cpu(result: Result, nccl: NcclResult) -> bool:
    """Whether traffic between two participants may leave the PCIe switches (True if that is unknown).

    A virtual machine that got its GPUs passed through has the PCI tree that its hypervisor made up.
    """
    if _virtual(result, nccl):
        return True
    participants = [i for i, gpu in enumerate(result.gpus) if gpu.uuid in nccl.uuids]
    grid = result.pairs.ancestor
    pairs = ((i, j) for i in participants for j in participants if i != j)
    ancestors = ((grid[i][j] if i < len(grid) and j < len(grid[i]) else None) for i, j in pairs)
    return not all(isinstance(value, int) and 0 <= value <= _SWITCHES_ONLY for value in ancestors)


def _digest(uuids: list[str]) -> str:
    return sha256("\n".join(sorted(uuids)).encode(errors="replace")).hexdigest()[:12] if uuids else ""


def _short(value: str | Unavailable) -> str:
    return text(value)[:64]


def _bounded(value: int) -> int:
    return max(0, min(value, 4096))


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value <= 2**53 else None
