"""How a machine's supplies share its load, what happens to 12 V meanwhile, and when they give up.

Equal supplies share the load equally, as current sharing makes them.  One that must give more than it can
switches off, and its share goes to the others; when none is left, the machine is off.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

RAIL_VOLTS = 12.2
"""At the outputs without load.  Chosen by this project: what server supplies are set to, as in profile
hgx-a100-4."""
DROOP = 0.015
"""Share of the volts that is missing at full load.  Chosen by this project, within the 5 % that Intel's ATX
3.0 guide (336521, table 3-5) allows."""
WEAK_DROOP = 0.16
"""The same of a supply that ages: below 11.4 V before its capacity is reached.  Chosen by this project."""
EFFICIENCY = 0.94
"""Output by input at half load: 80 PLUS Platinum, 230 V internal redundant."""


class Trouble(Enum):
    """What is wrong with a supply."""

    REMOVED = "removed"
    FAILED = "failed"
    NO_INPUT = "no-input"
    WEAK = "weak"


@dataclass(frozen=True, kw_only=True)
class Supply:
    """One supply now: watts that it gives and takes, volts at its output (0 while it gives nothing)."""

    trouble: Trouble | None
    gave_up: bool
    output_watts: float
    input_watts: float
    volts: float


def share(
    draw: float, *, count: int, watts: float, troubles: Mapping[int, tuple[Trouble, float]]
) -> list[Supply]:
    """`count` supplies of `watts` each under a load of `draw` watts (DC).

    `troubles`: what is wrong with some, and the share of its watts that a weak one still gives.
    """
    capacity = [watts * _left(troubles.get(number)) for number in range(count)]
    gave_up: set[int] = set()
    while True:
        giving = [n for n in range(count) if capacity[n] > 0 and n not in gave_up]
        each = draw / len(giving) if giving else 0.0
        over = {n for n in giving if each > capacity[n]}
        if not over:
            break
        gave_up |= {min(over, key=lambda n: (capacity[n], n))}
    return [
        _supply(
            troubles.get(n, (None, 1.0))[0],
            output=each if n in giving else 0.0,
            capacity=capacity[n],
            gave_up=n in gave_up,
        )
        for n in range(count)
    ]


def is_on(supplies: Sequence[Supply]) -> bool:
    """Whether any supply carries the machine."""
    return any(one.volts > 0 for one in supplies)


def rail(supplies: Sequence[Supply]) -> float:
    """Volts of the common 12 V rail behind the supplies that give; 0 where the machine is off."""
    volts = [one.volts for one in supplies if one.volts > 0]
    return sum(volts) / len(volts) if volts else 0.0


def _left(trouble: tuple[Trouble, float] | None) -> float:
    """Share of its watts that a supply can give."""
    if trouble is None:
        return 1.0
    return trouble[1] if trouble[0] is Trouble.WEAK else 0.0


def _supply(trouble: Trouble | None, *, output: float, capacity: float, gave_up: bool) -> Supply:
    gives = capacity > 0 and not gave_up
    droop = WEAK_DROOP if trouble is Trouble.WEAK else DROOP
    return Supply(
        trouble=trouble,
        gave_up=gave_up,
        output_watts=output,
        input_watts=output / EFFICIENCY,
        volts=RAIL_VOLTS * (1 - droop * output / capacity) if gives else 0.0,
    )
