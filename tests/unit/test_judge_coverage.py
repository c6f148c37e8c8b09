"""What was read of what should have been: a gap is said, with the GPU and the subject."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Ecc, Result, Unavailable
from nodegauge_judge import History, NodeFacts, Verdict, judge_health
from nodegauge_judge.coverage import still_says

UNKNOWN = Unavailable("NVML_ERROR_UNKNOWN")
ABSENT = Unavailable("NVML_ERROR_NOT_SUPPORTED")
PASTED_ABSENT = Unavailable("N/A")
HUNG = Unavailable("no answer within 5 s")
WHOLE = made.every_gpu(made.h100(), ecc=Ecc(mode=1, volatile_uncorrected=0, volatile_corrected=0))


def without(result: Result, answer: Unavailable, *paths: str, gpus: tuple[int, ...] = (3,)) -> Result:
    for position in gpus:
        for path in paths:
            member, _, leaf = path.partition(".")
            value: Any = getattr(result.gpus[position], member)
            result = made.with_gpu(result, position, **{member: replace(value, **{leaf: answer})})
    return result


SICK = ("temperature.gpu", "power.usage_mw", "clocks.sm_mhz", "events.read", "ecc.volatile_uncorrected")
SILENT = without(WHOLE, UNKNOWN, "temperature.gpu", gpus=tuple(range(8)))
COOL = without(WHOLE, ABSENT, "temperature.memory", gpus=tuple(range(8)))
OTHER_DRIVER = replace(COOL, system=replace(WHOLE.system, driver="580.65.06"))
NO_ECC = made.with_gpu(WHOLE, 3, ecc=Ecc(mode=0, volatile_uncorrected=ABSENT, volatile_corrected=ABSENT))
MIG, PASTED_MIG = (
    made.with_gpu(without(WHOLE, answer, "power.usage_mw"), 3, mig=1) for answer in (ABSENT, PASTED_ABSENT)
)
OF_EACH = "GPU 0: temperature; GPU 1: temperature; GPU 2: temperature; GPU 3: temperature; and 4 more GPUs"
OF_SICK = "GPU 3: temperature, power, clocks, throttle reasons, memory errors"
CASES: dict[str, tuple[tuple[Result, ...], str]] = {
    # what: the runs, of which the last is judged, and its gaps
    "one of eight answers nothing": ((without(WHOLE, UNKNOWN, *SICK),), OF_SICK),
    "a paste says N/A of one of them": ((without(WHOLE, PASTED_ABSENT, "power.usage_mw"),), "GPU 3: power"),
    "a call hangs on one GPU": ((without(WHOLE, HUNG, "power.usage_mw"),), "GPU 3: power"),
    "what siblings have": ((without(WHOLE, ABSENT, "ecc.volatile_corrected"),), "GPU 3: memory errors"),
    "no GPU gives its temperature": ((SILENT,), OF_EACH),
    "what it gave before": ((WHOLE, COOL), "GPU 0: temp"),
    "P2P between cards without links": ((made.with_pair(made.phb(), 0, 1, read=UNKNOWN),), "GPU 0: P2P"),
    "no sample of the window": ((made.with_gpu(WHOLE, 3, window=None),), "GPU 3: temperature"),
    "every answer": ((WHOLE,), ""),
    "not supported on all alike": ((COOL,), ""),
    "another driver has fewer values": ((WHOLE, OTHER_DRIVER), ""),
    "ECC off has no counts": ((WHOLE, NO_ECC), ""),
    "MIG hides what the whole GPU has": ((WHOLE, MIG), ""),
    "a paste says N/A of what MIG hides": ((WHOLE, PASTED_MIG), ""),
}


@pytest.mark.parametrize(("runs", "gaps"), CASES.values(), ids=CASES)
def test_a_gap_takes_the_pass_and_is_said(runs: tuple[Result, ...], gaps: str) -> None:
    history = History()
    for result in runs:
        judgement = judge_health(result, history=history)
        history = judgement.history
    if gaps:
        finding = judgement.findings[0]
        assert judgement.verdict is Verdict.WARN
        assert f"Not readable: {gaps}" in judgement.coverage.text
        assert (finding.code, finding.gpus[0].index) == ("values-unread", int(gaps[4]))
    else:
        assert "values-unread" not in [finding.code for finding in judgement.findings]
        assert judgement.coverage.text == "8 of 8 GPUs, 8 of 8 subjects"


@pytest.mark.parametrize(
    ("now", "stays"),
    [
        ("8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks", True),
        ("8 of 8 GPUs, 8 of 9 subjects. Not readable: GPU 3: power", True),
        ("8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 2: power; GPU 3: clocks", False),
        ("7 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks", False),
        ("8 of 8 GPUs, 6 of 8 subjects. Not readable: GPU 3: power, clocks", False),
        ("8 of 8 GPUs, 9 of 9 subjects", False),
        ("8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks. BMC: 3 of 4 fans", False),
    ],
)
def test_a_line_stays_until_less_is_read_or_everything(now: str, stays: bool) -> None:
    shown = "8 of 8 GPUs, 7 of 9 subjects. Not readable: GPU 3: power, clocks"
    assert still_says(shown, now) is stays


BARE, GIVEN = 0, 1
"""NVML_GPU_VIRTUALIZATION_MODE_NONE and _PASSTHROUGH."""


@pytest.mark.parametrize(
    ("machine", "mode", "policy", "stated"),
    [
        (made.h100(), BARE, None, 8),
        (made.h100(7), BARE, None, 8),
        (made.h100(7), GIVEN, None, 0),
        (made.phb(), BARE, None, 0),
        (made.phb(), BARE, 4, 4),
    ],
)
def test_how_many_gpus_there_must_be_is_told_by_policy_or_boards(
    machine: Result, mode: int, policy: int | None, stated: int
) -> None:
    """Not by cards, nor by a virtual machine, which may have a part of a board."""
    result = made.every_gpu(machine, virtualization=mode)
    coverage = judge_health(result, node=NodeFacts(expected_gpus=policy)).coverage
    assert coverage.stated == stated
