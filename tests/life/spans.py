"""Spans of time, virtual seconds: when something was wrong, and for how long in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OPEN = float("inf")


@dataclass(kw_only=True)
class Span:
    """From `start` to `end`; `OPEN` while it lasts."""

    start: float
    what: str
    end: float = OPEN


class Spans:
    """Spans in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[Span] = []

    def begin(self, now: float, what: str) -> Span:
        """Something begins; end it by setting its `end`."""
        span = Span(start=now, what=what)
        self.all.append(span)
        return span

    def near(self, start: float, end: float) -> list[Span]:
        """Spans that touch this time."""
        return [span for span in self.all if span.end >= start and span.start <= end]


def covered(spans: Iterable[Span], start: float, end: float, *, pad: float = 0.0) -> float:
    """Seconds between `start` and `end` that lie in any span, each of them `pad` longer at its end."""
    total, reached = 0.0, start
    for span in sorted(spans, key=lambda span: span.start):
        low, high = max(span.start, reached), min(span.end + pad, end)
        if high > low:
            total += high - low
            reached = high
    return total


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap, as one."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if result and span.start <= result[-1].end:
            result[-1].end = max(result[-1].end, span.end)
        else:
            result.append(Span(start=span.start, end=span.end, what=span.what))
    return result
