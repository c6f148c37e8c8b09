"""What a BMC lists is counted once, the load is its own meter's, and no fault of a recorded tree passes."""

from typing import Any

import pytest
from msgspec.structs import replace

from corpus.bmc.faults import Tree
from corpus.bmc.table import MACHINES, WRONG, Outcome, judged, outcome, recorded
from nodegauge_contract.chassis import ChassisReading, Fan, Redundancy, Supply, Unread
from nodegauge_contract.values import Unavailable
from nodegauge_judge import Psu, Verdict
from nodegauge_judge.chassis.judge import judge_chassis
from support.bmc_access import codes

ROOT = "/redfish/v1"
MADE = f"{ROOT}/Chassis/1"
FANS = [Fan(name="Fan 1", rpm=4000, present=True)]


def made(**resources: Any) -> Tree:
    """The recorded HPE, whose two supplies of 800 W give 200 W each; `Power={...}` changes that resource."""
    tree = Tree(recorded("hpe"))
    power = tree.edit(f"{MADE}/Power")
    power["PowerControl"] = []
    for one in power["PowerSupplies"]:
        one |= {"PowerCapacityWatts": 800, "PowerInputWatts": 215, "PowerOutputWatts": 200}
    for name, body in resources.items():
        path = f"{MADE}/{name}"
        tree.edit(MADE)[name] = {"@odata.id": path}
        tree.changed[path] = tree.changed.get(path, {"@odata.id": path}) | body
    return tree


async def reading_of(tree: Tree) -> ChassisReading:
    got: Outcome = await outcome(tree)
    assert got.reading is not None, got.error
    return got.reading


WHOLE = {"Name": "System Input Power", "PowerConsumedWatts": 430}
VOLTAGES = [
    {"MinimumVoltage": low, "MaximumVoltage": high, "OutputWattage": watts}
    for low, high, watts in ((100, 140, 500), (200, 240, 1050))
]


@pytest.mark.parametrize(
    ("tree", "watts"),
    [
        (made(Power={"PowerControl": [{"PowerConsumedWatts": 430}]}), 430),
        (made(Power={"PowerControl": [{"PhysicalContext": "PowerSupply", "PowerConsumedWatts": 430}]}), 430),
        (made(Power={"PowerControl": [{"Name": "CPU Power", "PowerConsumedWatts": 130}]}), None),
        (made(Power={"PowerControl": [WHOLE, {"Name": "GPU Power", "PowerConsumedWatts": 300}]}), 430),
        (made(Power={"PowerControl": [{"PowerConsumedWatts": 85}]}), None),  # its supplies give 400 W
        (made(Power={"PowerControl": [{"PowerConsumedWatts": 5000}]}), None),  # and take 430 W
        (made(EnvironmentMetrics={"PowerWatts": {"Reading": 425}}), 425),
        (made(EnvironmentMetrics={"PowerWatts": {"Reading": 0}}), None),
    ],
    ids=["plain", "Cisco", "a part", "the whole and a part", "too little", "too much", "new", "0 W"],
)
async def test_the_load_is_what_the_machine_s_own_meter_says(tree: Tree, watts: float | None) -> None:
    got = (await reading_of(tree)).watts
    assert (got if not isinstance(got, Unavailable) else None) == watts


@pytest.mark.parametrize(
    "body", [{"ChassisType": "Module"}, {"ChassisType": "Card", "Name": "GPU 0"}, {"Name": "HGX_GPU_0"}]
)
async def test_a_part_s_meter_is_not_the_machine_s(body: dict[str, Any]) -> None:
    tree, path = made(), f"{ROOT}/Chassis/HGX_GPU_0"
    tree.edit(f"{ROOT}/Chassis")["Members"].append({"@odata.id": path})
    metrics = {"EnvironmentMetrics": {"@odata.id": f"{path}/E"}}
    tree.changed[path] = {"@odata.id": path, "Id": "HGX_GPU_0", **metrics, **body}
    tree.changed[f"{path}/E"] = {"PowerWatts": {"Reading": 420}}  # as plausible as the machine's
    assert judge_chassis(await reading_of(tree)).load_watts == 400


@pytest.mark.parametrize(
    ("supply", "size"),
    [
        ({"InputRanges": [{"OutputWattage": 1050}]}, 1050),
        ({"InputRanges": VOLTAGES}, 1050),
        ({"LineInputVoltage": None, "InputRanges": [{"OutputWattage": 1050}, {"OutputWattage": 500}]}, 500),
        ({"PowerCapacityWatts": 800, "InputRanges": [{"OutputWattage": 1050}]}, 800),
    ],
)
async def test_a_size_may_stand_in_the_range_of_its_input_voltage(
    supply: dict[str, Any], size: float
) -> None:
    tree = made()
    for one in tree.edit(f"{MADE}/Power")["PowerSupplies"]:
        one |= {"PowerCapacityWatts": None} | supply
    assert [one.capacity_watts for one in (await reading_of(tree)).supplies] == [size, size]


@pytest.mark.parametrize(("given", "believed"), [(937, False), (450, True), (399, True)])
async def test_what_a_supply_gives_is_not_far_above_its_size(given: float, believed: bool) -> None:
    tree = made()
    for one in tree.edit(f"{MADE}/Power")["PowerSupplies"]:
        one.update(PowerCapacityWatts=400, PowerOutputWatts=given, PowerInputWatts=None)
    assert [one.output_watts == given for one in (await reading_of(tree)).supplies] == [believed, believed]


async def test_pages_that_lead_in_a_circle_end_and_are_named() -> None:
    tree = Tree(dict(recorded("lenovo")))
    path = "/redfish/v1/Chassis/1/PowerSubsystem/PowerSupplies"
    tree.edit(path)["Members@odata.nextLink"] = path
    reading = await reading_of(tree)
    assert len(reading.supplies) == 4
    assert any("circle" in unread.reason for unread in reading.unread)


def supply(name: str, **more: Any) -> Supply:
    known = {"present": True, "state": "Enabled", "health": "OK", "output_watts": 200, "input_volts": 230}
    return Supply(name=name, **(known | more))  # type: ignore[arg-type]


SILENT = {"output_watts": Unavailable("0 W"), "input_volts": Unavailable("not read")}


@pytest.mark.parametrize(
    ("supplies", "verdict", "psu", "working"),
    [
        ([supply("1"), supply("2", health="Warning")], Verdict.WARN, None, 2),
        ([supply("1"), supply("2", health="Critical")], Verdict.WARN, Psu.REDUNDANCY_LOST, 1),
        ([supply("1"), supply("2", **SILENT)], Verdict.UNKNOWN, None, 1),
        ([supply("1"), supply("2", **SILENT, capacity_watts=800)], Verdict.UNKNOWN, None, 1),
        ([supply("1"), supply("2", **SILENT, model="PWS-DF009-2F")], Verdict.PASS, Psu.OK, 1),
        ([supply("1"), supply("2", present=False)], Verdict.PASS, Psu.OK, 1),
        ([supply("1", **SILENT), supply("2", **SILENT)], Verdict.UNKNOWN, None, 0),
    ],
    ids=["warns", "failed", "silent", "a size alone", "a filler", "absent", "all silent"],
)
def test_a_supply_works_only_if_it_was_read(
    supplies: list[Supply], verdict: Verdict, psu: Psu | None, working: int
) -> None:
    got = judge_chassis(ChassisReading(lists_supplies=True, supplies=supplies, fans=FANS, power_on=True))
    assert (got.verdict, got.psu, got.working) == (verdict, psu, working), got.findings


@pytest.mark.parametrize(
    ("state", "out", "code"),
    [
        ("non-redundant, insufficient", True, "supplies-short"),
        ("non-redundant, insufficient", False, "redundancy-lost"),
        ("redundancy lost", True, "redundancy-lost"),
    ],
)
def test_supplies_that_the_bmc_calls_insufficient_carry_no_machine(state: str, out: bool, code: str) -> None:
    supplies = [supply(str(number), present=not out or number < 2) for number in range(4)]
    group = Redundancy(name="PS Redundancy", state=state, health="Critical")
    reading = ChassisReading(lists_supplies=True, supplies=supplies, fans=FANS, redundancy=[group])
    got = judge_chassis(reading)
    assert codes(got) == {code}
    assert (got.verdict is Verdict.FAIL) == (code == "supplies-short")
    assert "runs on" not in repr(got)


SHELF = ChassisReading(machine="power-shelf", lists_supplies=True, supplies=[supply("1")])
REFUSED = [Unread(path="/redfish/v1/Chassis/1/Thermal", reason="HTTP status 403")]


@pytest.mark.parametrize(
    ("reading", "verdict", "summary"),
    [
        (ChassisReading(machine="dpu"), Verdict.UNKNOWN, "DPU"),
        (SHELF, Verdict.PASS, "shelf"),
        (replace(SHELF, unread=REFUSED), Verdict.UNKNOWN, "shelf"),
    ],
)
def test_dpus_and_shelves_are_no_servers(reading: ChassisReading, verdict: Verdict, summary: str) -> None:
    got = judge_chassis(reading)
    assert got.verdict is verdict
    assert summary in got.summary


@pytest.mark.parametrize("machine", MACHINES)
def test_no_fault_passes_and_no_healthy_machine_warns(machine: str) -> None:
    assert [cell for cell in judged(machine) if cell.answer == WRONG] == []
