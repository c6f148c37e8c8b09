"""The ledger of gated nodes: places are taken once, kept while nobody knows, and offered in turn."""

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
from support import NOW, make_node, make_policy, make_report

pytestmark = pytest.mark.timeout(5)

THERMAL = DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")


class Ledger:
    """Nodes of one policy with so many places, and the ledger over them."""

    def __init__(self, *, places: int | str = 1, nodes: int = 5) -> None:
        self.now = 1000.0
        self.cache = Cache()
        self.version = 100
        self.budget(places)
        for n in range(nodes):
            self.cache.put_node(make_node(f"node-{n}"))
        self.gate_budget = GateBudget(self.cache, clock=lambda: self.now)

    def budget(self, places: int | str) -> None:
        """The policy's budget is now this one."""
        policy = make_policy().spec_with(budget=Budget(gated_nodes=places))
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
    ledger = Ledger()
    assert ledger.gate_budget.reserve("node-0")
    assert not ledger.gate_budget.has_slot("node-1")
    assert not ledger.gate_budget.reserve("node-1")
    assert ledger.gate_budget.reserve("node-0"), "its own place is no reason to refuse"
    ledger.report("node-0", THERMAL)
    ledger.gate_budget.confirm("node-0")
    assert ledger.gate_budget.used("default") == 1
    assert ledger.gate_budget.has_slot("node-0")
    assert not ledger.gate_budget.reserve("node-1")


def test_a_write_that_failed_gives_its_place_back() -> None:
    """A conflict or a refusal wrote nothing."""
    ledger = Ledger()
    assert ledger.gate_budget.reserve("node-0")
    ledger.gate_budget.confirm("node-0")
    assert ledger.gate_budget.used("default") == 0
    assert ledger.gate_budget.reserve("node-1")


def test_a_write_without_an_answer_keeps_its_place_until_it_is_known() -> None:
    """It may have been made: nobody else is gated before a newer report, or enough time, tells."""
    ledger = Ledger()
    ledger.report("node-0")
    assert ledger.gate_budget.reserve("node-0")
    ledger.gate_budget.unanswered("node-0")
    ledger.now += DOUBT_SECONDS / 2
    assert not ledger.gate_budget.reserve("node-1")
    ledger.report("node-0", THERMAL)
    assert ledger.gate_budget.used("default") == 1
    assert not ledger.gate_budget.reserve("node-1")
    ledger.report("node-0")
    assert ledger.gate_budget.reserve("node-1"), "the newer report says that nothing is held"


def test_what_no_report_ever_shows_was_not_written() -> None:
    """A place cannot be lost for good by one call without an answer."""
    ledger = Ledger()
    assert ledger.gate_budget.reserve("node-0")
    ledger.gate_budget.unanswered("node-0")
    ledger.now += DOUBT_SECONDS
    assert ledger.gate_budget.reserve("node-1")


def test_a_node_that_goes_during_its_write_gives_its_place_back() -> None:
    """Scaled down: there is nothing left to be gated."""
    ledger = Ledger()
    assert ledger.gate_budget.reserve("node-0")
    ledger.gate_budget.unanswered("node-0")
    ledger.cache.drop_node("node-0")
    assert ledger.gate_budget.reserve("node-1")


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
    ledger = Ledger()
    ledger.report("node-0")
    ledger.carries("node-0", key)
    assert ledger.gate_budget.used("default") == counts
    assert ledger.gate_budget.has_slot("node-1") is not counts
    ledger.carries("node-0")
    assert ledger.gate_budget.has_slot("node-1")


def test_a_node_that_leaves_frees_its_place() -> None:
    """Deleted, out of the selection, or under another policy."""
    ledger = Ledger()
    ledger.report("node-0", THERMAL)
    assert not ledger.gate_budget.has_slot("node-1")
    ledger.cache.outside_selector.add("node-0")
    ledger.carries("node-0", names.TAINT_THROTTLED)
    assert ledger.gate_budget.has_slot("node-1")
    assert not ledger.gate_budget.has_slot("node-0"), "no policy has a place for it"
    ledger.report("node-2", THERMAL)
    ledger.cache.drop_node("node-2")
    assert ledger.gate_budget.has_slot("node-1")
    other = make_policy("gold").selecting(tier="gold").ranked(5)
    ledger.report("node-3", THERMAL)
    ledger.cache.policies["gold"] = other
    ledger.cache.policies_changed()
    ledger.cache.put_node(make_node("node-3", version=9999).labelled(tier="gold"))
    assert (ledger.gate_budget.used("default"), ledger.gate_budget.used("gold")) == (0, 1)


def test_a_report_of_an_earlier_node_takes_no_place() -> None:
    """It is of another machine under the same name."""
    ledger = Ledger()
    report = ledger.report("node-0", THERMAL)
    ledger.cache.put_report(replace(report, node_uid="another", resource_version="9999"))
    assert ledger.gate_budget.used("default") == 0


@pytest.mark.parametrize(("setting", "places"), [("20%", 2), ("5%", 1), ("0%", 0), (0, 0), (3, 3)])
def test_places_follow_the_setting(setting: int | str, places: int) -> None:
    """Per cent of ten nodes, rounded down and at least one; a count as it is; nothing for 0."""
    ledger = Ledger(places=setting, nodes=10)
    assert ledger.gate_budget.slots("default") == places
    taken = [name for name in ledger.cache.nodes if ledger.gate_budget.reserve(name)]
    assert len(taken) == places
    assert ledger.gate_budget.slots("unknown") == 0
    assert not ledger.gate_budget.has_slot("unknown")


def test_a_budget_that_shrinks_lifts_nothing_and_adds_nothing() -> None:
    """It is told of instead; those that are gated may stay so."""
    ledger = Ledger(places=3)
    for name in ("node-0", "node-1", "node-2"):
        ledger.report(name, THERMAL)
    assert list(ledger.gate_budget.exceeded()) == []
    ledger.budget(1)
    assert list(ledger.gate_budget.exceeded()) == [("default", 3, 1)]
    assert ledger.gate_budget.has_slot("node-0")
    assert not ledger.gate_budget.has_slot("node-3")
    assert ledger.gate_budget.offer(busy=set()) == []


def test_who_waited_longest_is_called_first() -> None:
    """One for each free place, which is kept for them: a newcomer does not jump the queue."""
    ledger = Ledger(places=2, nodes=6)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        ledger.waits(f"node-{n}", since=since)
    assert ledger.gate_budget.offer(busy=set()) == ["node-1", "node-2"]
    assert ledger.gate_budget.offer(busy=set()) == [], "they are called once"
    assert not ledger.gate_budget.reserve("node-5")
    assert ledger.gate_budget.reserve("node-1")
    ledger.report("node-1", THERMAL)
    ledger.gate_budget.confirm("node-1")
    ledger.gate_budget.reconciled("node-1")
    assert not ledger.gate_budget.reserve("node-0")
    assert ledger.gate_budget.reserve("node-2")


def test_who_asks_first_does_not_jump_the_queue() -> None:
    """A worker may come by with another node before anybody has been called."""
    ledger = Ledger(places=2)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        ledger.waits(f"node-{n}", since=since)
    assert [ledger.gate_budget.has_slot(f"node-{n}") for n in range(4)] == [False, True, True, False]
    assert ledger.gate_budget.reserve("node-2")
    assert [ledger.gate_budget.has_slot(f"node-{n}") for n in range(4)] == [False, True, True, False]


def test_nobody_is_called_whom_a_worker_looks_at_already() -> None:
    """That look began without a place; it is called when it is over."""
    ledger = Ledger()
    ledger.waits("node-0", since=NOW)
    assert ledger.gate_budget.offer(busy={"node-0"}) == []
    assert ledger.gate_budget.offer(busy=set()) == ["node-0"]


def test_who_does_not_take_the_place_is_passed_over() -> None:
    """A node whose report cannot be written must not keep all others waiting; a newer report asks again."""
    ledger = Ledger()
    ledger.waits("node-0", since=NOW)
    ledger.waits("node-1", since=NOW + 60)
    assert ledger.gate_budget.offer(busy=set()) == ["node-0"]
    ledger.gate_budget.reconciled("node-0")
    assert ledger.gate_budget.offer(busy=set()) == ["node-1"]
    ledger.gate_budget.reconciled("node-1")
    assert ledger.gate_budget.offer(busy=set()) == []
    assert ledger.gate_budget.has_slot("node-4"), "a place that nobody takes is free for all"
    ledger.waits("node-0", since=NOW)
    assert ledger.gate_budget.offer(busy=set()) == ["node-0"]


def test_a_gated_node_waits_for_nothing() -> None:
    """A second row of a node that has its place is no second node held back."""
    ledger = Ledger()
    row = GateStatus(code="xid", state=GateState.HELD_BACK, since=stamp(NOW))
    ledger.report("node-0", THERMAL, gates=(row,))
    counters = ledger.gate_budget.counters
    assert (counters.gated("default"), dict(counters.waiting("default"))) == ({"node-0"}, {})
    assert counters.gates("default") == {("throttled", "thermal"): 1}


def test_what_waits_is_counted_by_cause() -> None:
    """By the taint that would be set, a node with two causes once under each; an unknown row by its code."""
    ledger = Ledger()
    rows: list[tuple[Any, ...]] = [("hot", "memory-hot"), ("xid", "hot"), ("of-tomorrow",)]
    for n, codes in enumerate(rows):
        gates = [GateStatus(code=c, state=GateState.HELD_BACK, since=stamp(NOW)) for c in codes]
        ledger.report(f"node-{n}", gates=tuple(gates))
    assert ledger.gate_budget.counters.causes("default") == {"thermal": 2, "xid": 1, "of-tomorrow": 1}
    ledger.report("node-1")
    assert ledger.gate_budget.counters.causes("default") == {"thermal": 1, "of-tomorrow": 1}
