"""What a series of NVML samples says: steady state, slope, first moments.  Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from msgspec import Struct

from nodegauge_contract import NOT_READ, Int, LoadReason, Num, Unavailable
from nodegauge_probes.collectors.sampling import Sample, reasons_seen

STEADY_THIRDS = 2, 3
"""From two thirds of the time under load on.  Chosen by this project: at 30 s clocks and power of a card are
steady by then; its temperature may still rise, which the slope shows."""
REACHED = 0.9
"""Of the power limit; a big card gets there within 20 s."""
LEAST_SAMPLES, LEAST_MS = 4, 1_000
"""For a slope: NVML's temperatures are whole degrees."""


class Reading(Struct, frozen=True, kw_only=True):
    """One sample of one GPU, `ms` after the load began, with what only the load probe reads."""

    ms: int
    sample: Sample
    margin: Int = NOT_READ
    memory_mhz: Int = NOT_READ


Pick = Callable[[Reading], Int]


def steady(readings: Sequence[Reading]) -> list[Reading]:
    """Those of the last third of the time under load."""
    last, (part, whole) = readings[-1].ms if readings else 0, STEADY_THIRDS
    return [each for each in readings if each.ms * whole >= last * part]


def numbers(readings: Sequence[Reading], pick: Pick) -> list[int]:
    """Those that could be read."""
    return [value for each in readings if isinstance(value := pick(each), int)]


def median(readings: Sequence[Reading], pick: Pick) -> Num:
    """The median, or why there is none."""
    values = numbers(readings, pick)
    return short(statistics.median(values)) if values else _refusal(readings, pick)


def extreme(readings: Sequence[Reading], pick: Pick, choose: Callable[[list[int]], int]) -> Int:
    """The largest or smallest, or why there is none."""
    values = numbers(readings, pick)
    return choose(values) if values else _refusal(readings, pick)


def _refusal(readings: Sequence[Reading], pick: Pick) -> Unavailable:
    return next((value for each in readings if isinstance(value := pick(each), Unavailable)), NOT_READ)


def slope_per_minute(readings: Sequence[Reading], pick: Pick) -> Num:
    """Growth per minute by least squares, with one decimal."""
    points = [(each.ms, value) for each in readings if isinstance(value := pick(each), int)]
    if len(points) < LEAST_SAMPLES or points[-1][0] - points[0][0] < LEAST_MS:
        return Unavailable("too few samples for a slope")
    fitted = statistics.linear_regression(*zip(*points, strict=True))
    return short(round(fitted.slope * 60_000, 1))


def reached_ms(readings: Sequence[Reading], *, limit_mw: Int) -> Int:
    """Until the power was at 90 % of the limit for the first time."""
    if isinstance(limit_mw, Unavailable):
        return limit_mw
    for each in readings:
        if isinstance(each.sample.power_mw, int) and each.sample.power_mw >= REACHED * limit_mw:
            return each.ms
    return Unavailable("90 % of the limit was not reached")


def reasons(readings: Sequence[Reading]) -> list[LoadReason]:
    """Clocks event reasons by bit."""
    masks = [each.sample.reasons for each in readings]
    return [
        LoadReason(
            bit=seen.bit,
            samples=seen.samples,
            longest=seen.longest,
            first_ms=next(
                each.ms
                for each in readings
                if isinstance(each.sample.reasons, int) and each.sample.reasons & seen.bit
            ),
        )
        for seen in reasons_seen(masks)
    ]


def short(value: float) -> int | float:
    """Four significant digits and at most three decimals: more are noise.

    Whole numbers of five digits and more stay as they are.
    """
    if value == int(value):
        return int(value)
    digits = round(float(f"{value:.4g}"), 3) if abs(value) < 1000 else round(value, 1)
    return int(digits) if digits == int(digits) else digits
