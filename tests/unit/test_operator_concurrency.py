"""Places for NCCL runs, apart from those for health runs: who gets one, who waits, who holds up whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, Report, ReportStatus
from nodegauge_operator.core.probes.kind import Wait
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.concurrency import Concurrency
from nodegauge_operator.reconcile.node_counts import NodeCounters
from nodegauge_operator.reconcile.resync import (
    CALM_SECONDS,
    GATHER_SECONDS,
    LONGEST,
    SHORTEST,
    ListSchedule,
    backoff,
)
from nodegauge_operator.reconcile.workqueue import STALE_ENTRIES, Priority, WorkQueue
from support.objects import make_node, make_pod, make_policy
from support.properties import tried

HEALTH, NCCL = names.PROBE_HEALTH, names.PROBE_NCCL
"""The pools."""


class Scene:
    """So many nodes under one policy with this budget."""

    def __init__(self, nodes: int, *, most: int = 50, mode: str = "Enforce", **budget: Any) -> None:
        self.cache = Cache()
        for n in range(nodes):
            self.cache.put_node(make_node(f"node-{n}"))
        self.cache.policies["default"] = make_policy().of({"mode": mode, "budget": budget})
        self.cache.policies_changed()
        self.concurrency = Concurrency(
            self.cache, NodeCounters(self.cache), limits={HEALTH: most, NCCL: most}
        )

    def pod(self, node: int, probe: str) -> None:
        """A node has such a pod."""
        self.cache.put_pod(replace(make_pod(make_node(f"node-{node}")), probe=probe, name=f"{node}-{probe}"))

    def fail(self, *nodes: int, probe: str = HEALTH) -> None:
        """The last run of these nodes read nothing."""
        for n in nodes:
            node = self.cache.nodes[f"node-{n}"]
            status = ReportStatus(probes=[ProbeStatus(name=probe, unread=1)])
            self.cache.put_report(
                Report(name=node.name, uid=f"r{n}", resource_version="1", node_uid=node.uid, status=status)
            )

    def wait(self, since: dict[int, float], *, pool: str = NCCL) -> None:
        """Nodes wait, since then."""
        for n, at in since.items():
            self.concurrency.wait(f"node-{n}", {pool: Wait(since=at)})

    def granted(self) -> list[int]:
        """Who gets a place now."""
        return [int(name.removeprefix("node-")) for name in self.concurrency.grant()]


def test_nobody_waits_for_slots_that_a_policy_does_not_have() -> None:
    """A budget of 0 is meant: no alert may say that benchmarks starve."""
    for budget, waiting in ((0, 0), (1, 2)):
        scene = Scene(3, concurrentNcclProbes=budget)
        scene.wait({0: 1.0, 1: 2.0})
        assert scene.concurrency.waiting() == {"health": 0, "nccl": waiting}


@pytest.mark.parametrize(("setting", "most"), [(2, 2), ("20%", 2), ("1%", 1), (0, 0), ("0%", 0), (70, 12)])
def test_no_more_nccl_runs_than_the_budget_has_places(setting: int | str, most: int) -> None:
    """A count, or per cent of the nodes; 0 pauses NCCL runs and nothing else."""
    scene = Scene(12, concurrentNcclProbes=setting, concurrentProbes=12)
    scene.wait(dict.fromkeys(range(12), 0.0))
    assert len(scene.granted()) == most
    assert scene.granted() == []
    scene.wait(dict.fromkeys(range(12), 0.0), pool=HEALTH)
    assert len(scene.granted()) == 12


@pytest.mark.parametrize("pool", [HEALTH, NCCL])
@pytest.mark.parametrize(("probes", "mode"), [(0, "Enforce"), ("0%", "Enforce"), (2, "Paused")])
def test_a_paused_policy_makes_no_runs_at_all(probes: int | str, mode: str, pool: str) -> None:
    """Whoever pauses the policy, or sets its concurrent probes to 0, wants no pods of ours."""
    scene = Scene(4, mode=mode, concurrentNcclProbes=2, concurrentProbes=probes)
    scene.wait({0: 0.0}, pool=pool)
    assert scene.granted() == []


def test_never_measured_goes_first_then_measured_longest_ago() -> None:
    """Nodes take turns."""
    scene = Scene(4, concurrentNcclProbes=1)
    scene.wait({0: 300.0, 1: 100.0, 2: 0.0, 3: 200.0})
    order = []
    while chosen := scene.granted():
        order += chosen
        scene.concurrency.done(f"node-{chosen[0]}")
    assert order == [2, 1, 3, 0]


@pytest.mark.parametrize("probe", [names.PROBE_PULL, names.PROBE_NCCL])
def test_pulling_and_measuring_take_an_nccl_run_s_place(probe: str) -> None:
    """And none of a health run's."""
    scene = Scene(4, concurrentNcclProbes=1, concurrentProbes=1)
    scene.pod(0, probe)
    scene.wait({1: 0.0})
    assert scene.granted() == []
    scene.wait({2: 0.0}, pool=HEALTH)
    assert scene.granted() == [2]


def test_health_runs_never_wait_for_an_nccl_run_s_place_nor_take_one() -> None:
    """Each budget is its own."""
    scene = Scene(4, concurrentNcclProbes=1, concurrentProbes=1)
    scene.pod(0, names.PROBE_HEALTH)
    scene.wait({1: 0.0}, pool=HEALTH)
    scene.wait({2: 0.0})
    assert scene.granted() == [2]
    assert scene.concurrency.granted("node-2") == {NCCL}


def test_where_a_health_run_is_due_no_nccl_run_takes_a_place() -> None:
    """It waits, and its place goes to the next node, not to waste."""
    scene = Scene(4, concurrentNcclProbes=1, concurrentProbes=1)
    scene.pod(3, names.PROBE_HEALTH)
    scene.concurrency.wait("node-0", {HEALTH: Wait(since=0.0), NCCL: Wait(since=0.0)})
    scene.wait({1: 50.0})
    assert scene.granted() == [1]
    scene.concurrency.done("node-1")
    assert scene.granted() == []
    scene.concurrency.wait("node-0", {NCCL: Wait(since=0.0)})
    assert scene.granted() == [0]


@pytest.mark.parametrize("probe", names.PROBES)
def test_a_node_has_one_pod_of_ours_at_a_time(probe: str) -> None:
    """An NCCL run's place is not given to a node that has any, also where the store learnt of it late."""
    scene = Scene(4, concurrentNcclProbes=4)
    scene.wait({0: 0.0})
    scene.pod(0, probe)
    assert scene.granted() == []


@pytest.mark.parametrize("pool", [HEALTH, NCCL])
def test_nodes_that_fail_take_a_fifth_of_the_slots(pool: str) -> None:
    """However long they waited; the others do not queue behind them."""
    scene = Scene(50, concurrentProbes=10, concurrentNcclProbes=10)
    scene.fail(*range(6), probe=pool)
    scene.wait({n: float(n) for n in range(20)}, pool=pool)
    assert scene.granted() == [0, 1, *range(6, 14)]


def test_a_node_that_fails_waits_for_a_slot_of_its_lane() -> None:
    """The lane counts pods that run, and a free slot outside it stays free."""
    scene = Scene(50, concurrentProbes=10)
    scene.fail(0, 1, 2)
    scene.pod(0, HEALTH)
    scene.pod(1, HEALTH)
    scene.wait({2: 0.0}, pool=HEALTH)
    assert scene.granted() == []
    scene.wait({3: 5.0}, pool=HEALTH)
    assert scene.granted() == [3]


def test_where_most_nodes_fail_they_have_most_of_the_slots() -> None:
    """A registry that was away: the fleet is read again at full width."""
    scene = Scene(20, concurrentProbes=10)
    scene.fail(*range(16))
    scene.wait({n: float(n) for n in range(20)}, pool=HEALTH)
    assert scene.granted() == [*range(8), 16, 17]


def test_all_policies_together_have_the_installation_s_slots() -> None:
    """Twenty policies of a few nodes each are no way past it; the longest wait goes first."""
    scene = Scene(12, most=5, concurrentProbes=3)
    for n in range(4):
        scene.cache.put_node(replace(make_node(f"node-{n}", version=11), labels={"tier": str(n)}))
        selector = {"matchLabels": {"tier": str(n)}}
        policy = make_policy().of(
            {"budget": {"concurrentProbes": 3}, "nodeSelector": selector, "priority": 1}
        )
        scene.cache.policies[f"of-{n}"] = replace(policy, name=f"of-{n}")
    scene.cache.policies_changed()
    scene.wait({n: float(20 - n) for n in range(12)}, pool=HEALTH)
    assert scene.granted() == [11, 10, 9, 3, 2]
    assert scene.granted() == []


NOBODY: frozenset[str] = frozenset()


def test_who_was_woken_first_goes_first_and_keeps_its_place() -> None:
    """Waking twice is waking once."""
    queue = WorkQueue()
    queue.wake("a")
    queue.wake("b")
    queue.wake("a")
    assert queue.take(1, busy=NOBODY) == ["a"]
    assert queue.take(5, busy=NOBODY) == ["b"]
    assert queue.take(5, busy=NOBODY) == []


def test_who_has_news_goes_before_those_who_only_want_a_look() -> None:
    """Also who was woken without news before; and each is taken once."""
    queue = WorkQueue()
    for name in "abc":
        queue.wake(name)
    queue.wake("c", priority=Priority.HIGH)
    queue.wake("d", priority=Priority.HIGH)
    queue.wake("c")
    assert queue.pending(busy=frozenset("abc"))
    assert queue.take(3, busy=NOBODY) == ["c", "d", "a"]
    assert queue.take(3, busy=NOBODY) == ["b"]
    assert not queue.pending(busy=NOBODY)


def test_who_is_being_worked_on_waits_and_is_not_forgotten() -> None:
    """One worker per node: a wake during the work is a second look after it."""
    queue = WorkQueue()
    queue.wake("a", priority=Priority.HIGH)
    assert not queue.pending(busy=frozenset("a"))
    assert queue.take(5, busy=frozenset("a")) == []
    assert queue.pending(busy=NOBODY)
    assert queue.take(5, busy=NOBODY) == ["a"]


def test_a_timer_fires_once_and_the_last_one_set_counts() -> None:
    """Earlier or later, the new timer replaces the old; infinity takes it away."""
    queue = WorkQueue()
    queue.set_timer("a", 10)
    queue.set_timer("a", 20)
    queue.set_timer("b", 20)
    queue.set_timer("b", 5)
    queue.set_timer("c", 5)
    queue.set_timer("c", float("inf"))
    assert queue.fire(10) == ["b"]
    assert queue.fire(20) == ["a"]
    assert queue.fire(1e9) == []
    assert queue.next_timer() == float("inf")


TIMES = st.sampled_from([1.0, 2.0, 3.0, 4.0, float("inf")])


@given(sets=st.lists(st.tuples(st.sampled_from("abc"), TIMES), max_size=20))
@tried(200)
def test_timers_fire_as_a_plain_dictionary_would(sets: list[tuple[str, float]]) -> None:
    """The heap is only a faster way to ask: at each moment the same names, each once."""
    queue, plain = WorkQueue(), dict[str, float]()
    for name, at in sets:
        queue.set_timer(name, at)
        plain[name] = at
    assert queue.next_timer() <= min(plain.values(), default=float("inf"))
    for now in (1.0, 2.0, 3.0, 4.0):
        due = sorted(name for name, at in plain.items() if at == now)
        assert sorted(queue.fire(now)) == due


def test_timers_that_are_set_again_and_again_take_no_more_room() -> None:
    """Every look at a node sets its timer, hours ahead at long intervals: the heap must not keep them all."""
    queue = WorkQueue()
    for _ in range(10):
        queue.set_timer("a", 1e6)
    assert len(queue._heap) == 1
    for look in range(1000):
        for name in "abcd":
            queue.set_timer(name, 1e6)
            queue.set_timer(f"{name}'", 1e6 + look)
    assert len(queue._heap) <= 2 * 8 + STALE_ENTRIES
    assert sorted(queue.fire(2e6)) == ["a", "a'", "b", "b'", "c", "c'", "d", "d'"]


def plan(*, interval: float = 1e6) -> ListSchedule:
    """A plan whose first list is done at 0, without jitter."""
    relist = ListSchedule(interval=interval, jitter=lambda: 0.0)
    relist.begin()
    relist.done(0.0)
    return relist


def test_a_gap_is_listed_after_it_has_been_heard_out() -> None:
    """One list per interruption, not one per event, and not for ever later."""
    relist = plan()
    relist.gap(100)
    assert relist.due_at() == 100 + SHORTEST
    relist.gap(104)
    assert relist.due_at() == 104 + SHORTEST
    relist.gap(119)
    assert relist.due_at() == 100 + GATHER_SECONDS


def test_a_gap_during_a_list_asks_for_another_one() -> None:
    """The list may have passed by what went then."""
    relist = plan()
    relist.gap(100)
    relist.begin()
    relist.gap(107)
    relist.done(110)
    assert relist.due_at() == 110 + 2 * SHORTEST
    relist.begin()
    relist.done(130)
    assert relist.due_at() == 130 + 1e6


def test_a_list_that_fails_leaves_its_gap_unmended() -> None:
    """And the next one that succeeds begins from the shortest wait again."""
    relist = plan()
    relist.gap(100)
    for wait in (SHORTEST, 2 * SHORTEST, 4 * SHORTEST):
        relist.begin()
        relist.failed(200)
        assert relist.due_at() == 200 + wait
        relist.gap(201)
        assert relist.due_at() == 200 + wait, "more gaps hurry nobody"
    relist.begin()
    relist.done(300)
    relist.begin()
    relist.failed(400)
    assert relist.due_at() == 400 + SHORTEST


def test_after_calm_the_next_gap_is_the_first_one_again() -> None:
    """Trouble of this morning delays nothing this afternoon."""
    relist = plan()
    now = 0.0
    for _ in range(8):
        relist.gap(now)
        now = relist.due_at()
        relist.begin()
        relist.done(now)
    relist.gap(now + 1)
    assert relist.due_at() == now + LONGEST
    relist.begin()
    now += CALM_SECONDS + LONGEST
    relist.done(now)
    relist.gap(now)
    assert relist.due_at() == now + 2 * SHORTEST


def test_waits_grow_to_a_limit_and_are_spread() -> None:
    """From 5 s to 5 min, and a quarter more at most."""
    assert [backoff(n, lambda: 0.0) for n in (0, 1, 2, 6, 60, 6000)] == [5, 10, 20, 300, 300, 300]
    assert backoff(0, lambda: 1.0) == 6.25
