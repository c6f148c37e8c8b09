"""The budgets of gated nodes and the rates of new taints, of a policy and of the cluster.

A slot is used once, kept while a write is unanswered, and offered in order, whatever nodes, policies, clocks
and processes do.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.reconcile.gate_budget import DOUBT_SECONDS
from nodegauge_operator.reconcile.node_counts import CLUSTER
from support.budgets import HOUR, THERMAL, Fleet
from support.objects import MINUTE, NOW, make_node


def of_one_policy(nodes: int = 5, **limits: Any) -> Fleet:
    return Fleet(*["a"] * nodes, **limits)


def test_a_slot_is_used_once() -> None:
    fleet = of_one_policy()
    assert fleet.budget.reserve("node-1")
    fleet.budget.confirm("node-1")
    assert fleet.budget.reserve("node-0")
    assert not fleet.budget.has_slot("node-1")
    assert not fleet.budget.reserve("node-1")
    assert fleet.gate("node-0"), "its own slot is no reason to refuse"
    assert fleet.budget.used("a") == 1
    assert fleet.budget.has_slot("node-0")
    assert not fleet.budget.reserve("node-1")


@pytest.mark.parametrize("known", ["a newer report without it", "enough time", "the node is gone"])
def test_a_write_without_an_answer_keeps_its_slot_until_it_is_known(known: str) -> None:
    """It may have been made: nobody else is gated before the cluster, or enough time, tells."""
    fleet = of_one_policy()
    fleet.report("node-0")
    fleet.gate("node-0", answered=False)
    fleet.time += DOUBT_SECONDS / 2
    assert not fleet.budget.reserve("node-1")
    match known:
        case "enough time":
            fleet.time += DOUBT_SECONDS / 2
        case "the node is gone":
            fleet.cache.drop_node("node-0")
        case _:
            fleet.report("node-0", THERMAL)
            assert fleet.budget.used("a") == 1
            assert not fleet.budget.reserve("node-1")
            fleet.report("node-0")
    assert fleet.budget.reserve("node-1")


@pytest.mark.parametrize("key", [*names.NODE_TAINTS, "example.com/throttled"])
def test_a_taint_that_still_stands_uses_a_slot(key: str) -> None:
    counts = key in (names.TAINT_THROTTLED, names.TAINT_UNHEALTHY)
    fleet = of_one_policy()
    fleet.report("node-0")
    fleet.carries("node-0", key)
    assert fleet.budget.used("a") == counts
    assert fleet.budget.has_slot("node-1") is not counts
    fleet.carries("node-0")
    assert fleet.budget.has_slot("node-1")


def test_a_node_that_leaves_frees_its_slot() -> None:
    fleet = of_one_policy()
    report = fleet.report("node-0", THERMAL)
    assert not fleet.budget.has_slot("node-1")
    fleet.cache.put_report(replace(report, node_uid="another", resource_version="9998"))
    assert fleet.budget.used("a") == 0
    fleet.cache.put_report(replace(report, resource_version="9999"))
    fleet.cache.outside_selector.add("node-0")
    fleet.carries("node-0", names.TAINT_THROTTLED)
    assert fleet.budget.has_slot("node-1")
    assert not fleet.budget.has_slot("node-0"), "no policy has a slot for it"
    fleet.report("node-2", THERMAL)
    fleet.cache.drop_node("node-2")
    assert fleet.budget.has_slot("node-1")
    fleet.report("node-3", THERMAL)
    fleet.policy("gold")
    fleet.put("node-3", "gold")
    assert (fleet.budget.used("a"), fleet.budget.used("gold")) == (0, 1)


@pytest.mark.parametrize(
    ("setting", "nodes", "slots"),
    [
        *(("20%", 10, 2), ("30%", 10, 3), ("0%", 10, 0), (0, 10, 0), (3, 10, 3)),
        *(("5%", 3, 1), ("5%", 4, 2), ("20%", 9, 2), ("0%", 4, 0), (1, 4, 1)),
    ],
)
def test_slots_follow_the_setting(setting: int | str, nodes: int, slots: int) -> None:
    """Per cent of few nodes are one of three, and two of four or more: the worse fault finds a slot."""
    for limit in ("slots", "cluster", "rate", "per_hour"):
        assert of_one_policy(nodes, **({"slots": "100%"} | {limit: setting})).gate_all() == slots
    fleet = of_one_policy(10, slots=setting)
    assert (fleet.budget.slots("unknown"), fleet.budget.has_slot("unknown")) == (0, False)


def test_a_budget_that_shrinks_lifts_nothing_and_adds_nothing() -> None:
    fleet = of_one_policy(slots=3)
    fleet.gate_all()
    assert list(fleet.budget.exceeded()) == []
    fleet.policy("a", slots=1, per_hour=2)
    assert list(fleet.budget.exceeded()) == [("a", 3, 1, False), ("a", 3, 2, True)]
    assert fleet.budget.has_slot("node-0")
    assert not fleet.budget.has_slot("node-3")
    assert fleet.offered() == []


def test_who_waited_longest_is_called_first() -> None:
    """One for each free slot, which is kept for them: a newcomer does not jump the queue."""
    fleet = of_one_policy(6, slots=2)
    for n, since in enumerate((NOW + 30, NOW + 10, NOW + 20)):
        fleet.waits(f"node-{n}", since=since)
    assert [fleet.budget.has_slot(f"node-{n}") for n in range(4)] == [False, True, True, False]
    assert fleet.offered() == ["node-1", "node-2"]
    assert fleet.offered() == [], "they are called once"
    assert not fleet.budget.reserve("node-5")
    assert fleet.gate("node-1")
    fleet.budget.reconciled("node-1")
    assert not fleet.budget.reserve("node-0")
    assert fleet.budget.reserve("node-2")


def test_who_does_not_take_the_slot_is_passed_over() -> None:
    """A node whose report cannot be written must not keep all others waiting."""
    fleet = of_one_policy()
    fleet.waits("node-0", since=NOW)
    fleet.waits("node-1", since=NOW + 60)
    assert fleet.offered(busy=frozenset({"node-0", "node-1"})) == []
    assert fleet.offered() == ["node-0"]
    fleet.budget.reconciled("node-0")
    assert fleet.offered() == ["node-1"]
    fleet.budget.reconciled("node-1")
    assert fleet.offered() == []
    assert fleet.budget.has_slot("node-4"), "a slot that nobody takes is free for all"
    fleet.waits("node-0", since=NOW)
    assert fleet.offered() == ["node-0"]


P2P = DesiredTaint(key=names.TAINT_UNHEALTHY, value="p2p")


@pytest.mark.parametrize(
    ("waits", "stands", "limits", "gives"),
    [
        ("gpu-lost", P2P, {}, True),
        ("hot", P2P, {}, True),
        ("p2p-refused", P2P, {}, False),
        ("gpu-lost", THERMAL, {}, False),
        ("gpu-lost", P2P, {"slots": 2}, False),
        ("gpu-lost", P2P, {"per_hour": 1}, False),
        ("gpu-lost", P2P, {"slots": 0}, False),
    ],
)
def test_a_lesser_fault_gives_its_slot_to_a_worse_one(
    waits: str, stands: DesiredTaint, limits: dict[str, Any], gives: bool
) -> None:
    """Not in vain: the hour has room, and a slot that is given up is one more.  It comes back once the worse
    fault is gone, and a node that does not take the slot gets no second."""
    fleet = of_one_policy(4, **limits)
    fleet.report("node-0", stands, tainted_at=stamp(fleet.now()))
    fleet.carries("node-0", f"{stands.key}={stands.value}")
    fleet.waits("node-1", "p2p-refused", since=NOW)
    fleet.waits("node-2", waits, since=NOW + MINUTE)
    assert fleet.budget.gives_way("node-0") is gives
    if not gives:
        return
    assert (fleet.offered(), fleet.offered()) == (["node-0"], []), "it is called once"
    fleet.report(
        "node-0", gates=fleet.held_back("p2p-refused", since=NOW + MINUTE), tainted_at=stamp(fleet.now())
    )
    assert not fleet.budget.has_slot("node-2"), "its taint still stands"
    fleet.carries("node-0")
    assert (fleet.budget.has_slot("node-0"), fleet.offered()) == (False, ["node-2"])
    fleet.budget.reconciled("node-2")
    assert fleet.offered() == ["node-1"]
    fleet.budget.reconciled("node-1")
    fleet.report("node-0", stands, tainted_at=stamp(fleet.now()))
    fleet.waits("node-2", waits, since=NOW + MINUTE)
    assert not fleet.budget.gives_way("node-0")


def test_a_node_that_was_looked_at_without_an_offer_declined_none() -> None:
    fleet = of_one_policy()
    fleet.report("node-0", THERMAL)
    fleet.waits("node-1")
    fleet.budget.reconciled("node-1")
    fleet.report("node-0")
    assert fleet.offered() == ["node-1"]


def test_the_longest_wait_of_all_policies_goes_first() -> None:
    fleet = Fleet(*["a"] * 10, *["b"] * 10, slots="20%", cluster=2)
    fleet.policy("a", slots=0)
    for n, since in ((0, NOW), (11, NOW + 30), (12, NOW + 20), (13, NOW + 10)):
        fleet.waits(f"node-{n}", since=since)
    assert not fleet.budget.has_slot("node-14")
    assert fleet.offered() == ["node-13", "node-12"]
    assert fleet.offered() == []


def test_what_waits_is_counted_by_cause() -> None:
    fleet = of_one_policy()
    counters = fleet.budget.counters
    for n, codes in enumerate((("hot", "memory-hot"), ("xid", "hot"), ("of-tomorrow",))):
        fleet.waits(f"node-{n}", *codes)
    assert counters.causes("a") == {"thermal": 2, "xid": 1, "of-tomorrow": 1}
    fleet.report("node-1")
    assert counters.causes("a") == {"thermal": 1, "of-tomorrow": 1}
    gate = GateStatus(code="xid", state=GateState.HELD_BACK, since=stamp(NOW))
    fleet.report("node-3", THERMAL, gates=(gate,))
    assert (counters.gated("a"), counters.waiting("a").keys()) == ({"node-3"}, {"node-0", "node-2"})
    assert counters.gates("a") == {("throttled", "thermal"): 1}


def test_policies_of_one_node_each_share_the_slots_of_the_cluster() -> None:
    """Each policy has at least one slot: without the cluster's budget, 20 of 20 nodes were tainted."""
    fleet = Fleet(*(f"pool-{n}" for n in range(20)), cluster="20%")
    assert fleet.gate_all() == 4
    fleet.restart()
    assert fleet.gate_all() == 4


@pytest.mark.parametrize("how", ["relabelled", "taken over", "their policy is deleted"])
def test_nodes_that_change_their_policy_take_their_slots_along(how: str) -> None:
    """The policy that they left has free slots again, and the cluster has none: 11 of 20 were tainted."""
    fleet = Fleet(*["a"] * 10, *["b"] * 10, slots="20%", cluster=4)
    assert fleet.gate_all() == 4
    match how:
        case "relabelled":
            fleet.put("node-0", "b")
            assert (fleet.budget.used("b"), fleet.budget.slots("b")) == (3, 2), "they count where they are"
            assert fleet.budget.has_slot("node-0"), "and stay gated there"
        case "taken over":
            fleet.policy("top", slots="100%", priority=5, pool="a")
            assert fleet.budget.used("top") == 2
        case _:
            del fleet.cache.policies["a"]
            fleet.cache.policies_changed()
            assert (fleet.budget.used(CLUSTER), fleet.budget.used("b")) == (4, 2)
    assert fleet.gate_all() == 4


def test_a_cluster_that_shrinks_adds_none_and_lifts_none() -> None:
    fleet = Fleet(*(f"pool-{n % 10}" for n in range(20)), cluster="20%")
    assert fleet.gate_all() == 4
    for n in range(10, 20):
        fleet.cache.drop_node(f"node-{n}")
    assert list(fleet.budget.exceeded()) == [(CLUSTER, 4, 2, False)]
    assert fleet.gate_all() == 4
    for n in range(3):
        fleet.cache.drop_node(f"node-{n}")
    assert fleet.gate_all() == 2, "per cent of seven nodes are two"


def test_a_taint_of_ours_on_a_node_without_a_policy_uses_a_slot_of_the_cluster() -> None:
    fleet = of_one_policy(20, slots="20%", cluster="20%")
    fleet.cache.put_node(make_node("other", version=999).tainted(names.TAINT_UNHEALTHY))
    assert fleet.budget.used(CLUSTER) == 1
    assert fleet.gate_all() == 4, "three of the policy's nodes, and the other"


def test_a_write_in_flight_keeps_the_slot_while_its_node_moves() -> None:
    fleet = of_one_policy(20, cluster=1)
    fleet.policy("b", slots=5)
    assert fleet.budget.reserve("node-0")
    fleet.put("node-0", "b")
    assert not fleet.budget.has_slot("node-1")
    fleet.budget.confirm("node-0")
    assert fleet.budget.has_slot("node-1")


def rated(**limits: Any) -> Fleet:
    """Six nodes of each of two policies, two new taints of each per hour, and slots for all."""
    return Fleet(*["even", "odd"] * 6, **({"slots": "100%", "per_hour": 2} | limits))


def test_new_taints_come_hour_by_hour() -> None:
    fleet = rated()
    assert fleet.gate_all() == 4
    fleet.time += HOUR - 1
    assert fleet.gate_all() == 4
    fleet.time += 1
    assert fleet.gate_all() == 8


def test_a_taint_that_was_lifted_counts_for_its_hour() -> None:
    """Else a fault that comes and goes would taint every node within the hour; the node itself may return."""
    fleet = rated(rate=2)
    assert fleet.gate_all() == 2
    fleet.lift("node-0")
    assert not fleet.gate("node-4")
    fleet.restart()
    assert not fleet.gate("node-4")
    assert fleet.gate("node-0"), "it counts already"


def test_a_deleted_node_counts_no_more() -> None:
    """It took its fault along; one whose report somebody deletes is still there.  What an earlier node of its
    name left says nothing of the new one."""
    fleet = rated(rate=2)
    assert fleet.gate_all() == 2
    report = fleet.cache.reports["node-0"]
    fleet.replaced("node-0")
    fleet.cache.put_report(replace(report, resource_version="9999"))
    fleet.cache.drop_report("node-1", fleet.cache.reports["node-1"].uid)
    assert fleet.budget.rate.count(CLUSTER) == 1
    assert fleet.gate("node-2")
    assert not fleet.gate("node-4")


def test_a_node_that_is_tainted_again_counts_once() -> None:
    fleet = rated(rate=2)
    for _ in range(2):
        assert fleet.gate("node-0")
        fleet.lift("node-0")
        fleet.time += MINUTE
    assert fleet.budget.rate.count(CLUSTER) == 1
    fleet.time += HOUR
    assert fleet.budget.rate.count(CLUSTER) == 0


@pytest.mark.parametrize("ahead", [5 * HOUR, -5 * HOUR])
def test_a_clock_that_is_set_frees_no_room(ahead: float) -> None:
    fleet = rated(rate=1)
    assert fleet.gate("node-0")
    fleet.ahead = ahead
    fleet.lift("node-0")
    assert not fleet.gate("node-1")
    fleet.time += HOUR
    assert fleet.gate("node-1")


def test_a_report_that_somebody_wrote_taints_no_node_beyond_the_rate() -> None:
    fleet = rated(rate=1)
    fleet.report("node-0", THERMAL)
    fleet.report("node-2", THERMAL)
    assert fleet.gate_all() == 1
    for at in ("", stamp(fleet.now() - HOUR + MINUTE)):
        fleet.report("node-0", THERMAL, tainted_at=at)
        assert fleet.gate_all() == 1
    fleet.time += 2 * MINUTE
    assert fleet.gate_all() == 1


def test_waiting_nodes_are_woken_as_the_rate_allows() -> None:
    fleet = rated(rate=1)
    assert fleet.gate("node-0")
    for n in (4, 2):
        fleet.waits(f"node-{n}", since=NOW + MINUTE * n)
    assert fleet.offered() == []
    fleet.time += HOUR
    assert fleet.offered() == ["node-2"]
    assert not fleet.gate("node-6"), "the room is kept"
