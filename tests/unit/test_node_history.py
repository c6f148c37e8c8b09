"""A NodeHistory: its days as text and what they say together; when it is written, and when it goes."""

from datetime import date, timedelta
from typing import Any

import pytest

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.node_history import Day, all_days, day_text, noted, parse_day, parse_node_history
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core.node_history import KEPT_SECONDS, SPREAD_SECONDS
from nodegauge_operator.core.trend import trend
from nodegauge_operator.kube.errors import NotFound, Refused, Unavailable
from nodegauge_operator.reconcile.histories import Histories
from support.api_server import HISTORIES, NODES
from support.objects import DEFAULTS, INTERVAL
from support.operator import SteppedOperator, one_node
from support.virtual_time import drive

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
    going_on = {"2026-11-25": "verdict=fail", "2026-11-24": TEXT}
    assert list(all_days(history, going_on).items()) == [
        ("2026-11-24", DAY),
        ("2026-11-25", Day(verdict=Verdict.FAIL)),
    ]


NOON = unstamp("2026-11-24T12:00:00Z")


@pytest.mark.parametrize(
    ("before", "figures", "after"),
    [
        ("allReduce=463 hottest=80", Day(all_reduce=417, hottest=74), "allReduce=417 hottest=80"),
        (
            "throttled=1.5 spare=800 gpus=8/8",
            Day(throttled=2.0, spare=900, gpus=7),
            "throttled=3.5 spare=800 gpus=7/8",
        ),
        ("verdict=warn", Day(verdict=Verdict.UNKNOWN, driver="2"), "verdict=warn driver=2"),
        ("verdict=unknown", Day(verdict=Verdict.PASS), "verdict=pass"),
        ("verdict=pass", Day(verdict=Verdict.FAIL), "verdict=fail"),
    ],
)
def test_a_run_adds_to_its_day(before: str, figures: Day, after: str) -> None:
    closed = {f"2026-11-{day}": "verdict=pass" for day in range(17, 24)}
    ahead = {"2026-11-25": "by a clock that was ahead"}
    days = noted(closed | {"2026-11-24": before} | ahead, figures, now=NOON)
    assert list(days) == [f"2026-11-{day}" for day in (20, 21, 22, 23, 24)]
    assert days["2026-11-24"] == after


FIRST = date(2026, 10, 25)
STEADY = [463, 461, 466] * 10


@pytest.mark.parametrize(
    ("rates", "sentences"),
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
def test_a_trend_says_what_changed_and_since_when(rates: list[int | None], sentences: list[str]) -> None:
    dates = (str(FIRST + timedelta(days=number)) for number in range(len(rates)))
    assert trend({day: Day(all_reduce=r) for day, r in zip(dates, rates, strict=True) if r}) == sentences


def test_versions_and_throttling_have_their_day() -> None:
    days = {
        "2026-11-22": Day(throttled=0.0, driver="535.1"),
        "2026-11-23": Day(throttled=340.2, driver="550.2"),
        "2026-11-24": Day(),
    }
    throttled = "throttled 340 s on 1 of 2 days, last on 23 Nov"
    assert trend(days) == [throttled, "driver changed on 23 Nov: 535.1 to 550.2"]


DAY_SECONDS = 86_400.0


def history(operator: SteppedOperator) -> dict[str, Any]:
    return operator.cluster.objects[HISTORIES].get("node-1", {}).get("status", {})


def writes_of(operator: SteppedOperator) -> int:
    """Since the process began."""
    return sum(line.endswith(names.HISTORY_PLURAL) for line in operator.client.log)


def codes(operator: SteppedOperator) -> list[str] | None:
    record = history(operator).get("record")
    return None if record is None else [fault["code"] for fault in record["faults"]]


def tidied(operator: SteppedOperator) -> bool:
    """After an hourly look at histories of nodes that are gone: whether that of node-1 is there."""
    clock = operator.cluster.clock
    own: Any = {"client": operator.client, "cache": operator.cache, "installation": DEFAULTS.installation}
    drive(Histories(**own, clock=clock, monotonic=clock).look())
    return "node-1" in operator.cluster.objects[HISTORIES]


@pytest.mark.usefixtures("stated_answers")
def test_a_fault_is_recorded_when_it_changes_and_a_day_when_it_is_over() -> None:
    operator = one_node()
    for answers, writes, known in (
        ("", 0, None),
        ("hot=b", 1, ["hot"]),
        ("hot=b", 2, ["hot"]),  # now it sets a taint
        ("hot=b", 2, ["hot"]),
    ):
        operator.measure(answers)
        assert (writes_of(operator), codes(operator)) == (writes, known)
    assert history(operator)["record"]["faults"][0]["steps"], "its texts are whole"
    operator.restart()
    (first,) = operator.status["days"]
    operator.measure("hot=b", after=DAY_SECONDS + SPREAD_SECONDS)
    assert writes_of(operator) == 1
    assert parse_day(history(operator)["days"][first]).verdict is Verdict.FAIL
    assert first not in operator.status["days"], "the run after the write says that it was made"
    operator.restart()
    operator.measure("hot=b")
    assert writes_of(operator) == 0


@pytest.mark.usefixtures("stated_answers")
@pytest.mark.parametrize("error", [Refused("denied"), NotFound("no such resource"), Unavailable("503")])
def test_a_history_that_cannot_be_written_holds_nothing_back(error: Exception) -> None:
    operator = one_node()
    operator.measure()
    operator.client.refuse = lambda _verb, path: error if path.startswith(HISTORIES) else None
    for _ in range(3):
        operator.measure("gpu-lost=b")
    assert operator.cluster.faults()
    assert operator.probe["lastRun"]["number"] == 4
    assert bool(operator.reconciler.obstacles.counts("default")) is not isinstance(error, Unavailable)
    operator.heal()
    operator.measure("gpu-lost=b")
    assert codes(operator) == ["gpu-lost"]


@pytest.mark.usefixtures("stated_answers")
@pytest.mark.parametrize(
    ("answers", "foreign", "kept"), [("", False, False), ("gpu-lost=b", False, True), ("", True, True)]
)
def test_only_a_node_that_had_a_fault_is_outlived_by_its_history(
    answers: str, foreign: bool, kept: bool
) -> None:
    """The history of another installation is left alone."""
    operator = one_node()
    operator.measure(answers)
    operator.measure(after=DAY_SECONDS + SPREAD_SECONDS)
    assert tidied(operator), "the node is there"
    history(operator)["installation"] = "other/ng" if foreign else DEFAULTS.installation
    operator.cluster.remove(NODES, "node-1")
    operator.catch_up()
    assert tidied(operator) is kept
    operator.cluster.pass_time(KEPT_SECONDS - INTERVAL)
    assert tidied(operator) is kept
    operator.cluster.pass_time(INTERVAL)
    assert tidied(operator) is foreign
