"""Can the numbers be graded: are they of one node and of a collective that has expectations, and is there a
floor for them?"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract.nccl import GRADED
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.bandwidth import graded_cells, has_no_floor
from nodegauge_judge.nccl.grading import SMALLEST_LABEL_SIZE, Grading, NcclRule, of_node, size_text
from nodegauge_judge.rule import Observation, Probe


def not_gradable(grading: Grading) -> Iterator[Observation]:
    """Numbers of several nodes, of other collectives, and numbers without any floor."""
    measurement = grading.measurement
    others = sorted({cell.collective.value for arm in measurement.arms for cell in arm.cells} - set(GRADED))
    if measurement.nodes > 1:
        message = f"not-gradable: {measurement.nodes} nodes took part, and expectations are for one node."
    elif not measurement.nodes:
        message = (
            f"not-gradable: the log does not list all of its {measurement.ranks} ranks, so it does not tell "
            f"how many nodes took part. If it was one, judge the log with `--ranks {measurement.ranks}`."
        )
    elif others:
        message = f"{', '.join(others)} is not graded: there are expectations for {', '.join(GRADED)} alone."
    elif measurement.from_log and not grading.headlines and any(arm.cells for arm in measurement.arms):
        message = (
            f"Nothing was measured at {size_text(SMALLEST_LABEL_SIZE)} or more, where GPUs can be compared."
        )
    elif grading.headlines and not graded_cells(grading) and not has_no_floor(grading):
        machine = f"{measurement.ranks}x {measurement.gpu or 'unnamed GPUs'}"
        if _would_apply(grading, link=floors.link_of(floors.with_named_links(measurement))):
            message = (
                f"The expectations for {machine} depend on whether NVLS ran, which NCCL did not log. Set "
                "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,TUNING to log it."
            )
        elif measurement.from_log and _would_apply(grading, link="nvlink"):
            message = (
                f"The expectations for {machine} depend on whether NVLinks join them, which the log does not "
                "say: `nvidia-smi topo -m` does."
            )
        else:
            message = f"There is no expectation for {machine}, and no floor from link rates: {_why(grading)}."
    else:
        return
    if others and measurement.nodes != 1:
        message += f" {', '.join(others)} is graded on no number of nodes."
    evidence: dict[str, Scalar] = {
        "nodes": measurement.nodes,
        "ranks": measurement.ranks,
        "gpu": measurement.gpu,
    }
    yield of_node(Severity.INFO, message, evidence=evidence)


def _would_apply(grading: Grading, *, link: str) -> bool:
    """Whether an expectation would apply over such a link if the NVLS state were known."""
    measurement = grading.measurement
    return any(
        grading.criteria.expectations.find(
            gpu=measurement.gpu,
            count=measurement.ranks,
            collective=collective.value,
            bytes=headline.cell.bytes,
            nvls=state,
            link=link,
        )
        for collective, headline in grading.headlines.items()
        for state in (True, False)
        if floors.ran_nvls(headline.cell, headline.arm) is None
    )


def _why(grading: Grading) -> str:
    measurement = grading.measurement
    if not measurement.interconnect:
        return "the interconnect class is unknown"
    if not measurement.nvlink_gbps and measurement.interconnect == "nvlink":
        return "the rate of the NVLinks could not be read"
    if not measurement.pcie_gbps and measurement.interconnect != "nvlink":
        return "the rate of the PCIe links could not be read"
    return "1 GiB was not measured, or NCCL did not log its transport"


NOT_GRADABLE = NcclRule(
    code="not-gradable",
    title="these numbers cannot be graded",
    meaning=(
        "Expectations are for one node, and for all_reduce, all_gather and reduce_scatter. Numbers of "
        "several nodes depend on the network between them and prove nothing about a single node, so the "
        "verdict is unknown unless data was wrong or NCCL hung. So it is for other collectives. The finding "
        "is also raised if there is no floor for the numbers of one node: the verdict on a log of nccl-tests "
        "is then unknown too, and the verdict on a node follows from its other findings."
    ),
    when={
        Severity.INFO: (
            "several nodes took part, or it is unknown how many; the collective has no expectations; or "
            "neither an expectation nor link rates give a floor"
        )
    },
    next_step="measure one node alone, or add an entry for it to `spec.expectations` of the policy.",
    way_out=(
        "One node: `all_reduce_perf -g COUNT` without mpirun, or `nodegauge judge` on a log of one node.",
        "An entry in `spec.expectations` of the policy grades the last result without a new run.",
    ),
    probe=Probe.NCCL,
    check=not_gradable,
)
