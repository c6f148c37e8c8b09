"""Days of NodeHistories as columns for charts, and the fleet's usable share day by day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from nodegauge_cli.page.model import Days, DayShare
from nodegauge_judge import Verdict
from nodegauge_operator.api.node_history import MAX_DAYS, Day
from nodegauge_operator.core.trend import VERSIONS, trend

CHARTED = {
    "allReduce": "all_reduce",
    "hottest": "hottest",
    "throttled": "throttled",
    "tflops": "tflops",
    "spare": "spare",
}
"""What the page calls it, and the field of `Day`."""
MOST_DAYS = 2 * MAX_DAYS
"""Days of a chart, the last ones; more are of a history that somebody edited."""
GOOD = (Verdict.PASS, Verdict.WARN)


def columns(days: Mapping[str, Day]) -> Days | None:
    """None without a day; `days` by date."""
    known = {day: each for text, each in days.items() if (day := _date(text)) is not None}
    if not known:
        return None
    last = max(known)
    first = max(min(known), last - timedelta(MOST_DAYS - 1))
    count = (last - first).days + 1
    every = [known.get(first + timedelta(number), Day()) for number in range(count)]
    values = {name: [getattr(each, field) for each in every] for name, field in CHARTED.items()}
    changes = {
        day.isoformat(): ", ".join(f"{what} {text}" for what in VERSIONS if (text := getattr(each, what)))
        for day, each in known.items()
    }
    return Days(
        first=first.isoformat(),
        count=count,
        values={name: column for name, column in values.items() if any(v is not None for v in column)},
        changes={day: text for day, text in changes.items() if text},
        sentences=trend(days),
    )


def shares(histories: Iterable[Mapping[str, Day]]) -> list[DayShare]:
    """The fleet day by day, the last `MOST_DAYS`.  A node counts on a day on which it was read and judged."""
    gpus: dict[date, int] = {}
    usable: dict[date, int] = {}
    for days in histories:
        for text, each in days.items():
            day = _date(text)
            if day is None or each.gpus is None or each.verdict in (None, Verdict.UNKNOWN):
                continue
            gpus[day] = gpus.get(day, 0) + max(each.gpus, each.of or 0)
            usable[day] = usable.get(day, 0) + (each.gpus if each.verdict in GOOD else 0)
    known = sorted(day for day in gpus if (max(gpus) - day).days < MOST_DAYS)
    return [DayShare(date=day.isoformat(), gpus=gpus[day], usable=usable[day]) for day in known]


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
