"""Recorded BMCs over HTTPS, each fault made by changing one, and whatever stands in a ChassisReading."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodegauge_bmc.values import air_side
from nodegauge_contract.chassis import (
    AirTemperature,
    BoardGpu,
    ChassisReading,
    Fan,
    LeakDetector,
    Pump,
    Rail,
    Supply,
)
from nodegauge_contract.values import Unavailable
from nodegauge_judge import CATALOGUE, Answer, Psu, Verdict
from nodegauge_judge.chassis.judge import judge_chassis
from nodegauge_operator.api.chassis import MAX_READING, parse_chassis
from support.bmc_access import Bmcs, codes
from testbed.hardware import plug
from testbed.hardware.bmc import tree
from testbed.hardware.bmcs import tree_of

MACHINES = {
    # file: supplies installed and working, watts now, watts at full load, fans, inlets, leak detectors, GPUs
    "redfish/dgx-h100.json": (6, 6, 1989, 6997, 36, 4, 0, 8),
    "redfish/gb200.json": (0, 0, 1073, None, 12, 1, 4, 4),
    "redfish/dell.json": (2, 2, 614, None, 6, 1, 0, 0),
    "redfish/hpe.json": (2, 2, 531, None, 6, 2, 0, 0),
    "redfish/lenovo.json": (4, 4, 700, None, 10, 1, 0, 8),
    "redfish/supermicro.json": (6, 6, 2161, None, 6, 1, 0, 0),  # and two healthy dummies
}
TURNING = Fan(name="FAN0", rpm=4000, present=True, state="Enabled", health="OK")
Tree = dict[str, Any]
DGX_SUPPLIES = "/redfish/v1/Chassis/DGX/PowerSubsystem/PowerSupplies"
LENOVO = "/redfish/v1/Chassis/1"
SUPERMICRO_POWER = "/redfish/v1/Chassis/1/Power"


@pytest.mark.parametrize("expand", [False, True], ids=["one by one", "expanded"])
@pytest.mark.parametrize("name", MACHINES)
async def test_a_recorded_machine_has_no_finding(name: str, expand: bool, bmcs: Bmcs) -> None:
    reading = await bmcs.reading(name, expand=expand)
    judgement = judge_chassis(reading)
    assert (judgement.verdict, codes(judgement)) == (Verdict.PASS, set()), judgement.findings
    supplies = (judgement.installed, judgement.working, judgement.load_watts, judgement.peak_watts)
    inlets = sum(air.inlet for air in reading.air)
    parts = (len(reading.fans), inlets, len(reading.leaks), len(reading.gpus))
    assert supplies + parts == MACHINES[name]
    assert judgement.psu is (Psu.OK if reading.supplies else None)


async def test_the_dgx_s_traps_are_no_values(bmcs: Bmcs) -> None:
    reading = await bmcs.reading("dgx-h100")
    assert sum(one.output_watts for one in reading.supplies) == 1989  # type: ignore[misc]
    assert all(isinstance(one.capacity_watts, Unavailable) for one in reading.supplies)
    assert all(isinstance(fan.percent, Unavailable) and fan.rpm > 1000 for fan in reading.fans)  # type: ignore[operator]
    assert judge_chassis(reading).needed is None
    clocks = {clock.name: clock.skew_seconds for clock in reading.clocks}
    assert clocks["HGX_BMC_0"] < clocks["BMC"]  # type: ignore[operator]
    assert {air.name for air in reading.air} == {
        "TEMP_AMBIENT", "TEMP_MB_INLET", "TEMP_GB1_INLET1", "TEMP_GB1_INLET2", "TEMP_MB_OUTLET",
    }  # fmt: skip
    assert all(gpu.throttle_reasons == [] and isinstance(gpu.ports_up, Unavailable) for gpu in reading.gpus)
    assert [round(gpu.celsius) for gpu in reading.gpus] == [27, 31, 32, 35, 28, 31, 31, 30]  # type: ignore[arg-type]


def change(path: str, **members: Any) -> Callable[[Tree], None]:
    def apply(resources: Tree) -> None:
        resources[path] = resources[path] | members

    return apply


def lenovo_supply(number: int, **members: Any) -> Callable[[Tree], None]:
    return change(f"{LENOVO}/PowerSubsystem/PowerSupplies/PSU{number}", **members)


COOLING = "/redfish/v1/Chassis/Chassis_0/ThermalSubsystem"
PUMP = {
    "Name": "Pump 1",
    "PumpSpeedPercent": {"Reading": 62, "SpeedRPM": 1800},
    "Status": {"State": "Enabled", "Health": "OK"},
}
"""As the reference guide's (DMTF DSP0268, `Pump`)."""


def pump(**members: Any) -> Callable[[Tree], None]:
    return change(COOLING, Pumps=[PUMP | members])


def each(*faults: Callable[[Tree], None]) -> Callable[[Tree], None]:
    def apply(resources: Tree) -> None:
        for fault in faults:
            fault(resources)

    return apply


def nested(path: str, *keys: str | int, value: Any) -> Callable[[Tree], None]:
    def apply(resources: Tree) -> None:
        resource = resources[path]
        for key in keys[:-1]:
            resource = resource[key]
        resource[keys[-1]] = value

    return apply


LOST = Psu.REDUNDANCY_LOST
CRITICAL = {"Health": "Critical", "State": "Enabled"}
OFFLINE = {"Health": "OK", "State": "UnavailableOffline"}
ABSENT = {"State": "Absent"}
LOADED = nested(f"{LENOVO}/EnvironmentMetrics", "PowerWatts", "Reading", value=7000)
VOLTS = ("Voltages", 0, "ReadingVolts")
OLD_SUPPLY = (SUPERMICRO_POWER, "PowerSupplies", 1)
HPE_FAN = ("/redfish/v1/Chassis/1/Thermal", "Fans", 2, "Status")
DELL_SUPPLY = "/redfish/v1/Chassis/System.Embedded.1/PowerSubsystem/PowerSupplies/PSU.Slot.1/Metrics"
GROUP = nested(f"{LENOVO}/PowerSubsystem", "PowerSupplyRedundancy", 0, "Status", value={"Health": "Critical"})
TWO_FAILED = each(LOADED, lenovo_supply(1, Status=CRITICAL), lenovo_supply(2, Status=OFFLINE))
PASS, WARN, FAIL, OK = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Psu.OK
FAULTS: dict[str, tuple[str, Callable[[Tree], None], Verdict, set[str], Psu | None]] = {
    "supply offline": ("lenovo", lenovo_supply(2, Status=OFFLINE), WARN, {"supply-failed"}, LOST),
    "removed, and none is needed": ("lenovo", lenovo_supply(4, Status=ABSENT), PASS, set(), OK),
    "removed under load that three carry": (
        "lenovo", each(LOADED, lenovo_supply(4, Status=ABSENT)), PASS, set(), OK,
    ),
    "one failed under load that three carry": (
        "lenovo", each(LOADED, lenovo_supply(1, Status=CRITICAL)), WARN, {"supply-failed", "redundancy-lost"},
        LOST,
    ),
    "two failed under load that three carry": (
        "lenovo", TWO_FAILED, FAIL, {"supply-failed", "supplies-short"}, Psu.FAULT,
    ),
    "the group says so": ("lenovo", GROUP, WARN, {"redundancy-lost"}, LOST),
    "Critical while redundancy says OK, size unknown": (
        "dgx-h100", change(f"{DGX_SUPPLIES}/PSU3", Status=CRITICAL), WARN,
        {"supply-failed", "redundancy-lost"}, LOST,
    ),
    "supply failed, in the old resource alone": (
        "supermicro", nested(*OLD_SUPPLY, "Status", value=CRITICAL), WARN, {"supply-failed"},
        LOST,
    ),
    "12 V low": (
        "supermicro", nested(SUPERMICRO_POWER, *VOLTS, value=10.1), FAIL, {"chassis-rail"}, Psu.FAULT,
    ),
    "5 V low": (
        "supermicro", nested(SUPERMICRO_POWER, "Voltages", 1, "ReadingVolts", value=4.2), WARN,
        {"chassis-rail"}, OK,
    ),
    "a rail without a scale": ("supermicro", nested(SUPERMICRO_POWER, *VOLTS, value=1), PASS, set(), OK),
    "a flag in volts": ("supermicro", nested(SUPERMICRO_POWER, *VOLTS, value=True), PASS, set(), OK),
    "fan Critical": ("hpe", nested(*HPE_FAN, "Health", value="Critical"), WARN, {"fan-failed"}, OK),
    "fan removed": ("hpe", nested(*HPE_FAN, value=ABSENT), PASS, set(), OK),
    "pump Critical": ("gb200", pump(Status=CRITICAL), WARN, {"pump-failed"}, None),
    "pump standing still": (
        "gb200", pump(PumpSpeedPercent={"Reading": 0, "SpeedRPM": 0}), WARN, {"pump-failed"}, None,
    ),
    "pump at rest as a spare": (
        "gb200", pump(PumpSpeedPercent={"Reading": 0}, Status={"State": "StandbySpare"}), PASS, set(), None,
    ),
    "pump that says nothing": ("gb200", pump(PumpSpeedPercent=None), PASS, set(), None),
    "switching off": (
        "supermicro", change("/redfish/v1/Systems/1", PowerState="PoweringOff"), Verdict.UNKNOWN,
        {"machine-off"}, None,
    ),
    "no tray, and its list is empty": (
        "gb200", each(change("/redfish/v1/Chassis/Chassis_0", ChassisType="RackMount", Model="X"),
                      change("/redfish/v1/Systems/HGX_Baseboard_0", Model="X")),
        Verdict.UNKNOWN, {"chassis-unread"}, None,
    ),
    "output above input": (
        "dell", nested(DELL_SUPPLY, "OutputPowerWatts", "Reading", value=900), PASS, set(), OK,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_has_its_finding_and_no_other(fault: str, bmcs: Bmcs) -> None:
    name, apply, verdict, expected, psu = FAULTS[fault]
    resources = tree(name)
    apply(resources)
    judgement = judge_chassis(await bmcs.reading(resources))
    assert (judgement.verdict, codes(judgement), judgement.psu) == (verdict, expected, psu), (
        judgement.findings
    )


async def test_pumps_are_read_from_a_list_and_behind_a_link(bmcs: Bmcs) -> None:
    listed, linked = tree("gb200"), tree("gb200")
    pump()(listed)
    linked[COOLING]["Pumps"] = {"@odata.id": f"{COOLING}/Pumps"}
    linked[f"{COOLING}/Pumps"] = {"Members": [{"@odata.id": f"{COOLING}/Pumps/1"}]}
    linked[f"{COOLING}/Pumps/1"] = PUMP
    expected = [Pump(name="Pump 1", rpm=1800.0, percent=62.0, present=True, state="Enabled", health="OK")]
    for resources in (listed, linked):
        assert (await bmcs.reading(resources)).pumps == expected


@pytest.mark.parametrize(("limit", "expected"), [(900.0, set()), (910.0, {"spare-watts"})])
def test_full_power_leaves_a_tenth_of_the_supplies_to_spare(limit: float, expected: set[str]) -> None:
    gpus = [BoardGpu(name=f"GPU{n}", watts=100.0, limit_watts=limit) for n in range(2)]
    supplies = [Supply(name=f"PSU{n}", health="OK", capacity_watts=2000.0) for n in range(2)]
    reading = ChassisReading(lists_supplies=True, supplies=supplies, gpus=gpus, watts=2000.0, fans=[TURNING])
    judgement = judge_chassis(reading)
    assert codes(judgement) == expected
    steps = [step for each in judgement.findings for step in CATALOGUE[each.code].steps(each)]
    assert ("`nvidia-smi -pl 900` lowers the limit of all GPUs." in steps) == bool(expected)


async def test_the_owner_s_number_of_needed_supplies_counts_where_no_size_is_stated(bmcs: Bmcs) -> None:
    """A DGX H100 needs 4 of 6; its BMC says 1."""
    resources = tree("dgx-h100")
    verdicts = []
    for number in range(3):
        change(f"{DGX_SUPPLIES}/PSU{number}", Status=OFFLINE)(resources)
        judgement = judge_chassis(await bmcs.reading(resources), needed=4)
        verdicts.append((judgement.working, judgement.verdict, "redundancy-lost" in codes(judgement)))
    assert verdicts == [(5, Verdict.WARN, False), (4, Verdict.WARN, True), (3, Verdict.FAIL, False)]


@pytest.mark.parametrize("status", [404, 500])
@pytest.mark.parametrize("name", MACHINES)
async def test_resources_that_fail_accuse_nothing(name: str, status: int, bmcs: Bmcs) -> None:
    resources = tree(name)
    deep = sorted(path for path in resources if path.count("/") > 4)[::2]
    broken = dict.fromkeys(deep, status)
    reading = await bmcs.reading(resources, broken=broken)
    judgement = judge_chassis(reading)
    assert judgement.verdict in (Verdict.PASS, Verdict.UNKNOWN)
    assert codes(judgement) <= {"supplies-unread", "chassis-unread"}
    assert any(f"HTTP status {status}" in one.reason for one in reading.unread)


GOOD = Supply(name="PSU0", present=True, state="Enabled", health="OK", capacity_watts=2000)


def fan(**what: Any) -> Fan:
    return Fan(**{"name": "FAN", "present": True, "state": "Enabled", "health": "OK"} | what)


@pytest.mark.parametrize(
    ("changed", "verdict", "code"),
    [
        ({"rails": [Rail(name="VDD_3V3_S5 Voltage Output", volts=3.37)]}, PASS, ""),
        ({"rails": [Rail(name="VDD_S5 V", volts=3.37)]}, PASS, ""),
        ({"rails": [Rail(name="P48V_HSC_VOUT", volts=51.2)]}, PASS, ""),
        ({"rails": [Rail(name="RISER 12 VAUX", volts=10.9)]}, PASS, ""),
        ({"rails": [Rail(name="P12V_AUX", volts=10.1)]}, PASS, "chassis-rail"),
        ({"rails": [Rail(name="P12V", volts=10.1, nominal_volts=12)]}, FAIL, "chassis-rail"),
        ({"rails": [Rail(name="VR", volts=0.94, low_critical_volts=0.95)]}, WARN, "chassis-rail"),
        ({"rails": [Rail(name="VR", volts=0, health="Critical")]}, WARN, "chassis-rail"),
        ({"power_on": False, "fans": [fan(rpm=0)]}, Verdict.UNKNOWN, "machine-off"),
        ({"fans": [fan(rpm=0), fan(percent=0)]}, WARN, "fan-failed"),
        ({"fans": [fan(present=False)]}, Verdict.UNKNOWN, "chassis-unread"),
        ({"fans": [TURNING, fan()]}, Verdict.UNKNOWN, "chassis-unread"),
        ({"fans": [], "pumps": [Pump(name="P", present=True, health="OK")]}, PASS, ""),
        ({"fans": [], "leaks": [LeakDetector(name="L", enabled=True, state="OK")]}, PASS, ""),
        ({"source": "ipmi", "fans": [Fan(name="FAN", rpm=0)]}, Verdict.UNKNOWN, "chassis-unread"),
        ({"supplies": [], "form": "Sled", "watts": 900}, PASS, ""),
        ({"supplies": [], "form": "Sled"}, Verdict.UNKNOWN, "chassis-unread"),
        ({"air": [AirTemperature(name="FP", inlet=True, health="Critical")]}, WARN, "inlet-hot"),
        ({"air": [AirTemperature(name="In", inlet=True, celsius=45)]}, WARN, "inlet-hot"),
        ({"watts": 3900, "supplies": [GOOD, Supply(name="PSU1")]}, Verdict.UNKNOWN, "supplies-unread"),
        ({"fans": [TURNING, Fan(name="FAN1", health="OK", low_critical_rpm=500)]}, PASS, ""),
    ],
)
def test_a_pass_is_earned_and_no_name_gates(changed: dict[str, Any], verdict: Verdict, code: str) -> None:
    """Two supplies of 2 kW are needed for 3.9 kW; 45 °C is the bound without one of the BMC's own."""
    machine = {"power_on": True, "lists_supplies": True, "supplies": [GOOD], "fans": [TURNING]}
    judgement = judge_chassis(ChassisReading(**machine | changed))
    assert (judgement.verdict, [one.code for one in judgement.findings]) == (verdict, [code] if code else [])
    assert judgement.power == ("on" if changed.get("power_on", True) else "off")


def test_a_line_names_what_is_silent_and_counts_what_is_absent() -> None:
    fans = [TURNING, fan(name="FAN1"), fan(present=False)]
    judgement = judge_chassis(ChassisReading(supplies=[GOOD], fans=fans, rails=[Rail(name="12V", volts=12)]))
    expected = "1 of 1 supplies, 1 of 2 fans (1 absent), 1 of 1 rails. Not readable: fans: FAN1"
    assert judgement.coverage == expected


@pytest.mark.parametrize(
    ("name", "enters", "side"),
    [
        ("TEMP_SENS_FRONT", False, True),
        ("FP_TEMP_SENSOR", False, True),
        ("Temp 3", True, True),
        ("RISER2_INLET_TMP", True, None),
        ("GPU Inlet Temp", False, None),
        ("P/S 1 Inlet", False, None),
        ("System Board Exhaust Temp", False, False),
    ],
)
def test_air_is_the_machine_s_by_whole_words(name: str, enters: bool, side: bool | None) -> None:
    assert air_side(name, enters=enters) is side


def test_a_rail_that_was_not_read_clears_no_gate() -> None:
    rails = [Rail(name="12V", volts=12.0), Rail(name="12V GPU")]
    judgement = judge_chassis(ChassisReading(lists_supplies=True, supplies=[GOOD], rails=rails))
    assert judgement.answers["chassis-rail"] is Answer.UNSURE


def body(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "7"}, "status": status}


def test_a_wrong_part_is_left_out_and_named() -> None:
    parsed = parse_chassis(
        body(number=-1, problem="x", reading={"supplies": [{"name": 7}, {"name": "PSU2"}]})
    )
    assert [one.name for one in parsed.reading.supplies] == ["PSU2"]
    assert (parsed.status.number, parsed.status.problem) == (0, "x")
    assert [one.partition(":")[0] for one in parsed.left_out][1:] == ["reading", "reading"]


def test_what_is_no_reading_counts_as_none() -> None:
    large = {"supplies": [{"name": "P" * 100}] * (MAX_READING // 100)}
    for wrong, why in ((large, "bytes"), ({"major": 2}, "version 2"), ([1], "not an object")):
        parsed = parse_chassis(body(reading=wrong))
        assert parsed.reading is None
        assert why in parsed.left_out[0]
    for empty in ({}, {"status": None}, {"status": []}):
        assert parse_chassis({"metadata": {"name": "n"}} | empty).reading is None


@pytest.mark.parametrize("absurd", [1.7e308, 2e6, 1e-300, 0.5, -800, -1.7e308])
@pytest.mark.parametrize("where", ["capacity_watts", "output_watts", "watts", "gpus"])
def test_watts_that_no_machine_has_were_not_read(absurd: float, where: str) -> None:
    supply: dict[str, Any] = {"capacity_watts": 3000, "output_watts": 900}
    machine: dict[str, Any] = {"watts": 1800} if where != "output_watts" else {}
    gpus = [BoardGpu(name="GPU0", watts=300, limit_watts=absurd if where == "gpus" else 700)]
    if where in supply:
        supply[where] = absurd
    elif where == "watts":
        machine[where] = absurd
    one = Supply(name="PSU", present=True, state="Enabled", health="OK", **supply)
    judged = judge_chassis(ChassisReading(supplies=[one, one], gpus=gpus, fans=[TURNING], **machine))
    assert judged.verdict is Verdict.PASS
    numbers = (judged.load_watts, judged.peak_watts, judged.capacity_watts, judged.needed)
    assert all(number is None or 0 < number < 10_000 for number in numbers)
    expected = {"capacity_watts": judged.capacity_watts, "gpus": judged.peak_watts}
    assert expected.get(where) is None


async def test_a_board_s_bmc_shows_links_that_are_down(bmcs: Bmcs, tmp_path: Path) -> None:
    hardware = plug("h100-sxm-8", tmp_path)
    hardware.fault("link-down", gpu=3, link=5)
    hardware.fault("driver-mismatch")
    gpus = (await bmcs.reading(tree_of(hardware))).gpus
    assert [gpu.ports_up for gpu in gpus] == [18, 18, 18, 17, 18, 18, 18, 18]
    assert {gpu.port_gbps for gpu in gpus} == {212.496}
