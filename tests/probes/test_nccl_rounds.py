"""When a cell has been measured well enough, and the data by which wrong results show."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_contract import NOT_READ, Cell, Collective
from nodegauge_contract.nccl import GRADED
from nodegauge_probes.nccl import pattern
from nodegauge_probes.nccl.engine import MAX_CALLS, measure_cell
from nodegauge_probes.nccl.protocol import CellOrder

ORDER = CellOrder(collective="all_reduce", bytes=1 << 20)


class Time:
    """A clock that batches move: `ms` of one call, batch after batch, the last for ever."""

    def __init__(self, *ms: float) -> None:
        self.now = 0.0
        self.calls: list[int] = []
        self._ms = self._each(ms)

    def _each(self, ms: tuple[float, ...]) -> Iterator[float]:
        yield from ms
        while True:
            yield ms[-1]

    def batch(self, calls: int) -> float:
        taken = calls * next(self._ms)
        self.calls.append(calls)
        self.now += taken / 1000
        return taken

    def measure(self, order: CellOrder = ORDER, *, seconds_left: float = 60.0) -> Cell:
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        return measure_cell(order, self.batch, wrong=NOT_READ, seconds_left=seconds_left, clock=clock)


def test_batches_are_as_long_as_was_ordered() -> None:
    time = Time(0.1)
    cell = time.measure()
    assert time.calls[-1] == 200
    assert (cell.batches, cell.calls, cell.us) == (5, 1000, pytest.approx(100))
    assert Time(50.0).measure().calls == 5


def test_a_slow_first_call_does_not_make_batches_short() -> None:
    """Launching for the first time may take a hundred times as long."""
    time = Time(10.0, 0.1)
    time.measure()
    assert time.calls[-1] * 0.1 >= 10


def test_tiny_calls_have_an_end() -> None:
    time = Time(1e-7)
    assert time.measure().us == pytest.approx(1e-4)
    assert max(time.calls) == MAX_CALLS


def test_it_stops_when_the_last_batches_agree() -> None:
    tries, slow = [60.0, 50.0], [40.0, 30.0, 25.0]
    cell = Time(*tries, *slow, 20.0).measure()
    assert cell.batches == len(slow) + 5
    assert cell.us == pytest.approx(20_000)
    assert cell.us_max == pytest.approx(40_000)
    assert isinstance(cell.spread, float)


def test_noise_is_measured_until_its_time_is_up() -> None:
    time = Time(*[20.0, 40.0] * 500)
    cell = time.measure(CellOrder(collective="all_reduce", bytes=8, max_ms=1000))
    assert 0.9 < time.now < 1.2
    assert cell.spread == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize(("spread", "batches"), [(0.02, 5), (0.0, 148)])
def test_a_spread_of_nothing_never_stops_early(spread: float, batches: int) -> None:
    order = CellOrder(collective="all_reduce", bytes=8, spread=spread, max_ms=3000)
    assert Time(20.0).measure(order).batches == pytest.approx(batches, abs=1)


def test_what_is_left_of_the_run_is_less_than_a_cells_own_time() -> None:
    assert Time(20.0).measure(seconds_left=0.095).batches == 3
    assert Time(20.0).measure(seconds_left=-5).batches == 1


RANKS = st.integers(min_value=1, max_value=64)
NAMES = st.sampled_from(GRADED)


@given(ranks=RANKS)
def test_sums_are_exact_in_float32(ranks: int) -> None:
    largest = ranks * (ranks + 1) // 2 * pattern.PERIOD
    assert largest < 2**24


@given(name=NAMES, ranks=RANKS, size=st.integers(min_value=1, max_value=1 << 34))
def test_ranks_move_what_was_ordered_or_a_little_less(name: Collective, ranks: int, size: int) -> None:
    """Rounded down to 16 bytes a rank, but for sizes that no rank has as many of."""
    moved = pattern.total(name, size, ranks)
    least = pattern.ELEMENT * (1 if name is Collective.ALL_REDUCE else ranks)
    lost = least if name is Collective.ALL_REDUCE else 4 * least
    assert moved == least or size - lost < moved <= size


@given(
    name=st.sampled_from([Collective.ALL_GATHER, Collective.REDUCE_SCATTER]),
    ranks=st.integers(min_value=2, max_value=64),
    size=st.integers(min_value=4096, max_value=1 << 34),
)
def test_a_ranks_block_begins_where_16_bytes_move_at_once(name: Collective, ranks: int, size: int) -> None:
    """1 GiB over 7 ranks would begin 8 bytes off, and a node with 7 of its 8 GPUs would look slow."""
    assert pattern.elements(name, size, ranks) * pattern.ELEMENT % 16 == 0


def model(name: Collective, *, ranks: int, rank: int, count: int) -> list[float]:
    inputs = [[(r + 1) * (i % 251 + 1) for i in range(count * ranks)] for r in range(ranks)]
    if name is Collective.ALL_GATHER:
        return [value for row in inputs for value in row[:count]]
    sums = [sum(column) for column in zip(*inputs, strict=True)]
    return sums[:count] if name is Collective.ALL_REDUCE else sums[rank * count : (rank + 1) * count]


@given(
    name=NAMES,
    ranks=st.integers(min_value=1, max_value=5),
    count=st.integers(min_value=1, max_value=600),
    data=st.data(),
)
def test_arithmetic_gives_the_expected(name: Collective, ranks: int, count: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    wanted = model(name, ranks=ranks, rank=rank, count=count)
    start = data.draw(st.integers(0, len(wanted) - 1))
    stop = data.draw(st.integers(start + 1, len(wanted)))
    actual = pattern.expected(name, ranks=ranks, rank=rank, count=count, start=start, stop=stop)
    assert array("f", actual).tolist() == wanted[start:stop]


def test_wrong_elements_are_counted() -> None:
    good = pattern.values(1, start=0, stop=500)
    assert pattern.wrong(good, good) == 0
    assert pattern.wrong(good[:400] + b"\xff" * 4 + good[404:], good) == 1
    assert pattern.wrong(pattern.values(2, start=0, stop=500), good) == 500


@pytest.mark.parametrize(("size", "pieces"), [(4, 1), (16 << 20, 1), ((16 << 20) + 4, 3), (1 << 30, 3)])
def test_large_results_are_compared_in_three_places(size: int, pieces: int) -> None:
    parts = list(pattern.windows(size))
    assert len(parts) == pieces
    assert (parts[0][0], parts[-1][1]) == (0, size)
    assert all(low % 4 == high % 4 == 0 and high <= size for low, high in parts)
