"""Heat, power caps and clocks under load: what warns, what fails, and what is only information."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Power, Result, Temperature
from nodegauge_judge import Answer, Judgement, Thresholds
from nodegauge_judge.rules.power import BASE_MHZ
from support.judge_results import LIMIT_WATTS, codes, every, grew, judge, later, node, resting, span, working


def heated(celsius: int, *, heat: bool = False, memory: int = 70, **temperature: int) -> Result:
    """A machine at work whose first GPU is that hot, slowed down by heat in half of its window or not."""
    window = working(
        temperature=span(celsius - 1, celsius),
        memory_temperature=span(memory),
        growth=grew(sw_thermal=1.2 if heat else 0),
    )
    known = {"gpu": celsius} | (temperature or {"gpu_max": 87, "memory_max": 95})
    return made.with_gpu(node(), 0, temperature=Temperature(**known), **window)


def answer(judgement: Judgement, code: str) -> tuple[list[str], Answer]:
    """What is said of heat, besides the counter's own row, and the row's answer."""
    return [c for c in codes(judgement) if not c.startswith("sw-thermal")], judgement.answers[code]


# -- the core


@pytest.mark.parametrize(
    ("result", "expected", "expected_answer"),
    [
        (heated(81), [], Answer.GOOD),
        (heated(82), ["hot/warn"], Answer.GOOD),
        (heated(83), ["hot/warn"], Answer.UNSURE),
        (heated(87), ["hot/warn"], Answer.UNSURE),
        (heated(95), ["hot/warn"], Answer.UNSURE),
        (heated(86, heat=True), ["hot/warn"], Answer.UNSURE),
        (heated(87, heat=True), ["hot/fail"], Answer.BAD),
        (heated(70, margin=6), [], Answer.GOOD),
        (heated(70, margin=5), ["hot/warn"], Answer.GOOD),
        (heated(70, margin=4), ["hot/warn"], Answer.UNSURE),
        (heated(85, margin=0), ["hot/warn"], Answer.UNSURE),
        (heated(85, margin=0, heat=True), ["hot/fail"], Answer.BAD),
        (heated(70, margin=-2, heat=True), ["hot/fail"], Answer.BAD),
        (heated(70, margin=-2), [], Answer.GOOD),
        (heated(85, margin=0, tlimit_gpu_max=-2, heat=True), ["hot/warn"], Answer.UNSURE),
        (heated(79, shutdown=98), [], Answer.GOOD),
        (heated(80, shutdown=98), ["hot/warn"], Answer.GOOD),
        (heated(85, shutdown=98), ["hot/warn"], Answer.GOOD),
        (heated(86, shutdown=98), ["hot/warn"], Answer.UNSURE),
        (heated(90, shutdown=98), ["hot/fail"], Answer.BAD),
    ],
)
def test_a_vendors_limit_needs_a_counter_and_the_policys_does_not(
    result: Result, expected: list[str], expected_answer: Answer
) -> None:
    """Fails at the limit with heat counted; good again 5 °C below it; a margin of 0 alone proves nothing."""
    assert answer(judge(result), "hot") == (expected, expected_answer)


def test_heat_of_an_idle_gpu_warns_and_neither_enters_nor_leaves() -> None:
    """No load, no failure: by the window that saw none."""
    idle = resting(temperature=span(92), growth=grew(hw_thermal=3))
    result = made.with_gpu(node(), 0, temperature=Temperature(gpu=92), **idle)
    judgement = judge(every(result, **resting(temperature=span(92))))
    assert answer(judgement, "hot") == (["hot/warn"], Answer.NO_LOAD)


def test_a_job_that_ended_before_the_window_neither_enters_nor_leaves() -> None:
    """A busy interval and an idle window: the GPU has cooled down because nothing runs."""
    first = node()
    ended = every(later(first, 900), **resting())
    answers = judge(first, ended).answers
    assert {answers[code] for code in ("hot", "memory-hot", "hw-slowdown", "slow-clock")} == {Answer.NO_LOAD}
    assert answers["sw-thermal-slowdown"] is Answer.GOOD


def test_what_counts_as_cool_again_and_as_too_hot_is_the_policys() -> None:
    """hotLeaveMargin and hotFail."""
    assert judge(heated(83), thresholds=Thresholds(hot_leave_margin=4)).answers["hot"] is Answer.GOOD
    strict = Thresholds(hot_warn=70, hot_fail=78)
    assert codes(judge(heated(78, shutdown=98), thresholds=strict)) == ["hot/fail"]


def test_samples_of_a_bit_are_no_counter() -> None:
    """At the vendor's limit with the bit in every sample: that is the slowdown's row, not this one's."""
    hot = made.with_gpu(heated(90), 0, **working(temperature=span(90), bits={0x20: 12}))
    bare = replace(hot.gpus[0].counters, sw_thermal_ns=hot.gpus[0].counters.trio)
    assert codes(judge(made.with_gpu(hot, 0, counters=bare))) == ["sw-thermal-slowdown/fail", "hot/warn"]


def test_growth_over_the_interval_counts_for_heat_as_well() -> None:
    """87 °C now, and 100 s of slowdown since the last run."""
    first = heated(80)
    assert "hot/fail" in codes(judge(first, later(heated(87), 900, gpu=0, sw_thermal=100)))
    assert "hot/fail" in codes(judge(first, later(heated(87), 900, gpu=0, hw_thermal=1)))
    assert codes(judge(first, later(heated(87), 900, gpu=0, sw_thermal=4))) == ["hot/warn"]


# -- the memory


@pytest.mark.parametrize(
    ("result", "expected", "expected_answer"),
    [
        (heated(60, memory=89), [], Answer.GOOD),
        (heated(60, memory=90), ["memory-hot/warn"], Answer.GOOD),
        (heated(60, memory=91), ["memory-hot/warn"], Answer.UNSURE),
        (heated(60, memory=96), ["memory-hot/warn"], Answer.UNSURE),
        (heated(60, memory=95, heat=True), ["memory-hot/fail"], Answer.BAD),
        (heated(60, memory=94, heat=True), ["memory-hot/warn"], Answer.UNSURE),
        (heated(60, memory=0, heat=True), [], Answer.UNSURE),
    ],
)
def test_memory_fails_at_its_limit_with_software_slowdown(
    result: Result, expected: list[str], expected_answer: Answer
) -> None:
    """By the window's hottest sample of the memory; no sensor, no answer."""
    whole = made.with_gpu(result, 1, **working(memory_temperature=span(60)))
    assert answer(judge(whole), "memory-hot") == (expected, expected_answer)


# -- for long


def test_three_of_four_hot_runs_under_load_are_worth_knowing() -> None:
    """84 °C; idle runs between them do not count; information never changes the verdict."""
    runs = [heated(celsius, gpu_max=95) for celsius in (84, 90, 70, 84)]
    idle = made.with_gpu(heated(84, gpu_max=95), 0, **resting(temperature=span(84)))
    assert codes(judge(*runs[:3])) == []
    assert codes(judge(*runs)) == ["hot-for-long/info"]
    assert codes(judge(runs[0], idle, runs[1], idle, runs[3])) == ["hot-for-long/info"]
    assert codes(judge(*runs, idle)) == []
    assert codes(judge(*runs, runs[2], runs[2])) == []
    assert judge(*runs).verdict == "pass"
    assert codes(judge(*[heated(83, gpu_max=95)] * 4)) == []
    assert codes(judge(runs[0], thresholds=Thresholds(hot_for_long_runs=1))) == ["hot-for-long/info"]


@pytest.mark.parametrize(
    ("celsius", "band"),
    [
        (30, "excellent"),
        (75, "excellent"),
        (76, "good"),
        (79, "good"),
        (80, "warm"),
        (83, "warm"),
        (84, "throttling-likely"),
        (99, "throttling-likely"),
    ],
)
def test_each_gpus_temperature_has_a_name(celsius: int, band: str) -> None:
    """The published bands, beside whatever the vendor's limits say."""
    brief = judge(heated(celsius)).gpus[0]
    assert (brief.celsius, brief.band) == (celsius, band)
    unread = made.with_gpu(node(), 0, temperature=Temperature(), window=None)
    assert (judge(unread).gpus[0].celsius, judge(unread).gpus[0].band) == (None, "")


# -- power caps


def capped(mhz: float, *, name: str = "NVIDIA A100-SXM4-80GB", bits: int = 12, **window: Any) -> Result:
    """A machine at work at that clock, the software power cap's bit in so many of twelve samples."""
    fields = working(bits={0x4: bits}, sm_mhz=span(mhz), **window)
    return every(node(), name=name, **fields)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (capped(1274), ["power-cap-low/warn"]),
        (capped(1275), []),
        (capped(1274, bits=7), ["power-cap-low/warn"]),
        (capped(1274, bits=6), []),
        (capped(1274, bits=0), []),
        (capped(1274, name="NVIDIA H100 80GB HBM3"), []),
        (capped(1274, utilization=span(20, 90)), []),
    ],
)
def test_a_cap_below_the_base_clock_is_said_where_the_base_is_known(
    result: Result, expected: list[str]
) -> None:
    """Under load and capped in most samples; a model without a row has no opinion."""
    assert codes(judge(result)) == expected


def test_base_clocks_are_found_by_nvmls_name_old_and_new() -> None:
    """Drivers since 470 put NVIDIA before the name."""
    assert all(400 < mhz < 3000 for mhz in BASE_MHZ.values())


# -- clocks


def paced(*mhz: float, bits: dict[int, dict[int, int]] | None = None) -> Result:
    """GPUs at work at these clocks; `bits` by position."""
    result = node(len(mhz))
    for gpu_index, clock in enumerate(mhz):
        fields = working(sm_mhz=span(clock), bits=(bits or {}).get(gpu_index))
        result = made.with_gpu(result, gpu_index, **fields)
    return result


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (paced(1000, 1000, 1000, 930), []),
        (paced(1000, 1000, 1000, 929), ["slow-clock/warn"]),
        (paced(1000, 1000, 1000, 800), ["slow-clock/warn"]),
        (paced(1000, 1000, 1000, 799), ["slow-clock/fail"]),
        (paced(1000, 799), ["slow-clock/fail"]),
        (paced(1000), []),
        (paced(1000, 1000, 700, bits={2: {0x2: 12}}), []),
        (paced(1000, 1000, 700, bits={2: {0x100: 1}}), []),
        (paced(1000, 1000, 700, bits={2: {0x4: 12}}), []),
        (paced(1000, 1000, 700, bits={n: {0x4: 12} for n in range(3)}), ["slow-clock/fail"]),
        (made.with_gpu(paced(1000, 1000, 700), 2, name="NVIDIA A10"), ["mixed-gpus/info"]),
        (made.with_gpu(paced(1000, 1000, 700), 2, **working(sm_mhz=span(700), utilization=span(40))), []),
    ],
)
def test_a_gpu_is_compared_with_identical_siblings_at_the_same_work(
    result: Result, expected: list[str]
) -> None:
    """Not with another model, an idle one, one whose clocks are set, or one that draws less than its cap."""
    assert codes(judge(result)) == expected


def test_a_slow_clock_with_a_known_reason_is_that_reasons() -> None:
    """A GPU that heat slows down is throttled, not slow: no second taint, and no good answer either."""
    judgement = judge(paced(1000, 1000, 500, bits={2: {0x20: 12}}))
    assert not [code for code in codes(judgement) if code.startswith("slow-clock")]
    assert judgement.answers["slow-clock"] is Answer.UNSURE


def test_a_clock_at_the_very_share_that_fails_is_not_bad() -> None:
    """Below it is; a warning in between is a good answer."""
    assert judge(paced(1000, 1000, 1000, 800)).answers["slow-clock"] is Answer.GOOD
    assert judge(paced(1000, 1000, 1000, 799)).answers["slow-clock"] is Answer.BAD


def test_a_lower_power_limit_makes_no_sibling() -> None:
    """One of two is capped by hand: it may run slower."""
    limited = Power(enforced_limit_mw=LIMIT_WATTS * 950, default_limit_mw=LIMIT_WATTS * 1000)
    result = made.with_gpu(paced(1000, 700), 1, power=limited)
    assert codes(judge(result)) == ["mixed-gpus/info"]


def test_shares_of_clocks_are_the_policys() -> None:
    """slowClockWarn and slowClockFail."""
    lenient = Thresholds(slow_clock_warn=0.6, slow_clock_fail=0.5)
    assert codes(judge(paced(1000, 700), thresholds=lenient)) == []
    assert codes(judge(paced(1000, 550), thresholds=lenient)) == ["slow-clock/warn"]


@pytest.mark.parametrize(("limit", "margin", "expected"), [(87, 47, []), (0, 47, []), (0, 4, ["hot/warn"])])
def test_a_limit_that_is_no_distance_is_left_out(limit: int, margin: int, expected: list[str]) -> None:
    """A driver that answers a T.Limit with an absolute temperature must not make a cool GPU hot."""
    cool = Temperature(gpu=40, margin=margin, tlimit_gpu_max=limit)
    assert codes(judge(node(temperature=cool))) == expected
