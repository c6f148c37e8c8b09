"""How much of the node was measured: GPUs, sizes, arms; and whether the numbers can be graded at all."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmOutcome, Collective
from nodegauge_judge.case import Hit, clip, gather
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Finding, Scalar, Severity
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.bandwidth import graded, has_no_floor
from nodegauge_judge.nccl.grading import Grading, of_node, size_in_words
from nodegauge_judge.nccl.headline import SMALLEST, speaking
from nodegauge_judge.nccl.measurement import GIB

LISTED = 8
"""Names that a message lists."""


def fewer_gpus(grading: Grading) -> Iterator[Finding]:
    """Ranks below what the node should have."""
    measured, expected = grading.measured, grading.expected
    if not 0 < measured.ranks < expected:
        return
    named = f" Not among them: {', '.join(measured.missing[:LISTED])}." if measured.missing else ""
    evidence: dict[str, Scalar] = {"measured": measured.ranks, "expected": expected}
    if measured.missing:
        evidence["missing"] = ", ".join(measured.missing[:LISTED])
    message = f"{measured.ranks} of {expected} GPUs took part.{named}"
    yield from gather(Code.FEWER_GPUS, [of_node(Severity.WARN, message, evidence=evidence)])


def incomplete(grading: Grading) -> Iterator[Finding]:
    """Sizes, arms or the matrix that are missing, and latencies that are not believed."""
    measured = grading.measured
    parts = [
        *([f"cut for lack of time: {', '.join(measured.cut[:LISTED])}"] if measured.cut else ()),
        *(
            f"the arm {clip(arm.name)} was cut short"
            for arm in measured.arms
            if arm.outcome == ArmOutcome.CUT
        ),
        *([f"left out of the message: {', '.join(measured.omitted)}"] if measured.omitted else ()),
        *(
            [f"the CPU limit held the pod back {measured.throttled} times, so latencies are not kept"]
            if measured.throttled
            else ()
        ),
    ]
    evidence: dict[str, Scalar] = {"cut": ", ".join(measured.cut[:LISTED]), "throttled": measured.throttled}
    hits = [of_node(Severity.INFO, f"{_sentence(parts)}.", evidence=evidence)] if parts else []
    if _ended_well(grading) and not _has_gibibyte(grading):
        hits.append(_no_gibibyte(grading))
    yield from gather(Code.NCCL_INCOMPLETE, hits)


def not_gradable(grading: Grading) -> Iterator[Finding]:
    """Numbers of several nodes, and such as no row and no rule fits."""
    measured = grading.measured
    if measured.nodes > 1:
        message = f"not-gradable: {measured.nodes} nodes took part, and expectations are for one."
    elif grading.figures and not graded(grading) and not has_no_floor(grading):
        what = f"{measured.ranks}x {measured.gpu or 'an unnamed GPU'}"
        if _waits_for_nvls(grading):
            message = (
                f"Rows for {what} depend on whether NVLS ran, and NCCL did not say it: with NCCL_DEBUG=INFO "
                "and NCCL_DEBUG_SUBSYS=INIT,TUNING it does."
            )
        else:
            message = f"No row is for {what}, and no rule fits: {_why(grading)}."
    else:
        return
    evidence: dict[str, Scalar] = {"nodes": measured.nodes, "ranks": measured.ranks, "gpu": measured.gpu}
    yield from gather(Code.NOT_GRADABLE, [of_node(Severity.INFO, message, evidence=evidence)])


def _waits_for_nvls(grading: Grading) -> bool:
    """Whether a row would fit if it were known whether NVLS ran."""
    measured = grading.measured
    return any(
        grading.asked.expectations.floor_row(
            gpu=measured.gpu,
            count=measured.ranks,
            collective=collective.value,
            bytes=figure.cell.bytes,
            nvls=state,
            link=floors.link_of(measured),
        )
        for collective, figure in grading.figures.items()
        for state in (True, False)
        if floors.nvls_of(figure.cell, figure.arm) is None
    )


def _ended_well(grading: Grading) -> bool:
    """Whether only time or memory can be why a size is missing; how an arm ended is another finding."""
    arm = speaking(grading.measured)
    if arm is None or arm.outcome not in (ArmOutcome.DONE, ArmOutcome.CUT):
        return False
    return not any(cell.wrong for cell in arm.cells)


def _has_gibibyte(grading: Grading) -> bool:
    figure = grading.figures.get(Collective.ALL_REDUCE)
    return figure is not None and figure.cell.bytes == GIB


def _no_gibibyte(grading: Grading) -> Hit:
    figure = grading.figures.get(Collective.ALL_REDUCE)
    if figure is None:
        message = f"all_reduce was not measured from {size_in_words(SMALLEST)} on: there is no label for it."
        return of_node(Severity.WARN, message, evidence={"bytes": 0})
    message = (
        f"all_reduce was not measured at 1 GiB; {size_in_words(figure.cell.bytes)} stands in for it, which "
        "claims too little."
    )
    return of_node(Severity.WARN, message, evidence={"bytes": figure.cell.bytes})


def _why(grading: Grading) -> str:
    measured = grading.measured
    if not measured.klass:
        return "the interconnect could not be told"
    if not measured.wire and measured.klass == "nvlink":
        return "the NVLinks' rate could not be read"
    if not measured.pcie and measured.klass != "nvlink":
        return "the PCIe links' rate could not be read"
    return "nothing of 1 GiB was measured, or NCCL did not say by what way"


def _sentence(parts: list[str]) -> str:
    words = "; ".join(parts)
    return words[:1].upper() + words[1:]
