"""Who is looked at, now and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import tried
from nodegauge_operator.reconcile.agenda import Agenda

pytestmark = pytest.mark.timeout(10)
NOBODY: frozenset[str] = frozenset()


def test_who_was_woken_first_goes_first_and_keeps_its_first_time() -> None:
    """Waking twice is waking once; the time of the first wake is what the metric counts from."""
    agenda = Agenda()
    agenda.wake("a", since=1.0)
    agenda.wake("b", since=2.0)
    agenda.wake("a", since=3.0)
    assert agenda.take(1, busy=NOBODY) == [("a", 1.0)]
    assert agenda.take(5, busy=NOBODY) == [("b", 2.0)]
    assert agenda.take(5, busy=NOBODY) == []


def test_who_is_being_worked_on_waits_and_is_not_forgotten() -> None:
    """One worker per node: a wake during the work is a second look after it."""
    agenda = Agenda()
    agenda.wake("a", since=1.0)
    assert not agenda.pending(busy=frozenset("a"))
    assert agenda.take(5, busy=frozenset("a")) == []
    assert agenda.pending(busy=NOBODY)
    assert agenda.take(5, busy=NOBODY) == [("a", 1.0)]


@pytest.mark.parametrize("places", [0, -3])
def test_without_a_place_nobody_is_taken(places: int) -> None:
    """Full is full."""
    agenda = Agenda()
    agenda.wake("a", since=1.0)
    assert agenda.take(places, busy=NOBODY) == []


def test_a_timer_fires_once_and_the_last_one_set_counts() -> None:
    """Earlier or later, the new timer replaces the old; infinity takes it away."""
    agenda = Agenda()
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
    agenda, plain = Agenda(), dict[str, float]()
    for name, at in sets:
        agenda.set_timer(name, at)
        plain[name] = at
    assert agenda.next_timer() <= min(plain.values(), default=float("inf"))
    for now in (1.0, 2.0, 3.0, 4.0):
        due = sorted(name for name, at in plain.items() if at == now)
        assert sorted(agenda.fire(now)) == due
