"""The page's blocks about an NCCL run: its arms, its collectives, the copies between pairs.

Bus bandwidth as defined by nccl-tests (doc/PERFORMANCE.md): bytes over time, times 2(n-1)/n for all_reduce
and (n-1)/n for all_gather and reduce_scatter; small messages in microseconds, because they show latency.
"""

from __future__ import annotations

from nodegauge_contract import Arm, Cell, Collective, NcclResult, Num, Unavailable
from nodegauge_probes.page.format import NOTHING, Cells, columns, paragraph, shown

BANDWIDTH_FROM = 1 << 20
"""Bytes from which a time is shown as bandwidth."""
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def blocks(nccl: NcclResult) -> list[str]:
    """The blocks of an NCCL run; empty ones are dropped by `page`."""
    return [_engine(nccl), _arms(nccl.arms), _collectives(nccl), *map(_pairs, nccl.arms), _cut(nccl)]


def _engine(nccl: NcclResult) -> str:
    if nccl.skipped:
        return paragraph(f"NOT MEASURED: {nccl.skipped}. {nccl.message}")
    known = [part for part in (nccl.engine, nccl.engine_version) if isinstance(part, str) and part]
    ranks = f"{nccl.ranks} GPUs" if nccl.ranks else ""
    parts = [" ".join(known), f"NCCL {shown(nccl.nccl)}", ranks, nccl.message]
    return paragraph("   ".join(part for part in parts if part))


def _arms(arms: list[Arm]) -> str:
    times = ("Start", "Measuring", "End")
    rows: list[Cells] = [
        ("Configuration", "Outcome", "Processes", *times, "Transport", "NVLS", "Host memory", "")
    ]
    for arm in arms:
        rows.append(
            (
                arm.name,
                f"{arm.outcome} in {arm.phase}" if arm.phase else arm.outcome,
                str(shown(arm.processes)),
                _seconds(arm.spawn_ms, arm.init_ms, arm.load_ms),
                _seconds(arm.measure_ms),
                _seconds(arm.teardown_ms),
                str(shown(arm.transport)),
                NOTHING if isinstance(arm.nvls, Unavailable) else "yes" if arm.nvls else "no",
                str(shown(arm.host_buffers)),
                arm.message,
            )
        )
    return columns(rows, right={2, 3, 4, 5}) if arms else ""


def _collectives(nccl: NcclResult) -> str:
    """A row per collective and size, a column per arm."""
    kinds = sorted({(cell.collective, cell.bytes) for arm in nccl.arms for cell in arm.cells})
    rows: list[Cells] = [("Collective", "Size", *(arm.name for arm in nccl.arms))]
    for collective, size in kinds:
        cells = [
            next((cell for cell in arm.cells if (cell.collective, cell.bytes) == (collective, size)), None)
            for arm in nccl.arms
        ]
        rows.append((collective, _size(size), *(_result(cell, nccl.ranks) for cell in cells)))
    return columns(rows, right={1}) if kinds else ""


def _result(cell: Cell | None, ranks: int) -> str:
    if cell is None or isinstance(cell.us, Unavailable):
        return NOTHING
    speed = f"{cell.us:g} us" + (" launch-bound" if cell.launch_bound else "")
    if cell.bytes >= BANDWIDTH_FROM and ranks > 0:
        share = (ranks - 1) / ranks * (2 if cell.collective == Collective.ALL_REDUCE else 1)
        speed = f"{cell.bytes / cell.us / 1000 * share:.4g} GB/s"
    wrong = f"{cell.wrong} WRONG" if isinstance(cell.wrong, int) and cell.wrong else ""
    chosen = cell.algorithm if isinstance(cell.algorithm, str) else ""
    return " ".join(part for part in (speed, chosen, wrong) if part)


def _pairs(arm: Arm) -> str:
    if not arm.pairs:
        return ""
    ranks = range(len(arm.pairs))
    rows: list[Cells] = [("GB/s", *(f"to {rank}" for rank in ranks))]
    rows += [
        (f"from {i}", *("" if i == j else _speed(speed) for j, speed in enumerate(row)))
        for i, row in enumerate(arm.pairs)
    ]
    return columns(rows, right={rank + 1 for rank in ranks})


def _cut(nccl: NcclResult) -> str:
    return paragraph(f"Left out for lack of time or memory: {', '.join(nccl.cut)}") if nccl.cut else ""


def _speed(speed: Num) -> str:
    return NOTHING if isinstance(speed, Unavailable) else f"{speed:g}"


def _seconds(*milliseconds: int | Unavailable) -> str:
    known = [each for each in milliseconds if isinstance(each, int)]
    return f"{sum(known) / 1000:.1f} s" if known else NOTHING


def _size(size: int) -> str:
    worth, unit = next((worth, unit) for worth, unit in UNITS if size >= worth)
    return f"{size / worth:g} {unit}"
