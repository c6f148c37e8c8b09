"""The status of policies: counts, conditions, written when they differ and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus, stamp
from nodegauge_operator.reconcile.counters import NodeCounters
from nodegauge_operator.reconcile.policy_status import PolicyStatus
from support import NOW
from support.client import unavailable
from support.cluster import NODES, POLICIES
from support.operator import Operator, World
from support.virtual import drive

pytestmark = pytest.mark.timeout(5)


class Scene:
    """Three nodes, read as the test says, and what the policies say of them."""

    def __init__(self) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        for n in range(3):
            self.cluster.add_node(f"node-{n}", tier="gold" if n == 0 else "tin")
        self.operator = Operator(self.cluster)
        self.status = PolicyStatus(
            client=self.operator.client,
            cache=self.operator.cache,
            gate_budget=self.operator.worker.gate_budget,
            metrics=self.operator.metrics,
            clock=self.cluster.clock,
            jitter=lambda: 0.0,
        )

        self.counters = self.operator.worker.gate_budget.counters

    def measure(self) -> None:
        """Every node is read once."""
        self.operator.list()
        for _ in range(2):
            for name in list(self.operator.cache.nodes):
                self.operator.settle(name)
            self.world.kubelets()
            self.operator.deliver()

    def write(self, *, after: float = 1.0) -> list[str]:
        """One pass, so much later; what was written."""
        self.world.pass_time(after)
        self.operator.client.log.clear()
        drive(self.status.write())
        return [line for line in self.operator.client.log if "policies" in line]

    def told(self, name: str = "default") -> dict[str, Any]:
        """The status as it stands."""
        found: dict[str, Any] = self.cluster.objects[POLICIES][name]["status"]
        return found

    def ready(self, name: str = "default") -> tuple[str, str]:
        """Status and reason of its condition Ready."""
        condition = self.condition("Ready", name)
        return condition["status"], condition["reason"]

    def condition(self, kind: str, name: str = "default") -> dict[str, Any]:
        """The one condition of that type."""
        found: dict[str, Any]
        (found,) = [c for c in self.told(name)["conditions"] if c["type"] == kind]
        assert found["message"]
        assert found["observedGeneration"] == self.told(name)["observedGeneration"]
        return found


@pytest.fixture
def scene() -> Scene:
    """Nothing measured yet."""
    return Scene()


def test_nodes_are_counted_by_what_was_found(scene: Scene) -> None:
    """Selected, validated, failing, unknown; and the same in metrics."""
    scene.cluster.add_policy()
    scene.world.machines["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    scene.measure()
    scene.cluster.add_node("node-new")
    scene.operator.deliver()
    assert scene.write() == ["PATCH gpuvalidationpolicies/status"]
    counts = {"selected": 4, "validated": 2, "failing": 1, "unknown": 1, "gated": 0, "heldBack": 0}
    counts |= {"measured": 0, "contradicted": 0}
    assert scene.told()["nodes"] == counts
    assert scene.told()["observedGeneration"] == 1
    assert scene.ready() == ("True", "Active")
    shown = scene.operator.metrics.render().decode()
    assert 'nodegauge_nodes{policy="default",verdict="fail"} 1.0' in shown
    assert 'nodegauge_nodes_by_interconnect{interconnect="none",policy="default"} 2.0' in shown
    assert scene.counters.selected("default") == 4


def test_nothing_new_is_not_written_again(scene: Scene) -> None:
    """Nor after a restart, from what stands there."""
    scene.cluster.add_policy()
    scene.operator.list()
    assert len(scene.write()) == 1
    scene.status.dirty = True
    assert scene.write() == []
    assert scene.write() == []
    again = Operator(scene.cluster)
    again.list()
    status = PolicyStatus(
        client=again.client,
        cache=again.cache,
        gate_budget=again.worker.gate_budget,
        metrics=again.metrics,
        clock=scene.cluster.clock,
    )
    drive(status.write())
    assert again.client.log == []


def test_counts_that_drift_are_written_every_few_seconds(scene: Scene) -> None:
    """Five thousand nodes settling must not mean a patch a second; the first change is told at once."""
    scene.cluster.add_policy()
    scene.operator.list()
    assert len(scene.write()) == 1
    written = 0
    for n in range(60):
        scene.cluster.add_node(f"node-{n + 10}")
        scene.operator.deliver()
        scene.status.dirty = True
        written += len(scene.write(after=1.0))
    assert 10 <= written <= 12
    scene.write(after=5.0)
    assert scene.told()["nodes"]["selected"] == 63
    scene.cluster.add_node("node-late")
    scene.operator.deliver()
    scene.status.dirty = True
    assert len(scene.write(after=10.0)) == 1


def test_what_somebody_changed_in_a_policy_is_answered_at_once(scene: Scene) -> None:
    """A new generation or another state does not wait for the counts' turn."""
    scene.cluster.add_policy()
    scene.operator.list()
    assert len(scene.write()) == 1
    scene.operator.cache.put_policy(bad(scene))
    scene.status.dirty = True
    assert len(scene.write(after=1.0)) == 1
    assert scene.ready() == ("False", "Invalid")


def test_a_count_looks_at_the_nodes_that_changed_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5,000 nodes a handful changes in a second; the counts equal those of a fresh look at all."""
    scene.cluster.add_policy()
    scene.cluster.add_policy("gold", nodeSelector={"matchLabels": {"tier": "gold"}}, priority=5)
    for n in range(200):
        scene.cluster.add_node(f"more-{n}", tier="gold" if n % 2 else "tin")
    scene.operator.list()
    scene.operator.inbox.clear()
    scene.write()
    looked: list[str] = []
    count = NodeCounters._count
    monkeypatch.setattr(
        NodeCounters, "_count", lambda self, name: (looked.append(name), count(self, name))[1]
    )
    scene.cluster.change(NODES, "more-1", {"metadata": {"labels": {"tier": "tin"}}})
    scene.operator.cache.drop_node("more-3")
    scene.operator.cache.outside_selector.add("more-5")
    scene.operator.cache.put_node(scene.operator.cache.nodes["more-5"])
    scene.operator.deliver()
    counts = {name: scene.counters.selected(name) for name in ("default", "gold")}
    assert sorted(looked) == ["more-1", "more-3", "more-5"]
    assert counts == {"default": 103, "gold": 98}
    fresh = NodeCounters(scene.operator.cache)
    assert {name: fresh.selected(name) for name in counts} == counts


def test_places_follow_the_policies_at_once(scene: Scene) -> None:
    """Per cent of the nodes that a selector had a moment ago would be the wrong number of probes."""
    scene.cluster.add_policy()
    scene.operator.list()
    assert scene.counters.selected("default") == 3
    scene.cluster.change(POLICIES, "default", {"spec": {"nodeSelector": {"matchLabels": {"tier": "gold"}}}})
    scene.operator.deliver()
    assert scene.counters.selected("default") == 1


def test_the_transition_time_moves_with_the_status_only(scene: Scene) -> None:
    """Another count is no transition; another verdict on the policy is."""
    scene.cluster.add_policy()
    scene.operator.list()
    scene.write()
    before = scene.condition("Ready")
    scene.world.pass_time(100)
    scene.cluster.remove("/api/v1/nodes", "node-2")
    scene.operator.cache.drop_node("node-2")
    scene.status.dirty = True
    scene.write()
    after = scene.condition("Ready")
    assert after["message"] != before["message"]
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    scene.operator.cache.policies.clear()
    scene.operator.cache.put_policy(bad(scene))
    scene.status.dirty = True
    scene.write()
    last = scene.condition("Ready")
    assert last["lastTransitionTime"] > after["lastTransitionTime"]


def bad(scene: Scene, *, version: str = "99999") -> dict[str, Any]:
    """The policy after a change that an older CRD let through."""
    body = scene.cluster.get(POLICIES, "default")
    body["metadata"] |= {"generation": 2, "resourceVersion": version}
    body["spec"]["staleAfterIntervals"] = 1
    return body


def test_a_policy_that_cannot_be_read_says_which_field(scene: Scene) -> None:
    """And whether an earlier version of it is still in force."""
    scene.cluster.add_policy()
    scene.operator.list()
    scene.operator.cache.put_policy(bad(scene))
    scene.write()
    assert scene.ready() == ("False", "Invalid")
    condition = scene.condition("Ready")
    assert "spec.staleAfterIntervals" in condition["message"]
    assert "last good version stays in force" in condition["message"]
    assert (scene.told()["observedGeneration"], scene.told()["nodes"]["selected"]) == (2, 3)
    other = Operator(scene.cluster)
    other.cache.put_policy(bad(scene))
    status = PolicyStatus(
        client=other.client,
        cache=other.cache,
        gate_budget=other.worker.gate_budget,
        metrics=other.metrics,
        clock=lambda: NOW + 500,
    )
    drive(status.write())
    assert "The policy is not in force" in scene.told()["conditions"][0]["message"]


def test_a_policy_without_nodes_says_why(scene: Scene) -> None:
    """Selecting none is something else than being overruled on all."""
    scene.cluster.add_policy("gold", nodeSelector={"matchLabels": {"tier": "gold"}}, priority=5)
    scene.cluster.add_policy("under", nodeSelector={"matchLabels": {"tier": "gold"}})
    scene.cluster.add_policy("typo", nodeSelector={"matchLabels": {"tier": "golld"}})
    scene.operator.list()
    scene.write()
    assert scene.ready("gold") == ("True", "Active")
    assert scene.ready("under") == ("True", "Overridden")
    assert scene.ready("typo") == ("True", "NoNodes")
    assert scene.told("under")["nodes"]["selected"] == 0


def test_a_policy_that_is_deleted_while_another_is_written_is_no_error(scene: Scene) -> None:
    """An exception here would end the whole process."""
    scene.cluster.add_policy("a", nodeSelector={"matchLabels": {"tier": "none"}})
    scene.cluster.add_policy("b", nodeSelector={"matchLabels": {"tier": "none"}})
    scene.operator.list()

    def delete(verb: str, path: str) -> None:
        if verb == "PATCH" and path.endswith("/a/status") and "b" in scene.cluster.objects[POLICIES]:
            scene.cluster.remove(POLICIES, "b")
            scene.operator.deliver()

    scene.operator.client.answered = delete
    assert scene.write() == ["PATCH gpuvalidationpolicies/status"]
    assert list(scene.operator.cache.policies) == ["a"]


def test_a_status_that_cannot_be_written_is_tried_again(scene: Scene) -> None:
    """Ever later, and it stops nothing else."""
    scene.cluster.add_policy("a")
    scene.cluster.add_policy("b")
    scene.operator.list()
    scene.operator.client.refuse = lambda verb, path: unavailable() if "/a/" in path else None
    assert scene.write() == ["PATCH gpuvalidationpolicies/status"]
    assert "status" not in scene.cluster.objects[POLICIES]["a"]
    calls = scene.operator.client.calls
    for _ in range(3600):
        assert scene.write(after=1.0) == []
    assert scene.operator.client.calls - calls < 20
    scene.operator.client.refuse = lambda verb, path: None
    assert scene.write(after=301.0) == ["PATCH gpuvalidationpolicies/status"]
    assert scene.ready("a") == ("True", "Active")


def test_places_are_counted_before_the_first_pass(scene: Scene) -> None:
    """Per cent of nobody would be one probe at a time for the first second."""
    scene.cluster.add_policy()
    scene.operator.list()
    assert scene.counters.selected("default") == 3
    assert scene.counters.selected("unknown") == 0


def gate(scene: Scene, name: str, *codes: str, held_back: bool = False) -> None:
    """The node's report says that these rows are entered, with or without a place."""
    report = scene.operator.cache.reports[name]
    state = GateState.HELD_BACK if held_back else GateState.GATED
    rows = [GateStatus(code=code, state=state, since=stamp(NOW)) for code in codes]
    taints = [] if held_back else [DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")]
    status = replace(report.status, gates=rows, desired=replace(report.status.desired, taints=taints))
    version = str(int(report.resource_version) + 10_000)
    scene.operator.cache.put_report(replace(report, resource_version=version, status=status))
    scene.status.dirty = True


def test_a_policy_says_whether_all_that_should_be_gated_is(scene: Scene) -> None:
    """Places used; then who is held back, how many, and for what; then more than the budget has places."""
    scene.cluster.add_policy(budget={"concurrentProbes": "100%", "gatedNodes": "40%"})
    scene.measure()
    scene.write()
    found = scene.condition("GatesWithinBudget")
    assert (found["status"], found["reason"]) == ("True", "WithinBudget")
    assert found["message"] == "0 of 1 slots used (40% of 3 nodes)"
    since = found["lastTransitionTime"]
    gate(scene, "node-0", "hot")
    scene.write(after=10)
    found = scene.condition("GatesWithinBudget")
    assert (found["reason"], found["lastTransitionTime"]) == ("WithinBudget", since)
    gate(scene, "node-1", "hot", "xid", held_back=True)
    assert len(scene.write()) == 1, "another reason is told at once"
    found = scene.condition("GatesWithinBudget")
    assert (found["status"], found["reason"]) == ("False", "BudgetExhausted")
    assert found["message"].startswith(
        "1 of 1 slots used (40% of 3 nodes), 1 node held back: thermal 1, xid 1."
    )
    assert found["lastTransitionTime"] > since
    assert scene.told()["nodes"]["heldBack"] == 1
    gate(scene, "node-2", "hot")
    scene.write()
    found = scene.condition("GatesWithinBudget")
    assert (found["status"], found["reason"]) == ("False", "BudgetExceeded")
    assert found["message"].startswith("2 of 1 slots used")
    assert (scene.told()["nodes"]["gated"], scene.ready()) == (2, ("True", "Active"))


def test_a_policy_that_was_never_readable_says_nothing_of_its_budget(scene: Scene) -> None:
    """It has none; what an earlier version left behind goes with it."""
    scene.cluster.add_policy()
    scene.operator.cache.put_policy(bad(scene))
    scene.write()
    assert [c["type"] for c in scene.told()["conditions"]] == ["Ready"]


def test_a_message_counts_the_most_frequent_causes(scene: Scene) -> None:
    """A table's cell has room for a few."""
    scene.cluster.add_policy(budget={"gatedNodes": 0})
    scene.measure()
    gate(scene, "node-0", "hot", "xid", "ecc", "psu-fault", "p2p-refused", "nvlink-degraded", held_back=True)
    gate(scene, "node-1", "xid", "pcie-narrow", "gpu-lost", held_back=True)
    scene.write()
    message = scene.condition("GatesWithinBudget")["message"]
    assert message.startswith("0 of 0 slots used, 2 nodes held back: xid 2, ")
    assert message.count(" 1,") == 5
    assert "2 more causes." in message
