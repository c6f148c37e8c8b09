"""What people and time change is noticed while the containers of mode Watch have nothing to report."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodegauge_contract import Xids
from nodegauge_operator import names
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.override import DAY, MAX_AHEAD_DAYS
from support.api_server import NODES, POLICIES
from support.calm_fleet import CalmFleet
from support.judging import listening, saying
from support.results import every_gpu, titan, with_gpu
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

SOON = 10.0
"""Two looks of the loop at what is due (`operator.sweepInterval`)."""
RECHECK = seconds(Probes().health.recheck)
LOST = "gpu-lost=b"


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    with listening():
        yield


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
def test_an_override_begins_and_ends_by_the_clock(ahead: float) -> None:
    """Also one whose end is a part of a second, or became near enough only now."""

    @on_virtual_time
    async def story(operator: VirtualTimeOperator) -> None:
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

    story()


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
def test_xids_of_a_rule_clear_once_fewer_are_left_in_its_window(severity: str, more: float) -> None:
    """The container of a calm node has nothing to say then: a health pod looks, and its run is the first good
    one."""

    @on_virtual_time
    async def story(operator: VirtualTimeOperator) -> None:
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

    story()
