"""PowerSubsystem, ThermalSubsystem, EnvironmentMetrics and Sensors of a simulated machine."""

from __future__ import annotations

from testbed.hardware import power
from testbed.hardware import redfish_parts as parts
from testbed.hardware.redfish_parts import Body, Seen


def new_resources(seen: Seen, chassis: str) -> Body:
    """Path to resource, below the chassis."""
    thermal = f"{chassis}/ThermalSubsystem"
    celsius, status = parts.inlet(seen)
    inlet = f"{chassis}/Sensors/InletTemp"
    resources: Body = {
        f"{chassis}/PowerSubsystem": {"Status": {"State": "Enabled"}},
        f"{chassis}/EnvironmentMetrics": {"PowerWatts": {"Reading": round(seen.draw, 1)}},
        thermal: {
            "Fans": {"@odata.id": f"{thermal}/Fans"},
            "ThermalMetrics": {"@odata.id": f"{thermal}/ThermalMetrics"},
        },
        f"{thermal}/ThermalMetrics": {
            "TemperatureSummaryCelsius": {"Intake": {"DataSourceUri": inlet, "Reading": celsius}},
        },
        inlet: {
            "Name": "Inlet Temp",
            "Reading": celsius,
            "ReadingType": "Temperature",
            "Status": status,
            "Thresholds": {"UpperCaution": {"Reading": seen.chassis.inlet_max}},
        },
    }
    resources |= _supplies(seen, chassis) | _fans(seen, chassis) | _leaks(seen, thermal)
    if seen.chassis.leak_detectors:
        resources[thermal]["LeakDetection"] = {"@odata.id": f"{thermal}/LeakDetection"}
    sensors = [path for path in resources if path.startswith(f"{chassis}/Sensors/")]
    return resources | {f"{chassis}/Sensors": _collection(sensors)}


def _supplies(seen: Seen, chassis: str) -> Body:
    folder = f"{chassis}/PowerSubsystem"
    if not seen.supplies:
        return {}
    paths = [f"{folder}/PowerSupplies/PSU{number}" for number in range(len(seen.supplies))]
    group = {
        "MaxSupportedInGroup": len(paths),
        "MinNeededInGroup": parts.needed(seen),
        "RedundancyGroup": [{"@odata.id": path} for path in paths],
        "RedundancyType": "NPlusM",
        "Status": parts.redundancy_status(seen),
    }
    resources: Body = {
        folder: {
            "PowerSupplies": {"@odata.id": f"{folder}/PowerSupplies"},
            "PowerSupplyRedundancy": [group],
        },
        f"{folder}/PowerSupplies": _collection(paths),
        f"{chassis}/Sensors/P12V": _rail(seen),
    }
    for number, (path, supply) in enumerate(zip(paths, seen.supplies, strict=True)):
        there = supply.trouble is not power.Trouble.REMOVED
        resources[path] = {
            **parts.identity(seen, number, supply),
            "Id": f"PSU{number}",
            "Status": parts.supply_status(seen, supply),
            "LineInputStatus": parts.line_input(supply),
            **({"Metrics": {"@odata.id": f"{path}/Metrics"}} if there else {}),
        }
        if there:
            resources[f"{path}/Metrics"] = {
                "InputPowerWatts": {"Reading": round(supply.input_watts, 1)},
                "OutputPowerWatts": {"Reading": round(supply.output_watts, 1)},
                "InputVoltage": {"Reading": parts.input_volts(supply)},
                "RailVoltage": [{"Reading": round(supply.volts, 3)}],
            }
    return resources


def _rail(seen: Seen) -> Body:
    return {
        "Name": "P12V",
        "Reading": round(power.rail(seen.supplies), 3),
        "ReadingType": "Voltage",
        "Status": {"State": "Enabled"},
    }


def _fans(seen: Seen, chassis: str) -> Body:
    folder = f"{chassis}/ThermalSubsystem/Fans"
    paths = [f"{folder}/FAN{number}" for number in range(seen.chassis.fans)]
    resources: Body = {folder: _collection(paths)}
    for number, path in enumerate(paths):
        rpm, status = parts.fan(seen, number)
        percent = rpm if "percent-in-rpm" in seen.chassis.traps else round(100 * rpm / seen.chassis.fan_rpm)
        sensor = f"{chassis}/Sensors/FAN{number}"
        resources[path] = {
            "Id": f"FAN{number}",
            "Name": f"FAN{number}",
            "Status": status,
            "SpeedPercent": {"DataSourceUri": sensor, "Reading": percent, "SpeedRPM": rpm},
        }
        resources[sensor] = {
            "Name": f"FAN{number}",
            "Reading": rpm,
            "ReadingUnits": "RPM",
            "Thresholds": {"LowerCritical": {"Reading": parts.lowest_rpm(seen)}},
        }
    return resources


def _leaks(seen: Seen, thermal: str) -> Body:
    if not seen.chassis.leak_detectors:
        return {}
    folder = f"{thermal}/LeakDetection"
    paths = [f"{folder}/LeakDetectors/Leak{number}" for number in range(seen.chassis.leak_detectors)]
    resources: Body = {
        folder: {"LeakDetectors": {"@odata.id": f"{folder}/LeakDetectors"}},
        f"{folder}/LeakDetectors": _collection(paths),
    }
    for number, path in enumerate(paths):
        resources[path] = {
            "Id": f"Leak{number}",
            "Name": f"Leak{number}",
            "DetectorState": "Critical" if number in seen.machine.case.leaks else "OK",
            "Status": {"State": "Enabled", "Health": "OK"},
        }
    return resources


def _collection(paths: list[str]) -> Body:
    return {"Members": [{"@odata.id": path} for path in paths], "Members@odata.count": len(paths)}
