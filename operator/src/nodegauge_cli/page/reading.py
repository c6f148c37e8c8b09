"""What the page keeps of a NodeReading, of up to 200 KiB: links, power, sensors, feeding.  Must not judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from msgspec import Struct

from nodegauge_cli.page.links import links_of
from nodegauge_cli.page.model import Links
from nodegauge_cli.reported import results_of
from nodegauge_contract import Result, Sensor
from nodegauge_judge.feed.judge import judge_feed
from nodegauge_operator import names

SENSORS = 16
"""Of one node.  Chosen by this project: a server has fewer rails."""
UNITS = {"in": (1e3, "V"), "power": (1e6, "W"), "curr": (1e3, "A")}
"""By the beginning of a hwmon sensor's name: the file's numbers in one unit, and the unit
(https://docs.kernel.org/hwmon/sysfs-interface.html)."""

Watts = tuple[int | None, int | None]


class OfReading(Struct, frozen=True, kw_only=True):
    """What the page keeps of a NodeReading."""

    links: Links | None = None
    """None if no health reading is there."""
    watts: dict[str, Watts] = {}
    """By UUID draw and limit of each GPU, W."""
    sensors: dict[str, str] = {}
    """Voltages, currents and power of the machine."""
    feed: str = ""
    """The last feed window in a sentence; empty for none."""
    fed: float | None = None
    """Share of the held GPUs that was used in it."""
    unreadable: tuple[str, ...] = ()
    """What cannot be read of it."""


def of_reading(body: Mapping[str, Any]) -> OfReading:
    """It never raises on what a probe or somebody else wrote."""
    results, wrong = results_of(body)
    return of_results(results, unreadable=wrong)


def of_results(results: Mapping[str, Result], *, unreadable: Sequence[str] = ()) -> OfReading:
    """The same of results by probe."""
    health, feed = results.get(names.PROBE_HEALTH), results.get(names.PROBE_FEED)
    sentence, fed = _feeding(feed) if feed is not None else ("", None)
    return OfReading(
        links=links_of(health) if health is not None else None,
        watts=_watts(health) if health is not None else {},
        sensors=_sensors(health.sensors) if health is not None else {},
        feed=sentence,
        fed=fed,
        unreadable=tuple(unreadable),
    )


def _watts(result: Result) -> dict[str, Watts]:
    return {
        gpu.uuid: (_whole(gpu.power.usage_mw), _whole(gpu.power.enforced_limit_mw))
        for gpu in result.gpus
        if isinstance(gpu.uuid, str)
    }


def _whole(milliwatts: object) -> int | None:
    return round(milliwatts / 1000) if isinstance(milliwatts, int) else None


def _sensors(sensors: list[Sensor]) -> dict[str, str]:
    shown = {f"{each.chip} {each.label or each.name}": _in_words(each) for each in sensors}
    return dict([(name, text) for name, text in shown.items() if text][:SENSORS])


def _in_words(sensor: Sensor) -> str:
    """`12.05 V, alarm`; empty for a sensor of another kind."""
    scale, unit = UNITS.get(sensor.name.rstrip("0123456789"), (0.0, ""))
    if not unit:
        return ""
    read = sensor.value if isinstance(sensor.value, int | float) and isfinite(sensor.value) else None
    value = f"{read / scale:.4g} {unit}" if read is not None else "not read"
    return f"{value}, alarm" if sensor.alarm == 1 else value


def _feeding(result: Result) -> tuple[str, float | None]:
    """A window in a sentence, and the share of the held GPUs that was used."""
    judged = judge_feed(result)
    if not judged.allocated:
        return judged.summary, None
    fed = 1 - sum(judged.lost.values()) / judged.allocated
    return judged.summary, round(min(1.0, max(0.0, fed)), 3) if isfinite(fed) else None
