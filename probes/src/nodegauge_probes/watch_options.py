"""Options of the watch probe: how often it looks, when it reports, and what counts as a change.

Thresholds have the judge's defaults (`nodegauge_judge/thresholds.py`), because a change that no rule looks at
is not worth a report.  The operator passes its policy's numbers.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

DEFAULT_STATE = "/run/nodegauge/watch.json"
CONFIRM = "10,60,300"
MOST_CONFIRMATIONS = 10


class Options(Struct, frozen=True, kw_only=True):
    """Options of one watch container; `NUMBERS` has defaults and bounds."""

    state: Path
    """File that keeps what was reported."""
    interval: float
    """Seconds from one reading to the next if nothing changes."""
    poll: float
    """Seconds between two looks."""
    confirm: tuple[float, ...]
    """Seconds from a reading of something new to each of its confirmations, at most ten."""
    temperature: float
    """°C from which a GPU is warm."""
    temperature_fail: float
    """°C from which it is hot, without a vendor's limit."""
    memory_temperature: float
    """°C from which memory is warm, without a vendor's limit."""
    memory_temperature_fail: float
    """°C from which memory is hot, without a vendor's limit."""
    margin: float
    """°C below a vendor's limit from which a GPU or its memory is warm."""
    hysteresis: float
    """°C that it must cool down to leave a class."""
    sw_thermal_seconds: float
    """Seconds of software thermal slowdown within a minute that are a change."""
    hw_thermal_seconds: float
    """Seconds of hardware thermal slowdown within a minute that are a change."""
    power_brake_seconds: float
    """Seconds of power brake within a minute that are a change."""
    throttle_share: float
    """Share of a minute up to which a slowdown is over."""
    corrected_per_minute: float
    """Corrected memory errors within a minute that are a change."""
    feed_window: float
    """Seconds of one window of the feed probe; 0 for none."""
    feed_interval: float
    """Seconds from one window that is told to the next if nothing changes."""


NUMBERS = (
    ("interval", 7200, 10, 86_400, "seconds after the last report in which it reports again"),
    ("poll", 1, 0.1, 60, "seconds between two looks"),
    ("temperature", 84, 20, 150, "°C from which a GPU is warm (throttlingLikely)"),
    ("temperature-fail", 90, 20, 150, "°C from which it is hot, without a vendor's limit (hotFail)"),
    ("memory-temperature", 95, 20, 150, "°C from which memory is warm (memoryHotWarn)"),
    ("memory-temperature-fail", 105, 20, 150, "°C from which memory is hot, likewise (memoryHotFail)"),
    ("margin", 5, 0, 60, "°C below a vendor's limit from which a GPU is warm (hotMargin)"),
    ("hysteresis", 5, 0, 60, "°C that it must cool down to leave a class (hotLeaveMargin)"),
    ("sw-thermal-seconds", 5, 0, 60, "software thermal slowdown within a minute (swThermalWarnSeconds)"),
    ("hw-thermal-seconds", 1, 0, 60, "hardware thermal slowdown within a minute (hwThermalWarnSeconds)"),
    ("power-brake-seconds", 1, 0, 60, "power brake within a minute (powerBrakeWarnSeconds)"),
    ("throttle-share", 0.01, 0, 1, "share of a minute below which a slowdown is over (windowWarnShare)"),
    ("corrected-per-minute", 60, 1, 1e9, "corrected memory errors that are a change"),
    ("feed-window", 120, 0, 3600, "seconds of one window of what GPUs wait for; 0 for none"),
    ("feed-interval", 3600, 60, 86_400, "seconds after which such a window is told if nothing changed"),
)
"""Option, default, smallest and largest value, meaning (with the judge's threshold)."""


def add_to(parser: ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("watch")
    group.add_argument(
        "--state", metavar="FILE", default=DEFAULT_STATE, help=f"what was reported, default {DEFAULT_STATE}"
    )
    group.add_argument(
        "--confirm",
        metavar="S,S,...",
        default=CONFIRM,
        help=f"seconds from a report of something new to its confirmations, default {CONFIRM}",
    )
    for name, usual, _, _, meaning in NUMBERS:
        group.add_argument(
            f"--{name}", metavar="N", default=f"{usual:g}", help=f"{meaning}, default {usual:g}"
        )


def options_of(namespace: Namespace, *, number: Callable[..., float], bad: list[str]) -> Options:
    """The options; `number` parses one, and adds to `bad` what is wrong with it."""
    values = {
        name.replace("-", "_"): number(
            getattr(namespace, name.replace("-", "_")), f"--{name}", bad, low=low, high=high
        )
        for name, _, low, high, _ in NUMBERS
    }
    texts = [text for text in namespace.confirm.split(",") if text][: MOST_CONFIRMATIONS + 1]
    if len(texts) > MOST_CONFIRMATIONS:
        bad.append(f"--confirm: more than {MOST_CONFIRMATIONS} numbers")
    confirm = tuple(number(text, "--confirm", bad, low=0, high=86_400) for text in texts)
    return Options(state=Path(namespace.state), confirm=confirm, **values)
