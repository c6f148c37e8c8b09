"""The loop on virtual time: first list, wakes, timers, places, failures, stopping.

`builders.stage` is where it plays.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from builders import INTERVAL
from builders.client import unavailable, unreachable
from builders.cluster import NODES, PODS, POLICIES, REPORTS
from builders.operator import SETTINGS
from builders.stage import LATENCY, RUN_SECONDS, Stage, refusing, staged
from nodegauge_operator import names
from nodegauge_operator.kube.errors import NotFound, Refused
from nodegauge_operator.reconcile.backoff import SHORTEST

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


def test_a_list_that_fails_later_decides_nothing_and_is_repeated() -> None:
    """The API server answers 500 to lists for ten minutes: every label stays."""

    async def play(stage: Stage) -> None:
        stage.nodes(2)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(30)
        before = stage.world.state()["nodes"]
        for path in (POLICIES, REPORTS, PODS, NODES):
            stage.client.refuse = refusing(unavailable(500), "GET", path)
            stage.sweep._relist._regular = 0.0
            stage.sweep.wake("node-0")
            await stage.after(20)
            assert stage.world.state()["nodes"] == before
        lists = stage.lists()
        stage.client.refuse = lambda verb, path: None
        await stage.after(300)
        assert stage.lists() > lists

    staged(play)


def test_a_lost_connection_has_everything_listed_anew() -> None:
    """No answer may mean that the API server restarted: what was deleted meanwhile is in no watch."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(30)
        lists = stage.lists()
        stage.client.refuse = refusing(unreachable(), "POST", PODS)
        await stage.after(INTERVAL + 5)
        stage.client.refuse = lambda verb, path: None
        await stage.after(60)
        assert stage.lists() > lists + 1
        assert stage.cluster.judged[-1][1] == 2

    staged(play)


def test_a_webhook_that_is_down_is_asked_ever_more_seldom() -> None:
    """HTTP 500 on every create, for hours: a few calls per node and hour, and no list for each of them."""

    async def play(stage: Stage) -> None:
        stage.nodes(4)
        stage.cluster.add_policy(budget={"concurrentProbes": 4})
        stage.client.refuse = refusing(unavailable(500), "POST", PODS)
        stage.start()
        await stage.after(60)
        calls, lists = stage.client.calls, stage.lists()
        await stage.after(3600)
        assert stage.lists() - lists <= 7  # one every ten minutes
        assert stage.client.calls - calls <= 4 * 130
        stage.client.refuse = lambda verb, path: None
        await stage.after(90)
        assert len(stage.read()) == 4

    staged(play)


def test_one_node_s_trouble_stops_nobody_else() -> None:
    """Refused writes and plain bugs on one node: the others are measured, and it is tried again."""

    async def play(stage: Stage) -> None:
        stage.nodes(3)
        stage.cluster.add_policy(budget={"concurrentProbes": 3})
        settle = stage.sweep._worker.settle

        async def sometimes(name: str, **how: Any) -> Any:
            if name == "node-0":
                raise ZeroDivisionError("a bug")
            return await settle(name, **how)

        stage.sweep._worker.settle = sometimes  # type: ignore[method-assign]
        stage.client.refuse = refusing(Refused("denied by policy"), "PATCH", f"{NODES}/node-1")
        stage.start()
        await stage.after(120)
        assert stage.read() == ["node-2"]
        failures = {
            s.labels["kind"]: s.value
            for m in stage.metrics.failures.collect()
            for s in m.samples
            if s.name.endswith("_total")
        }
        assert failures.keys() == {"Unexpected", "Refused"}
        assert all(3 <= count <= 15 for count in failures.values())
        stage.sweep._worker.settle = settle  # type: ignore[method-assign]
        stage.client.refuse = lambda verb, path: None
        await stage.after(120)
        assert len(stage.read()) == 3

    staged(play)


def test_an_error_in_the_loop_itself_ends_the_task() -> None:
    """And with it the process: a loop that is broken must not look alive."""

    async def play(stage: Stage) -> None:
        stage.sweep._grant = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        stage.start()
        with pytest.raises(ZeroDivisionError):
            await stage.after(10)

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


def test_what_a_watch_missed_is_found_by_the_next_full_list() -> None:
    """A node deleted while the watch was away, and a node that came: both within the relist interval."""

    async def play(stage: Stage) -> None:
        stage.nodes(2)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(30)
        subscribers, stage.cluster.subscribers = stage.cluster.subscribers, []
        stage.cluster.remove(NODES, "node-0")
        stage.cluster.add_node("node-9")
        stage.cluster.subscribers = subscribers
        await stage.after(30)
        assert "node-0" in stage.sweep.store.nodes
        await stage.after(SETTINGS.relist_interval)
        assert "node-0" not in stage.sweep.store.nodes
        assert stage.read() == ["node-1", "node-9"]

    staged(play)


def test_a_gap_in_a_watch_has_everything_listed_within_seconds() -> None:
    """kopf lists anew after an interruption (type None) and never says what was deleted."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(2)
        body = stage.cluster.get(NODES, "node-0")
        lists = stage.lists()
        stage.feed.give(NODES, None, body)
        await stage.after(10)
        assert stage.lists() == lists, "the watches' own first lists are no gap"
        await stage.after(60)
        stage.feed.give(NODES, None, body)
        await stage.after(10)
        assert stage.lists() == lists + 1

    staged(play)


def test_a_gap_is_not_slept_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sweep is set to wake once in five minutes."""
    monkeypatch.setattr(
        "builders.operator.SETTINGS",
        slow := replace(SETTINGS, sweep_interval=300.0, relist_interval=86_400.0),
    )

    async def play(stage: Stage) -> None:
        stage.sweep._settings = slow
        stage.nodes(1)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(60)
        stage.sweep.shown("a")
        stage.sweep.shown("b")
        lists = stage.lists()
        await stage.after(SHORTEST + 1)
        assert stage.lists() == lists + 1
        stage.sweep.shown("a")
        await stage.after(2 * SHORTEST + 1)
        assert stage.lists() == lists + 2

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
        while not (stage.sweep._flying and stage.cluster.judged):
            await stage.after(LATENCY / 3)
        assert stage.task is not None
        pods = sum(stage.cluster.created.values())
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert stage.task.cancelled()
        assert sum(stage.cluster.created.values()) == pods
        assert not stage.sweep._flying
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
        stage.sweep.store.suspects |= {"node-0", "node-1", "node-2"}
        await stage.after(1)
        assert stage.task is not None
        assert stage.sweep._flying
        started = stage.loop.time()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert stage.loop.time() - started <= 6
        assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]

    staged(play)


def test_a_sweep_that_hangs_is_not_alive_and_a_slow_api_server_does_not_kill() -> None:
    """Liveness fails for a loop that is stuck, not for a list that takes its minute."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.start()
        await stage.after(30)
        stage.latency = 55.0
        stage.sweep._relist._regular = 0.0
        stage.sweep.wake("node-0")
        for _ in range(30):
            await stage.after(10)
            assert stage.sweep.alive()
        stage.latency = 10_000.0
        stage.sweep._relist._regular = 0.0
        await stage.after(1000)
        assert not stage.sweep.alive()

    staged(play)
