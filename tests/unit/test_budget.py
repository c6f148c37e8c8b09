"""Places for probes at a time, and whose turn it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.core.budget import concurrent_probes, retry_slots
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
        ("100%", 5000, 200),
        ("1%", 5000, 50),
        ("0%", 5000, 0),
        (0, 5000, 0),
        (1, 5000, 1),
        (7, 3, 7),
        (100_000, 5000, 200),
    ],
)
def test_places(setting: int | str, nodes: int, slots: int) -> None:
    """A count as it is; per cent rounded down, at least 1; never over the installation's limit; 0 pauses."""
    assert concurrent_probes(setting, nodes, most=200) == slots


@given(percent=st.integers(1, 100), nodes=st.integers(0, 10_000))
@tried(100)
def test_per_cent_are_never_exceeded_but_by_the_one_that_must_be(percent: int, nodes: int) -> None:
    """In whole numbers: no rounding of floats decides over somebody's node."""
    slots = concurrent_probes(f"{percent}%", nodes, most=200)
    assert 1 <= slots <= 200
    assert slots == 1 or slots * 100 <= nodes * percent
    assert slots == 200 or (slots + 1) * 100 > nodes * percent


@given(slots=st.integers(0, 300), nodes=st.integers(1, 5000), data=st.data())
@tried(100)
def test_nodes_that_fail_leave_the_others_their_share(slots: int, nodes: int, data: st.DataObject) -> None:
    """A fifth of the slots at least, all of them if every node fails, and never a slot that there is not."""
    unread = data.draw(st.integers(0, nodes))
    retry = retry_slots(slots, unread=unread, nodes=nodes)
    assert min(slots, max(1, slots // 5)) <= retry <= slots
    assert retry == 1 or slots - retry >= min(slots * 4 // 5, slots * (nodes - unread) // nodes)
    assert unread < nodes or retry == slots
