"""What a BMC says about its machine: supplies, redundancy, rails, fans, temperatures, leaks, GPUs, its clock.

One document for every vendor and protocol, so that one judge judges it.  Numbers carry their unit in the
name.  A value that the BMC does not have, or that cannot be true (`unavailable: reason`), is never replaced:
no size of a supply is inferred from its model or its load.  Names of states and healths are Redfish's
(DMTF DSP0268, `Resource.State` and `Resource.Health`).
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract.values import NOT_READ, Flag, Num, Short, Str, Text

MAJOR = 1
REDFISH, IPMI = "redfish", "ipmi"
"""Protocols of a reading (`source`).  A reading by IPMI is trusted less: nobody's identity is proved, and its
sensors say less."""
POWER, THERMAL, HARDWARE, SOFTWARE = ("power", "thermal", "hardware", "software")
"""What slows a GPU down, as boards count it: its power limit (also under honest load), its temperature,
protection in hardware (heat or the power brake), and limits that software sets."""


class Supply(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One power supply.  `present` false: its bay is empty.  `state` and `health` are the BMC's own words,
    `line_input` too (`Normal`, `LossOfInput`, `OutOfRange`)."""

    name: Short
    serial: Text = NOT_READ
    model: Text = NOT_READ
    present: Flag = NOT_READ
    state: Text = NOT_READ
    health: Text = NOT_READ
    line_input: Text = NOT_READ
    capacity_watts: Num = NOT_READ
    input_watts: Num = NOT_READ
    output_watts: Num = NOT_READ
    input_volts: Num = NOT_READ


class Redundancy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A group of supplies as the BMC states it: `needed` of `members` carry the machine."""

    name: Short
    members: list[Short] = []
    needed: Num = NOT_READ
    state: Text = NOT_READ
    health: Text = NOT_READ


class Rail(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A voltage behind the supplies, in volts, with the bounds that the BMC gives it."""

    name: Short
    volts: Num = NOT_READ
    low_critical_volts: Num = NOT_READ
    high_critical_volts: Num = NOT_READ
    health: Text = NOT_READ


class Fan(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fan: revolutions per minute or per cent, whichever the BMC has, and its lower bound in rpm."""

    name: Short
    rpm: Num = NOT_READ
    percent: Num = NOT_READ
    low_critical_rpm: Num = NOT_READ
    present: Flag = NOT_READ
    state: Text = NOT_READ
    health: Text = NOT_READ


class AirTemperature(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Temperature of the air that enters (`inlet` true) or leaves the machine, °C, with the BMC's bounds."""

    name: Short
    inlet: bool
    celsius: Num = NOT_READ
    high_caution_celsius: Num = NOT_READ
    high_critical_celsius: Num = NOT_READ
    health: Text = NOT_READ


class LeakDetector(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A leak detector: `state` is `OK`, `Warning` or `Critical` (Redfish `DetectorState`)."""

    name: Short
    state: Text = NOT_READ
    enabled: Flag = NOT_READ


class BoardGpu(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A GPU as its baseboard's BMC sees it, also while driver and operating system are down.

    `ports`: NVLink ports it has; `ports_up`: those whose link is up; `port_gbps`: Gbit/s of the slowest of
    these.  `throttle_reasons`: the BMC's words, of now.  `celsius`: the GPU's own temperature;
    `memory_celsius`: that of the hottest part of its memory.  `throttled_seconds`: how long each cause
    slowed it down since the BMC began to count; `throttled_lately_seconds`: how much of that came since the
    reading before (`ChassisReading.since_seconds`).
    """

    name: Short
    serial: Text = NOT_READ
    uuid: Text = NOT_READ
    state: Text = NOT_READ
    health: Text = NOT_READ
    watts: Num = NOT_READ
    limit_watts: Num = NOT_READ
    ports: Num = NOT_READ
    ports_up: Num = NOT_READ
    port_gbps: Num = NOT_READ
    throttle_reasons: list[Short] = []
    celsius: Num = NOT_READ
    memory_celsius: Num = NOT_READ
    throttled_seconds: dict[Short, float] = {}
    throttled_lately_seconds: dict[Short, float] = {}


class BmcClock(Struct, frozen=True, kw_only=True, rename="camel"):
    """The clock of one management controller: its time (ISO 8601), and that time less ours in seconds."""

    name: Short
    time: Text = NOT_READ
    skew_seconds: Num = NOT_READ


class Unread(Struct, frozen=True, kw_only=True):
    """A resource that the BMC names and did not give, and why."""

    path: Str
    reason: Str


class ChassisReading(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Everything that one reading of one BMC gave.

    `watts`: what the machine draws now; `capacity_watts`: what the BMC says its supplies may give.
    `lists_supplies`: whether a list of supplies was read, be it empty (the supplies of a rack shelf are in no
    server's list).  `seconds` and `requests`: what the reading took.  `since_seconds`: the time since the
    reading before, if its reader has one.
    """

    major: int = MAJOR
    source: Short = REDFISH
    vendor: Text = NOT_READ
    product: Text = NOT_READ
    serial: Text = NOT_READ
    power_on: Flag = NOT_READ
    watts: Num = NOT_READ
    capacity_watts: Num = NOT_READ
    lists_supplies: bool = False
    supplies: list[Supply] = []
    redundancy: list[Redundancy] = []
    rails: list[Rail] = []
    fans: list[Fan] = []
    air: list[AirTemperature] = []
    leaks: list[LeakDetector] = []
    gpus: list[BoardGpu] = []
    clocks: list[BmcClock] = []
    seconds: Num = NOT_READ
    requests: int = 0
    unread: list[Unread] = []
    since_seconds: Num = NOT_READ
