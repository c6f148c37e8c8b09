"""Link memory: it must not forget a fault, and must not be poisoned by a reading that was wrong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, Result, Unavailable
from nodegauge_judge import History, judge_health
from nodegauge_judge.history.model import LIMIT, GpuHistory, LinkHistory
from support.histories import full


def remembered(readings: list[int]) -> LinkHistory:
    memory = LinkHistory(readings[0])
    for reading in readings[1:]:
        memory = memory.after(reading)
    return memory


def run(*results: Result) -> History:
    history = History()
    for result in results:
        history = judge_health(result, history=history).history
    return history


def degraded(links: int) -> Result:
    return made.without_links(made.titan(), 0, count=2 - links)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([6], 6),
        ([6, 6, 5, 5, 5, 5, 5], 6),
        ([6, 5, 5, 5], 5),
        ([6, 5, 4, 5], 5),
        ([6, 5, 4, 4], 5),
        ([6, 5, 5, 6, 5, 5, 5, 5], 6),
        ([6, 12, 6, 6], 6),
        ([6, 12, 11], 11),
        ([4, 6, 6, 4, 4, 4, 4], 6),
        ([12, 6, 6, 6], 6),
        ([6, 12, 5, 5, 5, 5], 6),
    ],
)
def test_the_link_sum_rises_on_two_readings_and_falls_only_while_unconfirmed(
    readings: list[int], expected: int
) -> None:
    """Two in a row raise it; a confirmed sum never falls; one seen once gives way to three lower in a row."""
    assert remembered(readings).sum == expected


def test_a_repeated_reading_confirms_the_link_sum() -> None:
    """After it, nothing of an earlier rival is left to add up with a later one."""
    assert remembered([6, 6]) == remembered([6, 5, 6]) == remembered([6, 9, 6]) == LinkHistory(6, True)


@pytest.mark.parametrize(
    ("before", "result"),
    [
        (made.titan(), replace(degraded(1), problem=Problem(kind="deadline"))),
        (made.titan(), made.with_gpu(degraded(1), 1, error=Problem(kind="gpu-lost"))),
        (made.titan(), made.with_gpu(degraded(1), 1, mig=1)),
        (made.titan(), Result(probe="health")),
        (made.dgx1(), made.dgx1([0, 1, 2, 3])),
    ],
    ids=["cut-off", "lost-gpu", "mig", "no-gpu", "hidden"],
)
def test_only_a_complete_reading_changes_the_history(before: Result, result: Result) -> None:
    history = run(before)
    assert judge_health(result, history=history).history == history


def test_unclear_links_do_not_change_the_history() -> None:
    history = run(made.titan(), made.titan())
    asleep = made.with_links(made.with_links(made.titan(), 0, state=2), 1, state=2)
    assert judge_health(asleep, history=history).history.gpus == history.gpus
    assert {gpu.links.sum for gpu in run(asleep).gpus.values()} == {0}


def test_a_replaced_gpu_takes_the_place_of_the_old_one_in_the_history() -> None:
    swapped = made.with_gpu(made.titan(), 1, uuid="GPU-new")
    assert set(run(made.titan(), swapped).gpus) == {"00000000", "new"}


def test_boot_and_driver_of_the_last_clean_reading_are_kept() -> None:
    """They are what growth of counters will be checked against."""
    history = run(made.titan())
    assert (history.boot, history.driver) == ("c0ffee00-0000-4000-8000-000000000000", "550.54.15")
    unread = replace(made.titan(), host=replace(made.titan().host, boot_id=Unavailable("no such file")))
    assert run(unread).boot == ""


def test_sixteen_gpus_and_ten_ports_fit_with_everything_counted_for_a_year() -> None:
    """The largest machine (DGX-2: 16 GPUs, 10 network cards) loses nothing in 2 KiB."""
    history = full(16, ports=10)
    assert len(history.encode()) <= LIMIT
    assert History.decode(history.encode()) == history


def test_a_history_that_is_too_large_drops_whole_parts_in_order() -> None:
    seen = [History.decode(full(count, ports=128).encode()) for count in (16, 24, 60, 64, 100)]
    assert [history is not None and bool(history.ports) for history in seen] == [False] * 5
    assert [history.boottime_ms is not None for history in seen if history] == [True, *[False] * 4]
    assert all(len(full(count, ports=128).encode()) <= LIMIT for count in range(0, 200, 7))


def test_absurd_uuids_leave_an_empty_history() -> None:
    """UUIDs as long as a document allows, the same at the start: whole ones are the keys, and too long."""
    absurd = made.h100(64)
    for gpu_index in range(64):
        absurd = made.with_gpu(absurd, gpu_index, uuid="ü" * 100 + f"{gpu_index:03}")
    assert run(absurd).gpus == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "\ud800", "[" * 100_000, '{"at": -1}', '{"booted": -1}', '{"xids": "a 94 "}'),
        *('{"gpus": {"a": "+1"}}', '{"gpus": {"a": "zzzzzzzzzzzz"}}'),
    ],
)
def test_a_history_that_cannot_be_read_is_none(text: str) -> None:
    """Somebody edited the report: measured anew, never guessed."""
    assert History.decode(text) is None


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 10**40])
def test_a_number_that_no_counter_can_have_is_not_kept(number: int) -> None:
    history = History(gpus={"GPU-a": GpuHistory(links=LinkHistory(4), idle_dw=number, braked=number)})
    assert History.decode(history.encode()) == History(gpus={"GPU-a": GpuHistory(links=LinkHistory(4))})
