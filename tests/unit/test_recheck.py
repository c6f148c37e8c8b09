"""After a bad run the next comes soon, and only then: by gate, by run, by load.

What people and time change is noticed too while the containers of mode Watch have nothing to report.
"""

from __future__ import annotations

import pytest

from nodegauge_contract import Xids
from nodegauge_operator import names
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import NEVER, GateState, GateStatus, stamp
from nodegauge_operator.core.gates import due_at, recheck_after
from nodegauge_operator.core.override import DAY, MAX_AHEAD_DAYS
from support.api_server import NODES, POLICIES
from support.calm_fleet import CalmFleet
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import INTERVAL, MINUTE, NOW, make_policy
from support.operator import SteppedOperator
from support.results import every_gpu, titan, with_gpu
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

pytestmark = pytest.mark.usefixtures("stated_answers")

RECHECK = seconds(Probes().health.recheck)
SOON = 10.0
"""Two looks of the loop at what is due (`operator.sweepInterval`)."""
LOST = "gpu-lost=b"
FLOOR = 2 * MINUTE
"""What the judge needs to read counters: `intervalFloor`."""


class Clocked(SteppedOperator):
    """One node; each run is made when the operator asks for it."""

    def __init__(self, **spec: object) -> None:
        super().__init__(FakeCluster())
        self.cluster.add_node()
        self.cluster.add_policy(**spec)
        self.list()

    def run(self, message: str | None = "", *, load: bool = True) -> None:
        """One whole run with these answers, now."""
        self.cluster.results["node-1"] = saying(message or "", load=load)
        self.catch_up()
        self.cluster.kubelets()
        self.catch_up(granted=False)

    def wait(self) -> float:
        """Let time pass until the next run is due; the seconds."""
        began = self.cluster.now
        while True:
            reconciled = self.reconcile(granted=False)
            if reconciled.waits:
                return self.cluster.now - began
            self.cluster.pass_time(max(1.0, reconciled.wake_at - self.cluster.now))


def waits(operator: Clocked, *answers: str, load: bool = True) -> list[float]:
    """Seconds from each run to the next."""
    result = []
    for answer in answers:
        operator.run(answer, load=load)
        result.append(operator.wait())
    return result


@pytest.mark.parametrize("code", ["p2p-refused", "nvlink-degraded", "row-remap", "psu-fault"])
def test_a_bad_run_is_confirmed_soon_and_a_good_one_too(code: str) -> None:
    """Two bad, then three good; before, between and after them the interval."""
    bad = f"{code}=b"
    seen = waits(Clocked(), "", bad, bad, bad, "", "", "", "")
    assert seen == [INTERVAL, RECHECK, INTERVAL, INTERVAL, RECHECK, RECHECK, INTERVAL, INTERVAL]


@pytest.mark.parametrize("code", ["hot", "sw-thermal-slowdown", "power-brake", "pcie-narrow"])
def test_what_counters_or_load_decide_waits_for_an_interval_that_can_be_judged(code: str) -> None:
    """A minute of counters says nothing by `intervalFloor`; two do."""
    seen = waits(Clocked(), f"{code}=b", f"{code}=b", "", "", "")
    assert seen == [FLOOR, INTERVAL, FLOOR, FLOOR, INTERVAL]


def test_one_bad_run_that_suffices_needs_no_other() -> None:
    """A lost GPU is tainted at once; its return is confirmed soon."""
    seen = waits(Clocked(), LOST, LOST, "", "", "")
    assert seen == [INTERVAL, INTERVAL, RECHECK, RECHECK, INTERVAL]


@pytest.mark.parametrize("answer", ["u", "n"])
def test_a_run_that_cannot_tell_asks_for_no_further_one(answer: str) -> None:
    """A gate that waits for load, or for a GPU that can be read, would ask every minute for weeks."""
    seen = waits(
        Clocked(), "hot=b", f"hot={answer}", f"hot={answer}", "hot=b", f"hot={answer}", "", f"hot={answer}"
    )
    assert seen == [FLOOR, INTERVAL, INTERVAL, INTERVAL, INTERVAL, FLOOR, INTERVAL]


def test_a_run_without_a_result_backs_off_as_ever() -> None:
    """Also between two bad runs: a node that hangs is not asked every minute."""
    operator = Clocked()
    operator.run("p2p-refused=b")
    assert operator.wait() == RECHECK
    seen = []
    for _ in range(6):
        operator.reconcile()
        for pod in operator.cluster.pods():
            operator.cluster.end(pod, "garbage")
        operator.catch_up(granted=False)
        operator.catch_up(granted=False)
        seen.append(operator.wait())
    assert seen == [30, 60, 120, 240, 480, INTERVAL]


@pytest.mark.parametrize(("floor", "wait"), [(FLOOR, FLOOR), (30.0, NEVER)])
def test_a_reading_that_comes_too_early_to_tell_keeps_the_recheck(floor: float, wait: float) -> None:
    """A container may confirm soon after a run that counted; within `intervalFloor` no counter is judged."""
    policy = make_policy().of({"thresholds": {"intervalFloor": floor}})
    gate = GateStatus(code="sw-thermal-slowdown", state=GateState.GATED, good=1, good_at=stamp(NOW))
    assert recheck_after([gate], policy=policy, read_at=stamp(NOW + 70)) == wait


@pytest.mark.parametrize(
    ("interval", "recheck", "wait"), [("30s", "1m", 30), ("15m", "15m", 900), ("15m", "10s", 10)]
)
def test_the_recheck_is_the_policy_s_and_never_later_than_the_interval(
    interval: str, recheck: str, wait: int
) -> None:
    """A policy that wants no recheck makes it as long as the interval."""
    operator = Clocked(probes={"health": {"interval": interval, "recheck": recheck, "deadline": "10s"}})
    assert waits(operator, "p2p-refused=b") == [wait]


@on_virtual_time
async def test_a_cause_that_all_nodes_share_costs_no_more_slots(operator: VirtualTimeOperator) -> None:
    """Every node is confirmed once, in the slots that there are; then all return to the interval."""
    for n in range(16):
        operator.cluster.results[f"node-{n}"] = saying("p2p-refused=b")
    await operator.begin(16, after=INTERVAL, budget={"concurrentProbes": 4})
    assert operator.most_pods == 4
    assert len(operator.begun) == 2 * 16
    await operator.after(INTERVAL)
    assert len(operator.begun) == 3 * 16


def gates_without_runs(operator: Clocked, *, days: float) -> list[str]:
    """Codes of the gates after so many days without a run, looked at when the operator wants to."""
    down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    operator.cluster.change(NODES, "node-1", down)
    operator.deliver()
    end = operator.cluster.now + days * DAY
    while (at := operator.reconcile(granted=False).wake_at) <= end:
        operator.cluster.now = max(at, operator.cluster.now + 1)
    operator.cluster.now = end
    return [gate["code"] for gate in operator.status["gates"]]


@pytest.mark.parametrize(
    ("answers", "ends"),
    [
        pytest.param(["p2p-refused=b"] * 2 + [""] * 3, True, id="what healed"),
        pytest.param(["p2p-refused=b"], True, id="what was never confirmed"),
        pytest.param(["p2p-refused=b"] * 2, False, id="no taint: missing data changes no verdict"),
    ],
)
def test_what_ends_by_itself(answers: list[str], ends: bool) -> None:
    """Not only at the next run: the node may be away for good."""
    operator = Clocked(hysteresis={"relapseWindow": "24h"})
    waits(operator, *answers)
    assert gates_without_runs(operator, days=0.9) == ["p2p-refused"]
    assert gates_without_runs(operator, days=0.2 if ends else 30) == ([] if ends else ["p2p-refused"])


def test_what_healed_does_not_read_as_a_fault() -> None:
    """Its entry stays for a relapse, without the evidence; a relapse brings its own."""
    operator = Clocked()
    waits(operator, "p2p-refused=b", "p2p-refused=b", "")
    for answer, shown in (("", True), ("", False), ("p2p-refused=b", True)):
        waits(operator, answer)
        (gate,) = operator.status["gates"]
        assert [bool(gate.get(field)) for field in ("subject", "message")] == [shown, shown]


def test_a_gate_that_waits_for_a_reading_hides_the_timer_of_no_other() -> None:
    """Its own time is over: it waits for a BMC, and the node is looked at for the others all the same."""
    waiting = GateStatus(code="supplies-short", state=GateState.GATED, good=3, entered_at=stamp(NOW))
    on_trial = GateStatus(code="hot", state=GateState.GATED, readable_since=1, entered_at=stamp(NOW))
    assert due_at([waiting, on_trial], policy=make_policy(), now=NOW) == NOW + 10 * MINUTE
    assert due_at([waiting, on_trial], policy=make_policy(), now=NOW + 15 * MINUTE) == NOW + 60 * MINUTE


@on_virtual_time
async def test_a_slot_that_becomes_free_is_used_at_once(operator: VirtualTimeOperator) -> None:
    """By a node that was looked at, without a slot, since it began to wait."""
    fleet = CalmFleet(operator)
    await fleet.begin(3, budget={"gatedNodes": 1})
    await fleet.becomes("node-0", LOST)
    await fleet.becomes("node-1", LOST)
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": {"rack": "r1"}}})
    await operator.after(1000)
    assert not fleet.tainted("node-1")
    operator.cluster.remove(NODES, "node-0")
    assert await fleet.until(lambda: fleet.tainted("node-1")) <= SOON


@on_virtual_time
async def test_a_node_that_waits_for_the_hour_is_tainted_as_it_passes(operator: VirtualTimeOperator) -> None:
    """`gatedNodesPerHour`: not with its next reading, but when the first taint is an hour old."""
    fleet = CalmFleet(operator)
    await fleet.begin(3, budget={"gatedNodes": 3, "gatedNodesPerHour": 1})
    began = operator.loop.time()
    await fleet.becomes("node-0", LOST)
    await fleet.becomes("node-1", LOST)
    await fleet.until(lambda: fleet.tainted("node-1"))
    assert 3600 <= operator.loop.time() - began <= 3600 + SOON


async def incident_of(fleet: CalmFleet, operator: VirtualTimeOperator, answer: str) -> str:
    """Six nodes bad alike: the id of their incident, ten minutes later."""
    await fleet.begin(6, breaker={"nodes": 3, "share": "100%"})
    for n in range(6):
        await fleet.becomes(f"node-{n}", answer)
    await operator.after(600)
    (incident,) = operator.cluster.objects[POLICIES]["default"]["status"]["incidents"]
    return str(incident["id"])


@on_virtual_time
async def test_nodes_that_an_incident_held_back_follow_when_it_is_closed(
    operator: VirtualTimeOperator,
) -> None:
    """After another bad run, which a health pod makes; one that is no longer bad needs no taint."""
    fleet = CalmFleet(operator)
    incident = await incident_of(fleet, operator, LOST)
    assert not fleet.tainted("node-4")
    fleet.edit({"metadata": {"annotations": {names.CLOSE_INCIDENT: incident}}})
    assert await fleet.until(lambda: fleet.tainted("node-4", "node-5")) <= RECHECK


@on_virtual_time
async def test_what_an_incident_held_back_and_waits_for_load_costs_one_run(
    operator: VirtualTimeOperator,
) -> None:
    """A run that cannot tell is no reason for another one every minute."""
    fleet = CalmFleet(operator)
    incident = await incident_of(fleet, operator, "hot=b")
    for n in range(6):
        operator.cluster.results[f"node-{n}"] = saying("hot=n")
    operator.begun.clear()
    fleet.edit({"metadata": {"annotations": {names.CLOSE_INCIDENT: incident}}})
    await operator.after(1200)
    assert sorted(node for _, node in operator.begun) == ["node-4", "node-5"]


@pytest.mark.parametrize("ahead", [0.5, MAX_AHEAD_DAYS * DAY])
@on_virtual_time
async def test_an_override_begins_and_ends_by_the_clock(operator: VirtualTimeOperator, ahead: float) -> None:
    """Also one whose end is a part of a second, or became near enough only now."""
    fleet = CalmFleet(operator)
    await fleet.begin(1)
    at = int(operator.cluster.clock()) + 600
    until = stamp(at + int(ahead)).replace("Z", ".5Z")
    annotations = {names.OVERRIDE: "healthy", names.OVERRIDE_BY: "ann", names.OVERRIDE_REASON: "fan"}
    annotations |= {names.OVERRIDE_UNTIL: until}
    operator.cluster.change(NODES, "node-0", {"metadata": {"annotations": annotations}})
    await operator.after(10)
    before = bool(fleet.status()["override"].get("problem"))
    await fleet.until(lambda: bool(fleet.status()["override"].get("problem")) != before)
    assert 0 <= operator.cluster.clock() - at <= SOON


@on_virtual_time
async def test_a_policy_that_is_corrected_is_followed_soon(operator: VirtualTimeOperator) -> None:
    """A node that it called faulty is read again, though its container has nothing to report."""
    fleet = CalmFleet(operator)
    await fleet.begin(1, expectedGpus=4)
    await fleet.becomes("node-0", titan())
    assert fleet.tainted("node-0")
    await operator.after(1000)
    fleet.edit({"spec": {"expectedGpus": 2}})
    assert await fleet.until(lambda: not fleet.tainted("node-0")) <= 2 * RECHECK


@pytest.mark.parametrize(("severity", "more"), [("Warn", 0.0), ("Fail", 2 * RECHECK)])
@on_virtual_time
async def test_xids_of_a_rule_clear_once_fewer_are_left_in_its_window(
    operator: VirtualTimeOperator, severity: str, more: float
) -> None:
    """The container of a calm node has nothing to say then: a health pod looks, and its run is the first good
    one."""
    fleet = CalmFleet(operator)
    rule = {"codes": [94], "count": 2, "window": "30m", "severity": severity}
    await fleet.begin(1, xids=[rule])
    calm = every_gpu(titan(), xids=Xids(registered=True))
    for _ in range(2):
        await fleet.becomes("node-0", with_gpu(calm, 0, xids=Xids(registered=True, seen=[94])))
    at = operator.loop.time()
    await fleet.becomes("node-0", calm)
    assert fleet.tainted("node-0") == (severity == "Fail")
    operator.begun.clear()
    await fleet.until(lambda: fleet.status()["verdict"] == "pass" and not fleet.tainted("node-0"))
    assert operator.loop.time() - at <= 1800 + RECHECK + SOON + more
    assert len(operator.begun) == (3 if severity == "Fail" else 1)
