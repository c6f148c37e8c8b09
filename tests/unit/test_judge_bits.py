"""Slowdown by the samples of a bit, where the driver has no counter for it: HwSlowdown always, the brake and
heat before driver 575."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_contract import Result, Span
from nodegauge_judge import Answer, Psu
from support.judge_results import (
    NO_COUNTERS,
    SAMPLES,
    codes,
    events,
    every,
    judge,
    later,
    node,
    resting,
    span,
    working,
)


def sampled(bit: int, count: int, *, read: int = SAMPLES, seconds: float = 3.0, **window: Any) -> Result:
    """A machine of driver 570 at work, a bit standing in `count` of `read` samples."""
    fields = working(seconds=seconds, **window) | {"events": events({bit: count} if count else {}, read=read)}
    return every(node(counters=NO_COUNTERS), **fields)


ROWS = [
    (0x8, "hw-slowdown"),
    (0x20, "sw-thermal-slowdown"),
    (0x40, "hw-thermal-slowdown"),
    (0x80, "power-brake"),
]


@pytest.mark.parametrize(("bit", "code"), ROWS)
@pytest.mark.parametrize(
    ("count", "read", "seconds", "severity"),
    [
        (12, 12, 3.0, "fail"),
        (5, 5, 2.0, "fail"),
        (11, 12, 3.0, "warn"),
        (4, 4, 2.0, "warn"),
        (5, 5, 1.9, "warn"),
        (2, 12, 3.0, "warn"),
        (1, 12, 3.0, ""),
        (0, 12, 3.0, ""),
    ],
)
def test_a_bit_without_a_counter_fails_in_every_sample_and_warns_in_two(
    bit: int, code: str, count: int, read: int, seconds: float, severity: str
) -> None:
    """All of at least five samples over at least two seconds; the evidence says samples."""
    judgement = judge(sampled(bit, count, read=read, seconds=seconds))
    assert codes(judgement) == ([f"{code}/{severity}"] if severity else [])
    assert judgement.answers[code] is (Answer.BAD if severity == "fail" else Answer.GOOD)
    assert {finding.evidence["evidence"] for finding in judgement.findings} <= {"samples"}


@pytest.mark.parametrize("pstate", [span(0, 2), None])
def test_the_umbrella_bit_while_clocks_change_proves_nothing(pstate: Span | None) -> None:
    """The P-state moved, or nobody knows whether it did: no finding, and no good answer either."""
    judgement = judge(sampled(0x8, 12, pstate=pstate))
    assert (codes(judgement), judgement.answers["hw-slowdown"]) == ([], Answer.UNSURE)


@pytest.mark.parametrize("pstate", [span(0, 8), None])
@pytest.mark.parametrize(("bit", "code"), ROWS[1:])
def test_bits_of_heat_and_brake_stand_for_themselves(bit: int, code: str, pstate: Span | None) -> None:
    """Only the umbrella bit comes with a change of clocks; a brake that is held must not hide behind one."""
    judgement = judge(sampled(bit, 12, pstate=pstate))
    assert (codes(judgement), judgement.answers[code]) == ([f"{code}/fail"], Answer.BAD)


def test_a_bit_that_the_driver_cannot_report_is_not_known() -> None:
    """A mask of supported reasons without it: absent means nothing."""
    fields = working() | {"events": events({}, supported=0x7)}
    answers = judge(every(node(counters=NO_COUNTERS), **fields)).answers
    assert {answers[code] for _, code in ROWS} == {Answer.UNSURE}


@pytest.mark.parametrize(("bit", "code"), [(0x40, "hw-thermal-slowdown"), (0x80, "power-brake")])
def test_the_umbrella_bit_is_not_counted_twice(bit: int, code: str) -> None:
    """Heat and brake raise it as well; they have rows of their own."""
    both = every(sampled(bit, 12), events=events({bit: 12, 0x8: 12}))
    judgement = judge(both)
    assert codes(judgement) == [f"{code}/fail"]
    assert judgement.answers["hw-slowdown"] is Answer.UNSURE
    assert codes(judge(every(both, events=events({bit: 1, 0x8: 12})))) == ["hw-slowdown/fail"]


def test_a_brake_that_is_held_right_now_fails_beside_a_counter_and_idle() -> None:
    """Whatever the counter says, and without load; the power supply is at fault."""
    first = every(node(), **resting())
    braked = every(later(first, 900, low_utilization=900, watts=70), **resting(bits={0x80: 12, 0x8: 12}))
    judgement = judge(first, braked)
    assert codes(judgement) == ["power-brake/fail"]
    assert (judgement.psu, judgement.load) == (Psu.FAULT, "idle")


def test_bits_that_are_normal_are_no_findings() -> None:
    """Idle, application clocks, power cap, sync boost, display clocks, and the two of old drivers."""
    normal = dict.fromkeys((0x1, 0x2, 0x4, 0x10, 0x100, 0x200, 0x400), SAMPLES)
    assert codes(judge(every(node(counters=NO_COUNTERS), **working(bits=normal)))) == []
