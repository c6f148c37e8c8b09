"""Load and growth: what was busy, what grew, what that means for each gate, and when neither can be told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import (
    Counters,
    Ecc,
    Growth,
    LinkErrors,
    Nics,
    Pcie,
    Port,
    Problem,
    Result,
    Unavailable,
)
from nodegauge_judge import (
    CATALOGUE,
    Answer,
    History,
    Judged,
    Load,
    NodeFacts,
    Psu,
    Thresholds,
    judge_health,
    load,
)
from nodegauge_judge.case import Case
from nodegauge_judge.history import growth
from support.judge_results import events, every, judge, later, node, resting, span, working

NO_IDLE_COUNTER = Counters(trio="251-253", low_utilization_ns=Unavailable("NotSupported"))


def case(*results: Result, thresholds: Thresholds | None = None, interval: float = 900) -> Case:
    """The case of the last of these runs."""
    past = judge(*results[:-1], interval=interval).history if results[1:] else History()
    limits = thresholds or Thresholds()
    return Case.of(results[-1], thresholds=limits, history=past, node=NodeFacts(), interval=interval)


def by_power(watts: float, *, idle: float | None = 70, seconds: float = 900, **more: Any) -> float | None:
    """Busy seconds of a GPU without an idle counter, first seen idle at `idle` watts (or never)."""
    rest = resting(power_mw=span(idle * 1000)) if idle is not None else working()
    first = every(node(counters=NO_IDLE_COUNTER), **rest)
    second = every(later(first, seconds, watts=watts), **(working() | more))
    return load.busy_seconds(case(first, second), 0)


@pytest.mark.parametrize(("low", "busy"), [(0, 900), (100, 800), (900, 0), (930, 0), (1000, 900)])
def test_busy_time_is_what_the_driver_does_not_count_as_low_utilisation(low: float, busy: float) -> None:
    """Elapsed less growth of field 78, never below nothing; implausible growth leaves it to power."""
    first = node()
    assert load.busy_seconds(case(first, later(first, 900, low_utilization=low)), 0) == busy


@pytest.mark.parametrize(("watts", "busy"), [(60, 0), (70, 0), (227.5, 450), (385, 900), (700, 900)])
def test_busy_time_by_mean_power(watts: float, busy: float) -> None:
    """Nothing at idle watts (70), all of it from half of the way to the limit (700) on, a line between."""
    assert by_power(watts) == pytest.approx(busy)


def test_the_policy_sets_the_busy_power_share() -> None:
    """busyPowerShare."""
    first = every(node(counters=NO_IDLE_COUNTER), **resting())
    second = every(later(first, 900, watts=385), **working())
    assert load.busy_seconds(case(first, second, thresholds=Thresholds(busy_power_share=1)), 0) == 450


def test_power_needs_idle_watts_and_a_limit_to_tell_load() -> None:
    """A GPU that was never seen idle could be anything; then its window speaks."""
    assert by_power(349, idle=None) is None
    assert by_power(350, idle=None) == 900
    assert by_power(385, power=made.gpu(0, name="x").power) is None
    first = node(counters=NO_IDLE_COUNTER)
    assert load.of_interval(case(first, later(first, 900, watts=300)), 0) is Load.LOADED
    rested = made.with_gpu(later(first, 900, watts=300), 0, **working(utilization=span(0, 100)))
    assert load.of_interval(case(first, rested), 0) is Load.IDLE


def test_a_low_utilisation_counter_that_does_not_count_is_not_believed() -> None:
    """Else every idle GPU of such a driver would be a busy one, and idle runs would lift taints."""
    silent = every(node(), counters=replace(NO_IDLE_COUNTER, low_utilization_ns=0), **resting())
    assert load.busy_seconds(case(silent, later(silent, 900, watts=70)), 0) == 0
    stuck = every(node(), **resting())
    assert load.busy_seconds(case(stuck, later(stuck, 900, watts=70)), 0) == 0
    assert load.of_node(case(stuck, later(stuck, 900, watts=70))) is Load.IDLE


def test_idle_watts_are_the_lowest_mean_of_an_idle_window_and_are_remembered() -> None:
    """By the window's energy where it was read; a window that was idle in part does not count."""
    measured = resting(growth=Growth(elapsed_ms=3000, energy_mj=90_000))
    first = every(node(), **resting())
    assert load.idle_watts(case(first), 0) == 70
    assert load.idle_watts(case(every(first, **measured)), 0) == 30
    assert load.idle_watts(case(every(first, **measured), first, node()), 0) == 30
    assert load.idle_watts(case(every(first, **resting(bits={0x1: 11}))), 0) is None


@pytest.mark.parametrize(
    ("low", "window", "interval", "moment"),
    [
        (840, working(), Load.LOADED, Load.LOADED),
        (841, working(), Load.IDLE, Load.IDLE),
        (0, working(utilization=span(0, 100)), Load.LOADED, Load.LOADED),
        (0, working(utilization=span(0, 98)), Load.LOADED, Load.IDLE),
        (0, {"window": None}, Load.LOADED, Load.LOADED),
        (None, working(utilization=span(50, 100)), Load.LOADED, Load.LOADED),
        (None, working(utilization=span(49, 100)), Load.IDLE, Load.IDLE),
        (None, {"window": None}, Load.UNKNOWN, Load.UNKNOWN),
    ],
)
def test_load_by_the_interval_and_by_the_window(
    low: float | None, window: dict[str, Any], interval: Load, moment: Load
) -> None:
    """60 s busy since the last run, and a busy median for what the window shows; alone, every sample."""
    first = node()
    last = first if low is None else later(first, 900, low_utilization=low)
    run = every(last, **window)
    asked = case(run) if low is None else case(first, run)
    assert (load.of_interval(asked, 0), load.of_window(asked, 0)) == (interval, moment)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (working(utilization=None, power_mw=span(350_000, 600_000)), Load.LOADED),
        (working(utilization=None, power_mw=span(349_000, 600_000)), Load.UNKNOWN),
        (resting(utilization=None), Load.IDLE),
        (resting(utilization=None, bits={0x1: 11}), Load.UNKNOWN),
        (working(utilization=None, power_mw=None), Load.UNKNOWN),
    ],
)
def test_without_utilisation_power_and_the_idle_bit_tell_load(fields: dict[str, Any], expected: Load) -> None:
    """MIG hides utilisation: half of the limit in every sample is work, idle in every sample is none."""
    assert load.of_interval(case(every(node(), **fields)), 0) is expected


def test_a_node_is_loaded_where_any_gpu_is_and_idle_where_all_are() -> None:
    """And unknown where one could not be told."""
    idle = every(node(), **resting())
    assert judge(idle).load is Load.IDLE
    assert judge(made.with_gpu(idle, 1, **working())).load is Load.LOADED
    assert judge(made.with_gpu(idle, 1, window=None, events=events({}))).load is Load.UNKNOWN


# -- growth of errors


def counted(value: int) -> Result:
    """A machine whose error counters all stand there."""
    links = LinkErrors(replay=value, recovery=0, crc_flit=0, crc_data=0, recovery_failed=value)
    result = every(
        node(),
        ecc=Ecc(volatile_uncorrected=value, volatile_corrected=value),
        pcie=Pcie(replays=value, correctable=value),
        link_errors=links,
    )
    port = Port(nic=0, port=1, state="ACTIVE", link_downed=value, symbol_errors=0, receive_errors=0)
    return replace(result, nics=Nics(names=["mlx5_0"], ports=[port]))


ERRORS = ("ecc_uncorrected", "ecc_corrected", "pcie_replays", "pcie_correctable", "link_errors")


@pytest.mark.parametrize("name", [*ERRORS, "link_recovery_failed"])
@pytest.mark.parametrize(
    ("seconds", "now", "expected"),
    [(900, 12, 5), (90_000, 12, 5), (900, 7, 0), (60, 12, None), (900, 6, None)],
)
def test_errors_are_counted_between_runs(name: str, seconds: float, now: int, expected: int | None) -> None:
    """Missed runs lose none; too early a run waits, but for errors of which one is one too many; a counter
    that went back says nothing."""
    first = counted(7)
    grown = case(first, replace(counted(now), host=later(first, seconds).host)).growth
    known = 5 if seconds == 60 and name in growth.AT_ONCE else expected
    assert getattr(grown.gpus[0], name) == known
    assert bool(grown.gpus[0].why(name)) == (known is None)
    assert grown.ports.get("mlx5_0/1") == expected


def test_a_link_sum_that_lacked_a_counter_once_does_not_jump() -> None:
    """Half-read counters are not added up; NVLink 5 has others in their place."""
    half = LinkErrors(replay=5, recovery=Unavailable("Unknown"), crc_flit=100, crc_data=0)
    assert growth.counts(made.gpu(0, name="x", link_errors=half)).link_errors is None
    newer = LinkErrors(replay=Unavailable("NotSupported"), effective=9, symbol=1_000_000)
    assert growth.counts(made.gpu(0, name="x", link_errors=newer)).link_errors == 9


def test_the_first_run_and_a_new_gpu_have_no_growth_and_say_so() -> None:
    """Nothing to compare with is not zero."""
    first = node()
    assert case(first).growth.gpus[0].sw_thermal is None
    assert "no earlier reading" in case(first).growth.gpus[0].why("sw_thermal")
    half = every(first, ecc=Ecc(volatile_corrected=1))
    assert case(first, replace(half, host=later(first, 900).host)).growth.gpus[0].why("ecc_corrected") == (
        "could not be read in both runs"
    )
    swapped = made.with_gpu(later(first, 900), 1, uuid="GPU-12345678-new")
    grown = case(first, swapped).growth
    assert grown.gpus[0].sw_thermal == 0
    assert "this GPU" in grown.gpus[1].why("sw_thermal")


def test_an_invalid_interval_names_its_reason() -> None:
    """For the evidence, and for whoever asks why nothing was said."""
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


def test_counters_survive_a_lost_gpu_and_an_unreadable_run() -> None:
    """A run beside a lost GPU still gives growth of the others; an unreadable run changes nothing."""
    first = node()
    lost = made.with_gpu(later(first, 900), 1, error=Problem(kind="gpu-lost"), links=[])
    grown = case(first, lost, later(lost, 900, gpu=0, sw_thermal=500)).growth
    assert (grown.interval.seconds, grown.gpus[0].sw_thermal, grown.gpus[1].sw_thermal) == (900, 500, None)
    before = judge(first).history
    unreadable = judge_health(Result(probe="health", problem=Problem(kind="call-hung")), history=before)
    assert (unreadable.answers, unreadable.history) == ({}, before)


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


UNDER_LOAD = sorted(
    code for code, entry in CATALOGUE.items() if entry.gate and entry.gate.judged is Judged.UNDER_LOAD
)


LOST = Problem(kind="gpu-lost", code=15)


BAD, GOOD, NO_LOAD, UNSURE = Answer.BAD, Answer.GOOD, Answer.NO_LOAD, Answer.UNSURE


def slowed(result: Result, *gpu_indexes: int, seconds: float = 900) -> Result:
    """The machine 15 minutes on, those GPUs in software thermal slowdown for half of it."""
    after = later(result, seconds, gpu=-1)
    for gpu_index in gpu_indexes:
        after = later(after, 0, gpu=gpu_index, sw_thermal=seconds / 2)
    return after


def only_works(result: Result, *gpu_indexes: int) -> Result:
    """The machine 15 minutes on with load on those GPUs alone."""
    after = later(result, 900)
    for gpu_index in range(len(after.gpus)):
        if gpu_index not in gpu_indexes:
            counters = after.gpus[gpu_index].counters
            before = counters.low_utilization_ns
            idle = replace(counters, low_utilization_ns=before + 900 * 10**9)
            after = made.with_gpu(after, gpu_index, counters=idle, **resting())
        else:
            after = made.with_gpu(after, gpu_index, **working())
    return after


def heat(*results: Result, history: History | None = None) -> Answer:
    """The answer of the last run about software thermal slowdown."""
    return judge(*results, history=history).answers["sw-thermal-slowdown"]


def test_a_partly_visible_node_answers_nothing_good() -> None:
    """A failure makes a node readable that was seen in part; what it says of the other rows is not "good"."""
    sick = made.with_gpu(node(), 0, error=LOST)
    half = replace(sick, gpus=sick.gpus[:1])
    for partial in (replace(sick, problem=Problem(kind="deadline")), half):
        answers = judge(node(), partial).answers
        assert answers["gpu-lost"] is BAD
        assert GOOD not in answers.values()


def test_unread_values_are_unsure() -> None:
    """Identity alone: nothing is good that needs a counter, a sensor or a temperature."""
    bare = every(
        node(),
        counters=Counters(),
        window=None,
        temperature=made.Temperature(),
        events=made.gpu(0, name="x").events,
    )
    answers = judge(bare).answers
    assert {answers[code] for code in UNDER_LOAD if code != "pcie-narrow"} == {UNSURE}
    assert {answers[code] for code in ("hw-thermal-slowdown", "power-brake", "ecc", "xid", "rail")} == {
        UNSURE
    }


def test_an_idle_run_is_no_load_for_rules_that_need_load_and_good_for_others() -> None:
    """The brake and heat in hardware are judged idle too."""
    first = every(node(), **resting())
    answers = judge(first, later(first, 900, low_utilization=900)).answers
    assert {answers[code] for code in UNDER_LOAD} == {NO_LOAD}
    assert {answers["power-brake"], answers["hw-thermal-slowdown"]} == {GOOD}


def test_every_gpu_that_was_bad_must_be_good_under_load() -> None:
    """Two were bad, one after the other without a good run between: both must work."""
    first = node(4)
    one = slowed(first, 3)
    two = later(only_works(one, 1), 0, gpu=1, sw_thermal=450)
    then = later(two, 900)
    assert heat(first, one, two) is BAD
    assert heat(first, one, two, only_works(two, 1)) is NO_LOAD
    assert heat(first, one, two, only_works(two, 1, 3)) is GOOD
    assert heat(first, one, two, then) is GOOD


def test_a_gpu_that_was_good_while_another_was_bad_need_not_work_again() -> None:
    """GPU 3 was bad, then good while GPU 1 was bad: only GPU 1 is asked for."""
    first = node(4)
    one = slowed(first, 3)
    two = slowed(one, 1)
    assert heat(first, one, two, only_works(two, 1)) is GOOD
    assert heat(first, one, two, only_works(two, 3)) is NO_LOAD


def test_bad_gpus_are_remembered_across_reboots_and_reordering() -> None:
    """It is kept by UUID and needs no counters."""
    first = node(4)
    bad = slowed(first, 3)
    history = judge(first, bad).history
    turned = made.shuffled(every(node(4), **resting()), [3, 2, 1, 0])
    assert (
        judge(made.with_gpu(turned, 3, **working()), history=history).answers["sw-thermal-slowdown"]
        is NO_LOAD
    )
    assert (
        judge(made.with_gpu(turned, 0, **working()), history=history).answers["sw-thermal-slowdown"]
        is not NO_LOAD
    )


def test_a_bad_gpu_that_is_lost_does_not_become_good() -> None:
    """It is lost: a fault of its own, and no good run for the others' row."""
    first = node(4)
    bad = slowed(first, 3)
    lost = made.with_gpu(later(bad, 900), 3, error=LOST, window=None, counters=Counters())
    judgement = judge(first, bad, lost)
    assert judgement.answers["gpu-lost"] is BAD
    assert judgement.answers["sw-thermal-slowdown"] in (NO_LOAD, UNSURE)


def test_a_replaced_gpu_no_longer_counts_as_bad() -> None:
    """A new UUID in its place: the bad one left with its board."""
    first = node(4)
    bad = slowed(first, 3)
    swapped = made.with_gpu(later(bad, 900), 3, uuid="GPU-99999999-new")
    assert heat(first, bad, swapped, later(swapped, 900)) is GOOD


@pytest.mark.parametrize(
    ("result", "psu"),
    [
        (every(node(), **working(bits={0x80: 12})), Psu.FAULT),
        (every(node(), **working(bits={0x80: 3})), None),
        (made.with_gpu(node(), 0, error=Problem(kind="insufficient-power")), Psu.FAULT),
        (made.with_gpu(node(), 0, power=replace(node().gpus[0].power, source=2)), Psu.FAULT),
    ],
)
def test_a_supply_has_a_fault_without_any_sensor(result: Result, psu: Psu | None) -> None:
    """A missing cable, an undersized source, or a brake that is held (alarms: `test_judge_sensors`)."""
    assert judge(result).psu is psu
