"""A whole fleet that is bad at once: the sweep with its workers, late watches and slow calls keeps to the
budgets, the rates and the incidents, also over a restart, and says so.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.settings import Settings
from support.api_server import EVENTS, NODES, POLICIES, REPORTS
from support.client import unavailable
from support.judging import saying
from support.operator import SETTINGS
from support.virtual_operator import VirtualTimeOperator, on_virtual_time, refusing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stated_answers")]

HOUR = 3600.0
COUNT, SLOTS = 50, 10
SPEC: dict[str, Any] = {
    "probes": {"health": {"interval": "2m"}},
    "budget": {"concurrentProbes": "100%", "gatedNodes": SLOTS},
    "hysteresis": {"leaveRuns": 1, "dwell": "1m", "probationAfter": []},
}


class Watched:
    """An operator on which every single change is looked at: how many nodes are gated at that moment."""

    def __init__(self, operator: VirtualTimeOperator) -> None:
        self.operator, self.cluster = operator, operator.cluster
        self.most = 0
        operator.cluster.subscribers.append(self._look)

    async def begin(self, answers: str, *, nodes: int = COUNT, after: float, **spec: Any) -> None:
        """So many nodes are all bad from the start."""
        for n in range(nodes):
            self.cluster.results[f"node-{n}"] = saying(answers)
        await self.operator.begin(nodes, after=after, **(SPEC | spec))

    async def restart(self, settings: Settings, *, after: float) -> VirtualTimeOperator:
        """Another process goes on."""
        await self.operator.stop()
        again = VirtualTimeOperator(self.operator.loop, settings=settings, cluster=self.cluster)
        again.start()
        await again.after(after)
        return again

    def _look(self, path: str, kind: str, body: dict[str, Any]) -> None:
        reports = self.cluster.objects[REPORTS].items()
        reserved = {n for n, b in reports if b.get("status", {}).get("desired", {}).get("taints")}
        self.most = max(self.most, len(self.cluster.tainted_nodes() | reserved))

    def all(self, answers: str, *, but: set[str] | None = None) -> None:
        """Every node's next run ends like this, except these nodes'."""
        for name in self.cluster.objects[NODES].keys() - (but or set()):
            self.cluster.results[name] = saying(answers)

    def status(self, policy: str = "default") -> dict[str, Any]:
        """The policy's."""
        status: dict[str, Any] = self.cluster.objects[POLICIES][policy]["status"]
        return status

    def condition(self, kind: str = "GatesWithinBudget", policy: str = "default") -> dict[str, Any]:
        """The policy's only condition of that type."""
        (condition,) = [c for c in self.status(policy)["conditions"] if c["type"] == kind]
        return dict(condition)

    def event_messages(self) -> list[str]:
        """Messages of events about the policy."""
        events = self.cluster.objects[EVENTS].values()
        return [e["message"] for e in events if e["involvedObject"]["kind"] == names.POLICY_KIND]


@on_virtual_time
async def test_fifty_hot_nodes_never_gate_more_than_the_budget(operator: VirtualTimeOperator) -> None:
    """At no moment, in reports and on nodes together; the policy says how many are held back, and why; as the
    first ones cool down, those that waited longest come next, until nobody is hot."""
    watched = Watched(operator)
    await watched.begin("hot=b", after=400)
    assert len(watched.cluster.tainted_nodes()) == SLOTS
    condition = watched.condition()
    assert (condition["status"], condition["reason"]) == ("False", "BudgetExhausted")
    assert condition["message"].startswith("10 of 10 slots used, 40 nodes held back: thermal 40.")
    counts = watched.status()["nodes"]
    assert (counts["gated"], counts["heldBack"]) == (SLOTS, COUNT - SLOTS)
    hot = {"policy": "default", "cause": "thermal", "taint": "throttled"}
    assert operator.sample("nodegauge_gated_nodes", **hot) == SLOTS
    assert operator.sample("nodegauge_held_back_nodes", policy="default") == COUNT - SLOTS
    first = watched.cluster.tainted_nodes()
    for name in first:
        operator.cluster.results[name] = saying("")
    await operator.after(400)
    assert len(watched.cluster.tainted_nodes()) == SLOTS
    assert not watched.cluster.tainted_nodes() & first
    watched.all("")
    await operator.after(1500)
    assert watched.cluster.tainted_nodes() == set()
    assert watched.condition()["reason"] == "WithinBudget"
    assert watched.most == SLOTS


@pytest.mark.parametrize("seed", range(3))
@on_virtual_time
async def test_answers_that_are_lost_lose_no_slot(operator: VirtualTimeOperator, seed: int) -> None:
    """A third of the writes to reports is made or not, and no answer comes: the budget holds all the same,
    and in the end as many nodes are gated as there are slots."""
    dice = random.Random(seed)

    def lost(verb: str, path: str) -> KubeError | None:
        hit = verb == "PATCH" and path.startswith(REPORTS) and dice.random() < 0.17
        return unavailable() if hit else None

    def unheard(verb: str, path: str) -> None:
        error = lost(verb, path)
        if error is not None:
            raise error

    operator.client.refuse, operator.client.answered = lost, unheard
    watched = Watched(operator)
    await watched.begin("gpu-lost=b", after=300)
    assert (watched.most, len(watched.cluster.tainted_nodes())) == (SLOTS, SLOTS)


@partial(on_virtual_time, settings=replace(SETTINGS, max_gated_nodes="20%"))
async def test_a_fleet_of_small_policies_is_never_tainted_beyond_the_cluster_s_budget(
    operator: VirtualTimeOperator,
) -> None:
    """Every node bad at once: four of twenty, and each policy says why not more."""
    for n in range(20):
        operator.cluster.add_node(f"node-{n}", pool=f"pool-{n}")
        selector = {"matchLabels": {"pool": f"pool-{n}"}}
        operator.cluster.add_policy(f"pool-{n}", nodeSelector=selector, probes=SPEC["probes"])
    watched = Watched(operator)
    watched.all("gpu-lost=b")
    operator.start()
    await operator.after(400)
    assert (watched.most, len(watched.cluster.tainted_nodes())) == (4, 4)
    shown = [watched.condition(policy=f"pool-{n}") for n in range(20)]
    blocked = [condition for condition in shown if condition["status"] == "False"]
    assert {condition["reason"] for condition in blocked} == {"ClusterBudgetExhausted"}
    assert len(blocked) == 20 - 4
    assert "4 of 4 slots of all policies together (20%)" in blocked[0]["message"]


BY_THE_HOUR = replace(SETTINGS, max_gated_nodes_per_hour=3)


@partial(on_virtual_time, settings=BY_THE_HOUR)
async def test_a_fleet_that_is_bad_at_once_is_tainted_hour_by_hour(operator: VirtualTimeOperator) -> None:
    """With a restart in between; the policy says why others wait, and healing needs no room."""
    budget = {"concurrentProbes": "100%", "gatedNodes": "100%", "gatedNodesPerHour": 5}
    watched = Watched(operator)
    await watched.begin("gpu-lost=b", nodes=12, after=600, budget=budget)
    assert len(watched.cluster.tainted_nodes()) == 3
    within = watched.condition()
    assert (within["status"], within["reason"]) == ("False", "RateExhausted")
    assert "3 of 3 new ones within an hour, 9 nodes held back" in within["message"]
    assert "operator.maxGatedNodesPerHour" in within["message"]
    assert operator.sample("nodegauge_newly_gated_nodes", policy="default") == 3
    again = await watched.restart(BY_THE_HOUR, after=600)
    assert len(watched.cluster.tainted_nodes()) == 3, "the reports say when"
    await again.after(HOUR)
    assert len(watched.cluster.tainted_nodes()) == 6
    watched.all("")
    await again.after(1800)
    assert watched.cluster.tainted_nodes() == set()
    await again.stop()


# -- incidents --------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {
    "probes": {"health": {"interval": "5m"}},
    "budget": {"concurrentProbes": "100%", "gatedNodes": "20%", "gatedNodesPerHour": "10%"},
    "breaker": {},
}


@on_virtual_time
async def test_a_common_cause_is_shown_once_and_heals_by_itself(operator: VirtualTimeOperator) -> None:
    """Few are tainted, however long it lasts, also while the status cannot be written; a restart says nothing
    again; reports say what holds nodes back; a node that is still bad after the end is tainted after a new
    bad run."""
    watched = Watched(operator)
    operator.client.refuse = refusing(unavailable(), "PATCH", POLICIES)
    await watched.begin("gpu-lost=b", nodes=40, after=600, **COMMON)
    assert 0 < len(watched.cluster.tainted_nodes()) <= 4
    first = watched.cluster.tainted_nodes()
    operator.client.refuse = lambda verb, path: None
    await operator.after(600)
    condition = watched.condition("BreakerOpen")
    assert (condition["status"], condition["reason"]) == ("True", "IncidentOpen")
    (incident,) = watched.status()["incidents"]
    command = f"nodegauge.dev/close-incident={incident['id']} --overwrite"
    assert command in condition["message"]
    assert command in watched.event_messages()[0]
    assert operator.sample("nodegauge_incidents_open", cause="gpu-lost", policy="default") == 1
    assert operator.sample("nodegauge_incidents_total", cause="gpu-lost") == 1
    blocked = [r["status"]["desired"]["message"] for r in operator.cluster.objects[REPORTS].values()]
    assert sum(f"held back by incident {incident['id']}" in text for text in blocked) == 40 - len(first)
    again = await watched.restart(SETTINGS, after=1.25 * HOUR)
    assert watched.cluster.tainted_nodes() == first, "the rate would have let more nodes in"
    assert [i["id"] for i in watched.status()["incidents"]] == [incident["id"]]
    watched.all("", but={"node-0"})
    await again.after(1800)
    condition = watched.condition("BreakerOpen")
    assert (condition["status"], condition["reason"]) == ("False", "NoIncident")
    assert watched.status()["incidents"][0]["closedAt"]
    assert watched.cluster.tainted_nodes() == {"node-0"}, "still bad, and alone"
    watched.all("")
    await again.after(1800)
    assert watched.cluster.tainted_nodes() == set()
    assert (len(watched.event_messages()), watched.most) == (1, 4)
    await again.stop()


@on_virtual_time
async def test_held_findings_are_not_replayed_when_the_incident_is_closed_by_hand(
    operator: VirtualTimeOperator,
) -> None:
    """No run since: nothing is tainted.  A new bad run is tainted, at the rate."""
    watched = Watched(operator)
    budget = {"concurrentProbes": "100%", "gatedNodes": "50%", "gatedNodesPerHour": "50%"}
    seldom = {"health": {"interval": "6h"}}
    await watched.begin("gpu-lost=b", nodes=40, after=600, budget=budget, breaker={}, probes=seldom)
    first = watched.cluster.tainted_nodes()
    (incident,) = watched.status()["incidents"]
    annotations = {names.CLOSE_INCIDENT: incident["id"]}
    operator.cluster.change(POLICIES, "default", {"metadata": {"annotations": annotations}})
    await operator.after(1800)
    assert watched.condition("BreakerOpen")["status"] == "False"
    assert watched.cluster.tainted_nodes() == first
    await operator.after(7 * HOUR)
    assert len(watched.cluster.tainted_nodes()) == 20
