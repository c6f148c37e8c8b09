"""Temperatures: close to the limit warns, and heat that slowed the GPU down fails."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result, Span, Temperature, Window
from nodegauge_judge import Answer, Judgement, Thresholds, judge_health
from support.judge_results import codes, cool, every, grew, judge, later, node, only, resting, span, working


def heated(celsius: int, /, *, heat: bool = False, memory: int = 70, **temperature: int) -> Result:
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
def test_a_vendors_limit_fails_only_with_a_counter(
    result: Result, expected: list[str], expected_answer: Answer
) -> None:
    """Fails at the limit with heat counted; good again 5 °C below it; a margin of 0 alone proves nothing."""
    assert answer(judge(result), "hot") == (expected, expected_answer)


def test_an_idle_hot_gpu_warns_and_is_no_load() -> None:
    """No load, no failure: by the window that saw none."""
    idle = resting(temperature=span(92), growth=grew(hw_thermal=3))
    result = made.with_gpu(node(), 0, temperature=Temperature(gpu=92), **idle)
    judgement = judge(every(result, **resting(temperature=span(92))))
    assert answer(judgement, "hot") == (["hot/warn"], Answer.NO_LOAD)


def test_a_job_that_ended_before_the_window_is_no_load() -> None:
    """A busy interval and an idle window: the GPU has cooled down because nothing runs."""
    first = node()
    ended = every(later(first, 900), **resting())
    answers = judge(first, ended).answers
    assert {answers[code] for code in ("hot", "memory-hot", "hw-slowdown", "slow-clock")} == {Answer.NO_LOAD}
    assert answers["sw-thermal-slowdown"] is Answer.GOOD


def test_the_policy_sets_what_is_hot_and_cool_again() -> None:
    """hotLeaveMargin and hotFail."""
    assert judge(heated(83), thresholds=Thresholds(hot_leave_margin=4)).answers["hot"] is Answer.GOOD
    strict = Thresholds(hot_warn=70, hot_fail=78)
    assert codes(judge(heated(78, shutdown=98), thresholds=strict)) == ["hot/fail"]


def test_samples_of_a_bit_do_not_count_as_a_counter() -> None:
    """At the vendor's limit with the bit in every sample: that is the slowdown's row, not this one's."""
    hot = made.with_gpu(heated(90), 0, **working(temperature=span(90), bits={0x20: 12}))
    bare = replace(hot.gpus[0].counters, sw_thermal_ns=hot.gpus[0].counters.trio)
    assert codes(judge(made.with_gpu(hot, 0, counters=bare))) == ["sw-thermal-slowdown/fail", "hot/warn"]


def test_growth_over_the_interval_makes_heat_fail() -> None:
    """87 °C now, and 100 s of slowdown since the last run."""
    first = heated(80)
    assert "hot/fail" in codes(judge(first, later(heated(87), 900, gpu=0, sw_thermal=100)))
    assert "hot/fail" in codes(judge(first, later(heated(87), 900, gpu=0, hw_thermal=1)))
    assert codes(judge(first, later(heated(87), 900, gpu=0, sw_thermal=4))) == ["hot/warn"]


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


H100 = {"gpu": 71, "margin": 16, "tlimit_gpu_max": 0, "tlimit_memory_max": 0}
H200 = {"gpu": 28, "margin": 59, "tlimit_gpu_max": 0, "tlimit_memory_max": 0}
GB200 = {"gpu": 31, "margin": 55, "tlimit_gpu_max": 0, "tlimit_memory_max": 0}
"""`nvidia-smi -q` of the three, as published: "Memory Max Operating T.Limit Temp: 0 C", no limit in °C.  The
margin is 86 or 87 less the core's temperature, whatever the memory has."""


@pytest.mark.parametrize(
    ("memory", "heat", "temperature", "expected", "expected_answer"),
    [
        (78, False, H100, [], Answer.GOOD),
        (94, False, H100, [], Answer.GOOD),
        (95, False, H100, ["memory-hot/warn"], Answer.GOOD),
        (101, True, H100, ["memory-hot/warn"], Answer.UNSURE),
        (115, False, H100, ["memory-hot/fail"], Answer.BAD),
        (115, False, H200, ["memory-hot/fail"], Answer.BAD),
        (105, True, GB200, ["memory-hot/fail"], Answer.BAD),
        (104, True, GB200, ["memory-hot/warn"], Answer.UNSURE),
        (39, False, GB200, [], Answer.GOOD),
        (92, False, H100 | {"margin": 5}, ["hot/warn", "memory-hot/warn"], Answer.GOOD),
        (92, True, H100 | {"margin": -1}, ["hot/fail", "memory-hot/fail"], Answer.BAD),
        (92, False, H100 | {"margin": -1}, [], Answer.GOOD),
        (97, False, H100 | {"margin": -1}, ["memory-hot/warn"], Answer.UNSURE),
        (92, True, H100 | {"margin": 2, "tlimit_memory_max": 3}, ["memory-hot/fail", "hot/warn"], Answer.BAD),
        (60, False, H100 | {"margin": 3}, ["hot/warn"], Answer.GOOD),
        (115, False, {"gpu": 71, "tlimit_memory_max": 0}, ["memory-hot/fail"], Answer.BAD),
        (96, False, {"gpu": 71, "margin": 16, "tlimit_memory_max": 95}, ["memory-hot/warn"], Answer.GOOD),
        (89, False, H100 | {"memory_max": 95}, [], Answer.GOOD),
        (105, False, H100 | {"memory_max": 110}, ["memory-hot/warn"], Answer.GOOD),
        (115, False, H100 | {"memory_max": 0}, ["memory-hot/fail"], Answer.BAD),
    ],
)
def test_memory_without_a_limit_in_degrees_is_judged_by_t_limit_and_policy(
    memory: int, heat: bool, temperature: dict[str, int], expected: list[str], expected_answer: Answer
) -> None:
    """The margin to the nearest slowdown point where memory is the hotter part, and the policy's numbers.  A
    limit in °C replaces both."""
    hot = heated(temperature["gpu"], heat=heat, memory=memory, **temperature)
    assert answer(judge(made.with_gpu(hot, 1, **working(memory_temperature=span(60)))), "memory-hot") == (
        expected,
        expected_answer,
    )


def test_hot_memory_at_rest_warns_and_names_the_policys_number() -> None:
    """Idle, it takes no node away; a policy sets its own numbers."""
    idle = cool(**H100, memory=115)
    finding = only(judge_health(idle))
    assert finding.message.startswith(
        "Memory: 115 °C; the driver gives no limit, the policy's memoryHotFail is 105"
    )
    assert (finding.severity, finding.evidence["memory_celsius"]) == ("warn", 115)
    assert codes(judge_health(idle, thresholds=Thresholds(memory_hot_warn=116, memory_hot_fail=120))) == []


def test_three_of_four_hot_runs_under_load_are_info() -> None:
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
def test_each_temperature_has_a_band(celsius: int, band: str) -> None:
    """The published bands, beside whatever the vendor's limits say."""
    brief = judge(heated(celsius)).gpus[0]
    assert (brief.celsius, brief.band) == (celsius, band)
    unread = made.with_gpu(node(), 0, temperature=Temperature(), window=None)
    assert (judge(unread).gpus[0].celsius, judge(unread).gpus[0].band) == (None, "")


@pytest.mark.parametrize(("limit", "margin", "expected"), [(87, 47, []), (0, 47, []), (0, 4, ["hot/warn"])])
def test_an_implausible_t_limit_is_ignored(limit: int, margin: int, expected: list[str]) -> None:
    """A driver that answers a T.Limit with an absolute temperature must not make a cool GPU hot."""
    cool = Temperature(gpu=40, margin=margin, tlimit_gpu_max=limit)
    assert codes(judge(node(temperature=cool))) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gpu": 79, "gpu_max": 85}, []),
        ({"gpu": 80, "gpu_max": 85}, ["hot/warn"]),
        ({"gpu": 95, "gpu_max": 85}, ["hot/warn"]),
        ({"gpu": 87, "gpu_max": 93}, []),
        ({"gpu": 60, "margin": 4, "tlimit_gpu_max": -2}, []),
        ({"gpu": 60, "margin": 3, "tlimit_gpu_max": -2}, ["hot/warn"]),
        ({"gpu": 40, "margin": 0}, []),
        ({"gpu": 40, "margin": -3}, []),
        ({"gpu": 82, "margin": -3}, ["hot/warn"]),
        ({"margin": 3}, ["hot/warn"]),
        ({"gpu": 89, "margin": 30}, []),
        ({"gpu": 89}, ["hot/warn"]),
        ({"gpu": 90}, ["hot/warn"]),
        ({"gpu": 89, "gpu_max": 0}, ["hot/warn"]),
        ({"gpu": 0, "gpu_max": 85}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 94}, []),
        ({"gpu": 30, "gpu_max": 85, "memory": 99}, ["memory-hot/warn"]),
    ],
)
def test_temperature_is_compared_with_the_vendors_limit_or_the_policys(
    values: dict[str, int], expected: list[str]
) -> None:
    """Within 5 °C of the vendor's limit warns, else from 80 on; nothing fails without load or sensor."""
    assert codes(judge_health(cool(**values))) == expected


def test_the_hottest_sample_of_the_window_counts() -> None:
    """A window's maximum stands for the GPU, and only the first reading where there was no window."""
    temperature = Temperature(gpu=40, gpu_max=85)
    window = Window(seconds=3.0, samples=12, temperature=Span(min=60, median=70, max=81))
    hot = made.with_gpu(made.phb(), 0, temperature=temperature, window=window)
    assert only(judge_health(hot)).evidence == {"celsius": 81, "limit_celsius": 85}


def test_temperature_thresholds_come_from_the_policy() -> None:
    """Margin and warning are two numbers of the policy, memory's margin a third."""
    assert codes(judge_health(cool(gpu=78, gpu_max=85), thresholds=Thresholds(hot_margin=7))) == ["hot/warn"]
    assert codes(judge_health(cool(gpu=78), thresholds=Thresholds(hot_warn=78))) == ["hot/warn"]
    memory = cool(gpu=30, gpu_max=85, memory=80, memory_max=95)
    assert codes(judge_health(memory, thresholds=Thresholds(memory_hot_margin=15))) == ["memory-hot/warn"]


def test_heat_without_a_vendor_limit_names_the_policys_number() -> None:
    """Which number, and whose."""
    warned, failed = only(judge_health(cool(gpu=85))), only(judge_health(cool(gpu=95)))
    assert warned.message.startswith("85 °C; the driver gives no limit, the policy's hotWarn is 80 °C.")
    assert failed.message.startswith("95 °C; the driver gives no limit, the policy's hotFail is 90 °C.")
    assert failed.evidence == {"celsius": 95, "limit_celsius": 90}
