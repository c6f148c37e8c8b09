"""How long calls take, with noise by seed and run: busbw as in nccl-tests, doc/PERFORMANCE.md."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from nodegauge_contract.nccl import Collective
from nodegauge_probes.nccl.protocol import CellOrder
from testbed.simulated_nccl.machine import MIB, Curve, Way

NOISE = 0.004
"""Standard deviation of a batch's time, as a share."""
MAX_BATCHES = 400


class NotMeasured(Exception):
    """The machine has no number for this collective or these ranks."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Microseconds of one call in each batch, and how many calls there were in all."""

    times: Sequence[float]
    calls: int

    @property
    def spread(self) -> float:
        return statistics.pstdev(self.times) / statistics.fmean(self.times) if len(self.times) > 1 else 0.0

    @property
    def seconds(self) -> float:
        return statistics.fmean(self.times) * self.calls / 1e6


def factor(collective: str, ranks: int) -> float:
    return (2 if collective == Collective.ALL_REDUCE else 1) * (ranks - 1) / ranks


def call_us(way: Way, collective: str, size: int, *, ranks: int) -> float:
    if collective not in way.busbw or ranks < 2:
        raise NotMeasured(f"no number for {collective} over {ranks} ranks by {way.transport}")
    busbw = by_ranks(way.busbw[collective], ranks)
    least = way.shape[0][0] * MIB
    at = max(size, least)
    moved_us = at * factor(collective, ranks) / (busbw * 1e9 * share(way.shape, at)) * 1e6
    if size >= least:
        return max(moved_us, way.latency_us)
    return way.latency_us + max(0.0, moved_us - way.latency_us) * size / least


def by_ranks(known: dict[int, float], ranks: int) -> float:
    """The number for so many ranks: that of the most ranks that are not more, else that of the fewest."""
    return known[max((count for count in known if count <= ranks), default=min(known))]


def share(shape: Curve, size: int) -> float:
    """The share of the value at 1 GiB that a size reaches; between two points by the size's logarithm."""
    points = [(math.log2(mib * MIB), value) for mib, value in shape]
    at = math.log2(size)
    if at <= points[0][0]:
        return points[0][1]
    for (low, below), (high, above) in itertools.pairwise(points):
        if at <= high:
            return below + (above - below) * (at - low) / (high - low)
    return points[-1][1]


def batches(order: CellOrder, us: float, *, random: Random) -> Batches:
    if order.calls:
        return Batches(times=[us * _wobble(random)], calls=order.calls)
    each = max(1, math.ceil(order.batch_ms * 1000 / us))
    times: list[float] = []
    while len(times) < MAX_BATCHES:
        times.append(us * _wobble(random))
        made = Batches(times=times, calls=each * len(times))
        enough = len(times) >= order.batches and 0 < made.spread < order.spread
        if enough or made.seconds * 1000 >= order.max_ms:
            break
    return Batches(times=times, calls=each * len(times))


def _wobble(random: Random) -> float:
    return max(0.5, 1 + random.gauss(0, NOISE))
