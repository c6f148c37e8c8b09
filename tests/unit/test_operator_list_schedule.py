"""When everything is listed again: gaps in watches, lists that fail, waits that grow."""

from __future__ import annotations

from nodegauge_operator.reconcile.resync import (
    CALM_SECONDS,
    GATHER_SECONDS,
    LONGEST,
    SHORTEST,
    ListSchedule,
    backoff,
)


def plan(*, interval: float = 1e6) -> ListSchedule:
    """A plan whose first list is done at 0, without jitter."""
    relist = ListSchedule(interval=interval, jitter=lambda: 0.0)
    relist.begin()
    relist.done(0.0)
    return relist


def test_a_gap_is_listed_after_it_has_been_heard_out() -> None:
    """One list per interruption, not one per event, and not for ever later."""
    relist = plan()
    relist.gap(100)
    assert relist.due_at() == 100 + SHORTEST
    relist.gap(104)
    assert relist.due_at() == 104 + SHORTEST
    relist.gap(119)
    assert relist.due_at() == 100 + GATHER_SECONDS


def test_a_gap_during_a_list_asks_for_another_one() -> None:
    """The list may have passed by what went then."""
    relist = plan()
    relist.gap(100)
    relist.begin()
    relist.gap(107)
    relist.done(110)
    assert relist.due_at() == 110 + 2 * SHORTEST
    relist.begin()
    relist.done(130)
    assert relist.due_at() == 130 + 1e6


def test_a_list_that_fails_leaves_its_gap_unmended() -> None:
    """And the next one that succeeds begins from the shortest wait again."""
    relist = plan()
    relist.gap(100)
    for wait in (SHORTEST, 2 * SHORTEST, 4 * SHORTEST):
        relist.begin()
        relist.failed(200)
        assert relist.due_at() == 200 + wait
        relist.gap(201)
        assert relist.due_at() == 200 + wait, "more gaps hurry nobody"
    relist.begin()
    relist.done(300)
    relist.begin()
    relist.failed(400)
    assert relist.due_at() == 400 + SHORTEST


def test_a_list_for_a_gap_that_took_two_tries_counts_as_one_for_a_gap() -> None:
    """The next gap waits its longer time all the same."""
    relist = plan()
    relist.gap(100)
    relist.begin()
    relist.failed(200)
    relist.begin()
    relist.done(300)
    relist.gap(301)
    assert relist.due_at() == 300 + 2 * SHORTEST


def test_after_calm_the_next_gap_is_the_first_one_again() -> None:
    """Trouble of this morning delays nothing this afternoon."""
    relist = plan()
    now = 0.0
    for _ in range(8):
        relist.gap(now)
        now = relist.due_at()
        relist.begin()
        relist.done(now)
    relist.gap(now + 1)
    assert relist.due_at() == now + LONGEST
    relist.begin()
    now += CALM_SECONDS + LONGEST
    relist.done(now)
    relist.gap(now)
    assert relist.due_at() == now + 2 * SHORTEST


def test_missing_resources_are_asked_for_at_a_steady_pace() -> None:
    """Somebody is about to install them, and one question costs next to nothing."""
    relist = plan()
    for now in (10.0, 20.0, 30.0, 40.0):
        relist.begin()
        relist.missing(now)
        assert relist.due_at() == now + SHORTEST


def test_waits_grow_to_a_limit_and_are_spread() -> None:
    """From 5 s to 5 min, and a quarter more at most."""
    assert [backoff(n, lambda: 0.0) for n in (0, 1, 2, 6, 60, 6000)] == [5, 10, 20, 300, 300, 300]
    assert backoff(0, lambda: 1.0) == 6.25
