"""Levels of the watch probe: when two readings of one quantity differ.

Numbers that move all the time (temperatures, counters) have few levels with some hysteresis, all others are
their own level.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from nodegauge_contract import Int
from nodegauge_probes.collectors.sampling import SLOWDOWN
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder
from nodegauge_probes.watch_options import Options

Level = int | str | None
"""None: it cannot be read."""
UNREADABLE_AFTER = 3
"""Readings in a row after which a level, or a part of it, changes to or from "cannot be read"."""
SILENT, SKIPPED = "-", "x"
"""The part of a level of a link or a peer that does not answer, or of a peer that is lost."""


class Sample(NamedTuple):
    """One reading: when (monotonic seconds) and what."""

    at: float
    raw: int | str


class Watched(Struct, kw_only=True):
    """One GPU, with what does not change while it is watched."""

    nvml: Nvml
    """The open session."""
    device: Device
    """Its handle in that session."""
    peers: list[Device]
    """All other GPUs."""
    limits: GpuBuilder
    """Its temperature limits, as the health probe reads them."""
    links: list[int]
    """Numbers of its NVLinks."""
    link_fields: bool
    """Whether the state of links is a field."""
    trio: tuple[int, ...] = ()
    """Field ids of the counters of software thermal, hardware thermal, power brake; empty without them."""
    errors: dict[str, dict[int, int]] = field(default_factory=dict)
    """By counter, what each link answered last."""


Leveller = Callable[[Sequence[Sample], Level, Watched, Options], Level]


def latest(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """The value itself."""
    return samples[-1].raw


def twice(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """The value itself, once it was read twice in a row."""
    alike = len(samples) > 1 and samples[-1].raw == samples[-2].raw
    return samples[-1].raw if before is None or alike else before


def by_part(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """The value itself, one character per link or peer.

    One that does not answer is `SILENT` after three readings in a row, and no longer after three with an
    answer; a lost peer's stays as it was, for its error says it all."""
    last = [str(each.raw) for each in samples[-UNREADABLE_AFTER:]]
    newest = last[-1]
    if not isinstance(before, str) or {len(each) for each in (before, *last)} != {len(newest)}:
        return newest

    def part(position: int, old: str, new: str) -> str:
        silent = {each[position] == SILENT for each in last}
        agree = len(silent) == 1 and len(last) == UNREADABLE_AFTER
        changes = agree or (new == SILENT) == (old == SILENT)
        return new if changes and new != SKIPPED else old

    pairs = zip(before, newest, strict=True)
    return "".join(part(position, old, new) for position, (old, new) in enumerate(pairs))


def is_unclear(level: Level, last: Level) -> bool:
    """Whether a quantity or a part of it begins or ceases to answer: the last reading, None if there was no
    answer, says other than the level."""
    if level == last:  # nearly always
        return False
    if level is None or last is None or not isinstance(level, str) or not isinstance(last, str):
        return (level is None) != (last is None)
    parts = zip(level, last, strict=False)
    return any((old == SILENT) != (new == SILENT) for old, new in parts if new != SKIPPED)


BIT_HOLD_S = 10
COUNTER_WINDOW_S = 60


def bits(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """Bits that were set in two readings in a row (`bitWarnSamples`), until ten seconds without them.

    HW slowdown may be set briefly while clocks change (nvml.h)."""
    now = samples[-1].at
    recent = [int(each.raw) for each in samples if now - each.at <= BIT_HOLD_S]
    in_a_row = last = 0
    for mask in recent:
        in_a_row |= last & mask
        last = mask
    kept = before if isinstance(before, int) else 0
    if now - samples[0].at >= BIT_HOLD_S:
        seen = 0
        for mask in recent:
            seen |= mask
        kept &= seen
    return (in_a_row | kept) & sum(SLOWDOWN)


def grows(
    threshold: Callable[[Options], float], *, over: Callable[[Options], float], window: float, unit: float = 1
) -> Leveller:
    """1 from `threshold` units of growth within a window on, 0 after a window with at most `over`."""

    def level(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
        now, newest = samples[-1]
        first = next(each for each in samples if now - each.at <= window)
        growth = max(0.0, (int(newest) - int(first.raw)) / unit)
        if growth >= threshold(options) > 0:
            return 1
        is_over = now - samples[0].at >= window and growth <= over(options)
        return 0 if is_over or not before else 1

    return level


def slowed(threshold: Callable[[Options], float]) -> Leveller:
    """1 while a counter of nanoseconds grows."""
    return grows(
        threshold, over=lambda o: o.throttle_share * COUNTER_WINDOW_S, window=COUNTER_WINDOW_S, unit=1e9
    )


COOL, WARM, HOT = range(3)


def _heat(left_to_hot: float, left_to_warm: float, *, before: Level, hysteresis: float) -> int:
    """The class, from °C left until either class; a class is left only `hysteresis` below its start."""
    was = before if isinstance(before, int) else COOL
    if left_to_hot <= 0 or (was == HOT and left_to_hot < hysteresis):
        return HOT
    return WARM if left_to_warm <= 0 or (was >= WARM and left_to_warm < hysteresis) else COOL


def core_heat(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """By the vendor's limit in °C if there is one; by the policy's numbers."""
    degrees, limit = int(samples[-1].raw), _limit(gpu.limits.temperature.value.gpu_max)
    warm = min(options.temperature, limit - options.margin if limit else options.temperature)
    hot = limit or options.temperature_fail
    return _heat(hot - degrees, warm - degrees, before=before, hysteresis=options.hysteresis)


def memory_heat(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    degrees, limit = int(samples[-1].raw), _limit(gpu.limits.temperature.value.memory_max)
    warm = limit - options.margin if limit else options.memory_temperature
    hot = limit or options.memory_temperature_fail
    return _heat(hot - degrees, warm - degrees, before=before, hysteresis=options.hysteresis)


def margin_heat(samples: Sequence[Sample], before: Level, gpu: Watched, options: Options) -> Level:
    """By the °C that are left to the GPU's T.Limit."""
    limit = gpu.limits.temperature.value.tlimit_gpu_max
    left = int(samples[-1].raw) - (limit if isinstance(limit, int) and abs(limit) <= 30 else 0)
    return _heat(left, left - options.margin, before=before, hysteresis=options.hysteresis)


def _limit(limit: Int) -> int:
    """A vendor's limit in °C; 0 without a plausible one (drivers answer 0 where they have none)."""
    return limit if isinstance(limit, int) and 50 <= limit <= 130 else 0
