"""What a reading of a BMC covers: each part of the machine is read, silent, absent or off.

A pass needs a supply and cooling that were really read, on a machine that is on.  Fans, pumps, or the leak
detectors of liquid cooling are cooling.  Where the supplies, or all fans, belong to a rack or an enclosure,
the machine must say so: it is a tray or a blade (Redfish `ChassisType`, or its model), its list is empty, and
what arrives is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from nodegauge_contract.chassis import DPU, IPMI, SHELF, AirTemperature, Fan, LeakDetector, Pump, Rail, Supply
from nodegauge_judge.case import clip, number, text
from nodegauge_judge.chassis.case import ChassisCase, ChassisRule, is_absent
from nodegauge_judge.model import NOT_READABLE, Severity
from nodegauge_judge.rule import Effect, Observation, Probe

TRAYS = frozenset({"Blade", "Drawer", "Shelf", "Sled"})
"""Redfish `ChassisType` of a machine that a rack or an enclosure may supply and cool."""
AT_REST = frozenset({"Disabled", "StandbyOffline", "StandbySpare"})
"""Redfish `Resource.State` of a part that is there and at rest."""
MAX_NAMED = 4
"""Silent parts that a line names; the rest is a number."""
_TRAY_MODEL = re.compile(r"\bG[BH]\d00 ?NVL|\bNVL ?(4|36|72|144)\b", re.IGNORECASE)
"""NVIDIA's racks whose trays are fed by a busbar."""


class Presence(StrEnum):
    """What a reading knows of one part: it says how it is; it is there and says nothing; its place is empty;
    it is at rest."""

    READ = "read"
    SILENT = "silent"
    ABSENT = "absent"
    OFF = "off"


class Covered(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The parts of one kind."""

    kind: str
    """Plural: `fans`."""
    read: int
    """Parts that say how they are."""
    silent: list[str] = []
    """Names of those that are there, or may be, and say nothing."""
    absent: int = 0
    """Empty places."""
    off: int = 0
    """Parts at rest, or switched off."""

    @property
    def text(self) -> str:
        """`5 of 6 fans (2 absent)`."""
        others = [f"{count} {word}" for count, word in ((self.absent, "absent"), (self.off, "off")) if count]
        shown = f" ({', '.join(others)})" if others else ""
        return f"{self.read} of {self.read + len(self.silent)} {self.kind}{shown}"


def of_chassis(case: ChassisCase) -> list[Covered]:
    """Supplies always, and each other kind of part that the BMC lists."""
    reading = case.reading
    supplies = _of(case, "supplies", ((supply.name, of_supply(case, supply)) for supply in reading.supplies))
    others = (
        _of(case, "fans", ((fan.name, of_fan(case, fan)) for fan in reading.fans)),
        _of(case, "pumps", ((pump.name, of_pump(pump)) for pump in reading.pumps)),
        _of(case, "rails", ((rail.name, of_rail(rail)) for rail in reading.rails)),
        _of(case, "inlets", ((air.name, of_air(air)) for air in reading.air if air.inlet)),
        _of(case, "leak detectors", ((leak.name, of_leak(leak)) for leak in reading.leaks)),
    )
    return [supplies, *(kind for kind in others if kind.text != f"0 of 0 {kind.kind}")]


def line(covered: Iterable[Covered]) -> str:
    """In one line, as `nodegauge_judge.coverage` has it for GPUs: `4 of 4 supplies, 11 of 12 fans. Not
    readable: fans: Fan 3`."""
    kinds = list(covered)
    counts = ", ".join(kind.text for kind in kinds)
    gaps = "; ".join(f"{kind.kind}: {_named(kind.silent)}" for kind in kinds if kind.silent)
    return f"{counts}{NOT_READABLE}{gaps}" if gaps else counts


def of_supply(case: ChassisCase, supply: Supply) -> Presence:
    """A supply says what it takes or gives, its input, or that it failed (`ChassisCase.is_silent`)."""
    if is_absent(supply):
        return Presence.ABSENT
    return Presence.SILENT if supply in case.unread else Presence.READ


def of_fan(case: ChassisCase, fan: Fan) -> Presence:
    """A fan says its speed.  0 rpm of a fan whose presence IPMI does not know may be an empty place, and in a
    machine that is off it is no news."""
    if (known := _absent_or_off(fan.present, fan.state)) is not None:
        return known
    speeds = [number(fan.rpm), number(fan.percent)]
    if case.is_off and not any(speeds):
        return Presence.OFF
    unknown = case.reading.source == IPMI and fan.present is not True and number(fan.low_critical_rpm) is None
    says = any(speeds) or (0 in speeds and not unknown)
    return Presence.READ if says else Presence.SILENT


def of_pump(pump: Pump) -> Presence:
    """A pump says its speed, or at least its health: many have no sensor of speed."""
    if (known := _absent_or_off(pump.present, pump.state)) is not None:
        return known
    says = number(pump.rpm) is not None or number(pump.percent) is not None or bool(text(pump.health))
    return Presence.READ if says else Presence.SILENT


def of_rail(rail: Rail) -> Presence:
    """0 V is no reading: a rail of a machine that is on has more."""
    return Presence.READ if number(rail.volts) else Presence.SILENT


def of_air(air: AirTemperature) -> Presence:
    """A sensor says its temperature."""
    return Presence.SILENT if number(air.celsius) is None else Presence.READ


def of_leak(leak: LeakDetector) -> Presence:
    """A detector that is switched on says its state."""
    if leak.enabled is False:
        return Presence.OFF
    return Presence.READ if text(leak.state) else Presence.SILENT


def is_tray(case: ChassisCase) -> bool:
    """Whether a rack or an enclosure may supply and cool the machine, by what it says of itself."""
    reading = case.reading
    return reading.form in TRAYS or _TRAY_MODEL.search(text(reading.product)) is not None


def is_fed(case: ChassisCase) -> bool:
    """Whether a supply was read; or the machine is a tray, lists no supply, and its draw is measured."""
    from_rack = is_tray(case) and case.reading.lists_supplies and not case.reading.supplies
    return len(case.installed) > len(case.unread) or (from_rack and bool(case.load))


def is_cooled(case: ChassisCase) -> bool:
    """Whether cooling was read: a fan, a pump or a leak detector, and no list of fans that are all absent; or
    the machine is a tray without fans, and the air that enters it was."""
    reading = case.reading
    parts = (
        *(of_fan(case, fan) for fan in reading.fans),
        *(of_pump(pump) for pump in reading.pumps),
        *(of_leak(leak) for leak in reading.leaks),
    )
    if reading.machine == SHELF and not reading.fans:  # its supplies have fans of their own
        return is_fed(case) and not any("Thermal" in unread.path for unread in reading.unread)
    air = not reading.fans and is_tray(case) and any(of_air(air) is Presence.READ for air in reading.air)
    emptied = bool(reading.fans) and all(of_fan(case, fan) is Presence.ABSENT for fan in reading.fans)
    return (Presence.READ in parts and not emptied) or air


def machine_off(case: ChassisCase) -> Iterator[Observation]:
    """A machine that is off: what stands still there is no fault, and no pass."""
    if case.is_off:
        message = "The machine is off, so its power and cooling cannot be judged."
        yield Observation(severity=Severity.WARN, location="node", message=message, evidence={})


def parts_unread(case: ChassisCase) -> Iterator[Observation]:
    """No supply or no cooling that was read, or a fan, pump or leak detector that is there and says nothing
    (`supplies-unread` has the supplies)."""
    if case.is_off:
        return
    covered = {kind.kind: kind for kind in of_chassis(case)}
    if not is_fed(case) and not case.unread:
        yield _unread("supplies", f"No power supply was read: {_why_no_supply(case)}.", covered)
    if not is_cooled(case):
        named = [kind.text for kind in covered.values() if kind.kind in ("fans", "pumps", "leak detectors")]
        shown = ", ".join(named) or "the BMC lists no fan, pump or leak detector"
        yield _unread("cooling", f"No cooling was read: {shown}.", covered)
        return
    reading = case.reading
    there = [fan.name for fan in reading.fans if fan.present is True and _is_silent(of_fan(case, fan))]
    there += [pump.name for pump in reading.pumps if pump.present is True and _is_silent(of_pump(pump))]
    there += [leak.name for leak in reading.leaks if leak.enabled is True and _is_silent(of_leak(leak))]
    if there:
        says = "says" if len(there) == 1 else "say"
        yield _unread("cooling", f"{_named([clip(name) for name in there])} {says} nothing.", covered)


def _unread(location: str, message: str, covered: dict[str, Covered]) -> Observation:
    read = clip(", ".join(kind.text for kind in covered.values()))
    return Observation(severity=Severity.WARN, location=location, message=message, evidence={"read": read})


def _why_no_supply(case: ChassisCase) -> str:
    reading = case.reading
    if reading.machine == DPU:
        return "this is the BMC of a DPU, and its host's BMC has them"
    if reading.source == IPMI and not reading.supplies:
        return "the BMC has no sensor of a power supply"
    if reading.supplies:
        return f"all {len(reading.supplies)} that the BMC lists are absent or empty"
    if not reading.lists_supplies:
        return "the BMC gives no list of them"
    return "the BMC's list of them is empty, and nothing else says what feeds the machine"


def _of(case: ChassisCase, kind: str, parts: Iterable[tuple[str, Presence]]) -> Covered:
    """Parts of one kind; those that are silent in a machine that is off are off."""
    listed = list(parts)
    silent = [clip(name) for name, presence in listed if _is_silent(presence)]
    states = [presence for _, presence in listed]
    return Covered(
        kind=kind,
        read=states.count(Presence.READ),
        silent=[] if case.is_off else silent,
        absent=states.count(Presence.ABSENT),
        off=states.count(Presence.OFF) + (len(silent) if case.is_off else 0),
    )


def _absent_or_off(present: object, state: object) -> Presence | None:
    """Whether the place is empty or the part at rest; None for a part that should say how it is."""
    if present is False:
        return Presence.ABSENT
    return Presence.OFF if state in AT_REST else None


def _is_silent(presence: Presence) -> bool:
    return presence is Presence.SILENT


def _named(names: list[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


RULES = (
    ChassisRule(
        code="machine-off",
        probe=Probe.BMC,
        title="the machine is off",
        meaning=(
            "The BMC says that the machine is off, or is being switched on or off. Fans, voltages and watts "
            "at 0 are then no fault, and no proof of health. Leaks and failed supplies still count."
        ),
        when={Severity.WARN: "a system's `PowerState` is other than On, or IPMI's chassis status is off"},
        next_step="switch it on and read it again.",
        way_out=(
            "Find out who switched it off: `ipmitool chassis status` and `ipmitool sel list`.",
            "Switch it on, and read it again once it runs.",
        ),
        check=machine_off,
        effect=Effect.UNJUDGED,
    ),
    ChassisRule(
        code="chassis-unread",
        probe=Probe.BMC,
        title="power or cooling was not read",
        meaning=(
            "A pass needs a supply and cooling that were really read. Fans, pumps and leak detectors are "
            "cooling. A tray or blade that lists no supplies passes if its power draw is measured; one that "
            "lists no fans, if its inlet air is."
        ),
        when={
            Severity.WARN: (
                "no supply or no cooling was read, or a fan, a pump or a leak detector that is there says "
                "nothing"
            )
        },
        next_step="compare with the BMC's web page; `--format json` shows every part.",
        way_out=(
            "Compare with the BMC's web page: it may not have read the part yet.",
            "Where the BMC has no such sensors, the node's own sensors are what is left.",
        ),
        check=parts_unread,
        effect=Effect.UNJUDGED,
    ),
)
