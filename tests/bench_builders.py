"""Benchmarks of made machines: what the probe would bring home where collectives reach so many GB/s.

`benched` puts a benchmark beside what NVML says of a machine; times are made from bandwidths, as documents
hold times.  The figures are those of measured machines where tests ask for none.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nodegauge_contract import Arm, ArmName, Bench, Cell, Collective, Result, Skip

GIB = 1 << 30
NVLINK = 476.0
"""GB/s: all_reduce of 1 GiB and more on 8 x H100 with NVLS (nccl-tests in public logs: 462 to 480)."""
HOST = 21.0
"""GB/s through the host's memory."""


def microseconds(collective: str, *, gbps: float, ranks: int, size: int = GIB) -> float:
    """The time of one call, from bus bandwidth as nccl-tests defines it (its doc/PERFORMANCE.md)."""
    share = (ranks - 1) / ranks * (2 if collective == Collective.ALL_REDUCE else 1)
    return size * share / gbps / 1000


def cells(gbps: float, *, ranks: int, wrong: int = 0, **more: Any) -> list[Cell]:
    """The three collectives at 1 GiB; all_gather and reduce_scatter three quarters of it."""
    found = []
    for collective in Collective:
        reached = gbps if collective is Collective.ALL_REDUCE else 0.75 * gbps
        us = microseconds(collective, gbps=reached, ranks=ranks)
        cell = Cell(collective=collective, bytes=GIB, us=us, us_min=us, us_max=us, spread=0.01, wrong=wrong)
        found.append(replace(cell, batches=5, calls=40, **more))
    return found


def arm(name: ArmName, gbps: float, *, ranks: int, **more: Any) -> Arm:
    """One configuration, done in seconds."""
    times = {"spawn_ms": 900, "init_ms": 2100, "load_ms": 300, "measure_ms": 6000, "teardown_ms": 150}
    told = {"transport": "P2P/CUMEM", "nvls": False, "channels": 16, "host_buffers": "cuMem"} | times | more
    return Arm(name=name, cells=cells(gbps, ranks=ranks), **told)


def benched(
    result: Result, gbps: float = NVLINK, *, p2p_off: float = HOST, expected: int = 0, **more: Any
) -> Result:
    """The machine with a benchmark of all its GPUs: all_reduce at `gbps`, without peer access at `p2p_off`.

    `expected`: GPUs that the node should have, where more than these.
    """
    uuids = [gpu.uuid for gpu in result.gpus if isinstance(gpu.uuid, str)]
    ranks = len(uuids)
    arms = [
        arm(ArmName.DEFAULT, gbps, ranks=ranks, nvls=True),
        arm(ArmName.P2P_OFF, p2p_off, ranks=ranks, transport="SHM/direct/direct"),
    ]
    made = Bench(
        engine="nccl4py",
        engine_version="0.1.1",
        nccl="2.27.7",
        cuda="12.9",
        ranks=ranks,
        expected=expected or ranks,
        uuids=uuids,
        arms=arms,
        throttled_periods=0,
        shm_bytes=4 * GIB,
    )
    return replace(result, probe="nccl", bench=replace(made, **more))


def pulled(result: Result) -> Result:
    """What a pull says where the engine can be loaded: nothing of the machine."""
    bench = Bench(engine="nccl4py", engine_version="0.1.1", nccl="2.27.7")
    return Result(probe="pull", run=result.run, node=result.node, system=result.system, bench=bench)


def skipped(result: Result, why: Skip, message: str = "") -> Result:
    """A benchmark that measured nothing although all was well."""
    return replace(result, probe="nccl", bench=Bench(skipped=why, message=message))
