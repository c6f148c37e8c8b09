"""Bandwidth from size, time and ranks; that it is the column of real logs is shown where those are read."""

from __future__ import annotations

import pytest

from nodegauge_judge.nccl.measurement import busbw_factor, busbw_gbps


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875)],
)
def test_the_factors_are_those_of_nccl_tests(collective: str, factor: float) -> None:
    """For eight ranks, and none for one rank."""
    assert busbw_factor(collective, 8) == factor
    assert busbw_factor(collective, 1) == 0
    assert busbw_gbps(collective, bytes=10**9, us=10**6, ranks=8) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("collective", "us", "ranks"), [("broadcast", 1, 2), ("all_reduce", 0, 2), ("all_reduce", 1, 0)]
)
def test_a_bandwidth_of_nothing_is_refused(collective: str, us: float, ranks: int) -> None:
    """An unknown collective, no time, no ranks."""
    with pytest.raises(ValueError):
        busbw_gbps(collective, bytes=8, us=us, ranks=ranks)
