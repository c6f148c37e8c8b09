"""The budget of gated nodes: a slot is used once, kept while a write is unanswered, and offered in order."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, GateState, GateStatus, Report, stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.gate_budget import DOUBT_SECONDS, GateBudget
from support.objects import NOW, make_node, make_policy, make_report

THERMAL = DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")


class BudgetedNodes:
    """Nodes of one policy with so many slots, and the nodes over them."""

    def __init__(self, *, slots: int | str = 1, nodes: int = 5) -> None:
        self.now = 1000.0
        self.cache = Cache()
        self.version = 100
        self.budget(slots)
        for n in range(nodes):
            self.cache.put_node(make_node(f"node-{n}"))
        self.gate_budget = GateBudget(
            self.cache, clock=lambda: self.now, now=lambda: NOW + self.now, cluster="100%", per_hour="100%"
        )

    def budget(self, slots: int | str) -> None:
        """The policy's budget is now this one."""
        policy = make_policy().spec_with(budget=Budget(gated_nodes=slots, gated_nodes_per_hour="100%"))
        self.cache.policies[policy.name] = policy
        self.cache.policies_changed()

    def report(self, name: str, *taints: DesiredTaint, gates: tuple[GateStatus, ...] = ()) -> Report:
        """A newer report of the node holds these taints and rows."""
        self.version += 1
        known = make_report(self.cache.nodes[name], version=self.version)
        report = replace(
            known, status=replace(known.status, desired=DesiredNode(taints=list(taints)), gates=list(gates))
        )
        self.cache.put_report(report)
        return report

    def waits(self, name: str, *, since: float, code: str = "hot") -> None:
        """The node is held back since then."""
        row = GateStatus(code=code, state=GateState.HELD_BACK, since=stamp(since))
        self.report(name, gates=(row,))

    def carries(self, name: str, *keys: str) -> None:
        """The node carries taints of these keys, and nothing else."""
        self.version += 1
        node: NodeView = make_node(name, version=self.version).tainted(*keys)
        self.cache.put_node(node)


def test_a_place_is_taken_once() -> None:
    """Who asks second, before anything was written, gets none; nor after it was written."""
    nodes = BudgetedNodes()
    assert nodes.gate_budget.reserve("node-0")
    assert not nodes.gate_budget.has_slot("node-1")
    assert not nodes.gate_budget.reserve("node-1")
    assert nodes.gate_budget.reserve("node-0"), "its own slot is no reason to refuse"
    nodes.report("node-0", THERMAL)
    nodes.gate_budget.confirm("node-0")
    assert nodes.gate_budget.used("default") == 1
    assert nodes.gate_budget.has_slot("node-0")
    assert not nodes.gate_budget.reserve("node-1")


def test_a_write_that_failed_gives_its_place_back() -> None:
    """A conflict or a refusal wrote nothing."""
    nodes = BudgetedNodes()
    assert nodes.gate_budget.reserve("node-0")
    nodes.gate_budget.confirm("node-0")
    assert nodes.gate_budget.used("default") == 0
    assert nodes.gate_budget.reserve("node-1")


def test_a_write_without_an_answer_keeps_its_place_until_it_is_known() -> None:
    """It may have been made: nobody else is gated before a newer report, or enough time, tells."""
    nodes = BudgetedNodes()
    nodes.report("node-0")
    assert nodes.gate_budget.reserve("node-0")
    nodes.gate_budget.unanswered("node-0")
    nodes.now += DOUBT_SECONDS / 2
    assert not nodes.gate_budget.reserve("node-1")
    nodes.report("node-0", THERMAL)
    assert nodes.gate_budget.used("default") == 1
    assert not nodes.gate_budget.reserve("node-1")
    nodes.report("node-0")
    assert nodes.gate_budget.reserve("node-1"), "the newer report says that nothing is held"


def test_what_no_report_ever_shows_was_not_written() -> None:
    """A slot cannot be lost for good by one call without an answer."""
    nodes = BudgetedNodes()
    assert nodes.gate_budget.reserve("node-0")
    nodes.gate_budget.unanswered("node-0")
    nodes.now += DOUBT_SECONDS
    assert nodes.gate_budget.reserve("node-1")


def test_a_node_that_goes_during_its_write_gives_its_place_back() -> None:
    """Scaled down: there is nothing left to be gated."""
    nodes = BudgetedNodes()
    assert nodes.gate_budget.reserve("node-0")
    nodes.gate_budget.unanswered("node-0")
    nodes.cache.drop_node("node-0")
    assert nodes.gate_budget.reserve("node-1")


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        (names.TAINT_THROTTLED, True),
        (names.TAINT_UNHEALTHY, True),
        (names.TAINT_UNVALIDATED, False),
        ("example.com/throttled", False),
    ],
)
def test_a_taint_that_still_stands_takes_a_place(key: str, counts: bool) -> None:
    """Its report lets go first: until the node's patch, the node is one more that is gated."""
    nodes = BudgetedNodes()
    nodes.report("node-0")
    nodes.carries("node-0", key)
    assert nodes.gate_budget.used("default") == counts
    assert nodes.gate_budget.has_slot("node-1") is not counts
    nodes.carries("node-0")
    assert nodes.gate_budget.has_slot("node-1")


def test_a_node_that_leaves_frees_its_place() -> None:
    """Deleted, out of the selection, or under another policy."""
    nodes = BudgetedNodes()
    nodes.report("node-0", THERMAL)
    assert not nodes.gate_budget.has_slot("node-1")
    nodes.cache.outside_selector.add("node-0")
    nodes.carries("node-0", names.TAINT_THROTTLED)
    assert nodes.gate_budget.has_slot("node-1")
    assert not nodes.gate_budget.has_slot("node-0"), "no policy has a slot for it"
    nodes.report("node-2", THERMAL)
    nodes.cache.drop_node("node-2")
    assert nodes.gate_budget.has_slot("node-1")
    other = make_policy("gold").selecting(tier="gold").ranked(5)
    nodes.report("node-3", THERMAL)
    nodes.cache.policies["gold"] = other
    nodes.cache.policies_changed()
    nodes.cache.put_node(make_node("node-3", version=9999).labelled(tier="gold"))
    assert (nodes.gate_budget.used("default"), nodes.gate_budget.used("gold")) == (0, 1)


def test_a_report_of_an_earlier_node_takes_no_place() -> None:
    """It is of another machine under the same name."""
    nodes = BudgetedNodes()
    report = nodes.report("node-0", THERMAL)
    nodes.cache.put_report(replace(report, node_uid="another", resource_version="9999"))
    assert nodes.gate_budget.used("default") == 0


@pytest.mark.parametrize(("setting", "slots"), [("20%", 2), ("5%", 1), ("0%", 0), (0, 0), (3, 3)])
def test_places_follow_the_setting(setting: int | str, slots: int) -> None:
    """Per cent of ten nodes, rounded down and at least one; a count as it is; nothing for 0."""
    nodes = BudgetedNodes(slots=setting, nodes=10)
    assert nodes.gate_budget.slots("default") == slots
    taken = [name for name in nodes.cache.nodes if nodes.gate_budget.reserve(name)]
    assert len(taken) == slots
    assert nodes.gate_budget.slots("unknown") == 0
    assert not nodes.gate_budget.has_slot("unknown")


def test_a_budget_that_shrinks_lifts_nothing_and_adds_nothing() -> None:
    """It is told of instead; those that are gated may stay so."""
    nodes = BudgetedNodes(slots=3)
    for name in ("node-0", "node-1", "node-2"):
        nodes.carries(name, names.TAINT_THROTTLED)
        nodes.report(name, THERMAL)
    assert list(nodes.gate_budget.exceeded()) == []
    nodes.budget(1)
    assert list(nodes.gate_budget.exceeded()) == [("default", 3, 1, False)]
    assert nodes.gate_budget.has_slot("node-0")
    assert not nodes.gate_budget.has_slot("node-3")
    assert nodes.gate_budget.offer(busy=set()) == []


def test_who_waited_longest_is_called_first() -> None:
    """One for each free slot, which is kept for them: a newcomer does not jump the queue."""
    nodes = BudgetedNodes(slots=2, nodes=6)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        nodes.waits(f"node-{n}", since=since)
    assert nodes.gate_budget.offer(busy=set()) == ["node-1", "node-2"]
    assert nodes.gate_budget.offer(busy=set()) == [], "they are called once"
    assert not nodes.gate_budget.reserve("node-5")
    assert nodes.gate_budget.reserve("node-1")
    nodes.report("node-1", THERMAL)
    nodes.gate_budget.confirm("node-1")
    nodes.gate_budget.reconciled("node-1")
    assert not nodes.gate_budget.reserve("node-0")
    assert nodes.gate_budget.reserve("node-2")


def test_who_asks_first_does_not_jump_the_queue() -> None:
    """A worker may come by with another node before anybody has been called."""
    nodes = BudgetedNodes(slots=2)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        nodes.waits(f"node-{n}", since=since)
    assert [nodes.gate_budget.has_slot(f"node-{n}") for n in range(4)] == [False, True, True, False]
    assert nodes.gate_budget.reserve("node-2")
    assert [nodes.gate_budget.has_slot(f"node-{n}") for n in range(4)] == [False, True, True, False]


def test_nobody_is_called_whom_a_worker_looks_at_already() -> None:
    """That look began without a slot; it is called when it is over."""
    nodes = BudgetedNodes()
    nodes.waits("node-0", since=NOW)
    assert nodes.gate_budget.offer(busy={"node-0"}) == []
    assert nodes.gate_budget.offer(busy=set()) == ["node-0"]


def test_who_does_not_take_the_place_is_passed_over() -> None:
    """A node whose report cannot be written must not keep all others waiting; a newer report asks again."""
    nodes = BudgetedNodes()
    nodes.waits("node-0", since=NOW)
    nodes.waits("node-1", since=NOW + 60)
    assert nodes.gate_budget.offer(busy=set()) == ["node-0"]
    nodes.gate_budget.reconciled("node-0")
    assert nodes.gate_budget.offer(busy=set()) == ["node-1"]
    nodes.gate_budget.reconciled("node-1")
    assert nodes.gate_budget.offer(busy=set()) == []
    assert nodes.gate_budget.has_slot("node-4"), "a slot that nobody takes is free for all"
    nodes.waits("node-0", since=NOW)
    assert nodes.gate_budget.offer(busy=set()) == ["node-0"]


def test_a_gated_node_waits_for_nothing() -> None:
    """A second row of a node that has its slot is no second node held back."""
    nodes = BudgetedNodes()
    row = GateStatus(code="xid", state=GateState.HELD_BACK, since=stamp(NOW))
    nodes.report("node-0", THERMAL, gates=(row,))
    counters = nodes.gate_budget.counters
    assert (counters.gated("default"), dict(counters.waiting("default"))) == ({"node-0"}, {})
    assert counters.gates("default") == {("throttled", "thermal"): 1}


def test_what_waits_is_counted_by_cause() -> None:
    """By the taint that would be set, a node with two causes once under each; an unknown row by its code."""
    nodes = BudgetedNodes()
    rows: list[tuple[Any, ...]] = [("hot", "memory-hot"), ("xid", "hot"), ("of-tomorrow",)]
    for n, codes in enumerate(rows):
        gates = [GateStatus(code=c, state=GateState.HELD_BACK, since=stamp(NOW)) for c in codes]
        nodes.report(f"node-{n}", gates=tuple(gates))
    assert nodes.gate_budget.counters.causes("default") == {"thermal": 2, "xid": 1, "of-tomorrow": 1}
    nodes.report("node-1")
    assert nodes.gate_budget.counters.causes("default") == {"thermal": 1, "of-tomorrow": 1}


def test_a_node_that_was_looked_at_without_an_offer_declined_none() -> None:
    """It was reconciled while every slot was in use: the next free one is offered to it."""
    nodes = BudgetedNodes()
    nodes.report("node-0", THERMAL)
    nodes.waits("node-1", since=NOW)
    assert nodes.gate_budget.offer(busy=set()) == []
    nodes.gate_budget.reconciled("node-1")
    nodes.report("node-0")
    assert nodes.gate_budget.offer(busy=set()) == ["node-1"]
