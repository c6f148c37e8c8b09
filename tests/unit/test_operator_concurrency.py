"""Places for NCCL runs, apart from those for health runs: who gets one, who waits, who holds up whom."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, ReportStatus
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
from support.objects import make_node, make_pod, make_policy, make_report
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
        limits = {HEALTH: most, NCCL: most}
        self.concurrency = Concurrency(self.cache, NodeCounters(self.cache), limits=limits)

    def pod(self, node: int, probe: str) -> None:
        self.cache.put_pod(replace(make_pod(make_node(f"node-{node}")), probe=probe, name=f"{node}-{probe}"))

    def fail(self, *nodes: int, probe: str = HEALTH) -> None:
        for n in nodes:
            status = ReportStatus(probes=[ProbeStatus(name=probe, unread=1)])
            self.cache.put_report(replace(make_report(self.cache.nodes[f"node-{n}"]), status=status))

    def wait(self, since: dict[int, float], *, pool: str = NCCL) -> None:
        for n, at in since.items():
            self.concurrency.wait(f"node-{n}", {pool: Wait(since=at)})

    def granted(self) -> list[int]:
        return [int(name.removeprefix("node-")) for name in self.concurrency.grant()]


@pytest.mark.parametrize("pool", [HEALTH, NCCL])
@pytest.mark.parametrize(("probes", "mode"), [(0, "Enforce"), ("0%", "Enforce"), (2, "Paused")])
def test_a_paused_policy_makes_no_runs_at_all(probes: int | str, mode: str, pool: str) -> None:
    scene = Scene(4, mode=mode, concurrentNcclProbes=2, concurrentProbes=probes)
    scene.wait({0: 0.0}, pool=pool)
    assert scene.granted() == []


@pytest.mark.parametrize(
    ("probe", "waiting", "granted"),
    [
        (names.PROBE_PULL, NCCL, []),
        (names.PROBE_PULL, HEALTH, [1]),
        (names.PROBE_NCCL, NCCL, []),
        (names.PROBE_NCCL, HEALTH, [1]),
        (names.PROBE_HEALTH, NCCL, [1]),
        (names.PROBE_HEALTH, HEALTH, []),
    ],
)
def test_a_pod_takes_a_place_of_its_own_pool(probe: str, waiting: str, granted: list[int]) -> None:
    scene = Scene(4, concurrentNcclProbes=1, concurrentProbes=1)
    scene.pod(0, probe)
    scene.wait({1: 0.0}, pool=waiting)
    assert scene.granted() == granted
    assert scene.concurrency.granted("node-1") == {waiting for _ in granted}


def test_where_a_health_run_is_due_no_nccl_run_takes_a_place() -> None:
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
    scene = Scene(4, concurrentNcclProbes=4)
    scene.wait({0: 0.0})
    scene.pod(0, probe)
    assert scene.granted() == []


@pytest.mark.parametrize("pool", [HEALTH, NCCL])
@pytest.mark.parametrize(
    ("nodes", "failing", "running", "waiting", "granted"),
    [
        pytest.param(50, 6, [], range(20), [0, 1, *range(6, 14)], id="a fifth of the slots"),
        pytest.param(20, 16, [], range(20), [*range(8), 16, 17], id="most, where most fail"),
        pytest.param(50, 3, [0, 1], [2], [], id="none beyond their pods"),
        pytest.param(50, 3, [0, 1], [2, 3], [3], id="a slot outside stays free"),
    ],
)
def test_nodes_that_fail_have_a_lane(
    nodes: int, failing: int, running: list[int], waiting: list[int], granted: list[int], pool: str
) -> None:
    scene = Scene(nodes, concurrentProbes=10, concurrentNcclProbes=10)
    scene.fail(*range(failing), probe=pool)
    for node in running:
        scene.pod(node, pool)
    scene.wait({n: float(n) for n in waiting}, pool=pool)
    assert scene.granted() == granted


def test_all_policies_together_have_the_installation_s_slots() -> None:
    scene = Scene(12, most=5, concurrentProbes=3)
    for n in range(4):
        scene.cache.put_node(replace(make_node(f"node-{n}", version=11), labels={"tier": str(n)}))
        selector = {"matchLabels": {"tier": str(n)}}
        spec = {"budget": {"concurrentProbes": 3}, "nodeSelector": selector, "priority": 1}
        policy = make_policy().of(spec)
        scene.cache.policies[f"of-{n}"] = replace(policy, name=f"of-{n}")
    scene.cache.policies_changed()
    scene.wait({n: float(20 - n) for n in range(12)}, pool=HEALTH)
    assert scene.granted() == [11, 10, 9, 3, 2]
    assert scene.granted() == []


NOBODY: frozenset[str] = frozenset()


def test_who_has_news_goes_before_those_who_only_want_a_look() -> None:
    queue = WorkQueue()
    for name in "abca":
        queue.wake(name)
    queue.wake("c", priority=Priority.HIGH)
    queue.wake("d", priority=Priority.HIGH)
    queue.wake("e", priority=Priority.REST)
    queue.wake("c")
    queue.wake("c", priority=Priority.REST)
    assert queue.pending(busy=frozenset("abc"))
    assert queue.take(4, busy=NOBODY) == ["c", "d", "e", "a"]
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
    for now in (1.5, 2.5, 3.5, 4.5):
        due = sorted(name for name, at in plain.items() if now - 1 < at <= now)
        assert sorted(queue.fire(now)) == due
    assert queue.next_timer() == float("inf")


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


def plan(*steps: str) -> ListSchedule:
    """A plan whose first list is done at 0, without jitter, after these steps."""
    relist = ListSchedule(interval=1e6, jitter=lambda: 0.0)
    for step in ("begin", "done 0", *steps):
        what, _, at = step.partition(" ")
        getattr(relist, what)(*map(float, at.split()))
    return relist


FAILS, DONE = ("begin", "failed 200"), ("begin", "done 130")


@pytest.mark.parametrize(
    ("steps", "due_at"),
    [
        pytest.param(["gap 100"], 100 + SHORTEST, id="a gap"),
        pytest.param(["gap 100", "gap 104"], 104 + SHORTEST, id="is heard out"),
        pytest.param(["gap 100", "gap 104", "gap 119"], 100 + GATHER_SECONDS, id="and not for ever"),
        pytest.param(["gap 100", "begin", "gap 107", "done 110"], 110 + 2 * SHORTEST, id="during a list"),
        pytest.param(["gap 100", "begin", "gap 107", "done 110", *DONE], 130 + 1e6, id="mended"),
        pytest.param(["gap 100", *FAILS], 200 + SHORTEST, id="a list that fails"),
        pytest.param(["gap 100", *FAILS, "gap 201"], 200 + SHORTEST, id="more gaps hurry nobody"),
        pytest.param(["gap 100", *FAILS * 2], 200 + 2 * SHORTEST, id="fails again"),
        pytest.param(["gap 100", *FAILS * 3], 200 + 4 * SHORTEST, id="and again"),
        pytest.param(["gap 100", *FAILS * 3, *DONE, *FAILS], 200 + SHORTEST, id="fails anew"),
    ],
)
def test_a_gap_is_listed_once_and_until_that_succeeds(steps: list[str], due_at: float) -> None:
    assert plan(*steps).due_at() == due_at


def test_after_calm_the_next_gap_is_the_first_one_again() -> None:
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
    assert [backoff(n, lambda: 0.0) for n in (0, 1, 2, 6, 60, 6000)] == [5, 10, 20, 300, 300, 300]
    assert backoff(0, lambda: 1.0) == 6.25
