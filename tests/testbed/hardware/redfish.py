"""The Redfish tree that a machine's BMC shows, made from its profile's chassis and its present state.

Shapes follow DMTF DSP0268 and the recordings in tests/fixtures/redfish; `traps` of a profile are what their
vendors write that must not be believed.  It must not judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.hardware import case, power
from testbed.hardware.gpustate import gpu_uuid
from testbed.hardware.machine import Machine
from testbed.hardware.redfish_new import new_resources
from testbed.hardware.redfish_old import old_resources
from testbed.profiles.chassismodel import Chassis

Tree = dict[str, Any]
ROOT = "/redfish/v1"
CHASSIS, SYSTEM = f"{ROOT}/Chassis/1", f"{ROOT}/Systems/1"
BOARD = f"{ROOT}/Systems/Baseboard"
REASONS = {
    "sw_thermal": "SWThermalSlowdown",
    "hw_thermal": "HWThermalSlowdown",
    "power_brake": "HWPowerBrake",
}
"""Reasons of NVML as a baseboard's BMC calls them."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a tree is made from: `watts`: of each GPU now; `time`: the BMC's clock, ISO 8601."""

    machine: Machine
    chassis: Chassis
    serial: str
    watts: Sequence[float]
    supplies: Sequence[power.Supply]
    time: str

    @property
    def is_on(self) -> bool:
        """Whether the machine has power; a shelf always gives it."""
        return not self.supplies or power.is_on(self.supplies)

    @property
    def draw(self) -> float:
        """Watts of the whole machine."""
        return case.draw_watts(self.machine, self.watts) if self.is_on else 0.0


def tree(machine: Machine, *, seed: str, watts: Sequence[float], time: str) -> Tree:
    """Path to resource.  Raises ValueError for a machine without a BMC."""
    chassis = machine.profile.chassis
    if chassis is None:
        raise ValueError(f"{machine.profile.name} has no BMC: give its profile a chassis")
    view = View(
        machine=machine,
        chassis=chassis,
        serial=f"{seed[:8]}",
        watts=watts,
        supplies=case.supplies(machine, watts),
        time=time,
    )
    resources = _frame(view)
    if chassis.dialect in ("new", "both"):
        resources |= new_resources(view, CHASSIS)
    if chassis.dialect in ("old", "both"):
        resources |= old_resources(view, CHASSIS)
    if chassis.board:
        resources |= _board(view, seed)
    return {path: {"@odata.id": path} | body for path, body in resources.items()}


def collection(*paths: str) -> Tree:
    """A collection of resources."""
    return {"Members": [{"@odata.id": path} for path in paths], "Members@odata.count": len(paths)}


def _frame(view: View) -> Tree:
    """Service root, chassis, system and manager."""
    chassis = view.chassis
    named = {"Manufacturer": chassis.vendor, "Model": chassis.product, "SerialNumber": view.serial}
    state = "On" if view.is_on else "Off"
    systems = [SYSTEM, BOARD] if chassis.board else [SYSTEM]
    expand = {"ExpandQuery": {"ExpandAll": chassis.expand, "NoLinks": chassis.expand}}
    links: Tree = {}
    if chassis.dialect in ("new", "both"):
        names = ("PowerSubsystem", "ThermalSubsystem", "EnvironmentMetrics", "Sensors")
        links |= {name: {"@odata.id": f"{CHASSIS}/{name}"} for name in names}
    if chassis.dialect in ("old", "both"):
        links |= {name: {"@odata.id": f"{CHASSIS}/{name}"} for name in ("Power", "Thermal")}
    return {
        ROOT: {
            "RedfishVersion": "1.17.0",
            "Vendor": chassis.vendor,
            "ProtocolFeaturesSupported": expand if chassis.expand else {},
            **{name: {"@odata.id": f"{ROOT}/{name}"} for name in ("Chassis", "Systems", "Managers")},
            "Links": {"Sessions": {"@odata.id": f"{ROOT}/SessionService/Sessions"}},
        },
        f"{ROOT}/Chassis": collection(CHASSIS),
        f"{ROOT}/Systems": collection(*systems),
        f"{ROOT}/Managers": collection(f"{ROOT}/Managers/1"),
        f"{ROOT}/Managers/1": {"Id": "1", "DateTime": view.time},
        SYSTEM: named | {"PowerState": state, "Links": {"Chassis": [{"@odata.id": CHASSIS}]}},
        CHASSIS: named | {"Id": "1", "ChassisType": "RackMount", "PowerState": state} | links,
    }


def _board(view: View, seed: str) -> Tree:
    """The GPUs as the BMC of their baseboard sees them, also while the driver is down."""
    resources: Tree = {BOARD: {"Id": "Baseboard", "Processors": {"@odata.id": f"{BOARD}/Processors"}}}
    paths = [f"{BOARD}/Processors/GPU_{number}" for number in range(len(view.machine.gpus))]
    resources[f"{BOARD}/Processors"] = collection(*paths)
    for number, path in enumerate(paths):
        machine = view.machine
        lost = number in machine.handles
        limit = machine.limit_mw(number)
        ports = [f"{path}/Ports/NVLink_{link}" for link in machine.links(number)]
        resources[path] = {
            "Id": f"GPU_{number}",
            "ProcessorType": "GPU",
            "UUID": gpu_uuid(seed, machine.gpus[number].address).removeprefix("GPU-"),
            "Status": {"State": "Enabled", "Health": "Critical" if lost else "OK"},
            **{
                name: {"@odata.id": f"{path}/{name}"}
                for name in ("EnvironmentMetrics", *(("Ports",) if ports else ()))
            },
            "Metrics": {"@odata.id": f"{path}/ProcessorMetrics"},
        }
        resources[f"{path}/EnvironmentMetrics"] = {
            "PowerWatts": {"Reading": round(view.watts[number], 3)},
            "PowerLimitWatts": {"SetPoint": None if limit is None else limit / 1000},
        }
        reasons = [REASONS[name] for name, n in machine.holds_now(number).items() if n and name in REASONS]
        resources[f"{path}/ProcessorMetrics"] = {"Oem": {"Nvidia": {"ThrottleReasons": reasons or ["NA"]}}}
        resources |= _ports(view, number, path, ports)
    return resources


def _ports(view: View, gpu: int, path: str, ports: Sequence[str]) -> Tree:
    model = view.machine.profile.model.links
    if not ports or model is None:
        return {}
    resources: Tree = {f"{path}/Ports": collection(*ports)}
    for link, address in zip(view.machine.links(gpu), ports, strict=True):
        up = view.machine.is_up(gpu, link)
        resources[address] = {
            "PortProtocol": "NVLink",
            "LinkStatus": "LinkUp" if up else "LinkDown",
            "CurrentSpeedGbps": model.mbps * 8 / 1000 if up else 0,
        }
    return resources
