"""Places for probes at a time, and whose turn it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.core.budget import MAX_CONCURRENT, concurrent_probes, longest_waiting
from support.properties import tried


@pytest.mark.parametrize(
    ("setting", "nodes", "slots"),
    [
        ("10%", 100, 10),
        ("10%", 109, 10),
        ("10%", 9, 1),
        ("10%", 1, 1),
        ("10%", 0, 1),
        ("99%", 3, 2),
        ("100%", 40, 40),
        ("100%", 5000, 50),
        ("1%", 5000, 50),
        ("0%", 5000, 0),
        (0, 5000, 0),
        (1, 5000, 1),
        (7, 3, 7),
        (100_000, 5000, 50),
    ],
)
def test_places(setting: int | str, nodes: int, slots: int) -> None:
    """A count as it is; per cent rounded down, at least 1; never over 50; 0 pauses."""
    assert concurrent_probes(setting, nodes) == slots


@given(percent=st.integers(1, 100), nodes=st.integers(0, 10_000))
@tried(100)
def test_per_cent_are_never_exceeded_but_by_the_one_that_must_be(percent: int, nodes: int) -> None:
    """In whole numbers: no rounding of floats decides over somebody's node."""
    slots = concurrent_probes(f"{percent}%", nodes)
    assert 1 <= slots <= MAX_CONCURRENT
    assert slots == 1 or slots * 100 <= nodes * percent
    assert slots == MAX_CONCURRENT or (slots + 1) * 100 > nodes * percent


WAITING = st.lists(st.tuples(st.floats(0, 100), st.text(max_size=3)), max_size=20, unique_by=lambda w: w[1])


@given(waiting=WAITING, slots=st.integers(-2, 25))
@tried(100)
def test_the_longest_unmeasured_go_first(waiting: list[tuple[float, str]], slots: int) -> None:
    """0.0, never measured, before all; ties by name, so that two operators agree."""
    assert longest_waiting(waiting, slots) == [name for _, name in sorted(waiting)[: max(slots, 0)]]
