"""Findings about the reading itself: a probe that did not finish, GPUs with errors, GPUs that are not there.

A sick GPU (lost, unpowered) fails the node at once; a reading that says nothing leaves it unjudged.
Source of what each NVML error means: nvml.h, nvmlReturn_t.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Problem, ProblemKind
from nodegauge_judge import visibility
from nodegauge_judge.case import Case, Hit, clip, full_name, gather, short_name
from nodegauge_judge.findings import CATALOGUE, Code, Effect
from nodegauge_judge.model import Finding, Scalar, Severity

_SICK = {
    ProblemKind.GPU_LOST: Code.GPU_LOST,
    ProblemKind.RESET_REQUIRED: Code.RESET_REQUIRED,
    ProblemKind.INSUFFICIENT_POWER: Code.INSUFFICIENT_POWER,
    ProblemKind.IRQ_ISSUE: Code.GPU_FAULT,
    ProblemKind.CORRUPTED_INFOROM: Code.GPU_FAULT,
}
_NODE = _SICK | {
    ProblemKind.LIBRARY_NOT_FOUND: Code.LIBRARY_NOT_FOUND,
    ProblemKind.DRIVER_NOT_LOADED: Code.DRIVER_NOT_LOADED,
    ProblemKind.DRIVER_MISMATCH: Code.DRIVER_MISMATCH,
    ProblemKind.CALL_HUNG: Code.CALL_HUNG,
    ProblemKind.DEADLINE: Code.PROBE_DEADLINE,
    ProblemKind.TERMINATED: Code.PROBE_TERMINATED,
    ProblemKind.CRASHED: Code.PROBE_CRASHED,
    ProblemKind.TOO_LARGE: Code.RESULT_TOO_LARGE,
}
_GPU = _SICK | {ProblemKind.CALL_HUNG: Code.CALL_HUNG}


def node_problem(case: Case) -> Iterator[Finding]:
    """The problem that ended the run, if any."""
    problem = case.result.problem
    if problem is None:
        return
    code = _of_kind(_NODE, problem.kind, other=Code.PROBE_PROBLEM)
    yield from gather(code, [_hit(code, problem, place="node", short="node")])


def gpu_errors(case: Case) -> Iterator[Finding]:
    """GPUs whose handle or identity gave an error; those that were denied are `gpus_not_visible`'s."""
    hits: dict[Code, list[Hit]] = {}
    for gpu in case.result.gpus:
        if gpu.error is None or gpu.error.kind == ProblemKind.NO_PERMISSION:
            continue
        code = _of_kind(_GPU, gpu.error.kind, other=Code.GPU_UNREADABLE)
        hit = _hit(code, gpu.error, place=full_name(gpu), short=short_name(gpu))
        if not isinstance(gpu.uuid, str) and (gone := visibility.gone_uuids(case)):
            hit.evidence["missing_uuids"] = clip(", ".join(gone))
        hits.setdefault(code, []).append(hit)
    for code, found in hits.items():
        yield from gather(code, found)


def gpus_not_visible(case: Case) -> Iterator[Finding]:
    """GPUs that must be there and are not in the document."""
    reasons = visibility.missing(case)
    if reasons:
        evidence: dict[str, Scalar] = {
            "gpus_seen": len(case.result.gpus),
            "gpus_known": len(case.history.links),
        }
        if case.node.gpu_capacity is not None:
            evidence["gpu_capacity"] = case.node.gpu_capacity
        message = f"Not all GPUs were shown to the probe: {'; '.join(reasons)}."
        hit = Hit(severity=Severity.WARN, place="node", short="node", message=message, evidence=evidence)
        yield from gather(Code.GPUS_NOT_VISIBLE, [hit])


def _of_kind(codes: dict[ProblemKind, Code], kind: str, *, other: Code) -> Code:
    """The code of a problem kind; kinds of a newer probe have none."""
    return next((code for known, code in codes.items() if known == kind), other)


def _hit(code: Code, problem: Problem, *, place: str, short: str) -> Hit:
    entry = CATALOGUE[code]
    severity = Severity.WARN if entry.effect is Effect.UNJUDGED else Severity.FAIL
    said = clip(problem.message) or f"problem {clip(problem.kind)}"
    evidence: dict[str, Scalar] = {"kind": clip(problem.kind)}
    if problem.call:
        evidence["call"] = clip(problem.call)
    if problem.code is not None:
        evidence["nvml_return"] = problem.code
    where = f" (in {clip(problem.call)})" if problem.call else ""
    title = entry.title[0].upper() + entry.title[1:]
    return Hit(
        severity=severity, place=place, short=short, message=f"{title}: {said}{where}.", evidence=evidence
    )
