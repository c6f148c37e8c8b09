"""The shape of a profile's chassis: supplies, fans, inlet air, and how its BMC tells of them over Redfish.

A machine without a chassis has no BMC, as most workstations and every virtual machine.
"""

from __future__ import annotations

from typing import Literal

from testbed.profiles.hostmodel import Base

Dialect = Literal["new", "old", "both"]
"""PowerSubsystem and ThermalSubsystem, Power and Thermal, or both."""
Trap = Literal["needs-one", "zero-watts", "percent-in-rpm", "null-health"]
"""What vendors write that must not be believed: that one supply is enough; 0 W where nothing measures a
supply's input; revolutions under the name of per cent; no health at all."""


class Supplies(Base, frozen=True, kw_only=True):
    """Equal supplies that share the load: how many, and the watts (DC) that each gives.

    `redundant`: how many of them may fail by the maker's word.
    """

    count: int
    watts: int
    redundant: int = 0


class Chassis(Base, frozen=True, kw_only=True):
    """What a machine's BMC sees.  Watts are DC, of everything but the GPUs: idle, and while all GPUs work.

    `supplies` None: a shelf of the rack feeds it.  `inlet_max`: °C at which the BMC warns.  `board`: a BMC of
    a GPU baseboard is there, too.  `expand`: a query may ask for a collection with its members.
    """

    vendor: str
    product: str
    dialect: Dialect
    supplies: Supplies | None = None
    host_idle: int
    host_full: int
    fans: int
    fan_rpm: int
    inlet: int
    inlet_max: int
    leak_detectors: int = 0
    board: bool = False
    expand: bool = False
    traps: tuple[Trap, ...] = ()
