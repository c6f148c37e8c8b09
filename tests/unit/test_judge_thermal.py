"""Temperatures: close to the limit warns, and heat that slowed the GPU down fails."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result, Span, Temperature, Window
from nodegauge_judge import Answer, Judgement, Thresholds, Verdict
from support.judge_results import (
    Row,
    Table,
    check,
    codes,
    cool,
    every,
    grew,
    judge,
    later,
    node,
    resting,
    rows,
    span,
    working,
)


def heated(celsius: int, /, *, heat: bool = False, memory: int = 70, **temperature: int) -> Result:
    """A machine at work whose first GPU is that hot, slowed down by heat in half of its window or not."""
    window = working(
        temperature=span(celsius - 1, celsius),
        memory_temperature=span(memory),
        growth=grew(sw_thermal=1.2 if heat else 0),
    )
    known = {"gpu": celsius} | (temperature or {"gpu_max": 87, "memory_max": 95})
    return made.with_gpu(node(), 0, temperature=Temperature(**known), **window)


GOOD, BAD, UNSURE = Answer.GOOD, Answer.BAD, Answer.UNSURE
H100 = {"margin": 16, "tlimit_gpu_max": 0, "tlimit_memory_max": 0}
DISTANT = H100 | {"margin": 2, "tlimit_memory_max": 3}
GB200 = H100 | {"gpu": 31, "margin": 55}
"""`nvidia-smi -q` of both, as published: "Memory Max Operating T.Limit Temp: 0 C", no limit in °C.  The
margin is 86 or 87 less the core's temperature, whatever the memory has."""


def memory(celsius: int, limits: dict[str, int] | None = None, *, heat: bool = False, **more: int) -> Result:
    """The first GPU's memory is that hot, the second one's cool; `limits`: all that the driver says."""
    known = {"gpu": 71, **limits, **more} if limits else {}
    hot = heated(known.get("gpu", 60), heat=heat, memory=celsius, **known)
    return made.with_gpu(hot, 1, **working(memory_temperature=span(60)))


@pytest.mark.parametrize(
    ("code", "result", "expected", "answer"),
    [
        ("hot", heated(81), "", GOOD),
        ("hot", heated(82), "hot/warn", GOOD),
        ("hot", heated(83), "hot/warn", UNSURE),
        ("hot", heated(86, heat=True), "hot/warn", UNSURE),
        ("hot", heated(87, heat=True), "hot/fail", BAD),
        ("hot", heated(70, margin=6), "", GOOD),
        ("hot", heated(70, margin=5), "hot/warn", GOOD),
        ("hot", heated(70, margin=4), "hot/warn", UNSURE),
        ("hot", heated(85, margin=0), "hot/warn", UNSURE),
        ("hot", heated(85, margin=0, heat=True), "hot/fail", BAD),
        ("hot", heated(70, margin=-2), "", GOOD),
        ("hot", heated(85, margin=0, tlimit_gpu_max=-2, heat=True), "hot/warn", UNSURE),
        ("hot", heated(79, shutdown=98), "", GOOD),
        ("hot", heated(80, shutdown=98), "hot/warn", GOOD),
        ("hot", heated(85, shutdown=98), "hot/warn", GOOD),
        ("hot", heated(86, shutdown=98), "hot/warn", UNSURE),
        ("hot", heated(90, shutdown=98), "hot/fail", BAD),
        ("memory-hot", memory(89), "", GOOD),
        ("memory-hot", memory(90), "memory-hot/warn", GOOD),
        ("memory-hot", memory(91), "memory-hot/warn", UNSURE),
        ("memory-hot", memory(95, heat=True), "memory-hot/fail", BAD),
        ("memory-hot", memory(94, heat=True), "memory-hot/warn", UNSURE),
        ("memory-hot", memory(0, heat=True), "", UNSURE),
        ("memory-hot", memory(94, H100), "", GOOD),
        ("memory-hot", memory(95, H100), "memory-hot/warn", GOOD),
        ("memory-hot", memory(115, H100), "memory-hot/fail", BAD),
        ("memory-hot", memory(105, GB200, heat=True), "memory-hot/fail", BAD),
        ("memory-hot", memory(104, GB200, heat=True), "memory-hot/warn", UNSURE),
        ("memory-hot", memory(92, H100, margin=5), "hot/warn memory-hot/warn", GOOD),
        ("memory-hot", memory(92, H100, margin=-1, heat=True), "hot/fail memory-hot/fail", BAD),
        ("memory-hot", memory(92, H100, margin=-1), "", GOOD),
        ("memory-hot", memory(92, DISTANT, heat=True), "memory-hot/fail hot/warn", BAD),
        ("memory-hot", memory(60, H100, margin=3), "hot/warn", GOOD),
        ("memory-hot", memory(115, {"tlimit_memory_max": 0}), "memory-hot/fail", BAD),
        ("memory-hot", memory(96, {"margin": 16, "tlimit_memory_max": 95}), "memory-hot/warn", GOOD),
        ("memory-hot", memory(89, H100, memory_max=95), "", GOOD),
        ("memory-hot", memory(105, H100, memory_max=110), "memory-hot/warn", GOOD),
        ("memory-hot", memory(115, H100, memory_max=0), "memory-hot/fail", BAD),
    ],
)
def test_a_limit_fails_only_with_a_counter(code: str, result: Result, expected: str, answer: Answer) -> None:
    """Fails at the vendor's limit with heat counted, good again 5 °C below it; a margin of 0 alone proves
    nothing.  Memory: by the window's hottest sample; without a sensor no answer; without a limit in °C the
    margin to the nearest slowdown point where memory is the hotter part, and the policy's numbers."""
    judgement = judge(result)
    assert " ".join(c for c in codes(judgement) if not c.startswith("sw-thermal")) == expected
    assert judgement.answers[code] is answer


IDLE_HOT = made.with_gpu(
    node(), 0, temperature=Temperature(gpu=92), **resting(temperature=span(92), growth=grew(hw_thermal=3))
)
BIT_SET = made.with_gpu(heated(90), 0, **working(temperature=span(90), bits={0x20: 12}))
BARE = replace(BIT_SET.gpus[0].counters, sw_thermal_ns=BIT_SET.gpus[0].counters.trio)
RUNS = [heated(celsius, gpu_max=95) for celsius in (84, 90, 70, 84)]
REST = made.with_gpu(heated(84, gpu_max=95), 0, **resting(temperature=span(84)))
AT_REST = cool(**H100, gpu=71, memory=115)
WINDOW = Window(seconds=3.0, samples=12, temperature=Span(min=60, median=70, max=81))
WINDOW_HOT = made.with_gpu(made.phb(), 0, temperature=Temperature(gpu=40, gpu_max=85), window=WINDOW)


def interval(**grown: float) -> tuple[Result, Result]:
    """87 °C now, and what the counters grew by since the last run."""
    return heated(80), later(heated(87), 900, gpu=0, **grown)


def under(result: Result, **limits: Any) -> Judgement:
    return judge(result, thresholds=Thresholds(**limits))


TABLE: Table = {
    "an idle hot GPU warns and is no load": [
        (every(IDLE_HOT, **resting(temperature=span(92))), "hot/warn", {"hot": Answer.NO_LOAD})
    ],
    "the policy sets what is hot, cool again, and failed": [
        (under(heated(83), hot_leave_margin=4), "hot/warn", {"hot": GOOD}),
        (under(heated(78, shutdown=98), hot_warn=70, hot_fail=78), "hot/fail"),
        (under(cool(gpu=78, gpu_max=85), hot_margin=7), "hot/warn"),
        (under(cool(gpu=30, gpu_max=85, memory=80, memory_max=95), memory_hot_margin=15), "memory-hot/warn"),
        (under(AT_REST, memory_hot_warn=116, memory_hot_fail=120), ""),
    ],
    "samples of a bit do not count as a counter": [
        (made.with_gpu(BIT_SET, 0, counters=BARE), "sw-thermal-slowdown/fail hot/warn")
    ],
    "growth over the interval makes heat fail": [
        (interval(sw_thermal=100), "sw-thermal-slowdown/fail hot/fail"),
        (interval(hw_thermal=1), "hot/fail hw-thermal-slowdown/warn"),
        (interval(sw_thermal=4), "hot/warn"),
    ],
    "hot memory at rest warns and names the policy's number": (
        AT_REST,
        "memory-hot/warn",
        ": Memory: 115 °C; the driver gives no limit, the policy's memoryHotFail is 105",
        {"memory_celsius": 115},
    ),
    "three of four runs of 84 °C under load are information": [
        (tuple(RUNS[:3]), ""),
        (tuple(RUNS), "hot-for-long/info", Verdict.PASS),
        ((RUNS[0], REST, RUNS[1], REST, RUNS[3]), "hot-for-long/info"),
        ((*RUNS, REST), ""),
        ((*RUNS, RUNS[2], RUNS[2]), ""),
        ((heated(83, gpu_max=95),) * 4, ""),
        (under(RUNS[0], hot_for_long_runs=1), "hot-for-long/info"),
    ],
    "an absolute temperature in place of a T.Limit makes no cool GPU hot": [
        (node(temperature=Temperature(gpu=40, margin=margin, tlimit_gpu_max=limit)), expected)
        for limit, margin, expected in ((87, 47, ""), (0, 47, ""), (0, 4, "hot/warn"))
    ],
    "within 5 °C of the vendor's limit warns": [
        (cool(gpu=60, margin=4, tlimit_gpu_max=-2), ""),
        (cool(gpu=60, margin=3, tlimit_gpu_max=-2), "hot/warn"),
        (cool(gpu=82, margin=-3), "hot/warn"),
        (cool(margin=3), "hot/warn"),
        (cool(gpu=89, margin=30), ""),
    ],
    "a sensor that reads 0 and a cool GPU without margin are fine": [
        (cool(gpu=40, margin=0), ""),
        (cool(gpu=0, gpu_max=85), ""),
    ],
    "without a vendor's limit the policy's number counts, and is named": [
        (cool(gpu=89, gpu_max=0), "hot/warn"),
        (cool(gpu=85), "hot/warn", ": 85 °C; the driver gives no limit, the policy's hotWarn is 80 °C."),
        (
            cool(gpu=95),
            "hot/warn",
            ": 95 °C; the driver gives no limit, the policy's hotFail is 90 °C.",
            {"celsius": 95, "limit_celsius": 90},
        ),
    ],
    "the hottest sample of the window counts": [
        (WINDOW_HOT, "hot/warn", {"celsius": 81, "limit_celsius": 85})
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_heat_is_judged(row: Row) -> None:
    """By the vendor's limit or the policy's; nothing fails without load or sensor."""
    check(*row)


def test_a_job_that_ended_before_the_window_is_no_load() -> None:
    first = node()
    ended = every(later(first, 900), **resting())
    answers = judge(first, ended).answers
    assert {answers[code] for code in ("hot", "memory-hot", "hw-slowdown", "slow-clock")} == {Answer.NO_LOAD}
    assert answers["sw-thermal-slowdown"] is Answer.GOOD


@pytest.mark.parametrize(
    ("celsius", "band"),
    [
        (75, "excellent"),
        (76, "good"),
        (79, "good"),
        (80, "warm"),
        (83, "warm"),
        (84, "throttling-likely"),
    ],
)
def test_each_temperature_has_a_band(celsius: int, band: str) -> None:
    brief = judge(heated(celsius)).gpus[0]
    assert (brief.celsius, brief.band) == (celsius, band)
    unread = made.with_gpu(node(), 0, temperature=Temperature(), window=None)
    assert (judge(unread).gpus[0].celsius, judge(unread).gpus[0].band) == (None, "")
