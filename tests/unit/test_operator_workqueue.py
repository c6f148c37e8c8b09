"""Who is looked at, now and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.reconcile.workqueue import STALE_ENTRIES, Priority, WorkQueue
from support.properties import tried

NOBODY: frozenset[str] = frozenset()


def test_who_was_woken_first_goes_first_and_keeps_its_place() -> None:
    """Waking twice is waking once."""
    queue = WorkQueue()
    queue.wake("a")
    queue.wake("b")
    queue.wake("a")
    assert queue.take(1, busy=NOBODY) == ["a"]
    assert queue.take(5, busy=NOBODY) == ["b"]
    assert queue.take(5, busy=NOBODY) == []


def test_who_has_news_goes_before_those_who_only_want_a_look() -> None:
    """Also who was woken without news before; and each is taken once."""
    queue = WorkQueue()
    for name in "abc":
        queue.wake(name)
    queue.wake("c", priority=Priority.HIGH)
    queue.wake("d", priority=Priority.HIGH)
    queue.wake("c")
    assert queue.pending(busy=frozenset("abc"))
    assert queue.take(3, busy=NOBODY) == ["c", "d", "a"]
    assert queue.take(3, busy=NOBODY) == ["b"]
    assert not queue.pending(busy=NOBODY)


def test_who_is_being_worked_on_waits_and_is_not_forgotten() -> None:
    """One worker per node: a wake during the work is a second look after it."""
    queue = WorkQueue()
    queue.wake("a", priority=Priority.HIGH)
    assert not queue.pending(busy=frozenset("a"))
    assert queue.take(5, busy=frozenset("a")) == []
    assert queue.pending(busy=NOBODY)
    assert queue.take(5, busy=NOBODY) == ["a"]


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_is_taken_without_a_free_worker(count: int) -> None:
    """Full is full."""
    queue = WorkQueue()
    queue.wake("a")
    assert queue.take(count, busy=NOBODY) == []


def test_a_timer_fires_once_and_the_last_one_set_counts() -> None:
    """Earlier or later, the new timer replaces the old; infinity takes it away."""
    queue = WorkQueue()
    queue.set_timer("a", 10)
    queue.set_timer("a", 20)
    queue.set_timer("b", 20)
    queue.set_timer("b", 5)
    queue.set_timer("c", 5)
    queue.set_timer("c", float("inf"))
    assert queue.fire(10) == ["b"]
    assert queue.fire(20) == ["a"]
    assert queue.fire(1e9) == []
    assert queue.next_timer() == float("inf")


TIMES = st.sampled_from([1.0, 2.0, 3.0, 4.0, float("inf")])


@given(sets=st.lists(st.tuples(st.sampled_from("abc"), TIMES), max_size=20))
@tried(200)
def test_timers_fire_as_a_plain_dictionary_would(sets: list[tuple[str, float]]) -> None:
    """The heap is only a faster way to ask: at each moment the same names, each once."""
    queue, plain = WorkQueue(), dict[str, float]()
    for name, at in sets:
        queue.set_timer(name, at)
        plain[name] = at
    assert queue.next_timer() <= min(plain.values(), default=float("inf"))
    for now in (1.0, 2.0, 3.0, 4.0):
        due = sorted(name for name, at in plain.items() if at == now)
        assert sorted(queue.fire(now)) == due


def test_timers_that_are_set_again_and_again_take_no_more_room() -> None:
    """Every look at a node sets its timer, hours ahead at long intervals: the heap must not keep them all."""
    queue = WorkQueue()
    for _ in range(10):
        queue.set_timer("a", 1e6)
    assert len(queue._heap) == 1
    for look in range(1000):
        for name in "abcd":
            queue.set_timer(name, 1e6)
            queue.set_timer(f"{name}'", 1e6 + look)
    assert len(queue._heap) <= 2 * 8 + STALE_ENTRIES
    assert sorted(queue.fire(2e6)) == ["a", "a'", "b", "b'", "c", "c'", "d", "d'"]
