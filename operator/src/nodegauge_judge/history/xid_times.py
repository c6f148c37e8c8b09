"""When one Xid came on one GPU: a few times with how many came then, as a report keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nodegauge_contract import XidCount
from nodegauge_judge.history.packing import from_digits, to_digits

MOST_TIMES = 12
"""Times of one Xid on one GPU.  Beyond it, near ones are merged as if at the earlier time, so a count over a
long window is rather too low than too high.  Chosen by this project."""
SAME_TIME = 1
"""Seconds by which two probes' times of one Xid may differ: each looks several times a second."""


class XidHistory(Struct, frozen=True):
    """When one Xid came on one GPU: pairs of a time in seconds and how many came then, oldest first."""

    times: tuple[tuple[int, int], ...] = ()

    def plus(self, new: XidCount) -> XidHistory:
        """With those of `new`, less what is known of the same time: a document that comes twice, or two
        probes that received the same Xid, count it once."""
        known = sum(n for at, n in self.times if new.first - SAME_TIME <= at <= new.last + SAME_TIME)
        at_time = dict(self.times)
        if (came := new.count - known) > 0:
            at_time[new.last] = at_time.get(new.last, 0) + 1
        if came > 1:
            at_time[new.first] = at_time.get(new.first, 0) + came - 1
        times = sorted(at_time.items())
        while len(times) > MOST_TIMES:  # the two that are nearest to each other, as if at the earlier time
            at = min(range(len(times) - 2), key=lambda n: times[n + 1][0] - times[n][0])
            times[at : at + 2] = [(times[at][0], times[at][1] + times[at + 1][1])]
        return XidHistory(tuple(times))

    def after(self, time: float) -> XidHistory:
        """Those after this time alone."""
        return XidHistory(tuple(pair for pair in self.times if pair[0] > time))

    def until(self, time: float) -> XidHistory:
        """Those up to this time alone."""
        return XidHistory(tuple(pair for pair in self.times if pair[0] <= time))

    @property
    def total(self) -> int:
        """How many came."""
        return sum(count for _, count in self.times)

    def packed(self) -> str:
        """As `GpuHistory.packed`."""
        return ".".join(to_digits(number) for pair in self.times for number in pair)

    @classmethod
    def unpacked(cls, text: str) -> XidHistory:
        """The history that `packed` wrote; ValueError for anything else."""
        numbers = [from_digits(part) or 0 for part in text.split(".")]
        return cls(tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def newest(xids: Mapping[str, XidHistory], most: int) -> dict[str, XidHistory]:
    """So many times at most, of all GPUs and Xids together; the oldest go first."""
    ranked = sorted(((at, key) for key, history in xids.items() for at, _ in history.times), reverse=True)
    few = set(ranked[:most])
    kept = {key: tuple(pair for pair in xids[key].times if (pair[0], key) in few) for key in xids}
    return {key: XidHistory(times) for key, times in kept.items() if times}
