"""The Redfish tree that a machine's BMC shows, made from its profile's chassis and its present state.

Shapes follow DMTF DSP0268 and the recordings in tests/fixtures/redfish; `traps` of a profile are what their
vendors write that must not be believed.  `new` and `old` are the resources since and before 2020.  It must
not judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.hardware import case, power
from testbed.hardware.gpustate import gpu_uuid
from testbed.hardware.machine import Machine
from testbed.hardware.power import Supply, Trouble
from testbed.profiles.hostmodel import Chassis

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
LINE_VOLTS = 230.0
SLOWEST_SHARE = 0.1
"""Share of a fan's revolutions below which its BMC calls it failed.  Chosen by this project."""
ENABLED = {"State": "Enabled"}


@dataclass(frozen=True, kw_only=True)
class View:
    """What a tree is made from: `watts`: of each GPU now; `time`: the BMC's clock, ISO 8601."""

    machine: Machine
    chassis: Chassis
    seed: str
    watts: Sequence[float]
    supplies: Sequence[Supply]
    time: str

    @property
    def is_on(self) -> bool:
        """Whether the machine has power; a shelf always gives it."""
        return not self.supplies or power.is_on(self.supplies)

    @property
    def draw(self) -> float:
        """Watts of the whole machine."""
        return case.draw_watts(self.machine, self.watts) if self.is_on else 0.0

    @property
    def fine(self) -> str | None:
        """Health of a part that works."""
        return None if "null-health" in self.chassis.traps else "OK"

    @property
    def redundancy(self) -> tuple[int, Tree]:
        """Supplies that the BMC says are needed (one, by a vendor whose number is nonsense), and what it says
        of the group by that number."""
        assert self.chassis.supplies is not None
        count = self.chassis.supplies.count
        needed = 1 if "needs-one" in self.chassis.traps else count - self.chassis.supplies.redundant
        whole = sum(supply.volts > 0 for supply in self.supplies) >= min(needed + 1, count)
        return needed, ENABLED | {"Health": "OK" if whole else "Warning"}

    def supply(self, number: int, supply: Supply) -> Tree:
        """Name, status and input of a supply, and the plate of one that is there."""
        assert self.chassis.supplies is not None
        name = {"Name": f"PSU{number}", "MemberId": str(number)}
        if supply.trouble is Trouble.REMOVED:
            return name | {"Status": {"State": "Absent", "Health": None}}
        failed = supply.trouble is Trouble.FAILED or supply.gave_up
        return name | {
            "Manufacturer": "Simulated",
            "Model": "SIM-PSU",
            "SerialNumber": f"{self.seed[:8]}-{number}",
            "PowerCapacityWatts": self.chassis.supplies.watts,
            "LineInputStatus": "LossOfInput" if supply.trouble is Trouble.NO_INPUT else "Normal",
            "Status": {"State": "UnavailableOffline", "Health": "Critical"}
            if failed
            else ENABLED | {"Health": self.fine},
        }

    def fans(self) -> Iterable[tuple[str, int, Tree]]:
        """Name, revolutions and status of the fans of the chassis."""
        for number in range(self.chassis.fans):
            rpm = case.fan_rpm(self.machine, number, self.watts)
            health = "Critical" if rpm < self.lowest_rpm else self.fine
            yield f"FAN{number}", rpm, ENABLED | {"Health": health}

    @property
    def lowest_rpm(self) -> int:
        """Lower bound of a fan."""
        return round(SLOWEST_SHARE * self.chassis.fan_rpm)

    @property
    def inlet(self) -> tuple[float, Tree]:
        """°C of the inlet, and what its BMC thinks of them."""
        celsius = case.inlet_celsius(self.machine)
        return celsius, ENABLED | {"Health": "Warning" if celsius >= self.chassis.inlet_max else "OK"}


def tree(machine: Machine, *, seed: str, watts: Sequence[float], time: str) -> Tree:
    """Path to resource, of a machine with a chassis."""
    chassis = machine.profile.chassis
    assert chassis is not None
    supplies = case.supplies(machine, watts)
    view = View(machine=machine, chassis=chassis, seed=seed, watts=watts, supplies=supplies, time=time)
    resources = _frame(view)
    if chassis.dialect in ("new", "both"):
        resources |= _new(view)
    if chassis.dialect in ("old", "both"):
        resources |= {f"{CHASSIS}/Power": _power(view), f"{CHASSIS}/Thermal": _thermal(view)}
    if chassis.board:
        resources |= _board(view)
    return {path: {"@odata.id": path} | body for path, body in resources.items()}


def _collection(*paths: str) -> Tree:
    return {"Members": [_to(path) for path in paths], "Members@odata.count": len(paths)}


def _to(path: str) -> Tree:
    return {"@odata.id": path}


def _below(path: str, *names: str) -> Tree:
    """Links to resources below a path, by their name."""
    return {name: _to(f"{path}/{name}") for name in names}


def _reading(value: float | None, **more: Any) -> Tree:
    return {"Reading": value, **more}


def _frame(view: View) -> Tree:
    """Service root, chassis, system and manager."""
    chassis = view.chassis
    named = {"Manufacturer": chassis.vendor, "Model": chassis.product, "SerialNumber": view.seed[:8]}
    named |= {"PowerState": "On" if view.is_on else "Off"}
    links: Tree = {}
    if chassis.dialect in ("new", "both"):
        links |= _below(CHASSIS, "PowerSubsystem", "ThermalSubsystem", "EnvironmentMetrics", "Sensors")
    if chassis.dialect in ("old", "both"):
        links |= _below(CHASSIS, "Power", "Thermal")
    return {
        ROOT: {
            "RedfishVersion": "1.17.0",
            "Vendor": chassis.vendor,
            "ProtocolFeaturesSupported": {"ExpandQuery": {"ExpandAll": True, "NoLinks": True}}
            if chassis.expand
            else {},
            **_below(ROOT, "Chassis", "Systems", "Managers"),
            "Links": {"Sessions": _to(f"{ROOT}/SessionService/Sessions")},
        },
        f"{ROOT}/Chassis": _collection(CHASSIS),
        f"{ROOT}/Systems": _collection(SYSTEM, *([BOARD] if chassis.board else [])),
        f"{ROOT}/Managers": _collection(f"{ROOT}/Managers/1"),
        f"{ROOT}/Managers/1": {"Id": "1", "DateTime": view.time},
        SYSTEM: named | {"Links": {"Chassis": [_to(CHASSIS)]}},
        CHASSIS: named | {"Id": "1", "ChassisType": "RackMount"} | links,
    }


def _new(view: View) -> Tree:
    """PowerSubsystem, ThermalSubsystem, EnvironmentMetrics and Sensors."""
    thermal, inlet = f"{CHASSIS}/ThermalSubsystem", f"{CHASSIS}/Sensors/InletTemp"
    celsius, status = view.inlet
    leaks = ("LeakDetection",) if view.chassis.leak_detectors else ()
    resources: Tree = {
        f"{CHASSIS}/PowerSubsystem": {"Status": ENABLED},
        f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": _reading(round(view.draw, 1))},
        thermal: _below(thermal, "Fans", "ThermalMetrics", *leaks),
        f"{thermal}/ThermalMetrics": {
            "TemperatureSummaryCelsius": {"Intake": _reading(celsius, DataSourceUri=inlet)},
        },
        inlet: _reading(
            celsius,
            Name="Inlet Temp",
            ReadingType="Temperature",
            Status=status,
            Thresholds={"UpperCaution": _reading(view.chassis.inlet_max)},
        ),
    }
    resources |= _new_supplies(view) | _new_fans(view) | (_leaks(view) if leaks else {})
    sensors = [path for path in resources if path.startswith(f"{CHASSIS}/Sensors/")]
    return resources | {f"{CHASSIS}/Sensors": _collection(*sensors)}


def _new_supplies(view: View) -> Tree:
    folder = f"{CHASSIS}/PowerSubsystem"
    if not view.supplies:
        return {}
    paths = [f"{folder}/PowerSupplies/PSU{number}" for number in range(len(view.supplies))]
    needed, status = view.redundancy
    group = {
        "MaxSupportedInGroup": len(paths),
        "MinNeededInGroup": needed,
        "RedundancyGroup": [_to(path) for path in paths],
        "RedundancyType": "NPlusM",
        "Status": status,
    }
    rail = _reading(round(power.rail(view.supplies), 3), Name="P12V", ReadingType="Voltage", Status=ENABLED)
    resources: Tree = {
        folder: _below(folder, "PowerSupplies") | {"PowerSupplyRedundancy": [group]},
        f"{folder}/PowerSupplies": _collection(*paths),
        f"{CHASSIS}/Sensors/P12V": rail,
    }
    for number, (path, supply) in enumerate(zip(paths, view.supplies, strict=True)):
        resources[path] = {"LineInputStatus": None} | view.supply(number, supply) | {"Id": f"PSU{number}"}
        if supply.trouble is not Trouble.REMOVED:
            resources[path] |= _below(path, "Metrics")
            resources[f"{path}/Metrics"] = {
                "InputPowerWatts": _reading(round(supply.input_watts, 1)),
                "OutputPowerWatts": _reading(round(supply.output_watts, 1)),
                "InputVoltage": _reading(_input_volts(supply)),
                "RailVoltage": [_reading(round(supply.volts, 3))],
            }
    return resources


def _input_volts(supply: Supply) -> float:
    return 0.0 if supply.trouble is Trouble.NO_INPUT else LINE_VOLTS


def _new_fans(view: View) -> Tree:
    folder = f"{CHASSIS}/ThermalSubsystem/Fans"
    resources: Tree = {folder: _collection(*(f"{folder}/{name}" for name, _, _ in view.fans()))}
    lowest = {"LowerCritical": _reading(view.lowest_rpm)}
    for name, rpm, status in view.fans():
        percent = rpm if "percent-in-rpm" in view.chassis.traps else round(100 * rpm / view.chassis.fan_rpm)
        sensor = f"{CHASSIS}/Sensors/{name}"
        speed = _reading(percent, DataSourceUri=sensor, SpeedRPM=rpm)
        resources[f"{folder}/{name}"] = {"Id": name, "Name": name, "Status": status, "SpeedPercent": speed}
        resources[sensor] = _reading(rpm, Name=name, ReadingUnits="RPM", Thresholds=lowest)
    return resources


def _leaks(view: View) -> Tree:
    folder = f"{CHASSIS}/ThermalSubsystem/LeakDetection"
    detectors = {
        f"{folder}/LeakDetectors/Leak{number}": {
            "Id": f"Leak{number}",
            "Name": f"Leak{number}",
            "DetectorState": "Critical" if number in view.machine.case.leaks else "OK",
            "Status": ENABLED | {"Health": "OK"},
        }
        for number in range(view.chassis.leak_detectors)
    }
    return {
        folder: _below(folder, "LeakDetectors"),
        f"{folder}/LeakDetectors": _collection(*detectors),
        **detectors,
    }


def _power(view: View) -> Tree:
    """The resource Power, as it was before 2020."""
    control: Tree = {"MemberId": "0", "PowerConsumedWatts": round(view.draw)}
    if not view.supplies or view.chassis.supplies is None:
        return {"PowerControl": [control]}
    control["PowerCapacityWatts"] = len(view.supplies) * view.chassis.supplies.watts
    rail = {
        "Name": "12V",
        "ReadingVolts": round(power.rail(view.supplies), 2),
        "LowerThresholdCritical": 11.4,
        "UpperThresholdCritical": 12.6,
        "Status": ENABLED,
    }
    needed, status = view.redundancy
    group = {
        "Name": "PSU Redundancy",
        "Mode": "N+m",
        "MinNumNeeded": needed,
        "MaxNumSupported": len(view.supplies),
        "RedundancySet": [_to(f"{CHASSIS}/Power#/PowerSupplies/{n}") for n in range(len(view.supplies))],
        "Status": status,
    }
    return {
        "PowerControl": [control],
        "PowerSupplies": [_old_supply(view, number, supply) for number, supply in enumerate(view.supplies)],
        "Voltages": [rail],
        "Redundancy": [group],
    }


def _old_supply(view: View, number: int, supply: Supply) -> Tree:
    if supply.trouble is Trouble.REMOVED:
        return view.supply(number, supply)
    return view.supply(number, supply) | {
        "LineInputVoltage": _input_volts(supply),
        "PowerInputWatts": 0 if "zero-watts" in view.chassis.traps else round(supply.input_watts),
        "PowerOutputWatts": round(supply.output_watts),
    }


def _thermal(view: View) -> Tree:
    """The resource Thermal, as it was before 2020."""
    celsius, warmth = view.inlet
    fans = [
        {
            "MemberId": str(number),
            "Name": name,
            "Reading": rpm,
            "ReadingUnits": "RPM",
            "LowerThresholdCritical": view.lowest_rpm,
            "Status": status,
        }
        for number, (name, rpm, status) in enumerate(view.fans())
    ]
    inlet = {
        "Name": "Inlet Temp",
        "PhysicalContext": "Intake",
        "ReadingCelsius": celsius,
        "UpperThresholdNonCritical": view.chassis.inlet_max,
        "Status": warmth,
    }
    return {"Fans": fans, "Temperatures": [inlet]}


def _board(view: View) -> Tree:
    """The GPUs as the BMC of their baseboard sees them, also while the driver is down."""
    machine = view.machine
    paths = [f"{BOARD}/Processors/GPU_{number}" for number in range(len(machine.gpus))]
    resources: Tree = {
        BOARD: {"Id": "Baseboard"} | _below(BOARD, "Processors"),
        f"{BOARD}/Processors": _collection(*paths),
    }
    for number, path in enumerate(paths):
        limit, ports = machine.limit_mw(number), _ports(view, number, path)
        resources[path] = {
            "Id": f"GPU_{number}",
            "ProcessorType": "GPU",
            "UUID": gpu_uuid(view.seed, machine.gpus[number].address).removeprefix("GPU-"),
            "Status": ENABLED | {"Health": "Critical" if number in machine.handles else "OK"},
            **_below(path, "EnvironmentMetrics", *(["Ports"] if ports else [])),
            "Metrics": _to(f"{path}/ProcessorMetrics"),
        }
        resources[f"{path}/EnvironmentMetrics"] = {
            "PowerWatts": _reading(round(view.watts[number], 3)),
            "PowerLimitWatts": {"SetPoint": None if limit is None else limit / 1000},
        }
        reasons = [REASONS[name] for name, n in machine.holds_now(number).items() if n and name in REASONS]
        resources[f"{path}/ProcessorMetrics"] = {"Oem": {"Nvidia": {"ThrottleReasons": reasons or ["NA"]}}}
        if ports:
            resources |= ports | {f"{path}/Ports": _collection(*ports)}
    return resources


def _ports(view: View, gpu: int, path: str) -> Tree:
    model = view.machine.profile.model.links
    if model is None:
        return {}
    up = {link: view.machine.is_up(gpu, link) for link in view.machine.links(gpu)}
    return {
        f"{path}/Ports/NVLink_{link}": {
            "PortProtocol": "NVLink",
            "LinkStatus": "LinkUp" if is_up else "LinkDown",
            "CurrentSpeedGbps": model.mbps * 8 / 1000 if is_up else 0,
        }
        for link, is_up in up.items()
    }
