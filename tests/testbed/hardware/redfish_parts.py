"""What the new and the old Redfish resources of a simulated machine have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from testbed.hardware import case
from testbed.hardware.machine import Machine
from testbed.hardware.power import Supply, Trouble
from testbed.profiles.chassismodel import Chassis

LINE_VOLTS = 230
SLOWEST_SHARE = 0.1
"""Share of a fan's revolutions below which its BMC calls it failed.  Chosen by this project."""
Body = dict[str, Any]


class Seen(Protocol):
    """What a tree is made from (`redfish.View`)."""

    @property
    def machine(self) -> Machine: ...
    @property
    def chassis(self) -> Chassis: ...
    @property
    def serial(self) -> str: ...
    @property
    def watts(self) -> Sequence[float]: ...
    @property
    def supplies(self) -> Sequence[Supply]: ...
    @property
    def draw(self) -> float: ...


def supply_status(seen: Seen, supply: Supply) -> Body:
    """State and health of a supply."""
    if supply.trouble is Trouble.REMOVED:
        return {"State": "Absent", "Health": None}
    if supply.trouble is Trouble.FAILED or supply.gave_up:
        return {"State": "UnavailableOffline", "Health": "Critical"}
    return {"State": "Enabled", "Health": None if "null-health" in seen.chassis.traps else "OK"}


def line_input(supply: Supply) -> str | None:
    """Redfish `LineInputStatus`; None for an empty bay."""
    if supply.trouble is Trouble.REMOVED:
        return None
    return "LossOfInput" if supply.trouble is Trouble.NO_INPUT else "Normal"


def input_volts(supply: Supply) -> float | None:
    """Volts at a supply's input."""
    if supply.trouble is Trouble.REMOVED:
        return None
    return 0.0 if supply.trouble is Trouble.NO_INPUT else float(LINE_VOLTS)


def identity(seen: Seen, number: int, supply: Supply) -> Body:
    """Name, and the plate of a supply that is there."""
    assert seen.chassis.supplies is not None
    name = {"Name": f"PSU{number}", "MemberId": str(number)}
    if supply.trouble is Trouble.REMOVED:
        return name
    plate = {"Manufacturer": "Simulated", "Model": "SIM-PSU", "SerialNumber": f"{seen.serial}-{number}"}
    return {**name, **plate, "PowerCapacityWatts": seen.chassis.supplies.watts}


def needed(seen: Seen) -> int:
    """Supplies that the BMC says are needed; one for a vendor whose number is nonsense."""
    assert seen.chassis.supplies is not None
    if "needs-one" in seen.chassis.traps:
        return 1
    return seen.chassis.supplies.count - seen.chassis.supplies.redundant


def redundancy_status(seen: Seen) -> Body:
    """What the BMC says of the group: it looks at its own number of needed supplies."""
    assert seen.chassis.supplies is not None
    working = sum(supply.volts > 0 for supply in seen.supplies)
    whole = working >= min(needed(seen) + 1, seen.chassis.supplies.count)
    return {"State": "Enabled", "Health": "OK" if whole else "Warning"}


def fan(seen: Seen, number: int) -> tuple[int, Body]:
    """Revolutions and status of a fan of the chassis."""
    rpm = case.fan_rpm(seen.machine, number, seen.watts)
    failed = rpm < SLOWEST_SHARE * seen.chassis.fan_rpm
    fine = None if "null-health" in seen.chassis.traps else "OK"
    return rpm, {"State": "Enabled", "Health": "Critical" if failed else fine}


def lowest_rpm(seen: Seen) -> int:
    """Lower bound of a fan."""
    return round(SLOWEST_SHARE * seen.chassis.fan_rpm)


def inlet(seen: Seen) -> tuple[float, Body]:
    """°C of the inlet, and what its BMC thinks of them."""
    celsius = case.inlet_celsius(seen.machine)
    warm = celsius >= seen.chassis.inlet_max
    return celsius, {"State": "Enabled", "Health": "Warning" if warm else "OK"}
