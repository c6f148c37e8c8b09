"""The bandwidths behind `nodegauge zero`: from reports of a cluster, a file, a number, or publications.

Each source becomes a `Machine`.  Nodes are in one class if they have the same GPUs, as many of them, and the
same interconnect class.  A class has the median bandwidth of its nodes and a remark on their spread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from nodegauge_cli.zero.communication_text import Machine
from nodegauge_contract import ArmName, Collective, Result
from nodegauge_contract.nccl import GRADED
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.history.model import History
from nodegauge_judge.nccl.expectations import Expectation
from nodegauge_judge.nccl.extract import measure
from nodegauge_judge.nccl.measurement import Measurement
from nodegauge_judge.zero.communication import Bandwidths, Curve
from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.report import Report

LABEL_SIZE = 2**30
"""Message size of the bandwidths in a report: 1 GiB."""
NODES_NAMED = 3
NVLS_SM = 90
NVLS_RANKS = 5
"""With fewer GPUs, all_reduce is a ring on Hopper and Blackwell too (published curves of H200 and B200)."""
MEASURED_KINDS = ("measured", "reference")
"""Kinds of expectation that are what a machine reaches; the other kinds are limits."""


def given(busbw: dict[Collective, float], *, p2p_off: float | None, gpus: int) -> Machine:
    """The user's numbers; a number for all_reduce alone counts as that of a ring."""
    return Machine(
        title="Your numbers",
        source="--busbw",
        gpus=gpus,
        bandwidths=Bandwidths(curves=_flat(busbw, gpus), p2p_off=_p2p_off(p2p_off, gpus), nvls=False),
    )


def from_results(results: Sequence[Result]) -> Machine:
    """A result of the NCCL probe or the runs in a log of nccl-tests, of one node: with its curves."""
    result = results[0]
    assert result.nccl is not None
    measurements = [measure(each, history=History(), environment={}) for each in results]
    measurement = measurements[0]
    title = f"{measurement.ranks}x {measurement.gpu or 'unknown GPUs'}"
    if measurement.interconnect and result.nccl.uuids:  # a log says nothing about links
        title += f", {measurement.interconnect}"
    title += f", node {result.node}" if result.node else ""
    bandwidths = _medians(measurements)
    if not bandwidths.curves:
        reason = result.nccl.message or "no collective finished"
        remark = f"Nothing was measured: {reason}."
        return Machine(title=title, source=measurement.engine, gpus=measurement.ranks, remarks=(remark,))
    source = f"measured by {measurement.engine}"
    return Machine(title=title, source=source, gpus=measurement.ranks, bandwidths=bandwidths)


def node_classes(reports: Iterable[Report], hindrances: Mapping[str, str]) -> list[Machine]:
    """All nodes by class, the fastest class first, those without a measurement last.  `hindrances`: by name
    why no job should get a node.  Such a node counts only where its class has no other, and is named."""
    machines = [_of_those_open(nodes, hindrances) for nodes in by_class(reports).values()]
    return sorted(machines, key=lambda machine: (-_fastest(machine), machine.title))


def _of_those_open(nodes: Sequence[Report], hindrances: Mapping[str, str]) -> Machine:
    closed = [f"{node.name} ({hindrances[node.name]})" for node in nodes if hindrances.get(node.name)]
    machine = class_of([node for node in nodes if not hindrances.get(node.name)] or nodes)
    if not closed:
        return machine
    how = "Measured on nodes that are not open to jobs" if len(closed) == len(nodes) else "Left out"
    return replace(machine, remarks=(*machine.remarks, f"{how}: {_names(closed)}."))


def by_class(reports: Iterable[Report]) -> dict[tuple[str, int, str], list[Report]]:
    """Reports of nodes with GPUs by product, number of GPUs and interconnect, each by name."""
    groups: dict[tuple[str, int, str], list[Report]] = defaultdict(list)
    for report in sorted(reports, key=lambda report: report.name):
        status = report.status
        if status.gpus.count:
            groups[status.gpus.product, status.gpus.count, status.interconnect.klass].append(report)
    return groups


def published(expectations: Iterable[Expectation]) -> list[Machine]:
    """Published bandwidths by GPU model and count, for machines that were not measured here."""
    by_class: dict[tuple[str, int, str], list[Expectation]] = defaultdict(list)
    for expectation in expectations:
        if expectation.kind in MEASURED_KINDS:
            by_class[expectation.gpu, expectation.count, expectation.link].append(expectation)
    return [_published(group) for group in by_class.values()]


def _fastest(machine: Machine) -> float:
    return (
        max((curve.gbps for curve in machine.bandwidths.curves), default=0.0) if machine.bandwidths else 0.0
    )


def _medians(nodes: Sequence[Measurement]) -> Bandwidths:
    """Medians over the nodes, size by size."""
    ranks = min(node.ranks for node in nodes)
    rings = {_is_ring(node) for node in nodes}
    return Bandwidths(
        curves=_curves(nodes, ArmName.DEFAULT, ranks),
        p2p_off=_curves(nodes, ArmName.P2P_OFF, ranks),
        nvls=None if None in rings else rings != {True},
    )


def _is_ring(node: Measurement) -> bool | None:
    """Whether all_reduce ran without NVLS: as NCCL logged, else from GPU and count; None if unknown."""
    arm = node.arm(ArmName.DEFAULT)
    cells = [c for c in arm.cells if c.collective is Collective.ALL_REDUCE] if arm is not None else []
    largest = max(cells, key=lambda cell: cell.bytes, default=None)
    if largest is not None and largest.algorithm:
        return not largest.algorithm.upper().startswith("NVLS")
    if (arm is not None and arm.nvls is False) or (node.sm is not None and node.sm < NVLS_SM):
        return True
    return True if _always_ring(node.gpu, node.ranks) else None


def _always_ring(gpu: str, ranks: int) -> bool:
    return ranks < NVLS_RANKS or known_models().find(gpu).nvls is False


def _curves(nodes: Sequence[Measurement], name: ArmName, ranks: int) -> tuple[Curve, ...]:
    values: dict[Collective, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for node in nodes:
        arm = node.arm(name)
        for cell in arm.cells if arm is not None else ():
            if gbps := node.busbw(cell):
                values[cell.collective][cell.bytes].append(gbps)
    return tuple(
        Curve(
            collective=collective,
            points=tuple((size, median(gbps)) for size, gbps in sorted(values[collective].items())),
            ranks=ranks,
        )
        for collective in GRADED
        if collective in values
    )


def class_of(reports: Sequence[Report]) -> Machine:
    """The machine that alike nodes are."""
    status = reports[0].status
    interconnect = status.interconnect
    joined = interconnect.klass or f"unknown interconnect ({interconnect.reason or 'not read'})"
    nodes = tuple(report.name for report in reports)
    machine = Machine(
        title=f"{status.gpus.count}x {status.gpus.product or 'unknown GPUs'}, {joined}",
        source="not measured",
        gpus=status.gpus.count,
        nodes=nodes,
    )
    measured = [report for report in reports if any(_busbw(report.status.bandwidth).values())]
    if not measured:
        return replace(machine, remarks=(f"Not measured yet: {_names(nodes)}.",))
    decoded = [Measurement.decode(report.status.probe[names.PROBE_NCCL].history) for report in measured]
    complete = [measurement for measurement in decoded if measurement is not None]
    several = len(reports) > 1
    remarks = _spread(measured)
    remarks += [f"Nodes: {_names(nodes)}."] if several else []
    return replace(
        machine,
        source=f"measured, {len(measured)} of {len(reports)} nodes" if several else "measured",
        bandwidths=_medians(complete) if len(complete) == len(measured) else _from_labels(measured),
        remarks=(*remarks, *_fewer_gpus(measured)),
    )


def _from_labels(reports: Sequence[Report]) -> Bandwidths:
    """From the whole numbers in the status, if a record cannot be read."""
    status = reports[0].status
    ranks = min(report.status.bandwidth.gpus or report.status.gpus.count for report in reports)
    off = [report.status.bandwidth.p2p_off for report in reports if report.status.bandwidth.p2p_off]
    busbw = {name: median(values) for name, values in _values(reports).items()}
    return Bandwidths(
        curves=_flat(busbw, ranks),
        p2p_off=_p2p_off(median(off) if off else None, ranks),
        nvls=False if _always_ring(status.gpus.product, ranks) else None,
    )


def _busbw(bandwidth: BandwidthStatus) -> dict[Collective, int | None]:
    return {
        Collective.ALL_REDUCE: bandwidth.all_reduce,
        Collective.ALL_GATHER: bandwidth.all_gather,
        Collective.REDUCE_SCATTER: bandwidth.reduce_scatter,
    }


def _values(reports: Sequence[Report]) -> dict[Collective, list[int]]:
    """The nodes' values of each collective that was measured."""
    values: dict[Collective, list[int]] = {}
    for report in reports:
        for name, gbps in _busbw(report.status.bandwidth).items():
            if gbps:
                values.setdefault(name, []).append(gbps)
    return values


def _spread(reports: Sequence[Report]) -> list[str]:
    """A remark on how far the nodes differ, if they do."""
    ranges = [
        f"{name} {min(values)} to {max(values)}"
        for name, values in _values(reports).items()
        if min(values) < max(values)
    ]
    return [f"Medians. The nodes reach {', '.join(ranges)} GB/s."] if ranges else []


def _fewer_gpus(reports: Sequence[Report]) -> list[str]:
    nodes = [r.name for r in reports if 0 < r.status.bandwidth.gpus < r.status.bandwidth.of]
    return [f"Measured with fewer GPUs than the node should have: {_names(nodes)}."] if nodes else []


def _published(group: Sequence[Expectation]) -> Machine:
    first = group[0]
    all_reduce = [expectation for expectation in group if expectation.collective == Collective.ALL_REDUCE]
    rings = [expectation for expectation in all_reduce if expectation.nvls is False]
    fastest = [expectation for expectation in all_reduce if expectation.nvls] or rings or all_reduce
    chosen = {Collective.ALL_REDUCE: fastest} if fastest else {}
    remarks = []
    for name in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        own = [expectation for expectation in group if expectation.collective == name]
        if own or (rings and fastest is not rings):
            chosen[name] = own or rings
        if not own and rings and fastest is not rings:
            remarks.append(f"For {name}: all_reduce without NVLS, which is a ring too.")
    model = " ".join(first.gpu.replace("*", " ").split()).removeprefix("NVIDIA ")
    nvls = any(expectation.nvls for expectation in fastest)
    known = nvls or bool(rings) or _always_ring(model, first.count)
    origins = sorted({expectation.source for expectation in group if expectation.source})
    remarks += [f"From: {'; '.join(origins)}"] if origins else []
    return Machine(
        title=f"{first.count}x {model}" + (f", {first.link}" if first.link else ""),
        source="published",
        gpus=first.count,
        bandwidths=Bandwidths(
            curves=tuple(_published_curve(name, some) for name, some in chosen.items()),
            nvls=nvls if known else None,
        ),
        remarks=tuple(remarks),
    )


def _published_curve(collective: Collective, group: Sequence[Expectation]) -> Curve:
    points = tuple(sorted({expectation.bytes: expectation.busbw for expectation in group}.items()))
    return Curve(collective=collective, points=points, ranks=group[0].count)


def _flat(busbw: dict[Collective, float], ranks: int) -> tuple[Curve, ...]:
    return tuple(
        Curve(collective=name, points=((LABEL_SIZE, busbw[name]),), ranks=ranks)
        for name in GRADED
        if busbw.get(name)
    )


def _p2p_off(gbps: float | None, ranks: int) -> tuple[Curve, ...]:
    return _flat({Collective.ALL_REDUCE: gbps}, ranks) if gbps else ()


def _names(nodes: Sequence[str]) -> str:
    more = len(nodes) - NODES_NAMED
    return ", ".join(nodes[:NODES_NAMED]) + (f" and {more} more" if more > 0 else "")
