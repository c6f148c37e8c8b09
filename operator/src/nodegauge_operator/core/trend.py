"""What the days of a node's history say, in sentences: `all_reduce 463 GB/s for 30 days, 417 since 24 Nov`.

A value has changed if it differs from the median of the days before by more than 5 % of that median and by
more than three times the spread of those days (median of the distances from it), on two days in a row or on
the last.  Chosen by this project: NCCL's bandwidth varies by 1 to 2 % from run to run.  A single odd day
between two alike is no change.  Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from nodegauge_judge import Verdict
from nodegauge_operator.api.node_history import Day

CHANGE_SHARE = 0.05
SPREADS = 3.0
MIN_DAYS = 3
"""Days before a change that make a median.  Chosen by this project."""
SERIES = (
    ("all_reduce", "all_reduce", "GB/s"),
    ("all_gather", "all_gather", "GB/s"),
    ("reduce_scatter", "reduce_scatter", "GB/s"),
    ("tflops", "load run", "TFLOPS"),
    ("hottest", "hottest GPU", "°C"),
    ("spare", "supplies: to spare", "W"),
    ("gpus", "GPUs read:", ""),
)
"""Field of `Day`, what it is called, and its unit."""
VERSIONS = ("driver", "vbios", "kernel")

Point = tuple[date, float]


class Level(NamedTuple):
    """Days of one value, more or less."""

    points: tuple[Point, ...]

    @property
    def value(self) -> float:
        """Their median."""
        return median(value for _, value in self.points)

    def differs(self, value: float) -> float:
        """How far a value is from what varies here, its sign included; 0.0 for not at all."""
        middle = self.value
        spread = median(abs(known - middle) for _, known in self.points)
        away = value - middle
        return away if abs(away) > max(CHANGE_SHARE * abs(middle), SPREADS * spread) else 0.0


def trend(days: Mapping[str, Day]) -> list[str]:
    """Sentences about the days, `days` by date (`2026-11-24`): each value with its last change, throttling,
    versions that changed, and days on which nothing was read."""
    known = {day: days[text] for text in sorted(days) if (day := _date(text)) is not None}
    if not known:
        return []
    lines = [line for field, name, unit in SERIES if (line := _series(known, field, name, unit))]
    return [*lines, *_throttled(known), *_versions(known), *_gaps(known)]


def _series(days: Mapping[date, Day], field: str, name: str, unit: str) -> str:
    values = {day: getattr(each, field) for day, each in days.items()}
    points = [(day, float(value)) for day, value in values.items() if value is not None]
    if not points:
        return ""
    before, last = _levels(points)
    unit = f" {unit}" if unit else ""
    if before is None:
        return f"{name} {last.value:.0f}{unit} for {_span(last.points)}"
    since = _shown(last.points[0][0])
    return f"{name} {before.value:.0f}{unit} for {_span(before.points)}, {last.value:.0f} since {since}"


def _levels(points: Sequence[Point]) -> tuple[Level | None, Level]:
    """The last level and the one before it; None for that if nothing has changed."""
    before, current = None, [points[0]]
    for number, point in enumerate(points[1:], 1):
        level = Level(tuple(current))
        away = level.differs(point[1]) if len(current) >= MIN_DAYS else 0.0
        following = points[number + 1 : number + 2]
        lasting = all(level.differs(value) * away > 0 for _, value in following)
        if away and lasting:
            before, current = level, [point]
        else:
            current.append(point)
    return before, Level(tuple(current))


def _throttled(days: Mapping[date, Day]) -> Iterator[str]:
    known = {day: each.throttled for day, each in days.items() if each.throttled is not None}
    slowed = {day: seconds for day, seconds in known.items() if seconds >= 1}
    if slowed:
        total, last = sum(slowed.values()), _shown(max(slowed))
        yield f"throttled {total:.0f} s on {len(slowed)} of {len(known)} days, last on {last}"


def _versions(days: Mapping[date, Day]) -> Iterator[str]:
    """Each change; what is first seen is none."""
    for field in VERSIONS:
        seen = [(day, text) for day, each in days.items() if (text := getattr(each, field))]
        for (_, old), (day, new) in pairwise(seen):
            yield f"{field} changed on {_shown(day)}: {old} to {new}"


def _gaps(days: Mapping[date, Day]) -> Iterator[str]:
    of, read = _length(list(days)), sum(each.verdict is not Verdict.UNKNOWN for each in days.values())
    if missing := of - read:
        yield f"no reading on {missing} of {of} days"


def _span(points: Sequence[Point]) -> str:
    """`30 days`, and on how many of them it was measured if not on all."""
    length = _length([day for day, _ in points])
    measured = f" (measured on {len(points)})" if len(points) < length else ""
    return f"{length} day{'s' if length > 1 else ''}{measured}"


def _length(days: Sequence[date]) -> int:
    return (days[-1] - days[0]) // timedelta(days=1) + 1


def _shown(day: date) -> str:
    return f"{day.day} {day:%b}"


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
