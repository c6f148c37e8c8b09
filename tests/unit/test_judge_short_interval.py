"""An interval shorter than `intervalFloor` is honoured: counters are judged over several runs."""

from __future__ import annotations

import itertools

import pytest

from nodegauge_judge import History, NodeFacts, Thresholds, judge_health
from nodegauge_judge.case import Case
from support.judge_results import codes, every, judge, later, node, working

FLOOR = Thresholds().interval_floor
RUN_SECONDS = (3.0, 4.5, 3.2, 9.0, 3.1, 5.0, 3.0, 21.0)
"""What a run and the wait for its slot add to the interval."""


@pytest.mark.parametrize("interval", [5, 30, 59, 60, 61, 100, 110, 113, 115, 117, 119, 119.9, 120, 900])
def test_no_interval_counts_as_missed_while_every_run_is_made(interval: float) -> None:
    """Each growth that is judged is over at least `intervalFloor`, and each second is judged exactly once."""
    result, history, judged, passed = node(), History(), 0.0, 0.0
    for extra in (0.0, *itertools.islice(itertools.cycle(RUN_SECONDS), 80)):
        step = interval + extra if extra else 0.0
        result, passed = later(result, step) if step else result, passed + step
        known = {"history": history, "node": NodeFacts(), "interval": interval}
        since = Case.of(result, thresholds=Thresholds(), **known).growth.interval
        assert "missed" not in since.reason, f"after {since.seconds} s"
        if since.valid:
            assert since.seconds is not None
            assert since.seconds >= FLOOR
            judged += since.seconds
        history = judge_health(result, thresholds=Thresholds(), **known).history
    assert passed - judged < FLOOR + interval + max(RUN_SECONDS)


@pytest.mark.parametrize("interval", [20, 55, 117])
def test_heat_is_found_at_a_short_interval(interval: float) -> None:
    """A GPU that heat slows down all the time is found as soon as `intervalFloor` has passed."""
    runs = [every(node(), **working())]
    while sum(1 for _ in runs[1:]) * interval < FLOOR:
        runs.append(every(later(runs[-1], interval, sw_thermal=interval), **working()))
    assert codes(judge(*runs, interval=interval)) == ["sw-thermal-slowdown/fail"]


def test_runs_that_were_missed_are_still_told_apart() -> None:
    """An hour without a run is no growth of a short interval."""
    runs = (node(), later(node(), 3600))
    history = judge(runs[0], interval=60).history
    since = Case.of(
        runs[1], thresholds=Thresholds(), history=history, node=NodeFacts(), interval=60
    ).growth.interval
    assert (since.valid, since.counts) == (False, True)
