"""The loop on virtual time: first list, wakes, timers, places, stopping.

`support.stage` is where it plays.
"""

from __future__ import annotations

import asyncio

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.errors import NotFound
from support import INTERVAL
from support.client import unavailable
from support.cluster import NODES, PODS, POLICIES, REPORTS
from support.stage import LATENCY, RUN_SECONDS, Stage, refusing, staged

pytestmark = pytest.mark.timeout(20)


def test_every_node_is_measured_and_measured_again() -> None:
    """From nothing to labels, then once per interval, and no pod is left over."""

    async def play(stage: Stage) -> None:
        stage.nodes(3)
        stage.cluster.add_policy(budget={"concurrentProbes": 3})
        stage.start()
        await stage.after(10)
        assert stage.read() == ["node-0", "node-1", "node-2"]
        assert stage.cluster.objects[PODS] == {}
        await stage.after(4 * INTERVAL + 60)
        numbers = [
            body["status"]["probes"][0]["lastRun"]["number"]
            for body in stage.cluster.objects[REPORTS].values()
        ]
        assert numbers == [5, 5, 5]
        assert len(stage.cluster.judged) == 15

    staged(play)


def test_nothing_is_decided_before_the_first_full_list() -> None:
    """Watch events alone are half the truth: no write, and not ready, until all has been listed."""

    async def play(stage: Stage) -> None:
        stage.client.refuse = refusing(unavailable(), "GET", NODES)
        stage.start()
        stage.nodes(2)
        stage.cluster.add_policy()
        await stage.after(20)
        assert not stage.sweep.listed
        assert stage.sweep.alive()
        assert stage.client.log == []
        stage.client.refuse = lambda verb, path: None
        await stage.after(30)
        assert stage.sweep.listed
        assert stage.read() == ["node-0", "node-1"]

    staged(play)


def test_missing_crds_are_waited_for() -> None:
    """Not an error that ends anything: they may be installed a minute later."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.client.refuse = refusing(NotFound("no such resource", status=404), "GET", POLICIES)
        stage.start()
        await stage.after(60)
        assert not stage.sweep.listed
        assert stage.client.calls < 20
        stage.client.refuse = lambda verb, path: None
        stage.cluster.add_policy()
        await stage.after(15)
        assert stage.read() == ["node-0"]

    staged(play)


@pytest.mark.parametrize(
    ("nodes", "setting", "most"),
    [
        (30, "10%", 3),
        (30, "33%", 9),
        (5, "10%", 1),
        (30, 4, 4),
        (30, 0, 0),
        (30, "0%", 0),
        (80, "100%", 50),
        (80, 70, 50),
    ],
)
def test_no_more_probes_at_a_time_than_the_budget_has_places(
    nodes: int, setting: int | str, most: int
) -> None:
    """A count, or per cent rounded down, at least one, at most 50; 0 pauses."""

    async def play(stage: Stage) -> None:
        stage.nodes(nodes)
        stage.cluster.add_policy(budget={"concurrentProbes": setting})
        stage.start()
        await stage.after(10 + 2 * RUN_SECONDS * nodes / max(most, 1))
        assert stage.most_pods == most
        assert len(stage.read()) == (nodes if most else 0)

    staged(play)


def test_each_policy_has_its_own_places() -> None:
    """A paused policy holds up nobody else's nodes."""

    async def play(stage: Stage) -> None:
        for n in range(4):
            stage.cluster.add_node(f"node-{n}", tier="gold" if n < 2 else "tin")
        gold = {"matchLabels": {"tier": "gold"}}
        stage.cluster.add_policy("gold", nodeSelector=gold, priority=1, budget={"concurrentProbes": 0})
        stage.cluster.add_policy("rest", budget={"concurrentProbes": 1})
        stage.start()
        await stage.after(40)
        assert stage.read() == ["node-2", "node-3"]
        assert stage.most_pods == 1

    staged(play)


def test_who_waited_longest_goes_first() -> None:
    """Never measured before measured, and of those the oldest reading."""

    async def play(stage: Stage) -> None:
        stage.nodes(3)
        stage.cluster.add_policy(budget={"concurrentProbes": 1})
        stage.start()
        await stage.after(3 * RUN_SECONDS + 5)
        first = list(stage.order)
        assert sorted(first) == ["node-0", "node-1", "node-2"]
        stage.cluster.change(POLICIES, "default", {"spec": {"budget": {"concurrentProbes": 0}}})
        await stage.after(2 * INTERVAL)
        stage.cluster.add_node("node-new")
        await stage.after(1)
        stage.cluster.change(POLICIES, "default", {"spec": {"budget": {"concurrentProbes": 1}}})
        await stage.after(4 * RUN_SECONDS + 10)
        assert stage.order[3:] == ["node-new", *first]

    staged(play)


def test_a_request_is_answered_within_seconds_and_once() -> None:
    """Long before the interval is over."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(20)
        asked = {"spec": {"requestedAt": "2027-01-15T08:00:20Z"}}
        stage.cluster.change(REPORTS, "node-0", asked)
        await stage.after(RUN_SECONDS + 1)
        assert [number for _, number, _ in stage.cluster.judged] == [1, 2]
        await stage.after(60)
        assert len(stage.cluster.judged) == 2

    staged(play)


def test_a_deleted_policy_takes_everything_off() -> None:
    """Labels, condition, report and pods, also of a run under way."""

    async def play(stage: Stage) -> None:
        stage.nodes(2)
        stage.cluster.add_policy(budget={"concurrentProbes": 1})
        stage.start()
        await stage.after(RUN_SECONDS + 2)
        assert stage.cluster.objects[PODS]
        stage.cluster.remove(POLICIES, "default")
        await stage.after(1)
        for name in list(stage.cluster.objects[PODS]):
            stage.cluster.remove(PODS, name)
        await stage.after(10)
        state = stage.world.state()
        for name, node in state["nodes"].items():
            assert node["labels"] == {"kubernetes.io/hostname": name}
            assert names.CONDITION not in node["conditions"]
        assert state["reports"] == {}
        assert state["pods"] == []

    staged(play)


def test_cancelling_finishes_the_writes_in_flight_and_makes_no_pod() -> None:
    """SIGTERM while results come in: what was judged is written, due nodes get no new pod."""

    async def play(stage: Stage) -> None:
        stage.nodes(12)
        stage.cluster.add_policy(budget={"concurrentProbes": 6})
        stage.start()
        while not (stage.sweep._in_flight and stage.cluster.judged):
            await stage.after(LATENCY / 3)
        assert stage.task is not None
        pods = sum(stage.cluster.created.values())
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert stage.task.cancelled()
        assert sum(stage.cluster.created.values()) == pods
        assert not stage.sweep._in_flight
        judged = {node for node, _, _ in stage.cluster.judged}
        assert judged
        assert judged == set(stage.read())

    staged(play)


def test_cancelling_does_not_wait_for_ever_and_leaves_no_task() -> None:
    """An API server that never answers holds up the end for seconds at most."""

    async def play(stage: Stage) -> None:
        stage.nodes(3)
        stage.cluster.add_policy(budget={"concurrentProbes": 3})
        stage.start()
        await stage.after(RUN_SECONDS + 2)
        stage.latency = 1000.0
        stage.sweep.wake("node-0", "node-1", "node-2")
        stage.sweep.cache.suspects |= {"node-0", "node-1", "node-2"}
        await stage.after(1)
        assert stage.task is not None
        assert stage.sweep._in_flight
        started = stage.loop.time()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert stage.loop.time() - started <= 6
        assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]

    staged(play)
