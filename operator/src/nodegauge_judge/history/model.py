"""What a report keeps of earlier runs: links, counters and bad rules of each GPU, and ports that were up.

A report stores it as text, so it must be small (`LIMIT`) and must survive being cut, edited or written by
another version: what cannot be read counts as nothing, and what does not fit is dropped in a fixed order
(`trimmed`).  GPUs are keyed by the start of their UUID, since NVML's index may change at a reboot.  A
replaced GPU has a new UUID and starts with an empty history.  Deleting the NodeReport deletes the history.

`update` decides what is kept, `growth` compares counters; nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, astuple, replace

from nodegauge_judge.history.packing import countable, from_digits, joined, pairs, to_digits
from nodegauge_judge.history.xid_times import XidHistory, newest

LIMIT = 2048
"""Bytes of JSON that a report keeps for this.  Chosen by this project, for a report below 8 KiB; 16 GPUs need
about 1.8 KB."""
SHORT = 8
"""Characters of a UUID that are its key; the whole UUID, if these are not unique on the node."""
_PREFIX = "GPU-"
_Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
GIVE_UP_AFTER = 3
"""Lower readings in a row that replace a sum which was seen only once.  Chosen by this project: two could be
one slow start."""
WARM_LIMIT = 8
"""Runs under load that `warm` holds."""
FEW_XIDS = 16
"""Times of all Xids together that are kept where there is little room; half of them where there is less.
Chosen by this project."""


class LinkHistory(Struct, frozen=True, array_like=True):
    """The link sum to compare with, whether two readings confirmed it, and a different reading: `rival`, seen
    `times` in a row (0 for none).

    - A confirmed sum is never lowered: that would forget the fault.
    - Two higher readings in a row raise it; a single one may be a misreading.
    - The first reading counts at once and is confirmed by a second; three lower ones replace it.
    """

    sum: int
    confirmed: bool = False
    rival: int = 0
    times: int = 0

    def after(self, reading: int) -> LinkHistory:
        """The history with one more reading."""
        if reading == self.sum:
            return LinkHistory(self.sum, True)
        above = reading > self.sum
        repeated = self.times > 0 and (self.rival > self.sum) == above
        if above and repeated:
            return LinkHistory(min(self.rival, reading), True)
        if above:
            return LinkHistory(self.sum, True, reading, 1)
        if self.confirmed:
            return LinkHistory(self.sum, True)
        times = self.times + 1 if repeated else 1
        rival = max(self.rival, reading) if repeated else reading
        return (
            LinkHistory(rival, True) if times >= GIVE_UP_AFTER else LinkHistory(self.sum, False, rival, times)
        )


PORT_COUNTERS = (
    "integrity_errors",
    "overruns",
    "recoveries",
    "discards",
    "ack_timeouts",
    "receiver_not_ready",
)
"""Counters of a port that have thresholds of their own (`rules.nics`), in the order of stored histories."""


class PortHistory(Struct, frozen=True):
    """A network port when it was last up."""

    errors: int | None = None
    """Sum of its error counters; None if unknown."""
    rate: int = 0
    """Highest rate, tenths of Gb/s; 0 for none.  A lower one does not replace it: that would forget the
    fault."""
    downs: int | None = None
    """How often it lost its link; None if unknown."""
    counts: tuple[int | None, ...] = ()
    """Its other counters, in the order of `PORT_COUNTERS`; None where unknown."""

    def packed(self) -> str:
        """As `GpuHistory.packed`."""
        numbers = (self.errors, self.rate, self.downs, *self.counts)
        return ".".join(map(to_digits, numbers)).rstrip(".")

    @classmethod
    def unpacked(cls, text: str) -> PortHistory:
        """The history that `packed` wrote; ValueError for anything else."""
        errors, rate, *others = text.split(".")  # what an earlier version wrote ends there
        if len(others) > 1 + len(PORT_COUNTERS):
            raise ValueError(f"more than a port has: {text[:20]}")
        downs, *counts = map(from_digits, others or ("",))
        return cls(from_digits(errors), from_digits(rate) or 0, downs, tuple(counts))


class Counts(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A GPU's counters at the last run, None if unreadable.  Milliseconds and centijoules save space in the
    report, and no rule needs more."""

    energy_cj: int | None = None
    """Energy, hundredths of a joule."""
    sw_power_cap_ms: int | None = None
    """Clocks held down by the power limit, ms."""
    sync_boost_ms: int | None = None
    """By a sync boost group, ms."""
    sw_thermal_ms: int | None = None
    """Software thermal slowdown, ms."""
    hw_thermal_ms: int | None = None
    """Hardware thermal slowdown, ms."""
    power_brake_ms: int | None = None
    """Power brake, ms."""
    thermal_violation_ms: int | None = None
    """Clocks held down by temperature, ms."""
    low_utilization_ms: int | None = None
    """Clocks low for want of work, ms."""
    ecc_uncorrected: int | None = None
    """Uncorrected memory errors since driver load."""
    ecc_corrected: int | None = None
    """Corrected memory errors since driver load."""
    pcie_replays: int | None = None
    """Packets sent again over PCIe."""
    pcie_correctable: int | None = None
    """Correctable errors of the PCIe link."""
    link_crc: int | None = None
    """NVLink CRC errors, flit and data; on NVLink 5, which corrects errors, those that it let through."""
    link_faults: int | None = None
    """NVLink replays and recoveries; on NVLink 5 recoveries, faulty packets and integrity errors."""


class GpuHistory(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU's past."""

    links: LinkHistory = LinkHistory(0)
    """Sum of its NVLinks to compare with."""
    counts: Counts = Counts()
    """Its counters at the last run."""
    idle_dw: int | None = None
    """Tenths of a watt: the lowest mean over a window in which the driver called it idle; None if unknown."""
    bad: int = 0
    """One bit (`Rule.history_bit`) per rule on which it was bad when it was last judged under load."""
    warm: str = ""
    """Its last runs under load, newest last: "1" at a temperature at which throttling is likely, else "0"."""
    braked: int = 0
    """Runs in a row, up to this one, in which the power brake was on."""
    pages: int | None = None
    """Pages that were retired for double bit errors `pages_minutes` ago; None if unknown."""
    pages_minutes: int = 0
    """Minutes since the start of the 30 days that are being watched."""

    def countable(self) -> GpuHistory:
        """Without numbers that no counter can have: a document may hold any."""
        return replace(
            self,
            counts=Counts(**{name: countable(count) for name, count in asdict(self.counts).items()}),
            idle_dw=countable(self.idle_dw),
            pages=countable(self.pages),
        )

    def packed(self) -> str:
        """Numbers in base 64 (`packing`) with dots between them, nothing for None; new ones at the end."""
        links = (self.links.sum, int(self.links.confirmed), self.links.rival, self.links.times)
        head = (*(number or None for number in links), self.idle_dw, self.bad or None)
        warm = int("1" + self.warm, 2) if self.warm else None
        tail = (self.braked or None, self.pages, self.pages_minutes or None)
        return ".".join(map(to_digits, (*head, warm, *astuple(self.counts), *tail))).rstrip(".")

    @classmethod
    def unpacked(cls, text: str) -> GpuHistory:
        """The history that `packed` wrote; ValueError for anything else."""
        numbers: list[int | None] = [from_digits(part) for part in text.split(".")]
        end = 7 + len(Counts.__struct_fields__)
        numbers += [None] * (end + 3 - len(numbers))
        total, confirmed, rival, times, idle, bad, warm = numbers[:7]
        counts: Sequence[int | None] = numbers[7:end]
        braked, pages, minutes = numbers[end:]
        return cls(
            links=LinkHistory(total or 0, bool(confirmed), rival or 0, times or 0),
            counts=Counts(**dict(zip(Counts.__struct_fields__, counts, strict=True))),
            idle_dw=idle,
            bad=bad or 0,
            warm=f"{warm:b}"[1:][-WARM_LIMIT:] if warm else "",
            braked=braked or 0,
            pages=pages,
            pages_minutes=minutes or 0,
        )


class ClockHistory(Struct, frozen=True):
    """The highest SM clock at which the node's GPUs were seen at work."""

    settings: str
    """Digest of their model and settings, for which it counts."""
    mhz: int
    """MHz."""


class Reported(Struct, frozen=True):
    """Up to when Xids of a boot are known."""

    boot: str
    """Digest of the boot's id."""
    at: int
    """`at` of the last report of a watch container, seconds since boot."""


class _Written(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A `History` as a report holds it; texts are packed (`packing`)."""

    boot: str = ""
    """As `History.boot`."""
    driver: str = ""
    """As `History.driver`."""
    at: _Whole | None = None
    """`History.boottime_ms`."""
    gpus: str | dict[str, str] = ""  # a mapping in what an earlier version wrote
    """`GpuHistory.packed` by key; a mapping in what an earlier version wrote."""
    ports: str = ""
    """`PortHistory.packed` by `device/port`."""
    clock: str = ""
    """Settings and MHz."""
    foreign: Annotated[int, Meta(ge=0, le=4096)] = 0
    """As `History.foreign`."""
    booted: _Whole = 0
    """As `History.booted`."""
    xids: str = ""
    """Packed times by GPU and code."""
    reported: str = ""
    """Boot and second."""
    answered: str = ""
    """As `History.answered`."""


class History(Struct, frozen=True, omit_defaults=True, kw_only=True, dict=True):
    """What the next judgement needs of earlier runs."""

    boot: str = ""
    """Boot id of the last clean reading."""
    driver: str = ""
    """Driver version of that reading."""
    boottime_ms: int | None = None
    """Its CLOCK_BOOTTIME, at which the counters of `gpus` and `ports` were read; None if unknown."""
    gpus: dict[str, GpuHistory] = {}
    """By `keys`; these are also the GPUs that the node is known to have."""
    ports: dict[str, PortHistory] = {}
    """NIC ports that have been up, by `device/port`."""
    clock: ClockHistory | None = None
    """None until the GPUs worked."""
    foreign: int = 0
    """GPUs of the bus that another driver served."""
    booted: int = 0
    """When the boot of the newest Xid began, in the seconds of their times."""
    xids: dict[str, XidHistory] = {}
    """Those that the policy counts, by GPU and code (`6f1c0de2 94`)."""
    reported: Reported | None = None
    """None before a watch container reported."""
    answered: str = ""
    """The values that every GPU gave under this driver (`coverage.remembered`)."""

    def encode(self) -> str:
        """JSON of at most `LIMIT` bytes."""
        written = self._written
        return (written if len(written) <= LIMIT else self.trimmed()._written).decode()

    @classmethod
    def decode(cls, text: str) -> History | None:
        """The history in `text`; None for no text or an unreadable one."""
        try:
            written = msgspec.json.decode(text, type=_Written) if text else None
            packed = pairs(written.gpus) if written else {}
            gpus = {key: GpuHistory.unpacked(text) for key, text in packed.items()}
            packed = pairs(written.ports) if written else {}
            ports = {key: PortHistory.unpacked(text) for key, text in packed.items()}
            seen = pairs(written.clock) if written else {}
            packed = pairs(written.xids) if written else {}
            xids = {key: XidHistory.unpacked(text) for key, text in packed.items()}
            last = pairs(written.reported) if written else {}
            reported = next((Reported(key, from_digits(text) or 0) for key, text in last.items()), None)
            clock = next((ClockHistory(key, from_digits(text) or 0) for key, text in seen.items()), None)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            return None
        if written is None:
            return None
        return cls(
            boot=written.boot,
            driver=written.driver,
            boottime_ms=written.at,
            gpus=gpus,
            ports=ports,
            clock=clock,
            foreign=written.foreign,
            booted=written.booted,
            xids=xids,
            reported=reported,
            answered=written.answered,
        )

    def trimmed(self) -> History:
        """As much of it as fits into a report.  Dropped first are all but the newest Xids, then ports, then
        counters, then bad and warm, last Xids and links."""
        return next((history for history in self._less() if len(history._written) <= LIMIT), History())

    def _less(self) -> Iterator[History]:
        whole = replace(self, gpus={key: gpu.countable() for key, gpu in self.gpus.items()})
        yield whole
        whole = replace(whole, xids=newest(self.xids, FEW_XIDS))
        yield whole
        without = replace(whole, ports={})
        yield without
        yield replace(without, xids=newest(self.xids, FEW_XIDS // 2))
        counts = {key: replace(gpu, counts=Counts(), idle_dw=None) for key, gpu in whole.gpus.items()}
        yield replace(without, boottime_ms=None, gpus=counts)
        links = {key: GpuHistory(links=gpu.links) for key, gpu in self.gpus.items()}
        yield replace(without, boottime_ms=None, gpus=links)
        yield History(boot=self.boot, driver=self.driver, foreign=self.foreign, reported=self.reported)

    @cached_property
    def _written(self) -> bytes:
        return msgspec.json.encode(
            _Written(
                boot=self.boot,
                driver=self.driver,
                at=self.boottime_ms,
                gpus=joined(self.gpus),
                ports=joined(self.ports),
                clock=f"{self.clock.settings} {to_digits(self.clock.mhz)}" if self.clock else "",
                foreign=self.foreign,
                booted=self.booted,
                xids=joined(self.xids),
                reported=f"{self.reported.boot} {to_digits(self.reported.at)}" if self.reported else "",
                answered=self.answered,
            )
        )


def keys(uuids: Iterable[str]) -> Mapping[str, str]:
    """The key in `History.gpus` of each of a node's UUIDs."""
    every = set(uuids)
    short = {uuid: uuid.removeprefix(_PREFIX)[:SHORT] for uuid in every}
    return short if len(set(short.values())) == len(every) else {uuid: uuid for uuid in every}


def uuid_start(key: str) -> str:
    """The UUID of a key, or its start."""
    return key if key.startswith(_PREFIX) else _PREFIX + key
