"""Slowdown: how much of it, over which time and from which source, is a finding."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Counters, Result, Span, Unavailable
from nodegauge_judge import Answer, Psu, Thresholds
from support.judge_results import (
    NO_COUNTERS,
    SAMPLES,
    codes,
    events,
    every,
    grew,
    judge,
    later,
    node,
    resting,
    span,
    working,
)


def throttled(
    seconds: float = 900, *, thresholds: Thresholds | None = None, **grown: float
) -> tuple[list[str], dict[str, Answer]]:
    """Findings and answers of a machine whose first GPU's counters grew so over one interval."""
    first = node()
    judgement = judge(first, later(first, seconds, gpu=0, **grown), thresholds=thresholds)
    return codes(judgement), judgement.answers


SLOWDOWN: dict[str, list[dict[str, float]]] = {
    "": [
        *({"sw_thermal": 4.9, "low_utilization": 700}, {"sw_thermal": 9}, {"hw_thermal": 0.9}),
        *({"power_brake": 0.9}, {"sw_power_cap": 900}, {"sync_boost": 900}, {"thermal_violation": 900}),
        {"sw_thermal": 300, "low_utilization": 840.1},
        {"sw_thermal": 1e-9, "hw_thermal": 1e-9, "power_brake": 1e-9},
    ],
    "sw-thermal-slowdown/warn": [
        *({"sw_thermal": seconds, "low_utilization": 700} for seconds in (5, 59.9)),
        *({"sw_thermal": 9.1}, {"sw_thermal": 90}, {"seconds": 300, "sw_thermal": 59.9}),
    ],
    "sw-thermal-slowdown/fail": [
        *({"sw_thermal": 90.1}, {"sw_thermal": 60, "low_utilization": 700}),
        *({"sw_thermal": 300, "low_utilization": 840}, {"seconds": 300, "sw_thermal": 60}),
    ],
    "hw-thermal-slowdown/warn": [{"hw_thermal": 1}, {"hw_thermal": 9}, {"seconds": 300, "hw_thermal": 4.9}],
    "hw-thermal-slowdown/fail": [
        *(
            {"hw_thermal": 9.1},
            {"hw_thermal": 9.1, "low_utilization": 900},
            {"seconds": 300, "hw_thermal": 5},
        ),
    ],
    "power-brake/info": [{"power_brake": 45.1, "low_utilization": 900}],
    "power-brake/warn": [{"power_brake": 1}, {"power_brake": 45}, {"seconds": 300, "power_brake": 29.9}],
    "power-brake/fail": [
        *({"power_brake": 45.1}, {"power_brake": 45.1, "low_utilization": 800}),
        {"seconds": 300, "power_brake": 30},
    ],
}


@pytest.mark.parametrize(
    ("grown", "expected"), [(grown, code) for code, each in SLOWDOWN.items() for grown in each]
)
def test_slowdown_needs_seconds_and_share(grown: dict[str, float], expected: str) -> None:
    """Seconds and share both count, and in 300 s the share is passed long before the seconds are; heat by
    software over the busy time alone; caps and boost never; a nanosecond of slowdown, which made whole fleets
    unhealthy elsewhere, is no finding."""
    assert throttled(**grown)[0] == ([expected] if expected else [])


def test_the_policy_sets_every_floor_of_slowdown() -> None:
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


def test_a_slowdown_finding_names_duration_share_and_source() -> None:
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
def test_an_invalid_interval_is_not_judged(change: Any, interval: float) -> None:
    """Counters restart; then only the window speaks, and here it saw nothing."""
    first = node()
    second = change(later(first, 900, sw_thermal=800))
    assert codes(judge(first, later(first, 900, sw_thermal=800))) == ["sw-thermal-slowdown/fail"]
    assert codes(judge(first, second, interval=interval)) == []


def test_slowdown_adds_up_over_runs_that_come_too_early() -> None:
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


def test_implausible_growth_is_ignored() -> None:
    """More than 1.05 seconds a second: a counter of something else."""
    assert throttled(power_brake=945)[0] == ["power-brake/fail"]
    expected, answers = throttled(power_brake=946)
    assert expected == []
    assert throttled(power_brake=946, thresholds=Thresholds(plausible_growth=2))[0] == ["power-brake/fail"]
    assert answers["power-brake"] is Answer.GOOD


def test_old_drivers_are_judged_by_thermal_violations() -> None:
    """The only source of older drivers; a newer driver's own counter comes first."""
    old = every(
        node(), counters=Counters(trio=Unavailable("none"), thermal_violation_ns=1, low_utilization_ns=1)
    )
    finding = judge(old, later(old, 900, thermal_violation=200)).findings[0]
    assert (finding.code, finding.evidence["evidence"]) == ("sw-thermal-slowdown", "counter")


def test_one_counter_for_both_kinds_of_heat_is_not_counted_twice() -> None:
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


def test_contradicting_counters_only_warn() -> None:
    """Thermal violations stood still: a warning that says so, and an answer that is none."""
    first = node()
    judgement = judge(first, later(first, 900, sw_thermal=400, thermal_violation=0))
    assert codes(judgement) == ["sw-thermal-slowdown/warn"]
    assert "uncertain" in judgement.findings[0].message
    assert judgement.answers["sw-thermal-slowdown"] is Answer.UNSURE
    never = every(first, counters=replace(first.gpus[0].counters, thermal_violation_ns=0))
    silent = judge(never, later(never, 900, sw_thermal=400, thermal_violation=0))
    assert codes(silent) == ["sw-thermal-slowdown/fail"]


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
def test_a_run_soon_after_another_is_never_good(code: str, grown: dict[str, float]) -> None:
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
def test_the_umbrella_bit_does_not_count_while_clocks_change(pstate: Span | None) -> None:
    """The P-state moved, or nobody knows whether it did: no finding, and no good answer either."""
    judgement = judge(sampled(0x8, 12, pstate=pstate))
    assert (codes(judgement), judgement.answers["hw-slowdown"]) == ([], Answer.UNSURE)


@pytest.mark.parametrize("pstate", [span(0, 8), None])
@pytest.mark.parametrize(("bit", "code"), ROWS[1:])
def test_bits_of_heat_and_brake_count_while_clocks_change(bit: int, code: str, pstate: Span | None) -> None:
    """Only the umbrella bit comes with a change of clocks; a brake that is held must not hide behind one."""
    judgement = judge(sampled(bit, 12, pstate=pstate))
    assert (codes(judgement), judgement.answers[code]) == ([f"{code}/fail"], Answer.BAD)


def test_a_bit_that_the_driver_does_not_support_is_unsure() -> None:
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


def test_a_held_brake_fails_whatever_its_counter_says() -> None:
    """Whatever the counter says, and without load; the power supply is at fault."""
    first = every(node(), **resting())
    braked = every(later(first, 900, low_utilization=900, watts=70), **resting(bits={0x80: 12, 0x8: 12}))
    judgement = judge(first, braked)
    assert codes(judgement) == ["power-brake/fail"]
    assert (judgement.psu, judgement.load) == (Psu.FAULT, "idle")


def a10(gpus: int = 1, *, counted: bool = False, **fields: Any) -> Result:
    """Idle A10 cards (150 W, 24 GB, no NVLink); without the counters of newer drivers unless `counted`."""
    counters = {} if counted else {"counters": NO_COUNTERS}
    known = {"name": "NVIDIA A10", "links": [], "switch_links": 0} | counters | resting() | fields
    result = node(gpus)
    apart = replace(result.pairs, nvlink=[[-1 if i == j else 5 for j in range(gpus)] for i in range(gpus)])
    return every(replace(result, pairs=apart), **known)


BRAKED = resting(bits={0x1: 12, 0x8: 12, 0x80: 12})


def braked(result: Result, *gpus: int, fields: dict[str, Any] = BRAKED) -> Result:
    """The machine with the brake asserted in every sample on these GPUs."""
    for gpu_index in gpus:
        result = made.with_gpu(result, gpu_index, **fields)
    return result


def row(result: Result, runs: int) -> list[Result]:
    """The same machine in so many runs, 15 minutes apart."""
    return [later(result, 900 * (n + 1), low_utilization=900 * (n + 1), watts=70) for n in range(runs)]


ALONE = [
    pytest.param(braked(a10(), 0), id="A10 without counters"),
    pytest.param(braked(a10(4), 2), id="one of four A10"),
    pytest.param(braked(a10(2, name="Tesla T4"), 1), id="one of two T4"),
    pytest.param(braked(a10(counted=True), 0), id="A10 with counters that stand still"),
    pytest.param(
        braked(a10(2, name="NVIDIA L4"), 0, fields=resting(growth=grew(power_brake=3))),
        id="L4, by the counter's growth in the window",
    ),
]


@pytest.mark.parametrize("machine", ALONE)
def test_a_brake_on_one_idle_gpu_is_information_until_it_stays(machine: Result) -> None:
    """An idle A10 was recorded with an asserted brake, and its owner missed nothing.  Neither run is bad or
    good for the gate, and the power supply is unknown.  The third run in a row counts."""
    runs = row(machine, 4)
    for count in (1, 2):
        judgement = judge(*runs[:count])
        assert codes(judgement) == ["power-brake/info"]
        assert (judgement.answers["power-brake"], judgement.psu) == (Answer.UNSURE, None)
    for count in (3, 4):
        judgement = judge(*runs[:count])
        assert codes(judgement) == ["power-brake/fail"]
        assert (judgement.answers["power-brake"], judgement.psu) == (Answer.BAD, Psu.FAULT)


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(braked(a10(2), 0, 1), id="all idle GPUs"),
        pytest.param(braked(a10(8), 1, 5), id="two of eight"),
        pytest.param(
            braked(a10(), 0, fields=working(bits={0x8: 12, 0x80: 12}, sm_mhz=span(420))), id="at work"
        ),
        pytest.param(
            braked(a10(4), 3, fields=working(bits={0x80: 12}, sm_mhz=span(885))), id="one of four, at work"
        ),
    ],
)
def test_a_brake_that_slows_work_or_holds_several_gpus_counts_at_once(machine: Result) -> None:
    """Several cards at once point at what feeds them."""
    judgement = judge(machine)
    assert "power-brake/fail" in codes(judgement)
    assert (judgement.answers["power-brake"], judgement.psu) == (Answer.BAD, Psu.FAULT)


def test_runs_with_a_brake_are_counted_in_a_row() -> None:
    """A run without it starts again, runs within seconds are one run, and the policy sets the number."""
    on, off = braked(a10(), 0), a10()
    first, second, third, fourth = (later(each, 900 * n) for n, each in enumerate((on, on, off, on), 1))
    assert codes(judge(first, second, third, fourth)) == ["power-brake/info"]
    hurried = [later(on, seconds) for seconds in (900, 905, 910, 915)]
    assert codes(judge(*hurried)) == ["power-brake/info"]
    assert codes(judge(on, thresholds=Thresholds(power_brake_idle_runs=1))) == ["power-brake/fail"]


def test_normal_bits_raise_nothing() -> None:
    """Idle, application clocks, power cap, sync boost, display clocks, and the two of old drivers."""
    normal = dict.fromkeys((0x1, 0x2, 0x4, 0x10, 0x100, 0x200, 0x400), SAMPLES)
    assert codes(judge(every(node(counters=NO_COUNTERS), **working(bits=normal)))) == []
