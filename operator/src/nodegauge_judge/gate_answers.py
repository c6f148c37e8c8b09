"""What one readable run means for each gate of a health rule: bad, good, no-load or unsure.

A failure answers bad.  A run without a failure answers good only if enough was read to tell.  For a rule that
needs load, every GPU that was bad when the rule was last bad must itself have worked and been good: otherwise
load on GPU 0 would heal GPU 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodegauge_judge import visibility
from nodegauge_judge.case import Case, HealthRule, once
from nodegauge_judge.model import Answer, Finding, Severity
from nodegauge_judge.rules import HEALTH_RULES

GATED = tuple(rule for rule in HEALTH_RULES if rule.gate and rule.gate.judged.of_results)

GpuAnswers = Mapping[str, tuple[Answer, ...]]
"""By code of a rule that needs load: the answer of each GPU, in the document's order."""


def per_gpu(case: Case) -> GpuAnswers:
    """The answer of every GPU for every rule that needs load."""
    indexes = range(len(case.result.gpus))
    return {
        rule.code: tuple(rule.answer_per_gpu(case, gpu_index) for gpu_index in indexes)
        for rule in GATED
        if rule.answer_per_gpu is not None
    }


def decide(case: Case, findings: Iterable[Finding], gpus: GpuAnswers) -> dict[str, Answer]:
    """By code, for every health rule with a gate.  Call it only for a node that was readable."""
    failed = {finding.code for finding in findings if finding.severity is Severity.FAIL}
    partial = case.result.problem is not None or visibility.missing(case)
    good = Answer.UNSURE if partial else Answer.GOOD  # a GPU that was not seen may be a bad one
    answers: dict[str, Answer] = {}
    for rule in GATED:
        if rule.code in failed:
            answers[rule.code] = Answer.BAD
        elif rule.readable is not None:
            answers[rule.code] = good if rule.readable(case) else Answer.UNSURE
        else:
            answer = _under_load(case, rule, gpus[rule.code])
            answers[rule.code] = good if answer is Answer.GOOD else answer
    return answers


def was_bad(case: Case, rule: HealthRule) -> set[str]:
    """Keys of the GPUs that were bad when the rule was last bad."""
    return _bad_before(case, rule.history_bit or 0)


@once
def _bad_before(case: Case, bit: int) -> set[str]:
    return {key for key, gpu in case.history.gpus.items() if gpu.bad >> bit & 1}


def _under_load(case: Case, rule: HealthRule, gpus: tuple[Answer, ...]) -> Answer:
    if not gpus:
        return Answer.UNSURE
    if Answer.BAD in gpus:
        return Answer.BAD
    worked = {
        key: answer for key, answer in zip(case.keys, gpus, strict=True) if answer is not Answer.NO_LOAD
    }
    if not worked or not was_bad(case, rule) <= worked.keys():
        return Answer.NO_LOAD
    return Answer.UNSURE if Answer.UNSURE in gpus else Answer.GOOD
