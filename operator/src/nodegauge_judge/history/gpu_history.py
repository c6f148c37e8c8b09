"""What is remembered of one GPU between two runs, and how it is written small.

Three kinds: how many NVLinks it has been seen with (a direct mesh has no siblings to compare with), where its
counters stood (they are judged by growth, never by value), and on which rows it was bad when it last ran
under load.  No rules of judging here; `growth` compares, `answers` decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import astuple

GIVE_UP_AFTER = 3
"""Lower readings in a row that replace a sum which was seen only once.  Own."""
WARM_LIMIT = 8
"""Loaded runs that `warm` can hold."""
LOAD_ROWS = ("hot", "memory-hot", "sw-thermal-slowdown", "hw-slowdown", "slow-clock", "pcie-narrow")
"""Rows that are judged under load alone, in the order of their bits; append, never reorder."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
_MOST = 2**63 - 1


class LinkMemory(Struct, frozen=True, array_like=True):
    """The link sum to compare with, whether two readings confirmed it, and the readings that differ from it:
    `rival` was seen `times` in a row (0 for none).

    - A lower reading never lowers a confirmed sum: that would forget the fault.
    - A higher reading raises it only when it comes twice in a row: one bad reading must not degrade for good.
    - The very first reading counts at once, but only a second confirms it; three lower ones replace it.
    """

    sum: int
    confirmed: bool = False
    rival: int = 0
    times: int = 0

    def after(self, reading: int) -> LinkMemory:
        """The memory once `reading` has been seen as well."""
        if reading == self.sum:
            return LinkMemory(self.sum, True)
        above = reading > self.sum
        repeated = self.times > 0 and (self.rival > self.sum) == above
        if above and repeated:
            return LinkMemory(min(self.rival, reading), True)
        if above:
            return LinkMemory(self.sum, True, reading, 1)
        if self.confirmed:
            return LinkMemory(self.sum, True)
        times = self.times + 1 if repeated else 1
        rival = max(self.rival, reading) if repeated else reading
        return (
            LinkMemory(rival, True) if times >= GIVE_UP_AFTER else LinkMemory(self.sum, False, rival, times)
        )


class PortMemory(Struct, frozen=True):
    """A network port when it was last up: its error counters added up and how often it lost its link, null
    where that is not known, and the highest rate that it has been seen with in tenths of Gb/s, 0 for none (a
    lower one does not lower it: that would forget the fault)."""

    errors: int | None = None
    rate: int = 0
    downs: int | None = None

    def packed(self) -> str:
        """As `GpuMemory.packed`."""
        return f"{_digits(self.errors)}.{_digits(self.rate)}.{_digits(self.downs)}".rstrip(".")

    @classmethod
    def unpacked(cls, text: str) -> PortMemory:
        """The memory that `packed` wrote; ValueError for anything else."""
        errors, rate, *downs = text.split(".")  # what an earlier version wrote ends there
        if len(downs) > 1:
            raise ValueError(f"more than a port has: {text[:20]}")
        return cls(_number(errors), _number(rate) or 0, _number("".join(downs)))


class Counts(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where a GPU's counters stood, null for what could not be read; units in the names.

    Milliseconds for nanoseconds and centijoules for millijoules: no rule looks closer, and a report has room
    for this.  `link_errors`: NVLink CRC (flit and data), replay and recovery errors, added up.
    """

    energy_cj: int | None = None
    sw_power_cap_ms: int | None = None
    sync_boost_ms: int | None = None
    sw_thermal_ms: int | None = None
    hw_thermal_ms: int | None = None
    power_brake_ms: int | None = None
    thermal_violation_ms: int | None = None
    low_utilization_ms: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    pcie_replays: int | None = None
    pcie_correctable: int | None = None
    link_errors: int | None = None
    link_recovery_failed: int | None = None


class GpuMemory(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU's past.

    `idle_dw`: tenths of a watt, the lowest mean over a window in which the driver called it idle.  `bad`:
    rows of `LOAD_ROWS` on which it was bad when it was last judged.  `warm`: its last runs under load, newest
    last, "1" for one at a temperature at which throttling is likely, "0" for a cooler one.
    """

    links: LinkMemory = LinkMemory(0)
    counts: Counts = Counts()
    idle_dw: int | None = None
    bad: tuple[str, ...] = ()
    warm: str = ""

    def packed(self) -> str:
        """Numbers in base 64 (`_DIGITS`) with dots between them, nothing for null."""
        bits = sum(1 << LOAD_ROWS.index(row) for row in self.bad)
        links = (self.links.sum, int(self.links.confirmed), self.links.rival, self.links.times)
        head = (*(number or None for number in links), self.idle_dw, bits or None)
        warm = int("1" + self.warm, 2) if self.warm else None
        return ".".join(_digits(number) for number in (*head, warm, *astuple(self.counts))).rstrip(".")

    @classmethod
    def unpacked(cls, text: str) -> GpuMemory:
        """The memory that `packed` wrote; ValueError for anything else."""
        numbers: list[int | None] = [_number(part) for part in text.split(".")]
        numbers += [None] * (7 + len(Counts.__struct_fields__) - len(numbers))
        total, confirmed, rival, times, idle, bits, warm = numbers[:7]
        counts: Sequence[int | None] = numbers[7:]
        return cls(
            links=LinkMemory(total or 0, bool(confirmed), rival or 0, times or 0),
            counts=Counts(**dict(zip(Counts.__struct_fields__, counts, strict=True))),
            idle_dw=idle,
            bad=tuple(row for place, row in enumerate(LOAD_ROWS) if (bits or 0) >> place & 1),
            warm=f"{warm:b}"[1:][-WARM_LIMIT:] if warm else "",
        )


def _digits(number: int | None) -> str:
    if number is None:
        return ""
    digits = ""
    while number or not digits:
        number, rest = divmod(number, len(_DIGITS))
        digits = _DIGITS[rest] + digits
    return digits


def _number(text: str) -> int | None:
    """The number that `_digits` wrote; ValueError for one that no counter can have."""
    if not text:
        return None
    number = 0
    for digit in text:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
        if number > _MOST:
            raise ValueError(f"more than any counter says: {text[:20]}...")
    return number
