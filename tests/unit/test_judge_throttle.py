"""The throttle rule: how much slowdown, over which time, by which evidence, is a finding."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Counters, Result, Unavailable
from nodegauge_judge import Answer, Thresholds
from support.judge_results import codes, every, grew, judge, later, node, resting, span, working


def throttled(
    seconds: float = 900, *, thresholds: Thresholds | None = None, **grown: float
) -> tuple[list[str], dict[str, Answer]]:
    """Findings and answers of a machine whose first GPU's counters grew so over one interval."""
    first = node()
    judgement = judge(first, later(first, seconds, gpu=0, **grown), thresholds=thresholds)
    return codes(judgement), judgement.answers


# -- counters over an interval


@pytest.mark.parametrize(
    ("grown", "expected"),
    [
        ({"sw_thermal": 4.9, "low_utilization": 700}, []),
        ({"sw_thermal": 5, "low_utilization": 700}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 9}, []),
        ({"sw_thermal": 9.1}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 90}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 90.1}, ["sw-thermal-slowdown/fail"]),
        ({"sw_thermal": 59.9, "low_utilization": 700}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 60, "low_utilization": 700}, ["sw-thermal-slowdown/fail"]),
        ({"sw_thermal": 300, "low_utilization": 840}, ["sw-thermal-slowdown/fail"]),
        ({"sw_thermal": 300, "low_utilization": 840.1}, []),
        ({"hw_thermal": 0.9}, []),
        ({"hw_thermal": 1}, ["hw-thermal-slowdown/warn"]),
        ({"hw_thermal": 9}, ["hw-thermal-slowdown/warn"]),
        ({"hw_thermal": 9.1}, ["hw-thermal-slowdown/fail"]),
        ({"hw_thermal": 9.1, "low_utilization": 900}, ["hw-thermal-slowdown/fail"]),
        ({"power_brake": 0.9}, []),
        ({"power_brake": 1}, ["power-brake/warn"]),
        ({"power_brake": 45}, ["power-brake/warn"]),
        ({"power_brake": 45.1}, ["power-brake/fail"]),
        ({"power_brake": 45.1, "low_utilization": 900}, ["power-brake/fail"]),
        ({"sw_power_cap": 900}, []),
        ({"sync_boost": 900}, []),
        ({"thermal_violation": 900}, []),
    ],
)
def test_slowdown_in_fifteen_minutes(grown: dict[str, float], expected: list[str]) -> None:
    """Seconds and share both count; heat by software over the busy time alone; caps and boost never."""
    assert throttled(**grown)[0] == expected


@pytest.mark.parametrize(
    ("grown", "expected"),
    [
        ({"hw_thermal": 4.9}, ["hw-thermal-slowdown/warn"]),
        ({"hw_thermal": 5}, ["hw-thermal-slowdown/fail"]),
        ({"power_brake": 29.9}, ["power-brake/warn"]),
        ({"power_brake": 30}, ["power-brake/fail"]),
        ({"sw_thermal": 59.9}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 60}, ["sw-thermal-slowdown/fail"]),
    ],
)
def test_a_short_interval_still_needs_the_seconds(grown: dict[str, float], expected: list[str]) -> None:
    """In 300 s each share is passed long before the floor is."""
    assert throttled(300, **grown)[0] == expected


def test_a_nanosecond_is_no_finding() -> None:
    """One of them has made whole fleets unhealthy elsewhere."""
    first = node()
    tick = later(first, 900, sw_thermal=1e-9, hw_thermal=1e-9, power_brake=1e-9)
    assert codes(judge(first, tick)) == []


def test_all_floors_are_the_policys() -> None:
    """A policy with intervals of seconds judges seconds, on the same path."""
    quick = Thresholds(
        interval_floor=2,
        busy_floor=1,
        sw_thermal_warn_seconds=0.1,
        sw_thermal_fail_seconds=1,
        hw_thermal_warn_seconds=0.01,
        hw_thermal_fail_seconds=0.05,
        power_brake_warn_seconds=0.01,
        power_brake_fail_seconds=0.3,
    )
    assert throttled(6, sw_thermal=1.2) == ([], throttled(6)[1])
    assert throttled(6, sw_thermal=1.2, thresholds=quick)[0] == ["sw-thermal-slowdown/fail"]
    assert throttled(6, hw_thermal=0.2, thresholds=quick)[0] == ["hw-thermal-slowdown/fail"]
    assert throttled(6, power_brake=0.5, thresholds=quick)[0] == ["power-brake/fail"]
    assert throttled(6, sw_thermal=0.5, thresholds=quick)[0] == ["sw-thermal-slowdown/warn"]


def test_a_finding_says_how_long_of_what_by_which_evidence() -> None:
    """What a person needs to believe it."""
    first = node()
    finding = judge(first, later(first, 900, gpu=1, sw_thermal=150, low_utilization=600)).findings[0]
    assert finding.subject == "GPU 1 (0000:10:00.0)"
    assert "for 150 s of 900 s since the last run, 300 s of them busy (50%)" in finding.message
    assert finding.evidence == {
        "evidence": "counter",
        "share": 0.5,
        "seconds": 150.0,
        "elapsed_seconds": 900.0,
        "busy_seconds": 300.0,
    }


def test_the_node_takes_its_worst_gpu() -> None:
    """One GPU in sixteen is enough; the others are named."""
    first = node(16)
    second = later(later(first, 0, gpu=3, sw_thermal=400), 900)
    assert judge(first, second).findings[0].subject == "GPU 3 (0000:12:00.0)"


# -- which interval counts


@pytest.mark.parametrize(
    ("change", "interval"),
    [
        (lambda r: replace(r, host=replace(r.host, boot_id="another")), 900),
        (lambda r: replace(r, system=replace(r.system, driver="580.1")), 900),
        (lambda r: replace(r, host=replace(r.host, boottime_ms=Unavailable("no clock"))), 900),
        (lambda r: every(r, power=replace(r.gpus[0].power, energy_mj=1)), 900),
        (lambda r: every(r, counters=replace(r.gpus[0].counters, sw_power_cap_ns=0)), 900),
        (lambda r: every(r, counters=replace(r.gpus[0].counters, hw_thermal_ns=0)), 900),
        (lambda r: r, 449),
    ],
    ids=["reboot", "driver", "no-clock", "energy-back", "cap-back", "heat-back", "missed-runs"],
)
def test_an_interval_that_is_not_one_is_not_judged(change: Any, interval: float) -> None:
    """Counters restart; then only the window speaks, and here it saw nothing."""
    first = node()
    second = change(later(first, 900, sw_thermal=800))
    assert codes(judge(first, later(first, 900, sw_thermal=800))) == ["sw-thermal-slowdown/fail"]
    assert codes(judge(first, second, interval=interval)) == []


def test_runs_that_come_too_early_add_up_instead_of_hiding_what_happens() -> None:
    """Somebody asks for a run every minute: the second one sees the first one's growth as well."""
    first = node()
    early = later(first, 60, sw_thermal=50)
    assert codes(judge(first, early)) == []
    assert codes(judge(first, early, later(early, 60, sw_thermal=50))) == ["sw-thermal-slowdown/fail"]


def test_one_gpu_that_was_reset_leaves_the_others_judged() -> None:
    """A GPU's counters restart with it alone."""
    first = node()
    second = later(first, 900, sw_thermal=800)
    reset = made.with_gpu(second, 0, counters=replace(second.gpus[0].counters, sw_power_cap_ns=0))
    finding = judge(first, reset).findings[0]
    assert (finding.code, finding.subject) == ("sw-thermal-slowdown", "GPU 1 (0000:10:00.0)")


def test_growth_that_cannot_be_is_not_believed() -> None:
    """More than 1.05 seconds a second: a counter of something else."""
    assert throttled(power_brake=945)[0] == ["power-brake/fail"]
    expected, answers = throttled(power_brake=946)
    assert expected == []
    assert throttled(power_brake=946, thresholds=Thresholds(plausible_growth=2))[0] == ["power-brake/fail"]
    assert answers["power-brake"] is Answer.GOOD


def test_the_counter_of_thermal_violations_stands_in_before_driver_575() -> None:
    """The only source of older drivers; a newer driver's own counter comes first."""
    old = every(
        node(), counters=Counters(trio=Unavailable("none"), thermal_violation_ns=1, low_utilization_ns=1)
    )
    finding = judge(old, later(old, 900, thermal_violation=200)).findings[0]
    assert (finding.code, finding.evidence["evidence"]) == ("sw-thermal-slowdown", "counter")


def test_heat_of_the_hardware_is_not_counted_twice_where_one_counter_holds_both() -> None:
    """Before driver 575: the bit says which; both in as many samples are the hardware's, the severer one."""
    counters = Counters(trio=Unavailable("none"), thermal_violation_ns=1, low_utilization_ns=1)
    old = node(counters=counters)
    for bits, expected in [
        ({0x40: 12}, "hw-thermal-slowdown/fail"),
        ({0x40: 12, 0x20: 12}, "hw-thermal-slowdown/fail"),
        ({0x20: 12}, "sw-thermal-slowdown/fail"),
    ]:
        judgement = judge(old, every(later(old, 900, thermal_violation=200), **working(bits=bits)))
        assert codes(judgement) == [expected]
    assert judge(every(old, **working(bits={0x40: 12}))).answers["sw-thermal-slowdown"] is Answer.UNSURE


def test_counters_that_contradict_each_other_gate_nobody() -> None:
    """Thermal violations stood still: a warning that says so, and an answer that is none."""
    first = node()
    judgement = judge(first, later(first, 900, sw_thermal=400, thermal_violation=0))
    assert codes(judgement) == ["sw-thermal-slowdown/warn"]
    assert "uncertain" in judgement.findings[0].message
    assert judgement.answers["sw-thermal-slowdown"] is Answer.UNSURE
    never = every(first, counters=replace(first.gpus[0].counters, thermal_violation_ns=0))
    silent = judge(never, later(never, 900, sw_thermal=400, thermal_violation=0))
    assert codes(silent) == ["sw-thermal-slowdown/fail"]


# -- the window alone


def windowed(result: Result | None = None, **grown: float) -> Result:
    """A first run whose window saw that much, in seconds of 3."""
    return every(result or node(), **working(growth=grew(**grown)))


@pytest.mark.parametrize(
    ("grown", "expected"),
    [
        ({"sw_thermal": 0.03}, []),
        ({"sw_thermal": 0.031}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 1.5}, ["sw-thermal-slowdown/warn"]),
        ({"sw_thermal": 1.51}, ["sw-thermal-slowdown/fail"]),
        ({"sw_thermal": 3.2}, []),
        ({"hw_thermal": 1.51}, ["hw-thermal-slowdown/fail"]),
        ({"hw_thermal": 0.05}, ["hw-thermal-slowdown/warn"]),
        ({"power_brake": 1.51}, ["power-brake/fail"]),
        ({"power_brake": 0.05}, ["power-brake/warn"]),
        ({"thermal_violation": 1.51}, ["sw-thermal-slowdown/fail"]),
        ({"sw_power_cap": 3}, []),
    ],
)
def test_a_first_run_is_judged_by_its_window(grown: dict[str, float], expected: list[str]) -> None:
    """More than 1 % warns, more than half fails, and the evidence says that it was the window."""
    judgement = judge(windowed(**grown))
    assert codes(judgement) == expected
    assert {finding.evidence["evidence"] for finding in judgement.findings} <= {"window"}
    assert all("no earlier reading" in finding.message for finding in judgement.findings)


def test_a_window_needs_load_in_every_sample_for_heat_and_none_for_the_brake() -> None:
    """One sample at 49 % and it says nothing of software slowdown; the brake is judged idle too."""
    for lowest, expected in [(50, ["sw-thermal-slowdown/fail"]), (49, [])]:
        window = working(utilization=span(lowest, 100), growth=grew(sw_thermal=3))
        assert codes(judge(every(node(), **window))) == expected
    idle = every(node(), **resting(growth=grew(power_brake=3, hw_thermal=3, sw_thermal=3)))
    assert codes(judge(idle)) == ["hw-thermal-slowdown/fail", "power-brake/fail"]


def test_an_interval_outweighs_the_window() -> None:
    """Three seconds of heat in fifteen minutes are no finding, although they fill the window."""
    first = node()
    second = every(later(first, 900, sw_thermal=3), **working(growth=grew(sw_thermal=3)))
    assert codes(judge(first, second)) == []


@pytest.mark.parametrize(
    ("code", "grown"),
    [
        ("sw-thermal-slowdown", {"sw_thermal": 600}),
        ("hw-thermal-slowdown", {"hw_thermal": 600}),
        ("power-brake", {"power_brake": 600}),
    ],
)
def test_a_run_soon_after_another_calls_nothing_good(code: str, grown: dict[str, float]) -> None:
    """Somebody asks for a run ten seconds after a bad one: three clean seconds do not begin the row anew, a
    slow window still counts, and the next run of the policy judges what the counters hold."""
    first = node()
    bad = later(first, 900, **grown)
    clean = every(later(bad, 10), **working(growth=grew(sw_thermal=0, hw_thermal=0, power_brake=0)))
    assert judge(first, bad).answers[code] is Answer.BAD
    assert judge(first, bad, clean).answers[code] is Answer.UNSURE
    slow = every(clean, **working(growth=grew(**dict.fromkeys(grown, 3))))
    assert judge(first, bad, slow).answers[code] is Answer.BAD
    assert judge(first, bad, clean, later(bad, 900, **grown)).answers[code] is Answer.BAD
    assert judge(first, bad, clean, later(bad, 900)).answers[code] is Answer.GOOD
    alone = every(node(), **working(growth=grew(sw_thermal=0, hw_thermal=0, power_brake=0)))
    assert judge(alone).answers[code] is Answer.GOOD
