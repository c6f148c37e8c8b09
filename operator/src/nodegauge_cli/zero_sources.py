"""Where `nodegauge zero` has its bandwidths from: reports of a cluster, a file, a number, published figures.

Each becomes a `Place`.  Nodes of one class are those with the same GPUs, as many of them, joined alike; a
class has the median of what its nodes reached, and says how far they lie apart.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from nodegauge_cli.zero_text import Place
from nodegauge_contract import ArmName, Collective, Result
from nodegauge_judge.history.model import History
from nodegauge_judge.nccl.expectations import Expectation
from nodegauge_judge.nccl.extract import measure
from nodegauge_judge.nccl.measurement import Measurement
from nodegauge_judge.nccl.zero import Bandwidths, Curve
from nodegauge_operator import names
from nodegauge_operator.api.report import BandwidthStatus, Report

AT_ONE_SIZE = 2**30
"""Message size of the figures in a report: 1 GiB."""
NODES_NAMED = 3
NO_NVLS = re.compile(r"\b(?:[PV]100|A100|A800|A[1-9]0|A[2456]000|T4|L4|L40S?|TITAN|GTX|RTX|Quadro)\b", re.I)
"""GPUs whose all_reduce is a ring: NVLink SHARP came with Hopper (NCCL user guide, NCCL_NVLS_ENABLE)."""
NVLS_SM = 90
NVLS_RANKS = 5
"""Up to four GPUs all_reduce is a ring on Hopper and Blackwell too (published curves of H200 and B200)."""


PUBLISHED = ("measured", "reference")
"""Kinds of expectation that say what a machine reaches; the others say what it must not fall below."""


def given(busbw: dict[Collective, float], *, p2p_off: float | None, gpus: int) -> Place:
    """What the person says; a number for all_reduce alone is taken for a ring's."""
    return Place(
        title="As given",
        source="--busbw",
        gpus=gpus,
        bandwidths=Bandwidths(curves=_flat(busbw, gpus), p2p_off=_off(p2p_off, gpus), nvls=False),
    )


def of_result(result: Result) -> Place:
    """A benchmark's own result, or a log of nccl-tests: with its curves.  It must be of one node."""
    assert result.nccl is not None
    measured = measure(result, history=History(), environment={})
    title = f"{measured.ranks}x {measured.gpu or 'unknown GPUs'}"
    title += (
        f", {measured.interconnect}" if measured.interconnect and result.nccl.uuids else ""
    )  # a log names no links
    title += f", node {result.node}" if result.node else ""
    bandwidths = _bandwidths([measured])
    if not bandwidths.curves:
        words = result.nccl.message or "no collective ran to its end"
        return Place(
            title=title,
            source=measured.engine,
            gpus=measured.ranks,
            notes=(f"Nothing was measured: {words}.",),
        )
    return Place(
        title=title, source=f"measured by {measured.engine}", gpus=measured.ranks, bandwidths=bandwidths
    )


def _bandwidths(nodes: Sequence[Measurement]) -> Bandwidths:
    """Medians over the nodes, size by size."""
    ranks = min(node.ranks for node in nodes)
    ring = {_ring(node) for node in nodes}
    return Bandwidths(
        curves=_curves(nodes, ArmName.DEFAULT, ranks),
        p2p_off=_curves(nodes, ArmName.P2P_OFF, ranks),
        nvls=None if None in ring else ring != {True},
    )


def _ring(node: Measurement) -> bool | None:
    """Whether its all_reduce was no NVLS: by NCCL's own word, else by GPU and number; null for not known."""
    arm = node.arm(ArmName.DEFAULT)
    reduced = [c for c in arm.cells if c.collective is Collective.ALL_REDUCE] if arm is not None else []
    largest = max(reduced, key=lambda cell: cell.bytes, default=None)
    if largest is not None and largest.algorithm:
        return not largest.algorithm.upper().startswith("NVLS")
    if (arm is not None and arm.nvls is False) or (node.sm is not None and node.sm < NVLS_SM):
        return True
    return True if _always_ring(node.gpu, node.ranks) else None


def _always_ring(gpu: str, ranks: int) -> bool:
    return ranks < NVLS_RANKS or NO_NVLS.search(gpu) is not None


def _curves(nodes: Sequence[Measurement], name: ArmName, ranks: int) -> tuple[Curve, ...]:
    seen: dict[Collective, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for node in nodes:
        arm = node.arm(name)
        for cell in arm.cells if arm is not None else ():
            if gbps := node.busbw(cell):
                seen[cell.collective][cell.bytes].append(gbps)
    return tuple(
        Curve(
            collective=collective,
            points=tuple((size, median(some)) for size, some in sorted(seen[collective].items())),
            ranks=ranks,
        )
        for collective in Collective
        if collective in seen
    )


def of_report(report: Report) -> Place:
    """One node, by its NodeReport."""
    place = _class([report])
    return Place(
        title=f"{report.name}: {place.title}",
        source=place.source,
        gpus=place.gpus,
        bandwidths=place.bandwidths,
        notes=place.notes,
    )


def classes(reports: Iterable[Report]) -> list[Place]:
    """All nodes of a cluster, the fastest class first; those without a measurement last."""
    alike: dict[tuple[str, int, str], list[Report]] = defaultdict(list)
    for report in sorted(reports, key=lambda report: report.name):
        status = report.status
        if status.gpus.count:
            alike[status.gpus.product, status.gpus.count, status.interconnect.klass].append(report)
    places = [_class(nodes) for nodes in alike.values()]
    return sorted(places, key=lambda place: (-_fastest(place), place.title))


def _fastest(place: Place) -> float:
    return max((curve.gbps for curve in place.bandwidths.curves), default=0.0) if place.bandwidths else 0.0


def _class(reports: Sequence[Report]) -> Place:
    status = reports[0].status
    joined = (
        status.interconnect.klass or f"no interconnect class ({status.interconnect.reason or 'not read'})"
    )
    title = f"{status.gpus.count}x {status.gpus.product or 'unknown GPUs'}, {joined}"
    nodes = tuple(report.name for report in reports)
    measured = [report for report in reports if _measured(report.status.bandwidth)]
    some = _names(nodes)
    if not measured:
        note = f"Not measured yet: {some}. What NVML reports of links is no bandwidth."
        return Place(title=title, source="not measured", gpus=status.gpus.count, nodes=nodes, notes=(note,))
    figures = {name: _figures(measured, name) for name in Collective}
    kept = [Measurement.decode(report.status.probe(names.PROBE_NCCL).history) for report in measured]
    whole = [one for one in kept if one is not None]
    bandwidths = _bandwidths(whole) if len(whole) == len(measured) else _labelled(measured)
    source = f"measured, {len(measured)} of {len(reports)} nodes" if len(reports) > 1 else "measured"
    return Place(
        title=title,
        source=source,
        gpus=status.gpus.count,
        bandwidths=bandwidths,
        nodes=nodes,
        notes=(*_apart(figures), *((f"Nodes: {some}.",) if len(reports) > 1 else ()), *_fewer(measured)),
    )


def _labelled(reports: Sequence[Report]) -> Bandwidths:
    """By the whole numbers of the status, where what was measured is not kept in a form that can be read."""
    status = reports[0].status
    ranks = min(report.status.bandwidth.gpus or report.status.gpus.count for report in reports)
    off = [report.status.bandwidth.p2p_off for report in reports if report.status.bandwidth.p2p_off]
    figures = {name: _figures(reports, name) for name in Collective}
    return Bandwidths(
        curves=_flat({name: median(some) for name, some in figures.items() if some}, ranks),
        p2p_off=_off(median(off) if off else None, ranks),
        nvls=False if _always_ring(status.gpus.product, ranks) else None,
    )


def _measured(bandwidth: BandwidthStatus) -> bool:
    return any((bandwidth.all_reduce, bandwidth.all_gather, bandwidth.reduce_scatter))


def _figures(reports: Sequence[Report], collective: Collective) -> list[int]:
    said = {
        Collective.ALL_REDUCE: [report.status.bandwidth.all_reduce for report in reports],
        Collective.ALL_GATHER: [report.status.bandwidth.all_gather for report in reports],
        Collective.REDUCE_SCATTER: [report.status.bandwidth.reduce_scatter for report in reports],
    }
    return [number for number in said[collective] if number]


def _apart(figures: dict[Collective, list[int]]) -> list[str]:
    """The spread among the nodes, where there is one."""
    wide = [
        f"{name} {min(some)} to {max(some)}"
        for name, some in figures.items()
        if some and min(some) < max(some)
    ]
    return [f"Medians; the nodes reach {', '.join(wide)} GB/s."] if wide else []


def _fewer(reports: Sequence[Report]) -> list[str]:
    short = [r.name for r in reports if 0 < r.status.bandwidth.gpus < r.status.bandwidth.of]
    return [f"Measured on fewer GPUs than the node should have: {_names(short)}."] if short else []


def reference(rows: Iterable[Expectation]) -> list[Place]:
    """Published figures, for machines that nobody has measured here: the largest size of each collective."""
    alike: dict[tuple[str, int, str], list[Expectation]] = defaultdict(list)
    for row in rows:
        if row.kind in PUBLISHED:
            alike[row.gpu, row.count, row.link].append(row)
    return [_published(rows) for rows in alike.values()]


def _published(rows: Sequence[Expectation]) -> Place:
    first = rows[0]
    reduced = [row for row in rows if row.collective == Collective.ALL_REDUCE]
    rings = [row for row in reduced if row.nvls is False]
    fast = [row for row in reduced if row.nvls] or rings or reduced
    best = {Collective.ALL_REDUCE: fast} if fast else {}
    notes = []
    for name in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        own = [row for row in rows if row.collective == name]
        if own or (rings and fast is not rings):
            best[name] = own or rings
        if not own and rings and fast is not rings:
            notes.append(f"{name} as all_reduce without NVLS, which is a ring too.")
    curves = tuple(
        Curve(
            collective=name,
            points=tuple(sorted({row.bytes: row.busbw for row in some}.items())),
            ranks=first.count,
        )
        for name, some in best.items()
    )
    model = " ".join(first.gpu.replace("*", " ").split()).removeprefix("NVIDIA ")
    nvls = any(row.nvls for row in fast)
    known = nvls or bool(rings) or bool(NO_NVLS.search(model)) or first.count < NVLS_RANKS
    sources = sorted({row.source for row in rows if row.source})
    notes += [f"From: {'; '.join(sources)}"] if sources else []
    return Place(
        title=f"{first.count}x {model}" + (f", {first.link}" if first.link else ""),
        source="published",
        gpus=first.count,
        bandwidths=Bandwidths(curves=curves, nvls=nvls if known else None),
        notes=tuple(notes),
    )


def _flat(busbw: dict[Collective, float], ranks: int) -> tuple[Curve, ...]:
    return tuple(
        Curve(collective=name, points=((AT_ONE_SIZE, busbw[name]),), ranks=ranks)
        for name in Collective
        if busbw.get(name)
    )


def _off(gbps: float | None, ranks: int) -> tuple[Curve, ...]:
    return _flat({Collective.ALL_REDUCE: gbps}, ranks) if gbps else ()


def _names(nodes: Sequence[str]) -> str:
    more = len(nodes) - NODES_NAMED
    return ", ".join(nodes[:NODES_NAMED]) + (f" and {more} more" if more > 0 else "")
