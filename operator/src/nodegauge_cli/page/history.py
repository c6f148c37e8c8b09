"""Days of NodeHistories as columns for charts, and the fleet's usable share day by day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any

from nodegauge_cli.page.model import Days, DayShare

CHARTED = ("allReduce", "hottest", "throttled", "tflops", "spare")
VERSIONS = ("driver", "vbios", "kernel")
MOST_DAYS = 400
"""More days than any history has; a span that somebody invented is cut there, from its end."""
GOOD = ("pass", "warn")

Day = Mapping[str, str]


def days_of(body: Mapping[str, Any]) -> dict[date, Day]:
    """By date the values of a NodeHistory as text; what cannot be read is left out."""
    status = body.get("status")
    days = status.get("days") if isinstance(status, Mapping) else None
    found = {}
    for written, text in days.items() if isinstance(days, Mapping) else ():
        try:
            day = date.fromisoformat(written)
        except (TypeError, ValueError):
            continue
        pairs = (word.partition("=") for word in str(text).split())
        found[day] = {key: value for key, mark, value in pairs if mark}
    latest = sorted(found)[-1:]
    return {day: found[day] for day in sorted(found) if (latest[0] - day).days < MOST_DAYS}


def columns(days: Mapping[date, Day]) -> Days | None:
    """None without a day."""
    if not days:
        return None
    first, last = min(days), max(days)
    count = (last - first).days + 1
    every = [days.get(first + timedelta(number), {}) for number in range(count)]
    values = {key: [_number(day.get(key, "")) for day in every] for key in CHARTED}
    changes = {
        day.isoformat(): ", ".join(f"{what} {values[what]}" for what in VERSIONS if what in values)
        for day, values in days.items()
    }
    return Days(
        first=first.isoformat(),
        count=count,
        values={key: column for key, column in values.items() if any(v is not None for v in column)},
        changes={day: text for day, text in changes.items() if text},
    )


def trend(histories: Iterable[Mapping[date, Day]]) -> list[DayShare]:
    """The fleet day by day.  A node counts on a day on which it was read and judged."""
    gpus: dict[date, int] = {}
    usable: dict[date, int] = {}
    for days in histories:
        for day, values in days.items():
            seen, _, of = values.get("gpus", "").partition("/")
            number, whole = _number(seen), _number(of or seen)
            if number is None or whole is None or "verdict" not in values:
                continue
            gpus[day] = gpus.get(day, 0) + int(whole)
            usable[day] = usable.get(day, 0) + (int(number) if values["verdict"] in GOOD else 0)
    return [DayShare(date=day.isoformat(), gpus=gpus[day], usable=usable[day]) for day in sorted(gpus)]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    if not 0 <= value < 1e9:
        return None
    return int(value) if value.is_integer() else value
