"""The ledger of gated nodes: places are taken once, kept while nobody knows, and offered in turn."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, GateState, GateStatus, Report, stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.reconcile.cache import Store
from nodegauge_operator.reconcile.gate_budget import DOUBT_SECONDS, Places
from support import NOW, make_node, make_policy, make_report

pytestmark = pytest.mark.timeout(5)

THERMAL = DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")


class Ledger:
    """Nodes of one policy with so many places, and the ledger over them."""

    def __init__(self, *, places: int | str = 1, nodes: int = 5) -> None:
        self.now = 1000.0
        self.store = Store()
        self.version = 100
        self.budget(places)
        for n in range(nodes):
            self.store.put_node(make_node(f"node-{n}"))
        self.places = Places(self.store, clock=lambda: self.now)

    def budget(self, places: int | str) -> None:
        """The policy's budget is now this one."""
        policy = make_policy().spec_with(budget=Budget(gated_nodes=places))
        self.store.policies[policy.name] = policy
        self.store.policies_changed()

    def report(self, name: str, *taints: DesiredTaint, gates: tuple[GateStatus, ...] = ()) -> Report:
        """A newer report of the node holds these taints and rows."""
        self.version += 1
        known = make_report(self.store.nodes[name], version=self.version)
        report = replace(
            known, status=replace(known.status, desired=DesiredNode(taints=list(taints)), gates=list(gates))
        )
        self.store.put_report(report)
        return report

    def waits(self, name: str, *, since: float, code: str = "hot") -> None:
        """The node is held back since then."""
        row = GateStatus(code=code, state=GateState.HELD_BACK, since=stamp(since))
        self.report(name, gates=(row,))

    def carries(self, name: str, *keys: str) -> None:
        """The node carries taints of these keys, and nothing else."""
        self.version += 1
        node: NodeView = make_node(name, version=self.version).tainted(*keys)
        self.store.put_node(node)


def test_a_place_is_taken_once() -> None:
    """Who asks second, before anything was written, gets none; nor after it was written."""
    ledger = Ledger()
    assert ledger.places.take("node-0")
    assert not ledger.places.room("node-1")
    assert not ledger.places.take("node-1")
    assert ledger.places.take("node-0"), "its own place is no reason to refuse"
    ledger.report("node-0", THERMAL)
    ledger.places.written("node-0")
    assert ledger.places.taken("default") == 1
    assert ledger.places.room("node-0")
    assert not ledger.places.take("node-1")


def test_a_write_that_failed_gives_its_place_back() -> None:
    """A conflict or a refusal wrote nothing."""
    ledger = Ledger()
    assert ledger.places.take("node-0")
    ledger.places.written("node-0")
    assert ledger.places.taken("default") == 0
    assert ledger.places.take("node-1")


def test_a_write_without_an_answer_keeps_its_place_until_it_is_known() -> None:
    """It may have been made: nobody else is gated before a newer report, or enough time, tells."""
    ledger = Ledger()
    ledger.report("node-0")
    assert ledger.places.take("node-0")
    ledger.places.unanswered("node-0")
    ledger.now += DOUBT_SECONDS / 2
    assert not ledger.places.take("node-1")
    ledger.report("node-0", THERMAL)
    assert ledger.places.taken("default") == 1
    assert not ledger.places.take("node-1")
    ledger.report("node-0")
    assert ledger.places.take("node-1"), "the newer report says that nothing is held"


def test_what_no_report_ever_shows_was_not_written() -> None:
    """A place cannot be lost for good by one call without an answer."""
    ledger = Ledger()
    assert ledger.places.take("node-0")
    ledger.places.unanswered("node-0")
    ledger.now += DOUBT_SECONDS
    assert ledger.places.take("node-1")


def test_a_node_that_goes_during_its_write_gives_its_place_back() -> None:
    """Scaled down: there is nothing left to be gated."""
    ledger = Ledger()
    assert ledger.places.take("node-0")
    ledger.places.unanswered("node-0")
    ledger.store.drop_node("node-0")
    assert ledger.places.take("node-1")


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
    assert ledger.places.taken("default") == counts
    assert ledger.places.room("node-1") is not counts
    ledger.carries("node-0")
    assert ledger.places.room("node-1")


def test_a_node_that_leaves_frees_its_place() -> None:
    """Deleted, out of the selection, or under another policy."""
    ledger = Ledger()
    ledger.report("node-0", THERMAL)
    assert not ledger.places.room("node-1")
    ledger.store.outside.add("node-0")
    ledger.carries("node-0", names.TAINT_THROTTLED)
    assert ledger.places.room("node-1")
    assert not ledger.places.room("node-0"), "no policy has a place for it"
    ledger.report("node-2", THERMAL)
    ledger.store.drop_node("node-2")
    assert ledger.places.room("node-1")
    other = make_policy("gold").selecting(tier="gold").ranked(5)
    ledger.report("node-3", THERMAL)
    ledger.store.policies["gold"] = other
    ledger.store.policies_changed()
    ledger.store.put_node(make_node("node-3", version=9999).labelled(tier="gold"))
    assert (ledger.places.taken("default"), ledger.places.taken("gold")) == (0, 1)


def test_a_report_of_an_earlier_node_takes_no_place() -> None:
    """It is of another machine under the same name."""
    ledger = Ledger()
    report = ledger.report("node-0", THERMAL)
    ledger.store.put_report(replace(report, node_uid="another", resource_version="9999"))
    assert ledger.places.taken("default") == 0


@pytest.mark.parametrize(("setting", "places"), [("20%", 2), ("5%", 1), ("0%", 0), (0, 0), (3, 3)])
def test_places_follow_the_setting(setting: int | str, places: int) -> None:
    """Per cent of ten nodes, rounded down and at least one; a count as it is; nothing for 0."""
    ledger = Ledger(places=setting, nodes=10)
    assert ledger.places.of("default") == places
    taken = [name for name in ledger.store.nodes if ledger.places.take(name)]
    assert len(taken) == places
    assert ledger.places.of("unknown") == 0
    assert not ledger.places.room("unknown")


def test_a_budget_that_shrinks_lifts_nothing_and_adds_nothing() -> None:
    """It is told of instead; those that are gated may stay so."""
    ledger = Ledger(places=3)
    for name in ("node-0", "node-1", "node-2"):
        ledger.report(name, THERMAL)
    assert list(ledger.places.exceeded()) == []
    ledger.budget(1)
    assert list(ledger.places.exceeded()) == [("default", 3, 1)]
    assert ledger.places.room("node-0")
    assert not ledger.places.room("node-3")
    assert ledger.places.call(busy=set()) == []


def test_who_waited_longest_is_called_first() -> None:
    """One for each free place, which is kept for them: a newcomer does not jump the queue."""
    ledger = Ledger(places=2, nodes=6)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        ledger.waits(f"node-{n}", since=since)
    assert ledger.places.call(busy=set()) == ["node-1", "node-2"]
    assert ledger.places.call(busy=set()) == [], "they are called once"
    assert not ledger.places.take("node-5")
    assert ledger.places.take("node-1")
    ledger.report("node-1", THERMAL)
    ledger.places.written("node-1")
    ledger.places.answered("node-1")
    assert not ledger.places.take("node-0")
    assert ledger.places.take("node-2")


def test_who_asks_first_does_not_jump_the_queue() -> None:
    """A worker may come by with another node before anybody has been called."""
    ledger = Ledger(places=2)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        ledger.waits(f"node-{n}", since=since)
    assert [ledger.places.room(f"node-{n}") for n in range(4)] == [False, True, True, False]
    assert ledger.places.take("node-2")
    assert [ledger.places.room(f"node-{n}") for n in range(4)] == [False, True, True, False]


def test_nobody_is_called_whom_a_worker_looks_at_already() -> None:
    """That look began without a place; it is called when it is over."""
    ledger = Ledger()
    ledger.waits("node-0", since=NOW)
    assert ledger.places.call(busy={"node-0"}) == []
    assert ledger.places.call(busy=set()) == ["node-0"]


def test_who_does_not_take_the_place_is_passed_over() -> None:
    """A node whose report cannot be written must not keep all others waiting; a newer report asks again."""
    ledger = Ledger()
    ledger.waits("node-0", since=NOW)
    ledger.waits("node-1", since=NOW + 60)
    assert ledger.places.call(busy=set()) == ["node-0"]
    ledger.places.answered("node-0")
    assert ledger.places.call(busy=set()) == ["node-1"]
    ledger.places.answered("node-1")
    assert ledger.places.call(busy=set()) == []
    assert ledger.places.room("node-4"), "a place that nobody takes is free for all"
    ledger.waits("node-0", since=NOW)
    assert ledger.places.call(busy=set()) == ["node-0"]


def test_a_gated_node_waits_for_nothing() -> None:
    """A second row of a node that has its place is no second node held back."""
    ledger = Ledger()
    row = GateStatus(code="xid", state=GateState.HELD_BACK, since=stamp(NOW))
    ledger.report("node-0", THERMAL, gates=(row,))
    tally = ledger.places.tally
    assert (tally.gated("default"), dict(tally.waiting("default"))) == ({"node-0"}, {})
    assert tally.gates("default") == {("throttled", "thermal"): 1}


def test_what_waits_is_counted_by_cause() -> None:
    """By the taint that would be set, a node with two causes once under each; an unknown row by its code."""
    ledger = Ledger()
    rows: list[tuple[Any, ...]] = [("hot", "memory-hot"), ("xid", "hot"), ("of-tomorrow",)]
    for n, codes in enumerate(rows):
        gates = [GateStatus(code=c, state=GateState.HELD_BACK, since=stamp(NOW)) for c in codes]
        ledger.report(f"node-{n}", gates=tuple(gates))
    assert ledger.places.tally.causes("default") == {"thermal": 2, "xid": 1, "of-tomorrow": 1}
    ledger.report("node-1")
    assert ledger.places.tally.causes("default") == {"thermal": 1, "of-tomorrow": 1}
