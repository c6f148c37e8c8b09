"""What was read of what should have been: a gap is said, with the GPU and the subject."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Ecc, Result, Unavailable
from nodegauge_judge import History, Judgement, Verdict, judge_health
from nodegauge_judge.coverage import still_says

UNKNOWN = Unavailable("NVML_ERROR_UNKNOWN")
ABSENT = Unavailable("NVML_ERROR_NOT_SUPPORTED")
PASTED_ABSENT = Unavailable("N/A")
HUNG = Unavailable("no answer within 5 s")
WHOLE = made.every_gpu(made.h100(), ecc=Ecc(mode=1, volatile_uncorrected=0, volatile_corrected=0))
READ_BEFORE = judge_health(WHOLE).history


def without(result: Result, answer: Unavailable, *paths: str, gpus: tuple[int, ...] = (3,)) -> Result:
    for position in gpus:
        for path in paths:
            member, _, leaf = path.partition(".")
            value: Any = getattr(result.gpus[position], member)
            result = made.with_gpu(result, position, **{member: replace(value, **{leaf: answer})})
    return result


def covered(judgement: Judgement) -> str:
    return judgement.coverage.text if judgement.coverage is not None else ""


ALL = tuple(range(8))
SICK = ("temperature.gpu", "power.usage_mw", "clocks.sm_mhz", "events.read", "ecc.volatile_uncorrected")
CASES = {
    "one of eight answers nothing": (
        without(WHOLE, UNKNOWN, *SICK),
        History(),
        "GPU 3: temperature, power, clocks, throttle reasons, memory errors",
    ),
    "a paste says N/A of a value that siblings have": (
        without(WHOLE, PASTED_ABSENT, "power.usage_mw"),
        History(),
        "GPU 3: power",
    ),
    "a call hangs on one GPU": (without(WHOLE, HUNG, "power.usage_mw"), History(), "GPU 3: power"),
    "what siblings have": (
        without(WHOLE, ABSENT, "ecc.volatile_corrected"),
        History(),
        "GPU 3: memory errors",
    ),
    "no GPU gives its temperature": (
        without(WHOLE, UNKNOWN, "temperature.gpu", gpus=ALL),
        History(),
        "GPU 0: temperature; GPU 1: temperature; GPU 2: temperature; GPU 3: temperature; and 4 more GPUs",
    ),
    "what it gave before": (
        without(WHOLE, ABSENT, "temperature.memory", gpus=ALL),
        READ_BEFORE,
        "GPU 0: temp",
    ),
    "P2P between cards without links": (
        made.with_pair(made.phb(), 0, 1, read=UNKNOWN),
        History(),
        "GPU 0: P2P",
    ),
    "no sample of the window": (made.with_gpu(WHOLE, 3, window=None), History(), "GPU 3: temperature"),
}


@pytest.mark.parametrize(("result", "history", "gaps"), CASES.values(), ids=CASES)
def test_a_gap_takes_the_pass_and_is_said(result: Result, history: History, gaps: str) -> None:
    judgement = judge_health(result, history=history)
    assert judgement.verdict is Verdict.WARN
    assert f"Not readable: {gaps}" in covered(judgement)
    finding = judgement.findings[0]
    assert (finding.code, finding.gpus[0].index) == ("values-unread", int(gaps[4]))


@pytest.mark.parametrize(
    ("now", "stays"),
    [
        ("8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks", True),
        ("8 of 8 GPUs, 8 of 9 subjects. Not readable: GPU 3: power", True),
        ("8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 2: power; GPU 3: clocks", False),
        ("7 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks", False),
        ("8 of 8 GPUs, 6 of 8 subjects. Not readable: GPU 3: power, clocks", False),
        ("8 of 8 GPUs, 9 of 9 subjects", False),
    ],
)
def test_a_line_stays_until_less_is_read_or_everything(now: str, stays: bool) -> None:
    shown = "8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks"
    assert still_says(shown, now) is stays


WITH_MIG = made.with_gpu(without(WHOLE, ABSENT, "power.usage_mw"), 3, mig=1)
PASTED_MIG = made.with_gpu(without(WHOLE, PASTED_ABSENT, "power.usage_mw"), 3, mig=1)
NO_GAP = {
    "every answer": (WHOLE, History()),
    "not supported on all alike": (without(WHOLE, ABSENT, "temperature.memory", gpus=ALL), History()),
    "another driver has fewer values": (
        replace(
            without(WHOLE, ABSENT, "temperature.memory", gpus=ALL),
            system=replace(WHOLE.system, driver="580.65.06"),
        ),
        READ_BEFORE,
    ),
    "ECC off has no counts": (
        made.with_gpu(WHOLE, 3, ecc=Ecc(mode=0, volatile_uncorrected=ABSENT, volatile_corrected=ABSENT)),
        READ_BEFORE,
    ),
    "MIG hides what the whole GPU has": (WITH_MIG, READ_BEFORE),
    "a paste says N/A of what MIG hides": (PASTED_MIG, READ_BEFORE),
}


@pytest.mark.parametrize(("result", "history"), NO_GAP.values(), ids=NO_GAP)
def test_what_a_machine_cannot_have_is_no_gap(result: Result, history: History) -> None:
    judgement = judge_health(result, history=history)
    assert "values-unread" not in [finding.code for finding in judgement.findings]
    assert covered(judgement) == "8 of 8 GPUs, 8 of 8 subjects"
