"""Slowdown: how much of it, over which time and from which source, is a finding."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Counters, Result, Unavailable
from nodegauge_judge import Answer, Psu, Thresholds
from support.judge_results import (
    NO_COUNTERS,
    SAMPLES,
    Row,
    Table,
    check,
    codes,
    events,
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

WARNS = {"sw_thermal_warn_seconds": 0.1, "hw_thermal_warn_seconds": 0.01, "power_brake_warn_seconds": 0.01}
FAILS = {"sw_thermal_fail_seconds": 1, "hw_thermal_fail_seconds": 0.05, "power_brake_fail_seconds": 0.3}
QUICK = Thresholds(interval_floor=2, busy_floor=1, **WARNS, **FAILS)
SW, HW, BRAKE = "sw-thermal-slowdown", "hw-thermal-slowdown", "power-brake"


def throttled(seconds: float = 900, **grown: float) -> tuple[Result, Result]:
    first = node()
    return first, later(first, seconds, gpu=0, **grown)


def grown(**by: float) -> tuple[Result, Result]:
    return node(), later(node(), 900, **by)


def with_counters(result: Result, **counters: int) -> Result:
    return every(result, counters=replace(result.gpus[0].counters, **counters))


def changed(what: str, **to: Any) -> Result:
    hot = grown(sw_thermal=800)[1]
    return replace(hot, **{what: replace(getattr(hot, what), **to)})


def windowed(**grown: float) -> Result:
    """A first run whose window saw that much, in seconds of 3."""
    return every(node(), **working(growth=grew(**grown)))


def of_one_counter(bits: dict[int, int]) -> tuple[Result, Result]:
    """A driver before 575 counts both kinds of heat in one counter; the bits of the second run."""
    return ONE_COUNTER, every(later(ONE_COUNTER, 900, thermal_violation=200), **working(bits=bits))


HOT = grown(sw_thermal=800)[1]
RESET_ALONE = made.with_gpu(HOT, 0, counters=replace(HOT.gpus[0].counters, sw_power_cap_ns=0))
EARLY = later(node(), 60, sw_thermal=50)
VIOLATIONS = Counters(trio=Unavailable("none"), thermal_violation_ns=1, low_utilization_ns=1)
ONE_COUNTER = node(counters=VIOLATIONS)
NEVER = with_counters(node(), thermal_violation_ns=0)
IDLE_ALL = every(node(), **resting(growth=grew(power_brake=3, hw_thermal=3, sw_thermal=3)))
TABLE: Table = {
    "short slowdown, caps and boost are no finding": [
        (throttled(**each), "")
        for each in (
            *({"sw_thermal": 4.9, "low_utilization": 700}, {"sw_thermal": 9}, {"hw_thermal": 0.9}),
            *({"power_brake": 0.9}, {"sw_power_cap": 900}, {"sync_boost": 900}, {"thermal_violation": 900}),
        )
    ],
    "a nanosecond of slowdown, which made whole fleets unhealthy elsewhere, is no finding": [
        (throttled(sw_thermal=1e-9, hw_thermal=1e-9, power_brake=1e-9), "")
    ],
    "heat by software counts over the busy time alone": [
        (throttled(sw_thermal=300, low_utilization=840.1), ""),
        (throttled(sw_thermal=300, low_utilization=840), f"{SW}/fail"),
        (throttled(sw_thermal=60, low_utilization=700), f"{SW}/fail"),
        *((throttled(sw_thermal=seconds, low_utilization=700), f"{SW}/warn") for seconds in (5, 59.9)),
    ],
    "seconds and share both count for heat by software": [
        *((throttled(sw_thermal=seconds), f"{SW}/warn") for seconds in (9.1, 90)),
        (throttled(sw_thermal=90.1), f"{SW}/fail"),
    ],
    "seconds and share both count for heat by hardware, also at rest": [
        *((throttled(hw_thermal=seconds), f"{HW}/warn") for seconds in (1, 9)),
        (throttled(300, hw_thermal=4.9), f"{HW}/warn"),
        *((throttled(hw_thermal=9.1, low_utilization=low), f"{HW}/fail") for low in (0, 900)),
        (throttled(300, hw_thermal=5), f"{HW}/fail"),
    ],
    "seconds and share both count for the brake, which informs at rest": [
        (throttled(power_brake=45.1, low_utilization=900), f"{BRAKE}/info"),
        *((throttled(power_brake=seconds), f"{BRAKE}/warn") for seconds in (1, 45)),
        (throttled(300, power_brake=29.9), f"{BRAKE}/warn"),
        *((throttled(power_brake=45.1, low_utilization=low), f"{BRAKE}/fail") for low in (0, 800)),
        (throttled(300, power_brake=30), f"{BRAKE}/fail"),
    ],
    "a policy with intervals of seconds judges seconds": [
        (throttled(6, sw_thermal=1.2), ""),
        (judge(*throttled(6, sw_thermal=1.2), thresholds=QUICK), f"{SW}/fail"),
        (judge(*throttled(6, hw_thermal=0.2), thresholds=QUICK), f"{HW}/fail"),
        (judge(*throttled(6, power_brake=0.5), thresholds=QUICK), f"{BRAKE}/fail"),
        (judge(*throttled(6, sw_thermal=0.5), thresholds=QUICK), f"{SW}/warn"),
    ],
    "the finding names duration, share and source": (
        (node(), later(node(), 900, gpu=1, sw_thermal=150, low_utilization=600)),
        f"{SW}/fail",
        "GPU 1 (0000:10:00.0): ",
        "for 150 s of 900 s since the last run, 300 s of them busy (50%)",
        {"evidence": "counter", "share": 0.5, "seconds": 150.0},
        {"elapsed_seconds": 900.0, "busy_seconds": 300.0},
    ),
    "counters that restarted, another boot and missed runs leave it to the window": [
        (grown(sw_thermal=800), f"{SW}/fail"),
        ((node(), changed("host", boot_id="another")), ""),
        ((node(), changed("system", driver="580.1")), ""),
        ((node(), changed("host", boottime_ms=Unavailable("no clock"))), ""),
        ((node(), every(HOT, power=replace(HOT.gpus[0].power, energy_mj=1))), ""),
        ((node(), with_counters(HOT, sw_power_cap_ns=0)), ""),
        ((node(), with_counters(HOT, hw_thermal_ns=0)), ""),
        (judge(node(), HOT, interval=449), ""),
    ],
    "slowdown adds up over runs that come too early": [
        ((node(), EARLY), ""),
        ((node(), EARLY, later(EARLY, 60, sw_thermal=50)), f"{SW}/fail"),
    ],
    "a GPU's counters restart alone": [((node(), RESET_ALONE), f"{SW}/fail", "GPU 1 (0000:10:00.0): ")],
    "more than 1.05 seconds a second is a counter of something else": [
        (throttled(power_brake=945), f"{BRAKE}/fail"),
        (throttled(power_brake=946), "", {BRAKE: Answer.GOOD}),
        (judge(*throttled(power_brake=946), thresholds=Thresholds(plausible_growth=2)), f"{BRAKE}/fail"),
    ],
    "older drivers have thermal violations alone": (
        (every(node(), counters=VIOLATIONS), later(ONE_COUNTER, 900, thermal_violation=200)),
        f"{SW}/fail",
        {"evidence": "counter"},
    ),
    "the bit says which heat one counter means; both in as many samples are the severer": [
        (of_one_counter({0x40: 12}), f"{HW}/fail"),
        (of_one_counter({0x40: 12, 0x20: 12}), f"{HW}/fail"),
        (of_one_counter({0x20: 12}), f"{SW}/fail"),
        (every(ONE_COUNTER, **working(bits={0x40: 12})), f"{HW}/fail", {SW: Answer.UNSURE}),
    ],
    "thermal violations that stood still contradict: it warns, and its answer is none": [
        (grown(sw_thermal=400, thermal_violation=0), f"{SW}/warn", "uncertain", {SW: Answer.UNSURE})
    ],
    "violations that were never counted contradict nothing": [
        ((NEVER, later(NEVER, 900, sw_thermal=400, thermal_violation=0)), f"{SW}/fail")
    ],
    "more than 1 % of the window warns, more than half fails": [
        (windowed(sw_thermal=0.03), ""),
        (windowed(sw_thermal=0.031), f"{SW}/warn", "no earlier reading", {"evidence": "window"}),
        (windowed(sw_thermal=1.5), f"{SW}/warn"),
        (windowed(sw_thermal=1.51), f"{SW}/fail", "no earlier reading", {"evidence": "window"}),
        (windowed(hw_thermal=1.51), f"{HW}/fail", {"evidence": "window"}),
        (windowed(power_brake=1.51), f"{BRAKE}/fail", {"evidence": "window"}),
        (windowed(thermal_violation=1.51), f"{SW}/fail"),
    ],
    "caps and implausible growth of a window are no finding": [
        (windowed(sw_thermal=3.2), ""),
        (windowed(sw_power_cap=3), ""),
    ],
    "a window needs load in every sample for heat by software": [
        (every(node(), **working(utilization=span(lowest, 100), growth=grew(sw_thermal=3))), expected)
        for lowest, expected in ((50, f"{SW}/fail"), (49, ""))
    ],
    "and none for the brake and heat by hardware": [(IDLE_ALL, f"{HW}/fail {BRAKE}/fail")],
    "an interval outweighs the window": [
        ((node(), every(later(node(), 900, sw_thermal=3), **working(growth=grew(sw_thermal=3)))), "")
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_slowdown_needs_seconds_and_share(row: Row) -> None:
    check(*row)


@pytest.mark.parametrize(
    ("code", "counter"), [(SW, "sw_thermal"), (HW, "hw_thermal"), (BRAKE, "power_brake")]
)
def test_a_run_soon_after_another_is_never_good(code: str, counter: str) -> None:
    """Three clean seconds after a bad run prove nothing; the policy's next run judges the counters."""
    nothing = {"sw_thermal": 0, "hw_thermal": 0, "power_brake": 0}
    first, worse = node(), {counter: 600}
    bad = later(first, 900, **worse)
    clean = every(later(bad, 10), **working(growth=grew(**nothing)))
    slow = every(clean, **working(growth=grew(**{counter: 3})))
    for runs, answer in (
        ((first, bad), Answer.BAD),
        ((first, bad, clean), Answer.UNSURE),
        ((first, bad, slow), Answer.BAD),
        ((first, bad, clean, later(bad, 900, **worse)), Answer.BAD),
        ((first, bad, clean, later(bad, 900)), Answer.GOOD),
        ((every(first, **working(growth=grew(**nothing))),), Answer.GOOD),
    ):
        assert judge(*runs).answers[code] is answer


def sampled(bit: int, count: int, *, read: int = SAMPLES, seconds: float = 3.0, **window: Any) -> Result:
    fields = working(seconds=seconds, **window) | {"events": events({bit: count} if count else {}, read=read)}
    return every(node(counters=NO_COUNTERS), **fields)


ROWS = [(0x8, "hw-slowdown"), (0x20, SW), (0x40, HW), (0x80, BRAKE)]


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
    judgement = judge(sampled(bit, count, read=read, seconds=seconds))
    assert codes(judgement) == ([f"{code}/{severity}"] if severity else [])
    assert judgement.answers[code] is (Answer.BAD if severity == "fail" else Answer.GOOD)
    assert {finding.evidence["evidence"] for finding in judgement.findings} <= {"samples"}


HW_UNSURE = {"hw-slowdown": Answer.UNSURE}
RESTED = every(node(), **resting())
BRAKED_AT_REST = every(later(RESTED, 900, low_utilization=900, watts=70), **resting(bits={0x80: 12}))
NORMAL = dict.fromkeys((0x1, 0x2, 0x4, 0x10, 0x100, 0x200, 0x400), SAMPLES)
NOTHING = every(node(counters=NO_COUNTERS), **working() | {"events": events({}, supported=0x7)})
BITS: Table = {
    "the umbrella bit comes with a change of clocks, and a P-state that was not read may be one": [
        (sampled(0x8, 12, pstate=pstate), "", HW_UNSURE) for pstate in (span(0, 2), None)
    ],
    "bits of heat and brake count all the same: a brake that is held must not hide": [
        (sampled(bit, 12, pstate=pstate), f"{code}/fail", {code: Answer.BAD})
        for bit, code in ROWS[1:]
        for pstate in (span(0, 8), None)
    ],
    "a bit that the driver does not support is unsure": [
        (NOTHING, "", {code: Answer.UNSURE}) for _, code in ROWS
    ],
    "heat and brake raise the umbrella bit as well, and have rows of their own": [
        row
        for bit, code in ROWS[2:]
        for row in (
            (every(NOTHING, events=events({bit: 12, 0x8: 12})), f"{code}/fail", HW_UNSURE),
            (every(NOTHING, events=events({bit: 1, 0x8: 12})), "hw-slowdown/fail"),
        )
    ],
    "a held brake fails whatever its counter says, unloaded": [((RESTED, BRAKED_AT_REST), f"{BRAKE}/fail")],
    "idle, application clocks, power cap, sync boost, display clocks, and two of old drivers": [
        (every(NOTHING, **working(bits=NORMAL)), "")
    ],
}


@pytest.mark.parametrize("row", rows(BITS))
def test_a_bit_is_judged(row: Row) -> None:
    check(*row)


def a10(gpus: int = 1, *, counted: bool = False, **fields: Any) -> Result:
    """Idle A10 cards (150 W, 24 GB, no NVLink); without the counters of newer drivers unless `counted`."""
    counters = {} if counted else {"counters": NO_COUNTERS}
    known = {"name": "NVIDIA A10", "links": [], "switch_links": 0} | counters | resting() | fields
    result = node(gpus)
    apart = replace(result.pairs, nvlink=[[-1 if i == j else 5 for j in range(gpus)] for i in range(gpus)])
    return every(replace(result, pairs=apart), **known)


BRAKED = resting(bits={0x1: 12, 0x8: 12, 0x80: 12})


def braked(result: Result, *gpus: int, fields: dict[str, Any] = BRAKED) -> Result:
    for gpu_index in gpus:
        result = made.with_gpu(result, gpu_index, **fields)
    return result


def row(result: Result, runs: int) -> list[Result]:
    return [later(result, 900 * (n + 1), low_utilization=900 * (n + 1), watts=70) for n in range(runs)]


ALONE = {
    "A10 without counters": braked(a10(), 0),
    "A10 with counters that stand still": braked(a10(counted=True), 0),
    "L4, by the counter's growth in the window": braked(
        a10(2, name="NVIDIA L4"), 0, fields=resting(growth=grew(power_brake=3))
    ),
}


@pytest.mark.parametrize("machine", ALONE.values(), ids=ALONE)
def test_a_brake_on_one_idle_gpu_is_information_until_it_stays(machine: Result) -> None:
    """An idle A10 was recorded with one, and nobody missed anything; the third run in a row counts."""
    runs = row(machine, 4)
    for count in range(1, 5):
        judgement = judge(*runs[:count])
        answer, psu = (Answer.UNSURE, None) if count < 3 else (Answer.BAD, Psu.FAULT)
        check(judgement, f"{BRAKE}/{'info' if count < 3 else 'fail'}", {BRAKE: answer})
        assert judgement.psu is psu


WORKING = working(bits={0x8: 12, 0x80: 12}, sm_mhz=span(420))
AT_ONCE = {
    "all idle GPUs": braked(a10(2), 0, 1),
    "at work": braked(a10(), 0, fields=WORKING),
    "one of four, at work": braked(a10(4), 3, fields=working(bits={0x80: 12}, sm_mhz=span(885))),
}


@pytest.mark.parametrize("machine", AT_ONCE.values(), ids=AT_ONCE)
def test_a_brake_that_slows_work_or_holds_several_gpus_counts_at_once(machine: Result) -> None:
    judgement = judge(machine)
    assert f"{BRAKE}/fail" in codes(judgement)
    assert (judgement.answers[BRAKE], judgement.psu) == (Answer.BAD, Psu.FAULT)


def test_runs_with_a_brake_are_counted_in_a_row() -> None:
    on, off = braked(a10(), 0), a10()
    first, second, third, fourth = (later(each, 900 * n) for n, each in enumerate((on, on, off, on), 1))
    assert codes(judge(first, second, third, fourth)) == ["power-brake/info"]
    hurried = [later(on, seconds) for seconds in (900, 905, 910, 915)]
    assert codes(judge(*hurried)) == ["power-brake/info"]
    assert codes(judge(on, thresholds=Thresholds(power_brake_idle_runs=1))) == ["power-brake/fail"]


@pytest.mark.parametrize(
    ("runs", "seconds"),
    [
        ((node(),), None),
        (grown(), 0.0),
        (throttled(sw_thermal=300, thermal_violation=310, power_brake=5), 310.0),
        (grown(hw_thermal=20, low_utilization=800), 40.0),
        ((node(), changed("host", boot_id="another")), None),
    ],
)
def test_seconds_of_slowdown_count_once_a_gpu(runs: tuple[Result, ...], seconds: float | None) -> None:
    slowed = judge(*runs).slowed_seconds
    assert slowed == (None if seconds is None else pytest.approx(seconds))
