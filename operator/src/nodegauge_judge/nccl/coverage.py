"""How much of the node was measured: GPUs, sizes, arms; and whether the numbers can be graded at all."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmOutcome, Collective
from nodegauge_judge.case import clip
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.bandwidth import graded_cells, has_no_floor
from nodegauge_judge.nccl.grading import (
    SMALLEST_LABEL_SIZE,
    Grading,
    NcclRule,
    headline_arm,
    of_node,
    size_text,
)
from nodegauge_judge.nccl.measurement import GIB
from nodegauge_judge.rule import DRIVER_LOG, REPORT, Observation, Probe

NAMES_LISTED = 8
"""Names that a message lists."""


def fewer_gpus(grading: Grading) -> Iterator[Observation]:
    """Fewer GPUs took part than the node should have."""
    measurement, expected = grading.measurement, grading.expected
    if not 0 < measurement.ranks < expected:
        return
    missing = ", ".join(measurement.missing[:NAMES_LISTED])
    evidence: dict[str, Scalar] = {"measured": measurement.ranks, "expected": expected}
    if missing:
        evidence["missing"] = missing
    message = f"{measurement.ranks} of {expected} GPUs took part.{f' Missing: {missing}.' if missing else ''}"
    yield of_node(Severity.WARN, message, evidence=evidence)


def incomplete(grading: Grading) -> Iterator[Observation]:
    """Missing sizes, arms or pairs, and latencies that throttling made worthless."""
    measurement = grading.measurement
    cut_arms = [arm for arm in measurement.arms if arm.outcome == ArmOutcome.CUT]
    parts = [f"the run with {clip(arm.name)} was cut short" for arm in cut_arms]
    if measurement.cut:
        parts.append(f"time ran out before: {', '.join(measurement.cut[:NAMES_LISTED])}")
    if measurement.omitted:
        parts.append(f"the result message had no space for: {', '.join(measurement.omitted)}")
    if measurement.throttled:
        throttled = f"the CPU limit throttled the pod {measurement.throttled} times"
        parts.append(f"{throttled}, so latencies were discarded")
    evidence: dict[str, Scalar] = {
        "cut": ", ".join(measurement.cut[:NAMES_LISTED]),
        "throttled": measurement.throttled,
    }
    message = "; ".join(parts)
    if message:
        yield of_node(Severity.INFO, f"{message[0].upper()}{message[1:]}.", evidence=evidence)
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if _ended_well(grading) and (headline is None or headline.cell.bytes != GIB):
        yield _no_gibibyte(grading)


def not_gradable(grading: Grading) -> Iterator[Observation]:
    """Numbers of several nodes, and numbers without any floor."""
    measurement = grading.measurement
    if measurement.nodes > 1:
        message = f"not-gradable: {measurement.nodes} nodes took part, and expectations are for one node."
    elif grading.headlines and not graded_cells(grading) and not has_no_floor(grading):
        machine = f"{measurement.ranks}x {measurement.gpu or 'unnamed GPUs'}"
        if _needs_nvls_state(grading):
            message = (
                f"The expectations for {machine} depend on whether NVLS ran, which NCCL did not log. Set "
                "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,TUNING to log it."
            )
        else:
            message = f"There is no expectation for {machine}, and no floor from link rates: {_why(grading)}."
    else:
        return
    evidence: dict[str, Scalar] = {
        "nodes": measurement.nodes,
        "ranks": measurement.ranks,
        "gpu": measurement.gpu,
    }
    yield of_node(Severity.INFO, message, evidence=evidence)


def _needs_nvls_state(grading: Grading) -> bool:
    """Whether an expectation would apply if the NVLS state were known."""
    measurement = grading.measurement
    return any(
        grading.criteria.expectations.find(
            gpu=measurement.gpu,
            count=measurement.ranks,
            collective=collective.value,
            bytes=headline.cell.bytes,
            nvls=state,
            link=floors.link_of(measurement),
        )
        for collective, headline in grading.headlines.items()
        for state in (True, False)
        if floors.ran_nvls(headline.cell, headline.arm) is None
    )


def _ended_well(grading: Grading) -> bool:
    """Whether only time or memory explains a missing size; other outcomes have findings of their own."""
    arm = headline_arm(grading.measurement)
    if arm is None or arm.outcome not in (ArmOutcome.DONE, ArmOutcome.CUT):
        return False
    return not any(cell.wrong for cell in arm.cells)


def _no_gibibyte(grading: Grading) -> Observation:
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if headline is None:
        message = (
            f"all_reduce was not measured at {size_text(SMALLEST_LABEL_SIZE)} or more, so it has no label."
        )
        return of_node(Severity.WARN, message, evidence={"bytes": 0})
    message = (
        f"all_reduce was not measured at 1 GiB; the label uses {size_text(headline.cell.bytes)}, which "
        "understates the bandwidth."
    )
    return of_node(Severity.WARN, message, evidence={"bytes": headline.cell.bytes})


def _why(grading: Grading) -> str:
    measurement = grading.measurement
    if not measurement.interconnect:
        return "the interconnect class is unknown"
    if not measurement.nvlink_gbps and measurement.interconnect == "nvlink":
        return "the rate of the NVLinks could not be read"
    if not measurement.pcie_gbps and measurement.interconnect != "nvlink":
        return "the rate of the PCIe links could not be read"
    return "1 GiB was not measured, or NCCL did not log its transport"


FEWER_GPUS = NcclRule(
    code="fewer-gpus",
    title="NCCL measured fewer GPUs than the node has",
    meaning=(
        "The NCCL probe got fewer GPUs than the node should have, and measured those. They are graded as a "
        "node of that size, and the labels show what they reach together."
    ),
    when={Severity.WARN: "fewer ranks than the node's capacity of nvidia.com/gpu"},
    next_step="`kubectl describe node NODE`: allocatable below capacity means an unhealthy GPU.",
    way_out=(
        "`kubectl describe node NODE` and the device plugin's log name the GPU that it calls unhealthy.",
        DRIVER_LOG,
        "Check the node's health findings (`gpu-lost`, `xid`, `reset-required`).",
    ),
    probe=Probe.NCCL,
    check=fewer_gpus,
)
NCCL_INCOMPLETE = NcclRule(
    code="nccl-incomplete",
    title="a part of the NCCL run is missing",
    meaning=(
        "Time or memory ran out, the result had no space left, or the pod's CPU limit stalled launches, so "
        "some numbers are missing or unreliable. Labels are for 1 GiB. A smaller size replaces it down to "
        "256 MiB (83 and 90 per cent of full speed have been published there, so it understates the "
        "bandwidth); below that there is no label."
    ),
    when={
        Severity.INFO: "sizes, arms or the pair matrix are missing, or latencies are unreliable",
        Severity.WARN: "all_reduce was not measured at 1 GiB",
    },
    next_step="raise the deadline or the memory limit if it happens again.",
    way_out=(
        REPORT,
        "Raise `spec.probes.nccl.deadline` or `spec.podTemplate.ncclResources` of the policy. A CPU limit "
        "stalls the threads that feed NCCL: request cores, set no limit.",
    ),
    probe=Probe.NCCL,
    check=incomplete,
)
NOT_GRADABLE = NcclRule(
    code="not-gradable",
    title="these numbers cannot be graded",
    meaning=(
        "Expectations are for one node. Numbers of several nodes depend on the network between them and "
        "prove nothing about a single node, so the verdict is unknown. The finding also comes without any "
        "floor for the numbers of one node; its verdict then follows from the other findings."
    ),
    when={Severity.INFO: "several nodes took part; or neither an expectation nor link rates give a floor"},
    next_step="measure one node alone, or add an entry for it to `spec.expectations` of the policy.",
    way_out=(
        "One node: `all_reduce_perf -g COUNT` without mpirun, or `nodegauge judge` on a log of one node.",
        "An entry in `spec.expectations` of the policy grades the last result without a new run.",
    ),
    probe=Probe.NCCL,
    check=not_gradable,
)
