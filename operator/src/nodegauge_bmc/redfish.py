"""Reads a BMC by Redfish: the new resources first (PowerSubsystem, ThermalSubsystem), then Power and Thermal.

It starts at the service root and follows links only, so that it works on trees that nobody here has seen.
Chassis that are parts of another (a GPU, a board) are left out of power and cooling: the machine's own
chassis counts what they draw.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from nodegauge_bmc import board_gpus, cooling, power
from nodegauge_bmc.connection import NO_ANSWER, ROOT, Access, BmcError, Connection, NoRedfish
from nodegauge_bmc.tree import Tree
from nodegauge_bmc.values import Resource, link, links, text
from nodegauge_contract.chassis import DPU, SERVER, SHELF, BmcClock, ChassisReading
from nodegauge_contract.values import NOT_READ, Flag, Text, Unavailable

PARTS = frozenset(
    {
        "Component",
        "Module",
        "Card",
        "Zone",
        "Cartridge",
        "Expansion",
        "IPBasedDrive",
        "StorageEnclosure",
        "Row",
        "Pod",
    }
)
"""Types of chassis that are no machine (Redfish `ChassisType`)."""
_COUNTED = ("Power", "PowerSubsystem", "Thermal", "ThermalSubsystem", "EnvironmentMetrics", "Sensors")
"""Links of a chassis to what is counted."""
_PART = re.compile(
    r"gpu|hgx|ubb|cpu|fpga|dpu|bmc|cpld|switch|blue-?field|module|riser|retimer|backplane", re.IGNORECASE
)
"""Ids of chassis that are parts, where their type says nothing."""
_DPU = re.compile(r"blue-?field|\bDPU\b", re.IGNORECASE)
_SHELF = re.compile(r"power[ _-]?shel(f|ves)", re.IGNORECASE)
NO_SERVICE = (*(f"HTTP status {code}" for code in (404, 405, 410, 501)), "not JSON")
"""What a BMC answers at the service root that has web pages and no Redfish."""
_WAIT = ": raise --deadline, or try again later"
ON = frozenset({"On", "Paused"})
"""Redfish `PowerState` of a machine that draws power; `PoweringOn` and `PoweringOff` do not last."""
DEADLINE = 60.0
"""Seconds for one reading of one BMC."""


async def read(access: Access, *, deadline: float = DEADLINE) -> ChassisReading:
    """Everything that the BMC gives within `deadline` seconds.  Raises `BmcError` if that is nothing."""
    start = time.monotonic()
    async with Connection(access) as connection:
        tree = Tree(connection)
        try:
            async with asyncio.timeout(deadline):
                reading = await read_tree(tree)
        except TimeoutError:
            seconds, path = connection.slowest
            raise BmcError(
                f"the BMC did not give its tree within {deadline:g} s ({connection.requests} requests, the "
                f"slowest was {path} with {seconds:.1f} s): raise --deadline"
            ) from None
        return _with_cost(reading, tree=tree, seconds=time.monotonic() - start, requests=connection.requests)


async def read_tree(tree: Tree) -> ChassisReading:
    """What the resources of a BMC say.  Raises `BmcError` if there is no Redfish service or no chassis."""
    root = await tree.get(ROOT)
    if root is None:
        reason = tree.unread[0].reason if tree.unread else "no answer"
        if not reason.startswith(NO_SERVICE):
            raise BmcError(f"the BMC does not give {ROOT}: {reason}{_WAIT if NO_ANSWER in reason else ''}")
        raise NoRedfish(
            f"no Redfish service at {ROOT} ({reason}): is this the address of a BMC? One without Redfish may "
            "answer as ipmi://HOST"
        )
    if not link(root, "Chassis"):
        raise BmcError(f"{ROOT} lists no chassis: is this the address of a BMC?")
    tree.expands(root)
    chassis, systems, managers = await asyncio.gather(
        tree.collection(link(root, "Chassis")),
        tree.collection(link(root, "Systems")),
        tree.collection(link(root, "Managers")),
    )
    if not chassis:
        unread = next((one for one in tree.unread if "/Chassis" in one.path), None)
        reason = (
            f"{unread.path}: {unread.reason}" if unread else "an empty list: is this a rack's controller?"
        )
        raise BmcError(f"the BMC gives no chassis: {reason}{_WAIT if NO_ANSWER in reason else ''}")
    machines = _machines(chassis, systems or [])
    parts = [part for part in chassis if part not in machines]
    metered = _metered(machines, systems or [])
    machines = _each_link_once(machines)
    power_fields, cooling_fields, gpus = await asyncio.gather(
        power.read_power(tree, machines, metered=metered, parts=parts),
        cooling.read_cooling(tree, machines),
        board_gpus.read_gpus(tree, systems or []),
    )
    main = machines[0]
    return ChassisReading(
        machine=_kind(root, chassis, systems or []),
        vendor=_first((main, *(systems or []), root), "Manufacturer", "Vendor"),
        product=_first((*(systems or []), main), "Model"),
        serial=_first((main, *(systems or [])), "SerialNumber"),
        form=text(main.get("ChassisType")),
        power_on=_power_on(systems or [], main),
        **power_fields,
        **cooling_fields,
        gpus=gpus,
        clocks=[clock for manager in managers or [] if (clock := _clock(manager)) is not None],
    )


def _machines(chassis: list[Resource], systems: list[Resource]) -> list[Resource]:
    """The chassis that are machines, those of a computer system first; all if none says what it is."""
    whole = [machine for machine in chassis if text(machine.get("ChassisType")) not in PARTS]
    named = _of_systems(chassis, systems)
    ordered = sorted(whole, key=lambda machine: _address(machine) not in named)
    return ordered or chassis


def _of_systems(chassis: list[Resource], systems: list[Resource]) -> set[str]:
    """Addresses of the chassis that a computer system names, or that name one."""
    named = {address.rstrip("/") for system in systems for address in links(_links(system), "Chassis")}
    return named | {_address(one) for one in chassis if links(_links(one), "ComputerSystems")}


def _metered(machines: list[Resource], systems: list[Resource]) -> list[Resource]:
    """The chassis whose meter is the machine's: those of a system if there are any, and none that is a part
    by its type or its id, or that is in one of them (an enclosure's meter is of all its blades)."""
    whole = [
        machine
        for machine in machines
        if text(machine.get("ChassisType")) not in PARTS
        and _PART.search(_address(machine).rpartition("/")[2]) is None
    ]
    named = _of_systems(whole, systems)
    of_systems = [machine for machine in whole if _address(machine) in named] or whole
    inside = {_address(machine) for machine in of_systems}
    return [
        machine
        for machine in of_systems
        if link(machine, "Links", "ContainedBy").rstrip("/") not in inside - {_address(machine)}
    ]


def _each_link_once(machines: list[Resource]) -> list[Resource]:
    """The machines, without the links that one before has too: each resource is counted once."""
    seen: set[str] = set()
    kept: list[Resource] = []
    for machine in machines:
        own = {name: address for name in _COUNTED if (address := link(machine, name).rstrip("/"))}
        twice = {name for name, address in own.items() if address in seen}
        seen.update(own.values())
        kept.append({name: value for name, value in machine.items() if name not in twice})
    return kept


def _kind(root: Resource, chassis: list[Resource], systems: list[Resource]) -> str:
    """Whose BMC it is.  A DPU's: every system with a name is one.  A shelf's: power equipment or chassis that
    are called power shelves, and no computer."""
    names = [_named(system) for system in systems]
    if systems and all(_DPU.search(name) for name in names):
        return DPU
    if systems:
        return SERVER
    shelf = any(_SHELF.search(_named(one)) for one in chassis) or any(
        text(one.get("ChassisType")) == "Shelf" and link(one, "PowerSubsystem") for one in chassis
    )
    if shelf or link(root, "PowerEquipment"):
        return SHELF
    return DPU if any(_DPU.search(_named(one)) for one in chassis) else SERVER


def _named(resource: Resource) -> str:
    """What a system or chassis calls itself: id, name and model."""
    return " ".join(str(resource.get(key) or "") for key in ("Id", "Name", "Model", "SystemType"))


def _address(resource: Resource) -> str:
    return link({"self": resource}, "self").rstrip("/")


def _links(resource: Resource) -> Resource:
    value = resource.get("Links")
    return value if isinstance(value, Mapping) else {}


def _first(resources: Iterable[Resource], *keys: str) -> Text:
    """The first text that a resource has under one of the names."""
    for resource in resources:
        for key in keys:
            if isinstance(value := text(resource.get(key)), str):
                return value
    return NOT_READ


def _power_on(systems: Iterable[Resource], chassis: Resource) -> Flag:
    """Whether every system of the machine is on (a DPU in it is a computer of its own); its chassis' state
    where no system has one."""
    own = [system for system in systems if system.get("SystemType") != "DPU"]
    states = [state for system in own if isinstance(state := text(system.get("PowerState")), str)]
    states = states or [state for state in [text(chassis.get("PowerState"))] if isinstance(state, str)]
    return all(state in ON for state in states) if states else NOT_READ


def _clock(manager: Resource) -> BmcClock | None:
    """The manager's clock beside ours; None for one that has none."""
    written = text(manager.get("DateTime"))
    if not isinstance(written, str):
        return None
    name = str(manager.get("@odata.id", "")).rstrip("/").rpartition("/")[2][:128] or "BMC"
    try:
        read = datetime.fromisoformat(written)
    except ValueError:
        return BmcClock(name=name, time=written, skew_seconds=Unavailable("not a time"))
    aware = read if read.tzinfo is not None else read.replace(tzinfo=UTC)
    skew = round((aware - datetime.now(UTC)).total_seconds())
    return BmcClock(name=name, time=written, skew_seconds=skew)


def _with_cost(reading: ChassisReading, *, tree: Tree, seconds: float, requests: int) -> ChassisReading:
    return replace(reading, seconds=round(seconds, 3), requests=requests, unread=tree.unread)
