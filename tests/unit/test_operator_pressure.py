"""An API server that is slow, full or away: lists become rare, and nothing that is ready waits for them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.reconcile.background_task import BackgroundTask
from nodegauge_operator.reconcile.resync import GATHER_SECONDS, LONGEST, SHORTEST
from support import INTERVAL, make_node, make_pod
from support.client import unavailable, unreachable
from support.cluster import NODES, PODS, POLICIES, REPORTS
from support.operator import SETTINGS
from support.stage import RUN_SECONDS, Stage, refusing, staged
from support.virtual import drive

pytestmark = pytest.mark.timeout(20)

POLICY_STATUS = f"{POLICIES}/default/status"


async def measured(stage: Stage, count: int = 3) -> None:
    """So many nodes are registered and measured once; the watches' own first lists are over."""
    stage.nodes(count)
    stage.cluster.add_policy(budget={"concurrentProbes": "100%"})
    stage.start()
    await stage.after(60)
    assert len(stage.read()) == count


def test_timeouts_and_refusals_add_no_list() -> None:
    """A full list is the last thing that an API server needs which does not keep up."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        for error in (unavailable(0), unavailable(429), unavailable(503)):
            stage.client.refuse = refusing(error, "POST", PODS)
            lists = stage.lists()
            await stage.after(3600)
            assert stage.lists() - lists <= 6, "one every ten minutes"

    staged(play)


def test_connections_that_are_cut_again_and_again_add_ever_fewer_lists() -> None:
    """Each is a gap that has to be mended, and with a list every five seconds none ever would be."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        lists = stage.lists()
        stage.client.refuse = refusing(unreachable(), "POST", PODS)
        await stage.after(INTERVAL + 3600)
        assert 8 <= stage.lists() - lists <= 10 + 2 * 3600 / LONGEST

    staged(play)


def test_full_lists_that_fail_are_tried_ever_more_seldom() -> None:
    """And the operator is whole again within the longest wait, however long it lasted."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        tried: list[float] = []

        def refuse(verb: str, path: str) -> Any:
            if (verb, path) == ("GET", NODES):
                tried.append(stage.loop.time())
                return unavailable(500)
            return None

        stage.client.refuse = refuse
        await stage.after(SETTINGS.relist_interval + 3600)
        waits = [later - earlier for earlier, later in pairwise(tried)]
        assert [round(wait) for wait in waits[:6]] == [5, 10, 20, 40, 80, 160]
        assert all(round(wait) == LONGEST for wait in waits[6:])
        lists = stage.lists()
        stage.client.refuse = lambda verb, path: None
        await stage.after(LONGEST + 5)
        assert stage.lists() == lists + 1

    staged(play)


@pytest.mark.parametrize(("verb", "path"), [("GET", NODES), ("GET", PODS), ("PATCH", POLICY_STATUS)])
def test_a_result_does_not_wait_for_a_slow_list_or_a_slow_status(verb: str, path: str) -> None:
    """At 5,000 nodes a list takes many pages, and each may take a minute."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        stage.cluster.add_node("node-new")
        await stage.after(1)
        stage.slow(verb, path, 50.0)
        stage.sweep._list_schedule._regular_at = 0.0
        stage.sweep._policy_status.dirty = True
        stage.cluster.add_node("node-next")
        await stage.after(RUN_SECONDS + 2)
        assert stage.sweep._list_task.busy or stage.sweep._status_task.busy
        assert {"node-new", "node-next"} <= set(stage.read())

    staged(play)


def test_a_list_wakes_those_about_whom_it_brings_news_and_nobody_else() -> None:
    """Five thousand idle nodes in the queue were in the way of every result."""

    async def play(stage: Stage) -> None:
        await measured(stage, 8)
        subscribers, stage.cluster.subscribers = stage.cluster.subscribers, []
        stage.cluster.change(NODES, "node-1", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
        stage.cluster.remove(NODES, "node-2")
        stage.cluster.remove(REPORTS, "node-3")
        stage.cluster.change(REPORTS, "node-4", {"metadata": {"labels": {"somebody": "was-here"}}})
        stage.cluster.subscribers = subscribers
        settled = stage.settled()
        stage.sweep._list_schedule._regular_at = 0.0
        await stage.after(SHORTEST + 1)
        assert set(settled) == {"node-1", "node-2", "node-3", "node-4"}
        assert names.LABEL_HEALTH in stage.cluster.get(NODES, "node-1")["metadata"]["labels"]
        assert "node-2" not in stage.sweep.cache.nodes

    staged(play)


def test_what_half_a_list_brought_is_not_forgotten() -> None:
    """The next list no longer shows it as news."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        subscribers, stage.cluster.subscribers = stage.cluster.subscribers, []
        stage.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": "2027-01-15T08:01:00Z"}})
        stage.cluster.subscribers = subscribers
        stage.client.refuse = refusing(unavailable(500), "GET", NODES)
        stage.sweep._list_schedule._regular_at = 0.0
        await stage.after(RUN_SECONDS + 10)
        assert [number for node, number, _ in stage.cluster.judged if node == "node-1"] == [1, 2]

    staged(play)


def test_another_policy_that_only_a_list_shows_reaches_every_node() -> None:
    """The set of policies in force is news to all of them."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        subscribers, stage.cluster.subscribers = stage.cluster.subscribers, []
        stage.cluster.change(POLICIES, "default", {"spec": {"mode": "Observe"}})
        stage.cluster.subscribers = subscribers
        stage.sweep._list_schedule._regular_at = 0.0
        await stage.after(SHORTEST + 1)
        assert stage.read() == []

    staged(play)


def test_a_list_brings_nothing_back_that_went_while_it_was_taken() -> None:
    """Its pages show the cluster as it was when it began."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        call = stage.client.call

        asked: list[tuple[str, str]] = []

        async def late(method: str, path: str, **how: Any) -> Any:
            asked.append((method, path))
            answer = await call(method, path, **how)
            if method == "GET" and path in (NODES, REPORTS):
                await asyncio.sleep(20)
            return answer

        stage.client.call = late  # type: ignore[method-assign]
        stage.sweep._list_schedule._regular_at = 0.0
        stage.sweep.wake("node-0")
        await stage.after(30)  # the nodes are on their way
        assert stage.sweep._list_task.busy
        stage.cluster.remove(REPORTS, "node-1")
        stage.cluster.remove(NODES, "node-1")
        asked.clear()
        await stage.after(60)
        assert not stage.sweep._list_task.busy
        assert ("PATCH", f"{NODES}/node-1") not in asked
        assert "node-1" not in stage.sweep.cache.known_names()

    staged(play)


def test_a_pod_s_news_goes_before_a_crowd_that_only_wants_a_look() -> None:
    """Another policy wakes thousands of nodes; the run that ends meanwhile is judged next."""

    async def play(stage: Stage) -> None:
        await measured(stage, 60)
        settled = stage.settled()
        stage.sweep.wake(*sorted(stage.sweep.cache.nodes))
        stage.sweep.cache.suspects |= set(stage.sweep.cache.nodes)  # each takes a question
        stage.sweep.pod_seen(make_pod(make_node("node-7")).vanished())
        await stage.after(1)
        assert settled.index("node-7") == 0
        assert len(settled) >= 60

    staged(play)


@pytest.mark.parametrize("path", [NODES, PODS, POLICIES, REPORTS])
def test_a_gap_in_any_watch_is_mended_by_a_list(path: str) -> None:
    """When the watch of pods alone was interrupted, deletions of pods alone are unknown."""

    async def play(stage: Stage) -> None:
        stage.nodes(1)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(2)
        body = next(iter(stage.cluster.objects[path].values()))
        stage.feed.give(path, None, body)
        await stage.after(SHORTEST + GATHER_SECONDS + 5)
        lists = stage.lists()
        assert lists == 1, "the watches' own first lists are no gap"
        await stage.after(30)
        for _ in range(15):  # kopf's list anew, object by object
            stage.feed.give(path, None, body)
            await stage.after(1)
        await stage.after(SHORTEST + 1)
        assert stage.lists() == lists + 1

    staged(play)


@pytest.mark.parametrize("path", [NODES, PODS, POLICIES, REPORTS])
def test_a_gap_right_after_the_start_is_none_of_the_first_lists(path: str) -> None:
    """What a watch has shown once, it shows again only after an interruption."""

    async def play(stage: Stage) -> None:
        stage.nodes(2)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(2)
        body = next(iter(stage.cluster.objects[path].values()))
        stage.feed.give(path, None, body)
        await stage.after(SHORTEST + 1)
        assert stage.lists() == 1
        stage.feed.give(path, None, body)
        await stage.after(SHORTEST + 1)
        assert stage.lists() == 2

    staged(play)


def test_an_error_beside_the_loop_is_raised_in_it() -> None:
    """A list that ended by a bug must not look like a list that goes on."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        stage.sweep.cache.drop_unlisted = lambda **_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        stage.sweep._list_schedule._regular_at = 0.0
        stage.sweep.wake("node-0")
        with pytest.raises(ZeroDivisionError):
            await stage.after(10)

    staged(play)


def test_the_end_waits_for_a_status_that_is_being_written_and_not_for_a_list() -> None:
    """SIGTERM in the middle of both: neither outlives the loop."""

    async def play(stage: Stage) -> None:
        await measured(stage)
        stage.slow("GET", NODES, 50.0)
        stage.slow("PATCH", POLICY_STATUS, 2.0)
        stage.cluster.add_node("node-new")
        await stage.after(1)
        stage.sweep._list_schedule._regular_at = 0.0
        stage.sweep._policy_status.dirty = True
        stage.sweep.wake("node-0")
        await stage.after(1)
        assert stage.sweep._list_task.busy
        assert stage.sweep._status_task.busy
        assert stage.task is not None
        began = stage.loop.time()
        stage.task.cancel()
        await asyncio.gather(stage.task, return_exceptions=True)
        assert stage.loop.time() - began <= 2
        assert stage.cluster.get(POLICIES, "default")["status"]["nodes"]["selected"] == 4
        assert asyncio.all_tasks() == {asyncio.current_task()}

    staged(play)


def test_a_background_task_that_was_never_started_can_be_checked_and_stopped() -> None:
    """There is nothing to wait for, to raise or to stop."""
    task = BackgroundTask("nothing", on_end=lambda: None)
    assert not task.busy
    task.check()
    drive(task.wait())
    drive(task.stop(within=1.0))
