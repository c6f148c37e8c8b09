"""How many ranks took part in a log of nccl-tests, and on how many nodes.

The list of devices can be missing, shortened or cut, so the rows must agree with it: bus bandwidth is size
divided by time, times a factor that depends on the number of ranks alone (2(n-1)/n for all_reduce, (n-1)/n
for all_gather and reduce_scatter, which also print the total over all ranks as their size).  Printed figures
are rounded: together the rows allow an interval, and only a number that is alone in it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from statistics import median

from msgspec import Struct

from nodegauge_contract.nccl import Collective, busbw_factor
from nodegauge_contract.nccl_tests.log import MAX_DEVICES, Device, Log, NcclTestsError
from nodegauge_contract.nccl_tests.table import Row, Table, Timing

ROUNDING = 1e-9
"""Share by which a computed bound may miss because floats are rounded."""


class Measured(Struct, frozen=True, kw_only=True):
    """A table with its collective; `times`: how often its printed size holds what one rank contributes."""

    table: Table
    collective: Collective
    times: int


class _Bound(Struct, frozen=True, kw_only=True):
    """What one half of a row allows busbw to be of size / time."""

    row: Row
    half: Timing
    collective: Collective
    low: float
    high: float

    def allows(self, ranks: int) -> bool:
        factor = busbw_factor(self.collective, ranks)
        return self.low - ROUNDING <= factor <= self.high + ROUNDING


def listed(log: Log) -> list[Device]:
    """The ranks that the numbers are for: the first communicator's (`NCCL_TESTS_SPLIT` makes several)."""
    return [device for device in log.devices if device.group == log.devices[0].group]


def count(log: Log, measured: Measured | None, *, given: int | None = None) -> int:
    """Ranks of the log: as `given`, else as listed if the rows agree, else the only number that fits them.

    Raises `NcclTestsError` if the rows contradict it or leave it open.
    """
    if given is not None and given < fewest(log):
        raise NcclTestsError(f"{given} ranks were given, but the log lists rank {fewest(log) - 1}")
    if measured is None:
        return given or max(fewest(log), log.per_process)
    bounds = list(_bounds(measured))
    candidates = _candidates(log, measured, bounds)
    wanted = given or (len(listed(log)) if _complete(log) else 0)
    if wanted in candidates:
        return wanted
    if given is not None or not candidates:
        raise _contradiction(given or wanted or _likeliest(bounds, fewest(log)), measured, bounds)
    if len(candidates) > 1:
        state = "incomplete" if log.devices else "missing"
        raise NcclTestsError(
            f"the list of ranks (`Rank 0 ... Pid ... on HOST device 0 [...] NAME`) is {state}, and "
            f"{_some(candidates)} ranks fit the rows: give their number (--ranks)"
        )
    return candidates[0]


def fit(log: Log, measured: Measured) -> bool:
    """Whether the rows are those of this collective over some number of ranks that the log allows."""
    candidates = _candidates(log, measured, list(_bounds(measured)))
    return (len(listed(log)) in candidates) if _complete(log) else bool(candidates)


def nodes(log: Log, ranks: int, *, given: bool) -> int:
    """Machines that took part, by host name; 0 if the list of devices leaves it open.

    `given`: the caller gave the number of ranks, and with it that they are all on the machines listed.
    """
    hosts = {device.host for device in log.devices}
    ends = {device.host for device in log.devices if device.rank in (0, ranks - 1)}
    complete = _complete(log) and len(listed(log)) == ranks
    both_ends = len(ends) == 1 and {0, ranks - 1} <= {device.rank for device in log.devices}
    if len(hosts) > 1 or complete or given or both_ends or log.per_process == ranks:
        return max(len(hosts), 1)
    return 0


def fewest(log: Log) -> int:
    """The least number of ranks that the list allows; 1 without one."""
    return len(listed(log)) if _split(log) else max((device.rank + 1 for device in log.devices), default=1)


def _split(log: Log) -> bool:
    return len({device.group for device in log.devices}) > 1


def _complete(log: Log) -> bool:
    """Whether the list of devices may be whole: no gap, no sign that it was shortened, whole processes."""
    numbers = [device.rank for device in log.devices]
    whole = not log.per_process or len(listed(log)) % log.per_process == 0
    return bool(numbers) and numbers == list(range(len(numbers))) and whole and not log.elided


def _bounds(measured_table: Measured) -> Iterator[_Bound]:
    for row in measured_table.table.rows:
        for half in (row.in_place, row.out_of_place) if row.bytes else ():
            if half is not None:
                low, high = half.factor(row.bytes)
                yield _Bound(row=row, half=half, collective=measured_table.collective, low=low, high=high)


def _candidates(log: Log, measured: Measured, bounds: Sequence[_Bound]) -> list[int]:
    """Every number that all rows allow, and that consists of whole processes."""
    if not bounds:
        return []
    tightest = max(bounds, key=attrgetter("low")), min(bounds, key=attrgetter("high"))
    whole = log.per_process or 1
    return [
        ranks
        for ranks in range(-(-fewest(log) // whole) * whole, MAX_DEVICES + 1, whole)
        if measured.times in (1, ranks) and all(bound.allows(ranks) for bound in tightest)
    ]


def _likeliest(bounds: Sequence[_Bound], least: int) -> int:
    """The number that the typical row tells."""
    typical = median([(bound.low + bound.high) / 2 for bound in bounds] or [1.0])
    collective = bounds[0].collective if bounds else Collective.ALL_REDUCE
    return min(range(least, MAX_DEVICES + 1), key=lambda n: abs(busbw_factor(collective, n) - typical))


def _contradiction(ranks: int, measured: Measured, bounds: Sequence[_Bound]) -> NcclTestsError:
    """The first row that contradicts the number."""
    if measured.times not in (1, ranks):
        return NcclTestsError(
            f"line {measured.table.rows[0].line}: the sizes are those of {measured.times} ranks, "
            f"not of {ranks}"
        )
    bound = next((bound for bound in bounds if not bound.allows(ranks)), None)
    if bound is None:
        return NcclTestsError(f"the rows fit {ranks} ranks, but `nThread` and `nGpus` do not")
    busbw = bound.row.bytes / bound.half.us / 1e3 * busbw_factor(bound.collective, ranks)
    return NcclTestsError(
        f"line {bound.row.line}: busbw {bound.half.busbw:g} does not follow from the row: {bound.row.bytes} "
        f"bytes in {bound.half.us:g} us are {busbw:.4g} GB/s for {bound.collective} over {ranks} ranks"
    )


def _some(numbers: Sequence[int]) -> str:
    """`7, 8, 9`, or `33 to 4096`."""
    return ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{numbers[0]} to {numbers[-1]}"
