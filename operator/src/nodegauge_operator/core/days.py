"""The day that goes on in a node's report: each kind of reading adds what its run measured."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from nodegauge_judge import Verdict
from nodegauge_operator.api.node_history import MAX_UNWRITTEN, Day, day_text, parse_day
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.context import BEST_FIRST

LAST = ("all_reduce", "all_gather", "reduce_scatter", "tflops", "driver", "vbios", "kernel")
LARGEST, LEAST = ("hottest", "of"), ("spare", "gpus")


def noted(days: Mapping[str, str], figures: Day, *, now: float) -> dict[str, str]:
    """A report's days with what a run measured at `now`; complete ones stay, the newest `MAX_UNWRITTEN`."""
    today = date_of(now)
    closed = sorted(date for date in days if date < today)[-MAX_UNWRITTEN:]
    day = _folded(parse_day(days.get(today, "")), figures)
    return {date: days[date] for date in closed} | {today: day_text(day)}


def date_of(now: float) -> str:
    """`2026-11-24`, UTC."""
    return stamp(now)[:10]


def _folded(before: Day, new: Day) -> Day:
    """A day with one more run's figures."""
    old, added = asdict(before), {key: value for key, value in asdict(new).items() if value not in (None, "")}
    after = old | {key: added[key] for key in LAST if key in added}
    for keys, choose in ((LARGEST, max), (LEAST, min)):
        for key in keys:
            values = [each[key] for each in (old, added) if each.get(key) is not None]
            after[key] = choose(values, default=None)
    if "throttled" in added:
        after["throttled"] = (before.throttled or 0.0) + added["throttled"]
    if new.verdict is not None:
        after["verdict"] = max((before.verdict or new.verdict, new.verdict), key=_badness)
    return Day(**after)


def _badness(verdict: Verdict) -> int:
    """The worse, the higher; one that says nothing comes last."""
    return BEST_FIRST.index(verdict) if verdict in BEST_FIRST else -1
