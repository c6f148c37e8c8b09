"""A pass is earned: each value that a machine gives is needed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import Gpu, Result, Unavailable
from nodegauge_judge import History, Verdict, judge_health
from nodegauge_judge.coverage import VALUES
from testbed import profiles

FAILED = Unavailable("NVML_ERROR_UNKNOWN")


def without(gpu: Gpu, path: str, answer: Unavailable) -> Gpu:
    member, _, leaf = path.partition(".")
    value: Any = replace(getattr(gpu, member), **{leaf: answer}) if leaf else answer
    return replace(gpu, **{member: value})


def answered(gpu: Gpu) -> Iterator[str]:
    for path in VALUES:
        value = reduce(getattr, path.split("."), gpu)
        if not isinstance(value, Unavailable):
            yield path


def changed(result: Result, position: int, gpu: Gpu) -> Result:
    return replace(result, gpus=[*result.gpus[:position], gpu, *result.gpus[position + 1 :]])


@pytest.mark.slow
@pytest.mark.parametrize("profile", profiles.names())
def test_a_machine_passes_only_with_every_answer(healthy: Callable[[str], Result], profile: str) -> None:
    """Neither on a machine that was read before, nor on a new one whose siblings have the value."""
    result = healthy(profile)
    before = judge_health(result)
    if before.verdict is not Verdict.PASS:
        pytest.skip(f"does not pass: {before.summary}")
    assert before.coverage is not None
    assert before.coverage.gaps == []
    missed = []
    for position, gpu in enumerate(result.gpus):
        for number, path in enumerate(answered(gpu)):
            failed = changed(result, position, without(gpu, path, FAILED))
            at_first_sight = len(result.gpus) > 1 and number % len(result.gpus) == position
            histories = [before.history, History()] if at_first_sight else [before.history]
            verdicts = {judge_health(failed, history=history).verdict for history in histories}
            missed += [f"GPU {position}: {path}"] if Verdict.PASS in verdicts else []
    assert missed == []
