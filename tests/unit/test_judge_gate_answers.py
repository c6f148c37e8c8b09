"""What one run means for each gate: bad, good, no-load or unsure, and whose load may heal which GPU."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Counters, Problem, Result
from nodegauge_judge import CATALOGUE, Answer, History, Judged, Probe, Psu
from support.judge_results import every, judge, later, node, resting, working

UNDER_LOAD = sorted(
    code for code, entry in CATALOGUE.items() if entry.gate and entry.gate.judged is Judged.UNDER_LOAD
)


GATED = {
    code
    for code, e in CATALOGUE.items()
    if e.gate and e.probe is Probe.HEALTH and e.gate.judged is not Judged.UNREAD
}


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


def test_a_readable_run_answers_every_gate_of_a_health_rule() -> None:
    """One answer a row, whatever was found."""
    for result in (node(), made.titan(), made.with_gpu(node(), 0, error=LOST)):
        assert set(judge(result).answers) == GATED


def test_an_unreadable_run_answers_nothing() -> None:
    """Missing data never changes a verdict."""
    hung = made.with_gpu(node(), 0, error=Problem(kind="call-hung"))
    for result in (Result(probe="health"), hung, replace(node(), problem=Problem(kind="deadline"))):
        judgement = judge(result)
        assert (judgement.readable, judgement.answers, judgement.psu) == (False, {}, None)


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


def test_a_failure_is_bad_and_a_warning_is_good() -> None:
    """Only failures enter a gate."""
    first = node()
    assert heat(first, slowed(first, 0)) is BAD
    assert heat(first, later(first, 900, sw_thermal=50)) is GOOD


def test_load_on_one_gpu_does_not_heal_another() -> None:
    """GPU 3 was bad; GPU 0 works well while GPU 3 rests: that says nothing, however often."""
    first = node(4)
    bad = slowed(first, 3)
    elsewhere = only_works(bad, 0, 1)
    assert heat(first, bad, elsewhere) is NO_LOAD
    assert heat(first, bad, elsewhere, only_works(elsewhere, 0, 1)) is NO_LOAD
    assert heat(first, bad, elsewhere, only_works(elsewhere, 3)) is GOOD
    assert heat(first, bad, elsewhere, later(only_works(elsewhere), 900)) is GOOD


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


def test_each_good_run_needs_the_gpu_that_was_bad() -> None:
    """One good run on GPU 3 is not followed by two on GPU 0."""
    first = node(4)
    bad = slowed(first, 3)
    good = only_works(bad, 3)
    assert heat(first, bad, good) is GOOD
    assert heat(first, bad, good, only_works(good, 0)) is NO_LOAD


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
