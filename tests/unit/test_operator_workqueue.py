"""Who is looked at, now and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.reconcile.workqueue import STALE_ENTRIES, Priority, WorkQueue
from support import tried

pytestmark = pytest.mark.timeout(10)
NOBODY: frozenset[str] = frozenset()


def test_who_was_woken_first_goes_first_and_keeps_its_place() -> None:
    """Waking twice is waking once."""
    agenda = WorkQueue()
    agenda.wake("a")
    agenda.wake("b")
    agenda.wake("a")
    assert agenda.take(1, busy=NOBODY) == ["a"]
    assert agenda.take(5, busy=NOBODY) == ["b"]
    assert agenda.take(5, busy=NOBODY) == []


def test_who_has_news_goes_before_those_who_only_want_a_look() -> None:
    """Also who was woken without news before; and each is taken once."""
    agenda = WorkQueue()
    for name in "abc":
        agenda.wake(name)
    agenda.wake("c", priority=Priority.HIGH)
    agenda.wake("d", priority=Priority.HIGH)
    agenda.wake("c")
    assert agenda.pending(busy=frozenset("abc"))
    assert agenda.take(3, busy=NOBODY) == ["c", "d", "a"]
    assert agenda.take(3, busy=NOBODY) == ["b"]
    assert not agenda.pending(busy=NOBODY)


def test_who_is_being_worked_on_waits_and_is_not_forgotten() -> None:
    """One worker per node: a wake during the work is a second look after it."""
    agenda = WorkQueue()
    agenda.wake("a", priority=Priority.HIGH)
    assert not agenda.pending(busy=frozenset("a"))
    assert agenda.take(5, busy=frozenset("a")) == []
    assert agenda.pending(busy=NOBODY)
    assert agenda.take(5, busy=NOBODY) == ["a"]


@pytest.mark.parametrize("places", [0, -3])
def test_without_a_place_nobody_is_taken(places: int) -> None:
    """Full is full."""
    agenda = WorkQueue()
    agenda.wake("a")
    assert agenda.take(places, busy=NOBODY) == []


def test_a_timer_fires_once_and_the_last_one_set_counts() -> None:
    """Earlier or later, the new timer replaces the old; infinity takes it away."""
    agenda = WorkQueue()
    agenda.set_timer("a", 10)
    agenda.set_timer("a", 20)
    agenda.set_timer("b", 20)
    agenda.set_timer("b", 5)
    agenda.set_timer("c", 5)
    agenda.set_timer("c", float("inf"))
    assert agenda.fire(10) == ["b"]
    assert agenda.fire(20) == ["a"]
    assert agenda.fire(1e9) == []
    assert agenda.next_timer() == float("inf")


TIMES = st.sampled_from([1.0, 2.0, 3.0, 4.0, float("inf")])


@given(sets=st.lists(st.tuples(st.sampled_from("abc"), TIMES), max_size=20))
@tried(200)
def test_timers_fire_as_a_plain_dictionary_would(sets: list[tuple[str, float]]) -> None:
    """The heap is only a faster way to ask: at each moment the same names, each once."""
    agenda, plain = WorkQueue(), dict[str, float]()
    for name, at in sets:
        agenda.set_timer(name, at)
        plain[name] = at
    assert agenda.next_timer() <= min(plain.values(), default=float("inf"))
    for now in (1.0, 2.0, 3.0, 4.0):
        due = sorted(name for name, at in plain.items() if at == now)
        assert sorted(agenda.fire(now)) == due


def test_timers_that_are_set_again_and_again_take_no_more_room() -> None:
    """Every look at a node sets its timer, hours ahead at long intervals: the heap must not keep them all."""
    agenda = WorkQueue()
    for _ in range(10):
        agenda.set_timer("a", 1e6)
    assert len(agenda._heap) == 1
    for look in range(1000):
        for name in "abcd":
            agenda.set_timer(name, 1e6)
            agenda.set_timer(f"{name}'", 1e6 + look)
    assert len(agenda._heap) <= 2 * 8 + STALE_ENTRIES
    assert sorted(agenda.fire(2e6)) == ["a", "a'", "b", "b'", "c", "c'", "d", "d'"]
