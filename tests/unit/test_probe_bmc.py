"""What the operator makes of a BMC: a reading is judged once, for its own gates and the label `psu`."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract.chassis import BoardGpu, ChassisReading, Fan, Supply
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from support.api_server import CHASSIS, NODES, POLICIES
from support.judging import saying
from support.objects import INTERVAL
from support.operator import SteppedOperator, one_node

STALE = 3 * 300.0
"""Seconds for which a BMC's reading counts: three intervals of the reader."""


def supply(name: str, **what: Any) -> Supply:
    well: dict[str, Any] = {"present": True, "health": "OK", "state": "Enabled", "line_input": "Normal"}
    return Supply(name=name, **well | {"capacity_watts": 1000, "input_volts": 230} | what)


def reading(*supplies: Supply, watts: float = 1500, **what: Any) -> ChassisReading:
    """A machine that draws 1,500 W: two supplies carry it."""
    cooled: dict[str, Any] = {"fans": [Fan(name="FAN1", rpm=5000, present=True)], "lists_supplies": True}
    return ChassisReading(product="Box 4", watts=watts, supplies=list(supplies), **cooled | what)


WELL = reading(supply("PSU1"), supply("PSU2"), supply("PSU3"))
ONE_LOST = reading(supply("PSU1"), supply("PSU2"), supply("PSU3", health="Critical"))
SHORT = reading(supply("PSU1"), supply("PSU2", line_input="LossOfInput"), supply("PSU3", health="Critical"))


class Bmc:
    """The reader's object of node-1, and an operator that judges it."""

    def __init__(self, operator: SteppedOperator) -> None:
        self.operator = operator
        self.number = 0

    def says(self, what: Any, *, later: float = 300.0, **status: Any) -> None:
        self.operator.cluster.pass_time(later)
        self.number += 1
        at, body = stamp(self.operator.cluster.clock()), msgspec.to_builtins(what)
        self.writes({"source": "redfish", "number": self.number, "readAt": at, "reading": body} | status)

    def writes(self, status: Any) -> None:
        cluster = self.operator.cluster
        if "node-1" in cluster.objects[CHASSIS]:
            cluster.change(CHASSIS, "node-1", {"status": {"reading": None}})
            cluster.change(CHASSIS, "node-1", {"status": status})
        else:
            cluster.create(CHASSIS, {"metadata": {"name": "node-1"}, "status": status})
        self.operator.catch_up(granted=False)

    @property
    def psu(self) -> str | None:
        return self.operator.labels.get("nodegauge.dev/psu")

    @property
    def taints(self) -> list[str]:
        return self.operator.cluster.faults()

    @property
    def runs(self) -> int:
        probes = self.operator.status["probes"]
        return next((p["lastRun"]["number"] for p in probes if p["name"] == names.PROBE_BMC), 0)


@pytest.fixture
def bmc(stated_answers: None) -> Bmc:
    """A node without supplies that its own sensors show, read once."""
    operator = one_node()
    operator.measure(after=0)
    return Bmc(operator)


def test_healthy_supplies_give_the_label_and_cost_few_writes(bmc: Bmc) -> None:
    """A reading that says nothing new renews the report only now and then."""
    assert bmc.psu is None
    bmc.says(WELL)
    assert bmc.psu == "ok"
    for _ in range(12):
        bmc.says(replace(WELL, watts=1510 + bmc.number))
    assert bmc.psu == "ok"
    assert bmc.runs == 7
    [day] = bmc.operator.status["days"].values()
    assert "spare=1478 " in day
    assert bmc.operator.status["verdict"] == "pass"


def test_too_few_supplies_taint_after_two_readings_and_three_good_ones_lift_it(bmc: Bmc) -> None:
    bmc.says(SHORT)
    assert (bmc.psu, bmc.taints) == ("fault", [])
    bmc.says(SHORT)
    for _ in range(5):
        assert bmc.taints == ["psu"]
        assert bmc.operator.labels[names.LABEL_HEALTH] == "fail"
        bmc.operator.measure(after=1)  # runs of other probes move no gate of the BMC
    for _ in range(2):
        bmc.says(WELL)
    assert (bmc.psu, bmc.taints) == ("ok", ["psu"])
    bmc.says(WELL)
    assert bmc.taints == []


def test_the_worse_of_two_sources_is_the_label(bmc: Bmc) -> None:
    lost = ("ok", ONE_LOST, "redundancy-lost")
    for sensors, reported, psu in (("fault", WELL, "fault"), ("ok", WELL, "ok"), lost):
        bmc.operator.cluster.results["node-1"] = saying("", psu=sensors)
        bmc.operator.cluster.pass_time(INTERVAL)
        bmc.operator.run()
        bmc.says(reported)
        assert bmc.psu == psu


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "gives nothing"])
def test_a_bmc_that_says_no_more_leaves_no_label_and_lifts_no_taint(bmc: Bmc, silent: bool) -> None:
    for _ in range(2):
        bmc.says(SHORT)
    for later, psu in ((300, "fault"), (STALE + 2, None)):
        if silent:
            bmc.operator.cluster.pass_time(later)
            bmc.operator.catch_up(granted=False)
        else:
            bmc.says(ChassisReading(), later=later)
        assert (bmc.psu, bmc.taints) == (psu, ["psu"])


def test_one_reading_is_judged_once(bmc: Bmc) -> None:
    bmc.says(SHORT)
    bmc.operator.cluster.change(CHASSIS, "node-1", {"metadata": {"annotations": {"a": "b"}}})
    bmc.operator.catch_up(granted=False)
    bmc.operator.restart()
    bmc.operator.catch_up(granted=False)
    assert (bmc.runs, bmc.taints) == (1, [])


def test_a_late_deletion_drops_only_what_it_is_about(bmc: Bmc) -> None:
    bmc.says(WELL)
    cluster, cache = bmc.operator.cluster, bmc.operator.cache
    first = cluster.get(CHASSIS, "node-1")
    cluster.remove(CHASSIS, "node-1")
    bmc.says(ONE_LOST)
    made = cache.chassis["node-1"]
    bmc.operator.inbox.append((CHASSIS, "DELETED", first))
    bmc.operator.deliver()
    cache.drop_chassis("node-1", version=int(first["metadata"]["resourceVersion"]))
    assert cache.chassis["node-1"] is made
    cluster.remove(CHASSIS, "node-1")
    cluster.create(CHASSIS, {"metadata": {"name": "node-2"}})
    bmc.operator.list()
    assert cache.chassis.keys() == {"node-2"}


@pytest.mark.parametrize(
    "status",
    [
        None,
        "broken",
        {"number": -4, "readAt": "yesterday", "reading": {}},
        {"number": 9, "readAt": "2099-01-01T00:00:00Z", "reading": {"supplies": "many"}},
        *(
            {"number": 9, "readAt": at, "reading": msgspec.to_builtins(SHORT)}
            for at in ("1970-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "")
        ),
        {"number": 9, "readAt": "2027-01-15T08:10:00Z", "reading": {"major": 9, "supplies": []}},
        {"number": 9, "readAt": "2027-01-15T08:10:00Z", "reading": {"product": "x" * 300_000}},
    ],
)
def test_a_broken_object_changes_nothing(bmc: Bmc, status: Any) -> None:
    before = dict(bmc.operator.labels)
    bmc.writes(status)
    assert bmc.operator.labels == before
    assert bmc.taints == []


def test_a_time_in_the_future_is_now(bmc: Bmc) -> None:
    bmc.says(WELL, readAt="2099-01-01T00:00:00Z")
    bmc.says(ONE_LOST)
    assert bmc.psu == "redundancy-lost"


def test_a_policy_may_leave_bmcs_out(bmc: Bmc) -> None:
    for enabled, slots, psu in ((False, "10%", None), (True, 0, None), (True, "10%", "ok")):
        spec = {"probes": {"bmc": {"enabled": enabled}}, "budget": {"concurrentProbes": slots}}
        bmc.operator.cluster.change(POLICIES, "default", {"spec": spec})
        bmc.says(WELL)
        assert bmc.psu == psu


def test_a_node_whose_driver_is_down_shows_what_its_baseboard_sees(bmc: Bmc) -> None:
    gpus = [BoardGpu(name=f"GPU{i}", health="OK", ports=18, ports_up=18 - i) for i in range(2)]
    operator = bmc.operator
    for _ in range(6):
        operator.cluster.pass_time(INTERVAL)
        operator.run("Segmentation fault")
        bmc.says(replace(WELL, gpus=gpus), later=1)
    shown = operator.cluster.objects[NODES]["node-1"]["status"]
    assert shown["conditions"][-1]["status"] == "Unknown"
    shows = "BMC: pass. Its baseboard shows 2 GPUs; NVLink: 35 of 36 ports up."
    assert shows in shown["conditions"][-1]["message"]
    hot = replace(gpus[0], throttled_lately_seconds={"hardware": 7.0, "power": 300.0})
    bmc.says(replace(WELL, gpus=[hot, gpus[1]], since_seconds=300), later=1)
    shown = operator.cluster.objects[NODES]["node-1"]["status"]
    assert "2 GPUs, 1 slowed down by heat or hardware; NVLink:" in shown["conditions"][-1]["message"]


@pytest.mark.parametrize(
    ("age", "enabled", "heard"), [(1, True, True), (STALE + 1, True, False), (1, False, False)]
)
def test_a_fresh_reading_is_a_second_witness(bmc: Bmc, age: float, enabled: bool, heard: bool) -> None:
    """An old one says nothing of now, and a policy may leave BMCs out."""
    uuids = [made.uuid(i).removeprefix("GPU-") for i in range(2)]
    gpus = [BoardGpu(name=f"GPU{i}", uuid=uuids[i], ports=18, ports_up=18 - i) for i in range(2)]
    bmc.operator.cluster.change(POLICIES, "default", {"spec": {"probes": {"bmc": {"enabled": enabled}}}})
    bmc.operator.cluster.results["node-1"] = made.h100(2)
    bmc.operator.cluster.pass_time(INTERVAL)
    bmc.says(replace(WELL, gpus=gpus), later=0)
    bmc.operator.cluster.pass_time(age)
    bmc.operator.run()
    health = next(p for p in bmc.operator.status["probes"] if p["name"] == names.PROBE_HEALTH)
    messages = {finding["code"]: finding["message"] for finding in health.get("findings", [])}
    assert ("nvlink-contradicted" in messages) is heard
    if heard:
        assert "NVML counts 18 of 18 NVLinks up, the BMC 17." in messages["nvlink-contradicted"]
