"""What a rule about a chassis looks at: the reading, and which supplies carry which load.

A BMC's own number of needed supplies is the number "for this group to be redundant" (DMTF DSP0268,
`MinNeededInGroup`) and often nonsense, so what is needed is computed from capacity and load.  Nothing is
computed from a capacity that the BMC does not state.
"""

from __future__ import annotations

import math
import re
from functools import cached_property

from msgspec import Struct

from nodegauge_contract.chassis import IPMI, ZERO_WATTS, BoardGpu, ChassisReading, Supply
from nodegauge_judge.case import number, text
from nodegauge_judge.rule import Rule
from nodegauge_judge.thresholds import Thresholds

MAX_WATTS = 1e6
"""More than any machine or rack draws.  Chosen by this project."""
BROKEN_STATES = frozenset({"UnavailableOffline", "Disabled", "Deferring", "Starting"})
"""States of a supply that is there and carries nothing (Redfish `Resource.State`).  `StandbyOffline` and
`StandbySpare` are spares at rest."""
NO_INPUT = frozenset({"LossOfInput", "OutOfRange"})
"""Redfish `LineInputStatus` of a supply without usable input."""
_FILLER = re.compile(r"^PWS-DF|\b(dummy|filler|blank)\b", re.IGNORECASE)
"""Models of what closes an empty bay; Supermicro's BMCs list such a part as enabled and OK."""


class ChassisCase(Struct, frozen=True, kw_only=True, dict=True):
    """One judgement's inputs.

    `needed`: supplies that carry the machine under full load, if its owner says so.
    """

    reading: ChassisReading
    thresholds: Thresholds
    needed: int | None = None

    @property
    def is_off(self) -> bool:
        """Whether the machine is known to be off."""
        return self.reading.power_on is False

    @cached_property
    def installed(self) -> list[Supply]:
        """Supplies that are there, or may be."""
        return [supply for supply in self.reading.supplies if not is_absent(supply)]

    @cached_property
    def working(self) -> list[Supply]:
        """Installed supplies that carry load or could."""
        return [supply for supply in self.installed if not is_broken(supply) and not self.is_silent(supply)]

    @cached_property
    def unread(self) -> list[Supply]:
        """Supplies that the BMC lists and gives no reading of."""
        return [supply for supply in self.installed if not is_broken(supply) and self.is_silent(supply)]

    def is_silent(self, supply: Supply) -> bool:
        """Whether nothing that was read of a supply says how it is: a health alone, or 0 W in every field, is
        what some BMCs give of an empty bay.  A size is enough where the BMC measures no supply at all; by
        IPMI a health is, for it comes from the supply's own sensor."""
        if _measured(supply) or (self.reading.source == IPMI and isinstance(supply.health, str)):
            return False
        zero = ZERO_WATTS in (supply.input_watts, supply.output_watts)
        return zero or number(supply.capacity_watts) is None or any(map(_measured, self.installed))

    @cached_property
    def capacity_each(self) -> float | None:
        """Watts of the smallest working supply; None unless every one states its size."""
        sizes = [_watts(supply.capacity_watts) or None for supply in self.working]
        known = [size for size in sizes if size is not None]
        return min(known) if known and len(known) == len(sizes) else None

    @cached_property
    def load(self) -> float | None:
        """Watts that the machine draws now: stated, or the sum of its supplies' outputs."""
        stated = _watts(self.reading.watts)
        if stated is not None:
            return stated
        outputs = [_watts(supply.output_watts) for supply in self.working]
        known = [watts for watts in outputs if watts is not None]
        return sum(known) if known and len(known) == len(outputs) else None

    @cached_property
    def peak(self) -> float | None:
        """Watts at full load of the GPUs: their limits, and what the rest of the machine draws now."""
        limits = _sum(self.reading.gpus, "limit_watts")
        draws = _sum(self.reading.gpus, "watts")
        if not limits or draws is None or self.load is None or draws > self.load:
            return None
        return self.load - draws + limits

    @cached_property
    def needed_now(self) -> int | None:
        """Supplies that carry the load at full power of the GPUs, or else the load of now; the owner's
        number, if that is larger."""
        watts = self.peak if self.peak is not None else self.load
        computed = None
        if watts is not None and self.capacity_each:
            computed = math.ceil(watts / self.capacity_each)
        known = [count for count in (computed, self.needed) if count is not None]
        return max(known) if known else None


ChassisRule = Rule[ChassisCase]
"""A rule about what a BMC says."""


def is_broken(supply: Supply) -> bool:
    """Whether the BMC calls the supply failed, or it has no input."""
    return is_failed(supply) or lost_input(supply)


def is_failed(supply: Supply) -> bool:
    """Whether the BMC calls the supply failed or switched off."""
    return supply.health == "Critical" or supply.state in BROKEN_STATES


def lost_input(supply: Supply) -> bool:
    """Whether the supply has no usable input."""
    return supply.line_input in NO_INPUT or number(supply.input_volts) == 0


def is_absent(supply: Supply) -> bool:
    """Whether the bay is empty, or closed by a part that is no supply."""
    filler = _FILLER.search(text(supply.model)) is not None and number(supply.capacity_watts) is None
    return supply.present is False or (filler and not _measured(supply))


def _measured(supply: Supply) -> bool:
    values = (supply.input_watts, supply.output_watts, supply.input_volts)
    return any(number(value) is not None for value in values) or isinstance(supply.line_input, str)


def _sum(gpus: list[BoardGpu], key: str) -> float | None:
    """The sum of one value over all GPUs; None unless every one has it."""
    known = [watts for gpu in gpus if (watts := _watts(getattr(gpu, key))) is not None]
    return sum(known) if known and len(known) == len(gpus) else None


def _watts(value: object) -> float | None:
    """The power, if it is one that a machine can have: whole watts come of it, and nothing is divided by less
    than one."""
    watts = number(value)
    return watts if watts is not None and (watts == 0 or 1 <= watts <= MAX_WATTS) else None
