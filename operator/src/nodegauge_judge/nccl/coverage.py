"""How much of the node was measured: GPUs, sizes, arms; and whether the numbers can be graded at all."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmOutcome, Collective
from nodegauge_judge.case import Hit, clip, gather
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Finding, Scalar, Severity
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.bandwidth import graded_cells, has_no_floor
from nodegauge_judge.nccl.grading import SMALLEST_LABEL_SIZE, Grading, headline_arm, node_hit, size_text
from nodegauge_judge.nccl.measurement import GIB

NAMES_LISTED = 8
"""Names that a message lists."""


def fewer_gpus(grading: Grading) -> Iterator[Finding]:
    """Fewer GPUs took part than the node should have."""
    measurement, expected = grading.measurement, grading.expected
    if not 0 < measurement.ranks < expected:
        return
    missing = ", ".join(measurement.missing[:NAMES_LISTED])
    evidence: dict[str, Scalar] = {"measured": measurement.ranks, "expected": expected}
    if missing:
        evidence["missing"] = missing
    message = f"{measurement.ranks} of {expected} GPUs took part.{f' Missing: {missing}.' if missing else ''}"
    yield from gather(Code.FEWER_GPUS, [node_hit(Severity.WARN, message, evidence=evidence)])


def incomplete(grading: Grading) -> Iterator[Finding]:
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
    hits = (
        [node_hit(Severity.INFO, f"{message[0].upper()}{message[1:]}.", evidence=evidence)] if parts else []
    )
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if _ended_well(grading) and (headline is None or headline.cell.bytes != GIB):
        hits.append(_no_gibibyte(grading))
    yield from gather(Code.NCCL_INCOMPLETE, hits)


def not_gradable(grading: Grading) -> Iterator[Finding]:
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
    yield from gather(Code.NOT_GRADABLE, [node_hit(Severity.INFO, message, evidence=evidence)])


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


def _no_gibibyte(grading: Grading) -> Hit:
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if headline is None:
        message = (
            f"all_reduce was not measured at {size_text(SMALLEST_LABEL_SIZE)} or more, so it has no label."
        )
        return node_hit(Severity.WARN, message, evidence={"bytes": 0})
    message = (
        f"all_reduce was not measured at 1 GiB; the label uses {size_text(headline.cell.bytes)}, which "
        "understates the bandwidth."
    )
    return node_hit(Severity.WARN, message, evidence={"bytes": headline.cell.bytes})


def _why(grading: Grading) -> str:
    measurement = grading.measurement
    if not measurement.interconnect:
        return "the interconnect class is unknown"
    if not measurement.nvlink_gbps and measurement.interconnect == "nvlink":
        return "the rate of the NVLinks could not be read"
    if not measurement.pcie_gbps and measurement.interconnect != "nvlink":
        return "the rate of the PCIe links could not be read"
    return "1 GiB was not measured, or NCCL did not log its transport"
