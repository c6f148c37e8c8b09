"""Power and Thermal of a simulated machine: the resources of Redfish before 2020."""

from __future__ import annotations

from testbed.hardware import power
from testbed.hardware import redfish_parts as parts
from testbed.hardware.redfish_parts import Body, Seen


def old_resources(seen: Seen, chassis: str) -> Body:
    """Path to resource, below the chassis."""
    return {f"{chassis}/Power": _power(seen, chassis), f"{chassis}/Thermal": _thermal(seen)}


def _power(seen: Seen, chassis: str) -> Body:
    body: Body = {"PowerControl": [{"MemberId": "0", "PowerConsumedWatts": round(seen.draw)}]}
    if not seen.supplies or seen.chassis.supplies is None:
        return body
    body["PowerControl"][0]["PowerCapacityWatts"] = len(seen.supplies) * seen.chassis.supplies.watts
    body["PowerSupplies"] = [_supply(seen, number, supply) for number, supply in enumerate(seen.supplies)]
    body["Voltages"] = [
        {
            "Name": "12V",
            "ReadingVolts": round(power.rail(seen.supplies), 2),
            "LowerThresholdCritical": 11.4,
            "UpperThresholdCritical": 12.6,
            "Status": {"State": "Enabled"},
        }
    ]
    members = [{"@odata.id": f"{chassis}/Power#/PowerSupplies/{n}"} for n in range(len(seen.supplies))]
    body["Redundancy"] = [
        {
            "Name": "PSU Redundancy",
            "Mode": "N+m",
            "MinNumNeeded": parts.needed(seen),
            "MaxNumSupported": len(members),
            "RedundancySet": members,
            "Status": parts.redundancy_status(seen),
        }
    ]
    return body


def _supply(seen: Seen, number: int, supply: power.Supply) -> Body:
    body: Body = {**parts.identity(seen, number, supply), "Status": parts.supply_status(seen, supply)}
    if supply.trouble is power.Trouble.REMOVED:
        return body
    measured = 0 if "zero-watts" in seen.chassis.traps else round(supply.input_watts)
    return body | {
        "LineInputVoltage": parts.input_volts(supply),
        "LineInputStatus": parts.line_input(supply),
        "PowerInputWatts": measured,
        "PowerOutputWatts": round(supply.output_watts),
    }


def _thermal(seen: Seen) -> Body:
    celsius, status = parts.inlet(seen)
    fans = []
    for number in range(seen.chassis.fans):
        rpm, state = parts.fan(seen, number)
        fans.append(
            {
                "MemberId": str(number),
                "Name": f"FAN{number}",
                "Reading": rpm,
                "ReadingUnits": "RPM",
                "LowerThresholdCritical": parts.lowest_rpm(seen),
                "Status": state,
            }
        )
    inlet = {
        "Name": "Inlet Temp",
        "PhysicalContext": "Intake",
        "ReadingCelsius": celsius,
        "UpperThresholdNonCritical": seen.chassis.inlet_max,
        "Status": status,
    }
    return {"Fans": fans, "Temperatures": [inlet]}
