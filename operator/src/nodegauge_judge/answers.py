"""What one readable run says about each row of the catalogue that has a gate: one `Answer` a row.

A failure answers bad.  That there was none answers good only where enough was read to say so, and for a row
that is judged under load only where every GPU that was bad when the row was last bad has itself worked and
was good: otherwise load on GPU 0 would heal GPU 3.

Each check module supplies what its rows need: `PER_GPU` for rows under load, `READABLE` for the others.  A
gated row in neither would never be left; a test fails on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nodegauge_judge import visibility
from nodegauge_judge.case import Case
from nodegauge_judge.checks import (
    clocks,
    links,
    memory,
    pcie,
    reading,
    repair,
    sensors,
    thermal,
    throttling,
    xids,
)
from nodegauge_judge.findings import CATALOGUE, Code, Probe
from nodegauge_judge.model import Answer, Finding, Judged, Severity

PER_GPU: dict[Code, Callable[[Case, int], Answer]] = {
    Code.SW_THERMAL_SLOWDOWN: throttling.answer_sw_thermal,
    Code.HW_SLOWDOWN: throttling.answer_hw_slowdown,
    Code.HOT: thermal.answer_hot,
    Code.MEMORY_HOT: thermal.answer_memory_hot,
    Code.SLOW_CLOCK: clocks.answer_slow_clock,
    Code.PCIE_NARROW: pcie.width_of,
}
"""Rows judged under load: what the run says of the GPU in that position (no-load where it did not work)."""

READABLE: dict[Code, Callable[[Case], bool]] = {
    Code.HW_THERMAL_SLOWDOWN: throttling.hw_thermal_read,
    Code.POWER_BRAKE: throttling.power_brake_read,
    Code.GPU_LOST: reading.gpus_answer,
    Code.RESET_REQUIRED: reading.gpus_answer,
    Code.INSUFFICIENT_POWER: reading.gpus_answer,
    Code.GPU_FAULT: reading.gpus_answer,
    Code.P2P_REFUSED: links.p2p_read,
    Code.NVLINK_DEGRADED: links.links_read,
    Code.RECOVERY_ACTION: repair.action_read,
    Code.ECC: memory.ecc_read,
    Code.ROW_REMAP: memory.row_remap_read,
    Code.XID: xids.watched,
    Code.PSU_FAULT: sensors.supply_answers,
    Code.RAIL: sensors.rail_read,
}
"""Rows judged always: whether enough was read, of every GPU or of the node, to say that nothing is wrong."""

GpuAnswers = Mapping[str, tuple[Answer, ...]]
"""By code of a row under load: the answer of each GPU, in the document's order."""


def per_gpu(case: Case) -> GpuAnswers:
    """The answer of every GPU for every row that is judged under load."""
    places = range(len(case.result.gpus))
    return {code.value: tuple(ask(case, place) for place in places) for code, ask in PER_GPU.items()}


def decide(case: Case, findings: Iterable[Finding], gpus: GpuAnswers) -> dict[str, Answer]:
    """By code, for every row of the health probe with a gate; only for a node that was readable."""
    failed = {finding.code for finding in findings if finding.severity is Severity.FAIL}
    partial = case.result.problem is not None or visibility.missing(case)
    clean = Answer.UNSURE if partial else Answer.GOOD  # GPUs that were not seen may be bad ones
    answers: dict[str, Answer] = {}
    for code, entry in CATALOGUE.items():
        if entry.gate is None or entry.probe is not Probe.HEALTH:
            continue
        if code.value in failed:
            answers[code.value] = Answer.BAD
        elif entry.gate.judged is Judged.UNDER_LOAD:
            answer = _under_load(case, code, gpus.get(code.value, ()))
            answers[code.value] = clean if answer is Answer.GOOD else answer
        else:
            readable = READABLE.get(code, _never)(case)
            answers[code.value] = clean if readable else Answer.UNSURE
    return answers


def was_bad(case: Case, code: str) -> set[str]:
    """Keys of the GPUs that were bad when the row was last bad."""
    return {key for key, gpu in case.history.gpus.items() if code in gpu.bad}


def _under_load(case: Case, code: Code, gpus: tuple[Answer, ...]) -> Answer:
    if not gpus:
        return Answer.UNSURE
    if Answer.BAD in gpus:
        return Answer.BAD
    worked = {
        key: answer for key, answer in zip(case.keys, gpus, strict=True) if answer is not Answer.NO_LOAD
    }
    if not worked or not was_bad(case, code.value) <= worked.keys():
        return Answer.NO_LOAD
    return Answer.UNSURE if Answer.UNSURE in gpus else Answer.GOOD


def _never(case: Case) -> bool:
    return False
