"""Load and growth: what was busy, what grew, what that means for each gate, and when neither can be told."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

import nodegauge_contract as contract
import support.results as made
from nodegauge_contract import Result, Unavailable
from nodegauge_judge import (
    CATALOGUE,
    Answer,
    History,
    Judged,
    Load,
    NodeFacts,
    Thresholds,
    activity,
    judge_health,
)
from nodegauge_judge.case import Case
from nodegauge_judge.history import growth
from support.judge_results import Row, Table, events, every, judge, later, node, resting, rows, span, working

BAD, GOOD, NO_LOAD, UNSURE = Answer.BAD, Answer.GOOD, Answer.NO_LOAD, Answer.UNSURE
HW = "hw-thermal-slowdown"
NO_IDLE_COUNTER = contract.Counters(trio="251-253", low_utilization_ns=Unavailable("NotSupported"))


def case(*results: Result, thresholds: Thresholds | None = None, interval: float = 900) -> Case:
    past = judge(*results[:-1], interval=interval).history if results[1:] else History()
    limits = thresholds or Thresholds()
    return Case.from_result(results[-1], thresholds=limits, history=past, node=NodeFacts(), interval=interval)


def by_power(watts: float, *, idle: float | None = 70, share: float | None = None, **more: Any) -> Case:
    """A GPU without an idle counter, first seen idle at `idle` watts (or never)."""
    rest = resting(power_mw=span(idle * 1000)) if idle is not None else working()
    first = every(node(counters=NO_IDLE_COUNTER), **rest)
    second = every(later(first, 900, watts=watts), **(working() | more))
    return case(first, second, thresholds=Thresholds(busy_power_share=share) if share else None)


def after(low: float | None, **window: Any) -> Case:
    """A run with this window, after 15 minutes of which so many seconds were idle; or a first run."""
    if low is None:
        return case(every(node(), **window))
    return case(node(), every(later(node(), 900, low_utilization=low), **window))


NO_COUNTER = node(counters=NO_IDLE_COUNTER)
UNSEEN = later(NO_COUNTER, 900, watts=300)
RESTED = made.with_gpu(UNSEEN, 0, **working(utilization=span(0, 100)))
IDLE = every(node(), **resting())
SILENT = every(IDLE, counters=replace(NO_IDLE_COUNTER, low_utilization_ns=0))
MEASURED = every(IDLE, **resting(growth=contract.Growth(elapsed_ms=3000, energy_mj=90_000)))
STUCK = case(IDLE, later(IDLE, 900, watts=70))
NO_LIMIT = by_power(385, power=made.gpu(0, name="x").power)
LOADED, AT_REST, UNKNOWN = Load.LOADED, Load.IDLE, Load.UNKNOWN
TABLE: Table = {
    "busy time is what the driver does not count as low utilisation, never below nothing": [
        (activity.busy_seconds, after(low, **working()), busy)
        for low, busy in ((0, 900), (100, 800), (900, 0), (930, 0))
    ],
    "implausible growth leaves it to power": [(activity.busy_seconds, after(1000, **working()), 900)],
    "busy by mean power: nothing near 70 W at rest, all of it from half of the way to 700 on": [
        (activity.busy_seconds, by_power(watts), busy)
        for watts, busy in ((60, 0), (70, 0), (73.4, 0), (101.5, 90), (227.5, 450), (385, 900), (700, 900))
    ],
    "the policy sets busyPowerShare": [(activity.busy_seconds, by_power(385, share=1), 450)],
    "a GPU that was never seen idle could be anything": [
        (activity.busy_seconds, by_power(349, idle=None), None),
        (activity.busy_seconds, by_power(350, idle=None), 900),
        (activity.busy_seconds, NO_LIMIT, None),
    ],
    "then its window speaks": [
        (activity.of_interval, case(NO_COUNTER, UNSEEN), LOADED),
        (activity.of_interval, case(NO_COUNTER, RESTED), AT_REST),
    ],
    "a counter that does not count is not believed, or idle runs would lift taints": [
        (activity.busy_seconds, case(SILENT, later(SILENT, 900, watts=70)), 0),
        (activity.busy_seconds, STUCK, 0),
    ],
    "idle watts are the lowest mean of an idle window, and are remembered": [
        (activity.idle_watts, case(IDLE), 70),
        (activity.idle_watts, case(MEASURED), 30),
        (activity.idle_watts, case(MEASURED, IDLE, node()), 30),
        (activity.idle_watts, case(every(IDLE, **resting(bits={0x1: 11}))), None),
    ],
    "60 s busy since the last run": [
        *((activity.of_interval, after(840, **window), LOADED) for window in (working(), {"window": None})),
        (activity.of_interval, after(841, **working()), AT_REST),
        (activity.of_interval, after(0, **working(utilization=span(0, 98))), LOADED),
    ],
    "and a busy median for what the window shows": [
        (activity.of_window, after(840, **working()), LOADED),
        (activity.of_window, after(841, **working()), AT_REST),
        (activity.of_window, after(0, **working(utilization=span(0, 100))), LOADED),
        (activity.of_window, after(0, **working(utilization=span(0, 98))), AT_REST),
        (activity.of_window, after(0, window=None), LOADED),
    ],
    "a window alone needs every sample": [
        (of, after(None, **window), expected)
        for window, expected in (
            (working(utilization=span(50, 100)), LOADED),
            (working(utilization=span(49, 100)), AT_REST),
            ({"window": None}, UNKNOWN),
        )
        for of in (activity.of_interval, activity.of_window)
    ],
    "MIG hides utilisation: half of the limit in every sample is work, idle in every sample is none": [
        (activity.of_interval, after(None, **fields), expected)
        for fields, expected in (
            (working(utilization=None, power_mw=span(350_000, 600_000)), LOADED),
            (working(utilization=None, power_mw=span(349_000, 600_000)), UNKNOWN),
            (resting(utilization=None), AT_REST),
            (resting(utilization=None, bits={0x1: 11}), UNKNOWN),
            (working(utilization=None, power_mw=None), UNKNOWN),
        )
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_load_is_told(row: Row) -> None:
    """By the driver's idle counter, by power, or by the window."""
    ask, asked, expected = row
    assert ask(asked, 0) == pytest.approx(expected)


def test_a_node_is_loaded_where_any_gpu_is_and_idle_where_all_are() -> None:
    assert activity.of_node(STUCK) is AT_REST
    assert judge(IDLE).load is AT_REST
    assert judge(made.with_gpu(IDLE, 1, **working())).load is LOADED
    assert judge(made.with_gpu(IDLE, 1, window=None, events=events({}))).load is UNKNOWN


def counted(value: int) -> Result:
    links = contract.LinkErrors(replay=value, recovery=0, crc_flit=0, crc_data=value, recovery_failed=0)
    result = every(
        node(),
        ecc=contract.Ecc(volatile_uncorrected=value, volatile_corrected=value),
        pcie=contract.Pcie(replays=value, correctable=value),
        link_errors=links,
    )
    port = contract.Port(nic=0, port=1, state="ACTIVE", link_downed=value, symbol_errors=0, receive_errors=0)
    return replace(result, nics=contract.Nics(names=["mlx5_0"], ports=[port]))


ERRORS = ("ecc_uncorrected", "ecc_corrected", "pcie_replays", "pcie_correctable", "link_crc", "link_faults")


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize(
    ("seconds", "now", "expected"),
    [(900, 12, 5), (90_000, 12, 5), (900, 7, 0), (60, 12, None), (900, 6, None)],
)
def test_errors_are_counted_between_runs(name: str, seconds: float, now: int, expected: int | None) -> None:
    """Missed runs lose none; too early a run waits, but for errors of which one is too many."""
    first = counted(7)
    grown = case(first, replace(counted(now), host=later(first, seconds).host)).growth
    known = 5 if seconds == 60 and name in growth.AT_ONCE else expected
    assert getattr(grown.gpus[0], name) == known
    assert bool(grown.gpus[0].why(name)) == (known is None)
    assert grown.ports.get("mlx5_0/1") == expected


def test_a_link_sum_that_lacked_a_counter_once_does_not_jump() -> None:
    """Half-read counters are not added up; NVLink 5 has others in their place."""
    half = contract.LinkErrors(replay=5, recovery=Unavailable("Unknown"), crc_flit=100, crc_data=0)
    newer = contract.LinkErrors(replay=Unavailable("NotSupported"), effective=9, symbol=1_000_000)
    whole = replace(newer, recoveries=3, received=2, integrity=1)
    for links, crc, faults in ((half, 100, None), (newer, 9, None), (whole, 9, 6)):
        counts = growth.counts(made.gpu(0, name="x", link_errors=links))
        assert (counts.link_crc, counts.link_faults) == (crc, faults)


def test_the_first_run_and_a_new_gpu_have_no_growth_and_say_so() -> None:
    first = node()
    assert case(first).growth.gpus[0].sw_thermal is None
    assert "no earlier reading" in case(first).growth.gpus[0].why("sw_thermal")
    half = every(first, ecc=contract.Ecc(volatile_corrected=1))
    assert case(first, replace(half, host=later(first, 900).host)).growth.gpus[0].why("ecc_corrected") == (
        "could not be read in both runs"
    )
    swapped = made.with_gpu(later(first, 900), 1, uuid="GPU-12345678-new")
    grown = case(first, swapped).growth
    assert grown.gpus[0].sw_thermal == 0
    assert "this GPU" in grown.gpus[1].why("sw_thermal")


def test_an_invalid_interval_names_its_reason() -> None:
    first = node()
    reboot = replace(later(first, 900), host=replace(later(first, 900).host, boot_id="b"))
    assert case(first, reboot).growth.interval.reason == "the node was rebooted since the last run"
    early = case(first, later(first, 30)).growth.interval
    assert early.reason == "only 30 s passed since the last run; intervalFloor is 120 s"
    missed = case(first, later(first, 1801)).growth.interval
    assert (missed.seconds, missed.valid, missed.counts) == (1801, False, True)
    assert case(first, later(first, 1800)).growth.interval.valid
    frequent = case(first, later(first, 130), interval=30).growth.interval
    assert frequent.valid


FLOOR = Thresholds().interval_floor
RUN_SECONDS = (3.0, 4.5, 3.2, 9.0, 3.1, 5.0, 3.0, 21.0)
"""What a run and the wait for its slot add to the interval."""


@pytest.mark.parametrize("interval", [5, 30, 59, 60, 61, 100, 110, 113, 115, 117, 119, 119.9, 120, 900])
def test_no_interval_counts_as_missed_while_every_run_is_made(interval: float) -> None:
    result, history, judged, passed = node(), History(), 0.0, 0.0
    for extra in (0.0, *itertools.islice(itertools.cycle(RUN_SECONDS), 80)):
        step = interval + extra if extra else 0.0
        result, passed = later(result, step) if step else result, passed + step
        known = {"history": history, "node": NodeFacts(), "interval": interval}
        since = Case.from_result(result, thresholds=Thresholds(), **known).growth.interval
        assert "missed" not in since.reason, f"after {since.seconds} s"
        if since.valid:
            assert since.seconds is not None
            assert since.seconds >= FLOOR
            judged += since.seconds
        history = judge_health(result, thresholds=Thresholds(), **known).history
    assert passed - judged < FLOOR + interval + max(RUN_SECONDS)


UNDER_LOAD = sorted(code for code, of in CATALOGUE.items() if of.gate and of.gate.judged is Judged.UNDER_LOAD)


def slowed(result: Result, *gpu_indexes: int, seconds: float = 900) -> Result:
    after = later(result, seconds, gpu=-1)
    for gpu_index in gpu_indexes:
        after = later(after, 0, gpu=gpu_index, sw_thermal=seconds / 2)
    return after


def only_works(result: Result, *gpu_indexes: int) -> Result:
    after = later(result, 900)
    for gpu_index, gpu in enumerate(after.gpus):
        fields = working()
        if gpu_index not in gpu_indexes:
            low = gpu.counters.low_utilization_ns + 900 * 10**9
            fields = {"counters": replace(gpu.counters, low_utilization_ns=low)} | resting()
        after = made.with_gpu(after, gpu_index, **fields)
    return after


LOST = contract.Problem(kind="gpu-lost", code=15)
FOUR = node(4)
THREE = slowed(FOUR, 3)
"""GPU 3 was bad."""
BOTH = later(only_works(THREE, 1), 0, gpu=1, sw_thermal=450)
"""GPU 1 was bad after it, without a good run of GPU 3 between."""
THEN_ONE = slowed(THREE, 1)
"""GPU 1 was bad while GPU 3 was good."""
TURNED = made.shuffled(every(FOUR, **resting()), [3, 2, 1, 0])
SWAPPED = made.with_gpu(later(THREE, 900), 3, uuid="GPU-99999999-new")
GONE = made.with_gpu(later(THREE, 900), 3, error=LOST, window=None, counters=contract.Counters())
SICK = made.with_gpu(node(), 0, error=LOST)
BARE = every(
    node(),
    counters=contract.Counters(),
    window=None,
    temperature=contract.Temperature(),
    events=made.gpu(0, name="x").events,
)
SW, AT_REST_TOO = "sw-thermal-slowdown", {"power-brake": GOOD, HW: GOOD}
ANSWERS: dict[str, list[tuple[tuple[Result, ...], dict[str, Answer]]]] = {
    "every GPU that was bad must be good under load": [
        ((FOUR, THREE, BOTH), {SW: BAD}),
        ((FOUR, THREE, BOTH, only_works(BOTH, 1)), {SW: NO_LOAD}),
        ((FOUR, THREE, BOTH, only_works(BOTH, 1, 3)), {SW: GOOD}),
        ((FOUR, THREE, BOTH, later(BOTH, 900)), {SW: GOOD}),
    ],
    "a GPU that was good while another was bad need not work again": [
        ((FOUR, THREE, THEN_ONE, only_works(THEN_ONE, 1)), {SW: GOOD}),
        ((FOUR, THREE, THEN_ONE, only_works(THEN_ONE, 3)), {SW: NO_LOAD}),
    ],
    "bad GPUs are remembered by UUID, without counters": [
        ((FOUR, THREE, made.with_gpu(TURNED, 3, **working())), {SW: NO_LOAD}),
        ((FOUR, THREE, made.with_gpu(TURNED, 0, **working())), {SW: GOOD}),
    ],
    "a bad GPU that is lost does not become good": [((FOUR, THREE, GONE), {"gpu-lost": BAD, SW: UNSURE})],
    "a replaced GPU left with its board": [((FOUR, THREE, SWAPPED, later(SWAPPED, 900)), {SW: GOOD})],
    "identity alone is unsure about all that needs a counter, a sensor or a temperature": [
        (
            (BARE,),
            dict.fromkeys({*UNDER_LOAD, HW, "power-brake", "ecc", "xid", "rail"} - {"pcie-narrow"}, UNSURE),
        )
    ],
    "an idle run is no load for rules that need load, and good for brake and heat in hardware": [
        ((IDLE, later(IDLE, 900, low_utilization=900)), dict.fromkeys(UNDER_LOAD, NO_LOAD) | AT_REST_TOO)
    ],
}


@pytest.mark.parametrize("row", rows(ANSWERS))
def test_answers_of_gates_depend_on_load(row: Row) -> None:
    runs, expected = row
    answers = judge(*runs).answers
    assert {code: answers[code] for code in expected} == expected


@pytest.mark.parametrize(
    "partial", [replace(SICK, problem=contract.Problem(kind="deadline")), replace(SICK, gpus=SICK.gpus[:1])]
)
def test_a_partly_visible_node_answers_nothing_good(partial: Result) -> None:
    """A failure makes a node readable that was seen in part; what it says of the other rows is not "good"."""
    answers = judge(node(), partial).answers
    assert answers["gpu-lost"] is BAD
    assert GOOD not in answers.values()
