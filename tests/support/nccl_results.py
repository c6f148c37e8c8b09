"""Results of the NCCL probe on made machines, from a few bandwidths at 1 GiB; smaller sizes follow the
published payload curves (90 and 60 per cent at 256 and 64 MiB)."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

import support.results as made
from nodegauge_contract import NOT_READ, Arm, ArmName, Cell, Collective, NcclResult, Pcie, Result
from nodegauge_contract.nccl import busbw_factor
from nodegauge_contract.values import Num
from nodegauge_judge import Finding
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.measurement import NcclJudgement

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
SHAPE = {GIB: 1.0, 256 * MIB: 0.9, 64 * MIB: 0.6, 64 * KIB: 0.005, 4 * KIB: 0.0004, 8: 0.000001}
"""Share of the bandwidth at 1 GiB by size; those below 64 MiB are made up."""
CHECKED = (256 * MIB, 64 * MIB, 64 * KIB)
P2P, SHM = "P2P/direct pointer", "SHM/direct/direct"
GEN3, GEN4, GEN5 = (Pcie(max_generation=g, max_width=16, generation=1, width=16) for g in (3, 4, 5))


def cell(collective: str, size: int, gbps: float, *, ranks: int, **more: Any) -> Cell:
    us = size * busbw_factor(collective, ranks) / gbps / 1e3
    return Cell(collective=collective, bytes=size, us=us, batches=5, calls=20, spread=0.01, **more)


def arm(name: str, cells: list[Cell], **more: Any) -> Arm:
    times: dict[str, Any] = {"spawn_ms": 900, "init_ms": 2400, "load_ms": 400, "measure_ms": 9000}
    return Arm(name=name, cells=cells, **(times | more))


def default_arm(gbps: float, *, gather: float, ranks: int, algorithm: str, **more: Any) -> Arm:
    """The arm in which NCCL chooses: all_reduce at every size, the other two at 1 GiB and 64 KiB."""
    wrong = {size: 0 if size in CHECKED else NOT_READ for size in SHAPE}
    how: dict[str, Any] = {"ranks": ranks, "algorithm": algorithm}
    cells = [cell(AR, size, gbps * share, wrong=wrong[size], **how) for size, share in SHAPE.items()]
    sizes = [(collective, size) for collective in (AG, RS) for size in (GIB, 64 * KIB)]
    cells += [cell(one, size, gather * SHAPE[size], ranks=ranks, algorithm="RING") for one, size in sizes]
    known: dict[str, Any] = {"transport": P2P, "nvls": algorithm == "NVLS"}
    return arm(ArmName.DEFAULT, cells, **(known | more))


def p2p_off_arm(gbps: float, *, ranks: int, **more: Any) -> Arm:
    """The arm through host memory, as fast at every large size."""
    cells = [cell(AR, size, gbps, ranks=ranks, algorithm="RING", wrong=0) for size in CHECKED]
    cells.append(cell(AG, 256 * MIB, gbps, ranks=ranks, algorithm="RING", wrong=0))
    return arm(ArmName.P2P_OFF, cells, **({"transport": SHM, "nvls": False} | more))


def nvls_off_arm(gbps: float, *, ranks: int, **more: Any) -> Arm:
    cells = [cell(AR, GIB, gbps, ranks=ranks, algorithm="RING", wrong=0)]
    return arm(ArmName.NVLS_OFF, cells, **({"transport": P2P, "nvls": False} | more))


def node(machine: Result, *arms: Arm, **more: Any) -> Result:
    uuids = [gpu.uuid for gpu in machine.gpus if isinstance(gpu.uuid, str)]
    known: dict[str, Any] = {
        "engine": "nccl4py",
        "nccl": "2.32.3",
        "cuda": "12.9",
        "ranks": len(uuids),
        "expected": len(uuids),
        "uuids": uuids,
        "throttled_periods": 0,
    }
    return replace(machine, probe="nccl", nccl=NcclResult(arms=list(arms), **(known | more)))


def h100(
    gbps: float = 462.0, *, gather: float = 355.0, ring: float = 352.0, host: float = 28.0, count: int = 8
) -> Result:
    """HGX H100 with NVLS: 462 GB/s at 1 GiB (published report), rings as on H200 (stas00/ml-engineering)."""
    machine = made.every_gpu(made.h100(count), pcie=GEN5, compute_capability="9.0")
    arms = [default_arm(gbps, gather=gather, ranks=count, algorithm="NVLS")]
    arms += [nvls_off_arm(ring, ranks=count), p2p_off_arm(host, ranks=count)]
    return node(machine, *arms)


def titan(gbps: float = 40.0, *, host: float = 4.0) -> Result:
    machine = made.every_gpu(made.titan(), pcie=GEN3, compute_capability="7.5")
    first = default_arm(gbps, gather=gbps, ranks=2, algorithm="RING")
    return node(machine, first, p2p_off_arm(host, ranks=2))


def phb(gbps: float = 11.0, *, host: float = 11.0, transport: str = SHM) -> Result:
    machine = made.every_gpu(made.phb(), pcie=GEN4, compute_capability="8.9")
    first = default_arm(gbps, gather=gbps, ranks=2, algorithm="RING", transport=transport)
    return node(machine, first, p2p_off_arm(host, ranks=2))


def arm_of(result: Result, name: ArmName) -> Arm:
    assert result.nccl is not None
    return next(arm for arm in result.nccl.arms if arm.name == name)


def changed(result: Result, **changes: Any) -> Result:
    assert result.nccl is not None
    return replace(result, nccl=replace(result.nccl, **changes))


def swapped(result: Result, name: ArmName, **changes: Any) -> Result:
    assert result.nccl is not None
    arms = [replace(arm, **changes) if arm.name == name else arm for arm in result.nccl.arms]
    return changed(result, arms=arms)


def with_cells(result: Result, name: ArmName, *cells: Cell) -> Result:
    return swapped(result, name, cells=list(cells))


def with_pairs(result: Result, gbps: float, *, slow: dict[tuple[int, int], float] | None = None) -> Result:
    assert result.nccl is not None
    ranks = range(result.nccl.ranks)
    matrix: list[list[Num]] = [
        [-1 if i == j else (slow or {}).get((i, j), gbps) for j in ranks] for i in ranks
    ]
    return swapped(result, ArmName.DEFAULT, pairs=matrix)


def codes(judgement: NcclJudgement) -> set[str]:
    return {f"{finding.code}/{finding.severity.value}" for finding in judgement.findings}


def finding(judgement: NcclJudgement, code: str) -> Finding:
    return next(one for one in judgement.findings if one.code == code)


def check(run: Result | NcclJudgement, expected: str, *facts: str | Mapping[str, object]) -> NcclJudgement:
    """These findings (`code/severity`) and no other.  A text stands in them or in the summary; a mapping is
    part of the judgement's fields, answers, GB/s, or the findings' evidence."""
    judgement = run if isinstance(run, NcclJudgement) else judge_nccl(run)
    assert codes(judgement) == set(expected.split())
    messages = "\n".join(
        [*(f"{one.subject}: {one.message}" for one in judgement.findings), judgement.summary]
    )
    known: dict[str, object] = {name: getattr(judgement, name) for name in judgement.__struct_fields__}
    known |= judgement.answers | judgement.busbw
    for fact in facts:
        if isinstance(fact, str):
            assert fact in messages
            continue
        for name, value in fact.items():
            sources = (known, *(one.evidence for one in judgement.findings))
            assert value in ([source[name] for source in sources if name in source] or [None]), name
    return judgement
