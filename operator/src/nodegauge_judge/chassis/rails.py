"""Between which voltages a rail is right, and who says so: the BMC by bounds or a nominal voltage, or a name.

Sources: Intel's ATX 3.0 design guide (336521), table 3-5, for the tolerance of a stated 3.3, 5 or 12 V (the
policy's `railLow` and `railHigh`); ETSI EN 300 132-2, normal service voltage of a nominal 48 V, for busbars:
Open Rack V3's (48 to 51 V, 47.5 V from batteries) and those of 54 V lie within it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from nodegauge_contract.chassis import Rail
from nodegauge_judge.case import number
from nodegauge_judge.thresholds import Thresholds

BUSBAR = (40.5, 57.0)
"""V that a busbar of 48 or 54 V may have."""
BUSBARS = (48.0, 54.0)
"""Their nominal volts."""
FEEDS_GPUS = (12.0, *BUSBARS)
"""Nominal volts of rails that feed GPUs."""
BOUNDS_SHARE = 0.25
"""Bounds of a rail lie within this share of its nominal voltage.  Chosen by this project: the widest seen
are 17 %."""
PLAUSIBLE_SHARE = 0.4
"""A reading further outside its bounds is a sensor without a scale, not a rail: the machine would be off.
Chosen by this project."""
_NAMED = re.compile(
    r"(?<![A-Z0-9.])[+PV]?(?:(3V3)|(3\.3|5|12|48|54)(?:\.0+)?(?:V0?(?:SB|CC|STBY|AUX)?| V))(?![A-Z0-9.])",
    re.IGNORECASE,
)
"""A nominal voltage as a whole word of a rail's name: `12V`, `P12V_AUX`, `3V3`, `+5VSB`, `48 V`; none in
`S5 V` or `12 VAUX`."""
_OUTPUT = re.compile(r"output \d+$")
"""A supply's output, as the reader names it."""


class Bounds(Struct, frozen=True, kw_only=True):
    """Between which voltages a rail is right; None for a side without a bound."""

    low: float | None
    """V."""
    high: float | None
    """V."""
    feeds_gpus: bool
    """Whether it is a rail of 12, 48 or 54 V."""

    @property
    def text(self) -> str:
        """`10.80 to 13.20 V`."""
        if self.low is None or self.high is None:
            return f"at most {self.high:.2f} V" if self.low is None else f"at least {self.low:.2f} V"
        return f"{self.low:.2f} to {self.high:.2f} V"

    def distance(self, volts: float) -> float:
        """How far outside a reading is, as a share of it; negative inside."""
        below = self.low - volts if self.low is not None else -volts
        above = volts - self.high if self.high is not None else -volts
        return max(below, above) / volts

    def has(self, volts: float) -> bool:
        """Whether a reading can be of this rail in a machine that runs."""
        low, high = (self.low or 0.0) * (1 - PLAUSIBLE_SHARE), self.high
        return low <= volts and (high is None or volts <= high * (1 + PLAUSIBLE_SHARE))

    def excludes(self, volts: float | None) -> bool:
        """Whether a reading is of this rail and outside."""
        return volts is not None and volts > 0 and self.has(volts) and self.distance(volts) > 0


def stated(rail: Rail, thresholds: Thresholds) -> Bounds | None:
    """The bounds that the BMC states, or that follow from the nominal voltage that it states; None for
    neither."""
    low, high = number(rail.low_critical_volts) or None, number(rail.high_critical_volts) or None
    nominal = number(rail.nominal_volts) or None
    if low is not None and high is not None and low >= high:
        low = high = None
    if low is None and high is None:
        return None if nominal is None else of_nominal(nominal, thresholds)
    feeds = any(_is_around(volts, low, high) for volts in FEEDS_GPUS)
    return Bounds(low=low, high=high, feeds_gpus=feeds)


def guessed(rail: Rail, thresholds: Thresholds) -> Bounds | None:
    """The bounds that the rail's name suggests; None if it suggests none."""
    nominal = _named(rail)
    return None if nominal is None else of_nominal(nominal, thresholds)


def of_nominal(nominal: float, thresholds: Thresholds) -> Bounds:
    """The usual tolerance of a nominal voltage."""
    if BUSBARS[0] <= nominal <= BUSBARS[1]:
        return Bounds(low=BUSBAR[0], high=BUSBAR[1], feeds_gpus=True)
    low, high = nominal * (1 - thresholds.rail_low), nominal * (1 + thresholds.rail_high)
    feeds = _is_around(12.0, low, high)
    return Bounds(low=round(low, 3), high=round(high, 3), feeds_gpus=feeds)


def feeds_gpus(rail: Rail, thresholds: Thresholds) -> bool:
    """Whether a rail feeds GPUs, as far as is known: a gate is only left while all of them are read."""
    bounds = stated(rail, thresholds) or guessed(rail, thresholds)
    volts = number(rail.volts)
    return bounds is not None and bounds.feeds_gpus and (not volts or bounds.has(volts))


def _is_around(nominal: float, low: float | None, high: float | None) -> bool:
    below = low is None or nominal * (1 - BOUNDS_SHARE) <= low < nominal
    above = high is None or nominal < high <= nominal * (1 + BOUNDS_SHARE)
    return below and above


def _named(rail: Rail) -> float | None:
    """The voltage that the rail's name says it has; 12 V at the output of a supply that reads near it."""
    match = _NAMED.search(rail.name)
    if match is not None:
        return 3.3 if match[1] else float(match[2])
    volts = number(rail.volts)
    return 12.0 if _OUTPUT.search(rail.name) and volts is not None and 9.0 <= volts <= 15.0 else None
