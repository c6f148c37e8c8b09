"""The loop in trouble: lists that fail, lost connections, webhooks, gaps, errors, and a sweep that hangs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator.kube.errors import Refused
from nodegauge_operator.reconcile.resync import SHORTEST
from support import INTERVAL
from support.client import unavailable, unreachable
from support.cluster import NODES, PODS, POLICIES, REPORTS
from support.operator import SETTINGS
from support.stage import Stage, refusing, staged

pytestmark = pytest.mark.timeout(20)


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
            stage.sweep._list_schedule._regular_at = 0.0
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
        assert "node-0" in stage.sweep.cache.nodes
        await stage.after(SETTINGS.relist_interval)
        assert "node-0" not in stage.sweep.cache.nodes
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
        "support.operator.SETTINGS",
        slow := replace(SETTINGS, sweep_interval=300.0, relist_interval=86_400.0),
    )

    async def play(stage: Stage) -> None:
        stage.sweep._settings = slow
        stage.nodes(1)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(60)
        stage.sweep.listed_by_watch("a")
        stage.sweep.listed_by_watch("b")
        lists = stage.lists()
        await stage.after(SHORTEST + 1)
        assert stage.lists() == lists + 1
        stage.sweep.listed_by_watch("a")
        await stage.after(2 * SHORTEST + 1)
        assert stage.lists() == lists + 2

    staged(play)


def test_a_sweep_that_hangs_is_not_alive_and_a_slow_api_server_does_not_kill() -> None:
    """Liveness fails for a loop that is stuck, not for a list that takes its minute."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.start()
        await stage.after(30)
        stage.latency = 55.0
        stage.sweep._list_schedule._regular_at = 0.0
        stage.sweep.wake("node-0")
        for _ in range(30):
            await stage.after(10)
            assert stage.sweep.alive()
        stage.latency = 10_000.0
        stage.sweep._list_schedule._regular_at = 0.0
        await stage.after(1000)
        assert not stage.sweep.alive()

    staged(play)
