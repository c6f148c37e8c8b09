"""The cluster's budget of gated nodes holds over all policies, however nodes and policies come and go."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, GateState, GateStatus, stamp
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.node_counts import CLUSTER
from support.api_server import NODES, POLICIES
from support.judging import listening, saying
from support.objects import NOW, make_node, make_policy, make_report, taint
from support.operator import SETTINGS
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

COUNT = 20
THERMAL = DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")


class Fleet:
    """Twenty nodes; a node follows the policy that its label `pool` names."""

    def __init__(self, *pools: str, gated_nodes: int | str = "20%", cluster: int | str = "20%") -> None:
        self.cache = Cache()
        self._version = 100
        self._cluster = cluster
        for pool in dict.fromkeys(pools):
            self.policy(pool, gated_nodes=gated_nodes)
        for n, pool in enumerate(pools):
            self.put(f"node-{n}", pool)
        self.restart()

    def restart(self) -> None:
        """Another process, which knows what the cluster holds."""
        self.budget = GateBudget(
            self.cache, clock=lambda: 0.0, now=lambda: NOW, cluster=self._cluster, per_hour="100%"
        )

    def policy(self, name: str, *, priority: int = 0, gated_nodes: int | str = "20%", **labels: str) -> None:
        """A policy is made or changed; without labels it selects its own pool."""
        policy = make_policy(name).selecting(**(labels or {"pool": name})).ranked(priority)
        self.cache.policies[name] = policy.spec_with(
            budget=Budget(gated_nodes=gated_nodes, gated_nodes_per_hour="100%")
        )
        self.cache.policies_changed()

    def delete_policy(self, name: str) -> None:
        """A policy is deleted."""
        del self.cache.policies[name]
        self.cache.policies_changed()

    def put(self, name: str, pool: str) -> None:
        """A node registers, or is relabelled; it keeps its taints."""
        self._version += 1
        known = self.cache.nodes.get(name)
        taints = known.taints if known else ()
        node = make_node(name, version=self._version).labelled(pool=pool)
        self.cache.put_node(replace(node, taints=taints))

    def gate(self, name: str) -> bool:
        """The node turns out bad: whether it is tainted."""
        if not self.budget.reserve(name):
            return False
        self._report(name, taints=[THERMAL])
        self.budget.confirm(name)
        self._version += 1
        node = replace(self.cache.nodes[name], resource_version=str(self._version))
        if not node.taints:
            self.cache.put_node(replace(node, taints=(taint(names.TAINT_THROTTLED),)))
        return True

    def wait(self, name: str, *, since: float) -> None:
        """The node has been held back since then."""
        self._report(name, gates=[GateStatus(code="hot", state=GateState.HELD_BACK, since=stamp(since))])

    def _report(self, name: str, *, taints: Any = (), gates: Any = ()) -> None:
        self._version += 1
        node = self.cache.nodes[name]
        policy = self.cache.policy_of(node)
        report = make_report(node, version=self._version)
        desired = DesiredNode(taints=list(taints))
        status = replace(
            report.status, policy=policy.name if policy else "", desired=desired, gates=list(gates)
        )
        self.cache.put_report(replace(report, status=status))

    def gate_all(self) -> int:
        """Every node turns out bad; how many are tainted then."""
        for name in list(self.cache.nodes):
            self.gate(name)
        return sum(bool(node.taints) for node in self.cache.nodes.values())


def test_policies_of_one_node_each_share_the_slots_of_the_cluster() -> None:
    """Each policy has at least one slot: without the cluster's budget, 20 of 20 nodes were tainted."""
    assert Fleet(*(f"pool-{n}" for n in range(COUNT))).gate_all() == 4


def test_nodes_that_are_relabelled_take_their_slots_along() -> None:
    """The policy that they left has free slots again, and the cluster has none: 11 of 20 were tainted."""
    fleet = Fleet(*(["a"] * COUNT))
    fleet.policy("b")
    for n in range(8):
        fleet.gate(f"node-{n}")
        fleet.put(f"node-{n}", "b")
    assert fleet.gate_all() == 4
    assert fleet.budget.used("b") > fleet.budget.slots("b"), "they count where they are"
    assert fleet.budget.has_slot("node-0"), "and stay gated there"


def test_a_policy_of_higher_priority_that_takes_gated_nodes_over_adds_no_slots() -> None:
    """Nodes move without a change of their own."""
    fleet = Fleet(*(["a"] * COUNT))
    assert fleet.gate_all() == 4
    fleet.policy("top", priority=5, gated_nodes="100%", pool="a")
    assert fleet.gate_all() == 4
    assert fleet.budget.used("top") == 4


def test_a_deleted_policy_leaves_its_slots_used() -> None:
    """Its nodes keep their taints for the grace period, and count until these are gone."""
    fleet = Fleet(*(["a"] * 10 + ["b"] * 10))
    assert fleet.gate_all() == 4
    fleet.delete_policy("a")
    assert fleet.gate_all() == 4
    assert (fleet.budget.used(CLUSTER), fleet.budget.used("b")) == (4, 2)


def test_budgets_of_policies_that_sum_beyond_the_cluster_end_at_it() -> None:
    """Counts and percentages alike."""
    assert Fleet(*(["a"] * 10 + ["b"] * 10), gated_nodes=5).gate_all() == 4
    assert Fleet(*(["a"] * 10 + ["b"] * 10), gated_nodes="100%", cluster=7).gate_all() == 7


def test_the_lower_budget_counts() -> None:
    """A cluster without a cap of its own leaves a policy's budget as it is."""
    assert Fleet(*(["a"] * COUNT), gated_nodes="10%").gate_all() == 2
    assert Fleet(*(["a"] * COUNT), cluster=0).gate_all() == 0


def test_a_cluster_of_one_node_can_taint_it() -> None:
    """A percentage is never less than one node."""
    assert Fleet("a").gate_all() == 1


def test_a_cluster_that_shrinks_adds_none_and_lifts_none() -> None:
    """Nodes are deleted: the percentage is of fewer."""
    fleet = Fleet(*(f"pool-{n % 10}" for n in range(COUNT)))
    assert fleet.gate_all() == 4
    for n in range(10, COUNT):
        fleet.cache.drop_node(f"node-{n}")
    assert (fleet.budget.used(CLUSTER), fleet.budget.slots(CLUSTER)) == (4, 2)
    assert list(fleet.budget.exceeded()) == [(CLUSTER, 4, 2, False)]
    assert fleet.gate_all() == 4
    for n in range(3):
        fleet.cache.drop_node(f"node-{n}")
    assert fleet.gate_all() == 1


def test_a_new_process_counts_what_it_finds() -> None:
    """Reports and taints of every policy use slots after a restart."""
    fleet = Fleet(*(f"pool-{n}" for n in range(COUNT)))
    fleet.gate_all()
    fleet.restart()
    assert fleet.gate_all() == 4


def test_a_taint_of_ours_on_a_node_without_a_policy_uses_a_slot_of_the_cluster() -> None:
    """Its capacity is missing all the same."""
    fleet = Fleet(*(["a"] * COUNT))
    fleet.cache.put_node(make_node("other", version=999).tainted(names.TAINT_UNHEALTHY))
    assert fleet.budget.used(CLUSTER) == 1
    assert fleet.gate_all() == 4, "three of the policy's nodes, and the other"


def test_a_write_in_flight_keeps_the_slot_while_its_node_moves() -> None:
    """It is not lost between the two policies."""
    fleet = Fleet(*(["a"] * COUNT), cluster=1)
    fleet.policy("b", gated_nodes=5)
    assert fleet.budget.reserve("node-0")
    fleet.put("node-0", "b")
    assert not fleet.budget.has_slot("node-1")
    fleet.budget.confirm("node-0")
    assert fleet.budget.has_slot("node-1")


def test_the_longest_wait_of_all_policies_goes_first() -> None:
    """And nobody waits behind a node whose own policy has no slot."""
    fleet = Fleet(*(["a"] * 10 + ["b"] * 10), cluster=2)
    fleet.policy("a", gated_nodes=0)
    fleet.wait("node-0", since=NOW)
    fleet.wait("node-11", since=NOW + 30)
    fleet.wait("node-12", since=NOW + 20)
    fleet.wait("node-13", since=NOW + 10)
    assert not fleet.budget.has_slot("node-14")
    assert fleet.budget.offer(busy=set()) == ["node-13", "node-12"]
    assert fleet.budget.offer(busy=set()) == []


CAPPED = replace(SETTINGS, max_gated_nodes="20%")


@pytest.mark.slow
def test_a_fleet_of_small_policies_is_never_tainted_beyond_the_cap() -> None:
    """The whole operator, with every node bad at once: four of twenty, and each policy says why not more."""

    async def story(operator: VirtualTimeOperator) -> None:
        for n in range(COUNT):
            operator.cluster.add_node(f"node-{n}", pool=f"pool-{n}")
            operator.cluster.add_policy(
                f"pool-{n}",
                nodeSelector={"matchLabels": {"pool": f"pool-{n}"}},
                probes={"health": {"interval": "2m"}},
            )
            operator.cluster.results[f"node-{n}"] = saying("gpu-lost=b")
        operator.start()
        await operator.after(400)
        bodies = operator.cluster.objects[NODES].values()
        tainted = [b for b in bodies if any(t["key"] in names.TAINTS_OF_FAULTS for t in b["spec"]["taints"])]
        assert len(tainted) == 4
        conditions = [
            c
            for body in operator.cluster.objects[POLICIES].values()
            for c in body["status"]["conditions"]
            if c["type"] == "GatesWithinBudget" and c["status"] == "False"
        ]
        assert {c["reason"] for c in conditions} == {"ClusterBudgetExhausted"}
        assert len(conditions) == COUNT - 4
        assert "4 of 4 slots of all policies together (20%)" in conditions[0]["message"]

    with listening():
        on_virtual_time(story, settings=CAPPED)()
