"""The Redfish tree of a machine's BMC, in the shapes of DMTF DSP0268 with the resources since 2020."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.hardware import case
from testbed.hardware.case import Supply, Trouble
from testbed.hardware.gpustate import gpu_uuid
from testbed.hardware.machine import Machine
from testbed.profiles.hostmodel import Chassis

Tree = dict[str, Any]
ROOT = "/redfish/v1"
CHASSIS, SYSTEM = f"{ROOT}/Chassis/1", f"{ROOT}/Systems/1"
BOARD = f"{ROOT}/Systems/Baseboard"
LINE_VOLTS = 230.0
SLOWEST_SHARE = 0.1
"""Share of a fan's revolutions below which its BMC calls it failed.  Chosen by this project."""
ENABLED = {"State": "Enabled"}
OK = ENABLED | {"Health": "OK"}


@dataclass(frozen=True, kw_only=True)
class View:
    """What a tree is made from: `watts`: of each GPU now; `time`: the BMC's clock, ISO 8601; `is_on`: whether
    the machine has power: a shelf always gives it."""

    machine: Machine
    chassis: Chassis
    seed: str
    watts: Sequence[float]
    supplies: Sequence[Supply]
    time: str
    is_on: bool


def tree(machine: Machine, *, seed: str, watts: Sequence[float], time: str) -> Tree:
    chassis = machine.profile.chassis
    assert chassis is not None
    supplies = case.supplies(machine, watts)
    is_on = not supplies or any(one.volts > 0 for one in supplies)
    known: Tree = {"seed": seed, "watts": watts, "supplies": supplies, "time": time, "is_on": is_on}
    view = View(machine=machine, chassis=chassis, **known)
    resources = _frame(view) | _chassis(view) | (_board(view) if chassis.board else {})
    return {path: {"@odata.id": path} | body for path, body in resources.items()}


def _collection(*paths: str) -> Tree:
    return {"Members": [_to(path) for path in paths], "Members@odata.count": len(paths)}


def _to(path: str) -> Tree:
    return {"@odata.id": path}


def _below(path: str, *names: str) -> Tree:
    return {name: _to(f"{path}/{name}") for name in names}


def _reading(value: float | None, **more: Any) -> Tree:
    return {"Reading": value, **more}


def _frame(view: View) -> Tree:
    chassis = view.chassis
    named = {"Manufacturer": chassis.vendor, "Model": chassis.product, "SerialNumber": view.seed[:8]}
    named |= {"PowerState": "On" if view.is_on else "Off"}
    links = _below(CHASSIS, "PowerSubsystem", "ThermalSubsystem", "EnvironmentMetrics", "Sensors")
    return {
        ROOT: {
            "RedfishVersion": "1.17.0",
            "Vendor": chassis.vendor,
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


def _chassis(view: View) -> Tree:
    thermal, inlet = f"{CHASSIS}/ThermalSubsystem", f"{CHASSIS}/Sensors/InletTemp"
    celsius = view.chassis.inlet + view.machine.case.warmer
    draw = case.draw_watts(view.machine, view.watts) if view.is_on else 0.0
    status = OK | ({"Health": "Warning"} if celsius >= view.chassis.inlet_max else {})
    leaks = ("LeakDetection",) if view.chassis.leak_detectors else ()
    resources: Tree = {
        f"{CHASSIS}/PowerSubsystem": {"Status": ENABLED},
        f"{CHASSIS}/EnvironmentMetrics": {"PowerWatts": _reading(round(draw, 1))},
        thermal: _below(thermal, "Fans", "ThermalMetrics", *leaks),
        f"{thermal}/ThermalMetrics": {
            "TemperatureSummaryCelsius": {"Intake": _reading(celsius, DataSourceUri=inlet)}
        },
        inlet: _reading(
            celsius,
            Name="Inlet Temp",
            ReadingType="Temperature",
            Status=status,
            Thresholds={"UpperCaution": _reading(view.chassis.inlet_max)},
        ),
    }
    resources |= _supplies(view) | _fans(view) | (_leaks(view) if leaks else {})
    sensors = [path for path in resources if path.startswith(f"{CHASSIS}/Sensors/")]
    return resources | {f"{CHASSIS}/Sensors": _collection(*sensors)}


def _supplies(view: View) -> Tree:
    folder = f"{CHASSIS}/PowerSubsystem"
    if not view.supplies:
        return {folder: _below(folder, "PowerSupplies"), f"{folder}/PowerSupplies": _collection()}
    paths = [f"{folder}/PowerSupplies/PSU{number}" for number in range(len(view.supplies))]
    alone = sum(supply.volts > 0 for supply in view.supplies) < min(2, len(paths))
    group = {
        "MaxSupportedInGroup": len(paths),
        "MinNeededInGroup": 1,
        "RedundancyGroup": [_to(path) for path in paths],
        "RedundancyType": "NPlusM",
        "Status": OK | ({"Health": "Warning"} if alone else {}),
    }
    rail = _reading(round(case.rail(view.supplies), 3), Name="P12V", ReadingType="Voltage", Status=ENABLED)
    resources: Tree = {
        folder: _below(folder, "PowerSupplies") | {"PowerSupplyRedundancy": [group]},
        f"{folder}/PowerSupplies": _collection(*paths),
        f"{CHASSIS}/Sensors/P12V": rail,
    }
    for number, (path, supply) in enumerate(zip(paths, view.supplies, strict=True)):
        name = {"Id": f"PSU{number}", "Name": f"PSU{number}"}
        if supply.trouble is Trouble.REMOVED:
            resources[path] = name | {"Status": {"State": "Absent", "Health": None}}
            continue
        failed = supply.trouble is Trouble.FAILED or supply.gave_up
        has_input = supply.trouble is not Trouble.NO_INPUT
        resources[path] = name | {
            "Manufacturer": "Simulated",
            "Model": "SIM-PSU",
            "SerialNumber": f"{view.seed[:8]}-{number}",
            "PowerCapacityWatts": view.chassis.supplies.watts if view.chassis.supplies else None,
            "LineInputStatus": "Normal" if has_input else "LossOfInput",
            "Status": {"State": "UnavailableOffline", "Health": "Critical"} if failed else OK,
            "OutputRails": [{"NominalVoltage": 12}],
            **_below(path, "Metrics"),
        }
        resources[f"{path}/Metrics"] = {
            "InputPowerWatts": _reading(round(supply.input_watts, 1)),
            "OutputPowerWatts": _reading(round(supply.output_watts, 1)),
            "InputVoltage": _reading(LINE_VOLTS * has_input),
            "RailVoltage": [_reading(round(supply.volts, 3))],
        }
    return resources


def _fans(view: View) -> Tree:
    folder, lowest = f"{CHASSIS}/ThermalSubsystem/Fans", round(SLOWEST_SHARE * view.chassis.fan_rpm)
    fans = [f"FAN{number}" for number in range(view.chassis.fans)]
    resources: Tree = {folder: _collection(*(f"{folder}/{name}" for name in fans))}
    for number, name in enumerate(fans):
        rpm, sensor = case.fan_rpm(view.machine, number, view.watts), f"{CHASSIS}/Sensors/{name}"
        status = OK | ({"Health": "Critical"} if rpm < lowest else {})
        speed = _reading(round(100 * rpm / view.chassis.fan_rpm), DataSourceUri=sensor, SpeedRPM=rpm)
        resources[f"{folder}/{name}"] = {"Id": name, "Name": name, "Status": status, "SpeedPercent": speed}
        bounds = {"LowerCritical": _reading(lowest)}
        resources[sensor] = _reading(rpm, Name=name, ReadingUnits="RPM", Thresholds=bounds)
    return resources


def _leaks(view: View) -> Tree:
    folder = f"{CHASSIS}/ThermalSubsystem/LeakDetection"
    detectors: Tree = {}
    for number in range(view.chassis.leak_detectors):
        state = "Critical" if number in view.machine.case.leaks else "OK"
        body = {"Id": f"Leak{number}", "Name": f"Leak{number}", "DetectorState": state, "Status": OK}
        detectors[f"{folder}/LeakDetectors/Leak{number}"] = body
    both = {folder: _below(folder, "LeakDetectors"), f"{folder}/LeakDetectors": _collection(*detectors)}
    return both | detectors


def _board(view: View) -> Tree:
    machine, model = view.machine, view.machine.profile.model
    paths = [f"{BOARD}/Processors/GPU_{number}" for number in range(len(machine.gpus))]
    resources: Tree = {
        BOARD: {"Id": "Baseboard"} | _below(BOARD, "Processors"),
        f"{BOARD}/Processors": _collection(*paths),
    }
    for number, path in enumerate(paths):
        limit = model.power.default
        ports: Tree = {}
        for link in machine.links(number) if model.links else ():
            up = machine.is_up(number, link)
            ports[f"{path}/Ports/NVLink_{link}"] = {
                "PortProtocol": "NVLink",
                "LinkStatus": "LinkUp" if up else "LinkDown",
                "CurrentSpeedGbps": model.links.mbps * 8 / 1000 if up and model.links else 0,
            }
        resources[path] = {
            "Id": f"GPU_{number}",
            "ProcessorType": "GPU",
            "UUID": gpu_uuid(view.seed, machine.gpus[number].address).removeprefix("GPU-"),
            "Status": ENABLED | {"Health": "Critical" if number in machine.handles else "OK"},
            **_below(path, "EnvironmentMetrics", *(["Ports"] if ports else [])),
        }
        resources[f"{path}/EnvironmentMetrics"] = {
            "PowerWatts": _reading(round(view.watts[number], 3)),
            "PowerLimitWatts": {"SetPoint": None if limit is None else limit / 1000},
        }
        if ports:
            resources |= ports | {f"{path}/Ports": _collection(*ports)}
    return resources
