"""A NodeHistory's days as text, and what they say together."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from nodegauge_judge import Verdict
from nodegauge_operator.api.node_history import Day, day_text, parse_day, parse_node_history
from nodegauge_operator.core.trend import trend

TEXT = "allReduce=463 tflops=612.5 hottest=74 throttled=0 spare=812 gpus=7/8 verdict=warn driver=550.90.07"
DAY = Day(
    all_reduce=463,
    tflops=612.5,
    hottest=74,
    throttled=0.0,
    spare=812,
    gpus=7,
    of=8,
    verdict=Verdict.WARN,
    driver="550.90.07",
)


@pytest.mark.parametrize("more", ["", " hottestPort=4 novalue= =1 stray", " allGather=much"])
def test_a_day_is_one_text_and_what_is_unknown_is_skipped(more: str) -> None:
    assert parse_day(TEXT + more) == DAY
    assert day_text(DAY) == TEXT
    body = {"metadata": {"name": "n"}, "status": {"days": {"2026-11-24": TEXT, "x": TEXT}, "goneAt": 5}}
    history = parse_node_history(body)
    assert (history.days, history.gone_at, history.record) == ({"2026-11-24": DAY}, "", None)


FIRST = date(2026, 10, 25)
STEADY = [463, 461, 466] * 10


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([*STEADY, 417], ["all_reduce 463 GB/s for 30 days, 417 since 24 Nov"]),
        ([*STEADY, 417, 418, 416], ["all_reduce 463 GB/s for 30 days, 417 since 24 Nov"]),
        ([*STEADY, 417, 463], ["all_reduce 463 GB/s for 32 days"]),
        ([463, 417], ["all_reduce 440 GB/s for 2 days"]),
        ([400, 463, 430] * 10 + [417], ["all_reduce 430 GB/s for 31 days"]),
        (
            [463, None, None, 463],
            ["all_reduce 463 GB/s for 4 days (measured on 2)", "no reading on 2 of 4 days"],
        ),
        ([], []),
    ],
)
def test_a_trend_says_what_changed_and_since_when(rates: list[int | None], said: list[str]) -> None:
    dates = (str(FIRST + timedelta(days=number)) for number in range(len(rates)))
    assert trend({day: Day(all_reduce=r) for day, r in zip(dates, rates, strict=True) if r}) == said


def test_versions_and_throttling_have_their_day() -> None:
    days = {
        "2026-11-22": Day(throttled=0.0, driver="535.1"),
        "2026-11-23": Day(throttled=340.2, driver="550.2"),
        "2026-11-24": Day(),
    }
    throttled = "throttled 340 s on 1 of 2 days, last on 23 Nov"
    assert trend(days) == [throttled, "driver changed on 23 Nov: 535.1 to 550.2"]
