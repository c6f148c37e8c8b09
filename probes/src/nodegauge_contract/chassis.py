"""What a BMC says about its machine: supplies, redundancy, rails, fans, temperatures, leaks, GPUs, its clock.

One document for every vendor and protocol, so that one judge judges it.  Numbers carry their unit in the
name.  A value that the BMC does not have, or that cannot be true (`unavailable: reason`), is never replaced:
no size of a supply is inferred from its model or its load.  Names of states and healths are Redfish's
(DMTF DSP0268, `Resource.State` and `Resource.Health`).
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract.values import NOT_READ, Flag, Num, Short, Str, Text, Unavailable

MAJOR = 1
REDFISH, IPMI = "redfish", "ipmi"
"""Protocols of a reading (`source`).  A reading by IPMI is trusted less: nobody's identity is proved, and its
sensors say less."""
SERVER, DPU, SHELF = "server", "dpu", "power-shelf"
"""Whose BMC it is (`machine`).  A DPU has a BMC of its own and no supplies; a shelf has the supplies of a
rack's servers and no computer."""
ZERO_WATTS = Unavailable("0 W, which a BMC also says for want of a reading")
"""What stands for 0 W of a part: it says nothing of itself where others say what they carry."""
POWER, THERMAL, HARDWARE, SOFTWARE = ("power", "thermal", "hardware", "software")
"""What slows a GPU down, as boards count it: its power limit (also under honest load), its temperature,
protection in hardware (heat or the power brake), and limits that software sets."""


class Supply(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One power supply."""

    name: Short
    """Its label on the machine or its name; else its id."""
    serial: Text = NOT_READ
    """Serial number."""
    model: Text = NOT_READ
    """Model name."""
    present: Flag = NOT_READ
    """False: its bay is empty."""
    state: Text = NOT_READ
    """`Resource.State`, as `Enabled` or `Absent`."""
    health: Text = NOT_READ
    """`Resource.Health`: `OK`, `Warning` or `Critical`."""
    line_input: Text = NOT_READ
    """The BMC's word: `Normal`, `LossOfInput` or `OutOfRange`."""
    capacity_watts: Num = NOT_READ
    """Rated output, W, as the BMC states it."""
    input_watts: Num = NOT_READ
    """What it takes, W."""
    output_watts: Num = NOT_READ
    """What it gives, W."""
    input_volts: Num = NOT_READ
    """Voltage at its input, V."""


class Redundancy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A group of supplies as the BMC states it."""

    name: Short
    """Name of the group."""
    members: list[Short] = []
    """The supplies: last part of their addresses."""
    needed: Num = NOT_READ
    """How many of them carry the machine."""
    state: Text = NOT_READ
    """`Resource.State` of the group."""
    health: Text = NOT_READ
    """`Resource.Health` of the group."""


class Rail(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A voltage behind the supplies."""

    name: Short
    """The BMC's name."""
    volts: Num = NOT_READ
    """V."""
    nominal_volts: Num = NOT_READ
    """What it should have, V, as the BMC states it."""
    low_critical_volts: Num = NOT_READ
    """The BMC's lower bound, V."""
    high_critical_volts: Num = NOT_READ
    """The BMC's upper bound, V."""
    health: Text = NOT_READ
    """`Resource.Health`."""


class Fan(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A fan: the BMC has its speed in rpm or in per cent."""

    name: Short
    """The BMC's name."""
    rpm: Num = NOT_READ
    """Revolutions per minute; 0: it stands still."""
    percent: Num = NOT_READ
    """Per cent of its highest speed."""
    low_critical_rpm: Num = NOT_READ
    """The BMC's lower bound, rpm."""
    present: Flag = NOT_READ
    """False: its bay is empty."""
    state: Text = NOT_READ
    """`Resource.State`."""
    health: Text = NOT_READ
    """`Resource.Health`."""


class AirTemperature(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Temperature of the air that enters or leaves the machine."""

    name: Short
    """The BMC's name of the sensor."""
    inlet: bool
    """True: air that enters; false: air that leaves."""
    celsius: Num = NOT_READ
    """°C."""
    high_caution_celsius: Num = NOT_READ
    """The BMC's bound for a caution, °C."""
    high_critical_celsius: Num = NOT_READ
    """The BMC's critical bound, °C."""
    health: Text = NOT_READ
    """`Resource.Health`."""


class LeakDetector(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A detector of leaks of coolant."""

    name: Short
    """The BMC's name."""
    state: Text = NOT_READ
    """`OK`, `Warning` or `Critical` (Redfish `DetectorState`)."""
    enabled: Flag = NOT_READ
    """Whether it is switched on."""


class Pump(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pump of the liquid cooling (Redfish `Pump`)."""

    name: Short
    """The BMC's name."""
    rpm: Num = NOT_READ
    """Revolutions per minute; 0: it stands still."""
    percent: Num = NOT_READ
    """Per cent of its highest speed."""
    present: Flag = NOT_READ
    """False: its bay is empty."""
    state: Text = NOT_READ
    """`Resource.State`; `StandbyOffline` and `StandbySpare` are pumps at rest."""
    health: Text = NOT_READ
    """`Resource.Health`."""


class BoardGpu(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A GPU as its baseboard's BMC sees it, also while driver and operating system are down."""

    name: Short
    """The BMC's id, such as GPU_SXM_1."""
    serial: Text = NOT_READ
    """Serial number of the board."""
    uuid: Text = NOT_READ
    """UUID as the BMC gives it."""
    state: Text = NOT_READ
    """`Resource.State`."""
    health: Text = NOT_READ
    """`Resource.Health`."""
    watts: Num = NOT_READ
    """What it draws, W."""
    limit_watts: Num = NOT_READ
    """Its power limit, W."""
    ports: Num = NOT_READ
    """NVLink ports that it has."""
    ports_up: Num = NOT_READ
    """Those whose link is up."""
    port_gbps: Num = NOT_READ
    """Gbit/s of the slowest of these."""
    throttle_reasons: list[Short] = []
    """Why it is slowed down now, in the BMC's words; empty if it is not."""
    celsius: Num = NOT_READ
    """Temperature of the GPU, °C."""
    memory_celsius: Num = NOT_READ
    """Temperature of the hottest part of its memory, °C."""
    throttled_seconds: dict[Short, float] = {}
    """Seconds by cause (`POWER` to `SOFTWARE`) that it was slowed down since the BMC began to count."""
    throttled_lately_seconds: dict[Short, float] = {}
    """How much of that came since the reading before (`ChassisReading.since_seconds`)."""


class BmcClock(Struct, frozen=True, kw_only=True, rename="camel"):
    """The clock of one management controller."""

    name: Short
    """The controller's id."""
    time: Text = NOT_READ
    """Its time (ISO 8601)."""
    skew_seconds: Num = NOT_READ
    """That time less ours, seconds."""


class Unread(Struct, frozen=True, kw_only=True):
    """A resource that the BMC names and did not give."""

    path: Str
    """Its address on the BMC."""
    reason: Str
    """Why it was not given."""


class ChassisReading(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Everything that one reading of one BMC gave."""

    major: int = MAJOR
    """Version of this document; a reader refuses another one."""
    source: Short = REDFISH
    """`REDFISH` or `IPMI`."""
    machine: Short = SERVER
    """`SERVER`, `DPU` or `SHELF`."""
    vendor: Text = NOT_READ
    """Manufacturer of the machine."""
    product: Text = NOT_READ
    """Model of the machine."""
    serial: Text = NOT_READ
    """Serial number of the machine."""
    form: Text = NOT_READ
    """Redfish `ChassisType` of the machine: a `Blade`, `Sled`, `Shelf` or `Drawer` may have its supplies or
    fans in a rack or an enclosure."""
    power_on: Flag = NOT_READ
    """Whether the machine is on; false too while it is being switched on or off."""
    watts: Num = NOT_READ
    """What the machine draws now, W."""
    capacity_watts: Num = NOT_READ
    """What the BMC says its supplies may give, W."""
    lists_supplies: bool = False
    """Whether a list of supplies was read, be it empty (the supplies of a rack shelf are in no server's
    list)."""
    supplies: list[Supply] = []
    """Power supplies."""
    redundancy: list[Redundancy] = []
    """Groups of supplies."""
    rails: list[Rail] = []
    """Voltages behind the supplies."""
    fans: list[Fan] = []
    """Fans of the machine."""
    air: list[AirTemperature] = []
    """Air that enters and leaves."""
    leaks: list[LeakDetector] = []
    """Leak detectors."""
    pumps: list[Pump] = []
    """Pumps of the liquid cooling."""
    gpus: list[BoardGpu] = []
    """GPUs, if their baseboard's BMC answers."""
    clocks: list[BmcClock] = []
    """Clocks of the management controllers."""
    seconds: Num = NOT_READ
    """How long the reading took."""
    requests: int = 0
    """Requests that it took."""
    unread: list[Unread] = []
    """Resources that were named and not given."""
    since_seconds: Num = NOT_READ
    """Seconds since the reading before, if its reader has one."""
