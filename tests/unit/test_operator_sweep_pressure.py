"""An API server that is slow, full or away: lists become rare, and nothing that is ready waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.reconcile.resync import GATHER_SECONDS, LONGEST, SHORTEST
from nodegauge_operator.reconcile.workqueue import BackgroundTask
from support.api_server import NODES, PODS, POLICIES, REPORTS
from support.client import unavailable, unreachable
from support.objects import INTERVAL, make_node, make_pod
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time, refusing
from support.virtual_time import drive

POLICY_STATUS = f"{POLICIES}/default/status"


async def measured(operator: VirtualTimeOperator, count: int = 3) -> None:
    """So many nodes are registered and measured once; the watches' own first lists are over."""
    await operator.begin(count, after=60, budget={"concurrentProbes": "100%"})
    assert len(operator.read()) == count


@on_virtual_time
async def test_repeatedly_cut_connections_cause_fewer_lists(operator: VirtualTimeOperator) -> None:
    """Each is a gap that has to be mended, and with a list every five seconds none ever would be."""
    await measured(operator)
    lists = operator.lists()
    operator.client.refuse = refusing(unreachable(), "POST", PODS)
    await operator.after(INTERVAL + 3600)
    assert 8 <= operator.lists() - lists <= 10 + 2 * 3600 / LONGEST


@pytest.mark.parametrize(("verb", "path"), [("GET", NODES), ("GET", PODS), ("PATCH", POLICY_STATUS)])
@on_virtual_time
async def test_slow_lists_delay_no_result(operator: VirtualTimeOperator, verb: str, path: str) -> None:
    """At 5,000 nodes a list takes many pages, and each may take a minute."""
    await measured(operator)
    operator.cluster.add_node("node-new")
    await operator.after(1)
    operator.slow(verb, path, 50.0)
    operator.sweep._list_schedule._regular_at = 0.0
    operator.sweep._policy_status.dirty = True
    operator.cluster.add_node("node-next")
    await operator.after(RUN_SECONDS + 2)
    assert operator.sweep._list_task.busy or operator.sweep._status_task.busy
    assert {"node-new", "node-next"} <= set(operator.read())


@on_virtual_time
async def test_a_list_wakes_only_nodes_that_changed(operator: VirtualTimeOperator) -> None:
    """Five thousand idle nodes in the queue were in the way of every result."""
    await measured(operator, 8)
    subscribers, operator.cluster.subscribers = operator.cluster.subscribers, []
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    operator.cluster.remove(NODES, "node-2")
    operator.cluster.remove(REPORTS, "node-3")
    operator.cluster.change(REPORTS, "node-4", {"metadata": {"labels": {"somebody": "was-here"}}})
    operator.cluster.subscribers = subscribers
    reconciled = operator.reconciled()
    operator.sweep._list_schedule._regular_at = 0.0
    await operator.after(SHORTEST + 1)
    assert set(reconciled) == {"node-1", "node-2", "node-3", "node-4"}
    assert names.LABEL_HEALTH in operator.cluster.get(NODES, "node-1")["metadata"]["labels"]
    assert "node-2" not in operator.sweep.cache.nodes


@on_virtual_time
async def test_what_half_a_list_brought_is_not_forgotten(operator: VirtualTimeOperator) -> None:
    """The next list no longer shows it as news."""
    await measured(operator)
    subscribers, operator.cluster.subscribers = operator.cluster.subscribers, []
    operator.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": "2027-01-15T08:01:00Z"}})
    operator.cluster.subscribers = subscribers
    operator.client.refuse = refusing(unavailable(500), "GET", NODES)
    operator.sweep._list_schedule._regular_at = 0.0
    await operator.after(RUN_SECONDS + 10)
    assert [number for node, number, _ in operator.cluster.judged if node == "node-1"] == [1, 2]


@on_virtual_time
async def test_a_list_with_a_changed_policy_wakes_every_node(operator: VirtualTimeOperator) -> None:
    """The set of policies in force is news to all of them."""
    await measured(operator)
    subscribers, operator.cluster.subscribers = operator.cluster.subscribers, []
    operator.cluster.change(POLICIES, "default", {"spec": {"mode": "Observe"}})
    operator.cluster.subscribers = subscribers
    operator.sweep._list_schedule._regular_at = 0.0
    await operator.after(SHORTEST + 1)
    assert operator.read() == []


@on_virtual_time
async def test_a_list_brings_nothing_back_that_went_while_it_was_taken(operator: VirtualTimeOperator) -> None:
    """Its pages show the cluster as it was when it began."""
    await measured(operator)
    call = operator.client.call

    asked: list[tuple[str, str]] = []

    async def late(method: str, path: str, **how: Any) -> Any:
        asked.append((method, path))
        answer = await call(method, path, **how)
        if method == "GET" and path in (NODES, REPORTS):
            await asyncio.sleep(20)
        return answer

    operator.client.call = late  # type: ignore[method-assign]
    operator.sweep._list_schedule._regular_at = 0.0
    operator.sweep.wake("node-0")
    await operator.after(30)  # the nodes are on their way
    assert operator.sweep._list_task.busy
    operator.cluster.remove(REPORTS, "node-1")
    operator.cluster.remove(NODES, "node-1")
    asked.clear()
    await operator.after(60)
    assert not operator.sweep._list_task.busy
    assert ("PATCH", f"{NODES}/node-1") not in asked
    assert "node-1" not in operator.sweep.cache.known_names()


@on_virtual_time
async def test_a_pod_s_news_goes_before_a_crowd_that_only_wants_a_look(operator: VirtualTimeOperator) -> None:
    """Another policy wakes thousands of nodes; the run that ends meanwhile is judged next."""
    await measured(operator, 60)
    reconciled = operator.reconciled()
    operator.sweep.wake(*sorted(operator.sweep.cache.nodes))
    operator.sweep.cache.suspects |= set(operator.sweep.cache.nodes)  # each takes a question
    operator.sweep.pod_seen(make_pod(make_node("node-7")).vanished())
    await operator.after(1)
    assert reconciled.index("node-7") == 0
    assert len(reconciled) >= 60


@pytest.mark.parametrize("path", [NODES, PODS, POLICIES, REPORTS])
@on_virtual_time
async def test_a_gap_in_any_watch_is_mended_by_a_list(operator: VirtualTimeOperator, path: str) -> None:
    """When the watch of pods alone was interrupted, deletions of pods alone are unknown."""
    await operator.begin(1, after=2)
    body = next(iter(operator.cluster.objects[path].values()))
    operator.watches.give(path, None, body)
    await operator.after(SHORTEST + GATHER_SECONDS + 5)
    lists = operator.lists()
    assert lists == 1, "the watches' own first lists are no gap"
    await operator.after(30)
    for _ in range(15):  # kopf's list anew, object by object
        operator.watches.give(path, None, body)
        await operator.after(1)
    await operator.after(SHORTEST + 1)
    assert operator.lists() == lists + 1


@pytest.mark.parametrize("path", [NODES, PODS, POLICIES, REPORTS])
@on_virtual_time
async def test_a_gap_soon_after_the_start_is_noticed(operator: VirtualTimeOperator, path: str) -> None:
    """What a watch has shown once, it shows again only after an interruption."""
    await operator.begin(2, after=2)
    body = next(iter(operator.cluster.objects[path].values()))
    operator.watches.give(path, None, body)
    await operator.after(SHORTEST + 1)
    assert operator.lists() == 1
    operator.watches.give(path, None, body)
    await operator.after(SHORTEST + 1)
    assert operator.lists() == 2


@on_virtual_time
async def test_an_error_beside_the_loop_is_raised_in_it(operator: VirtualTimeOperator) -> None:
    """A list that ended by a bug must not look like a list that goes on."""
    await measured(operator)
    operator.sweep.cache.drop_unlisted = lambda **_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    operator.sweep._list_schedule._regular_at = 0.0
    operator.sweep.wake("node-0")
    with pytest.raises(ZeroDivisionError):
        await operator.after(10)


@on_virtual_time
async def test_shutdown_waits_for_a_status_but_not_for_a_list(operator: VirtualTimeOperator) -> None:
    """SIGTERM in the middle of both: neither outlives the loop."""
    await measured(operator)
    operator.slow("GET", NODES, 50.0)
    operator.slow("PATCH", POLICY_STATUS, 2.0)
    operator.cluster.add_node("node-new")
    await operator.after(1)
    operator.sweep._list_schedule._regular_at = 0.0
    operator.sweep._policy_status.dirty = True
    operator.sweep.wake("node-0")
    await operator.after(1)
    assert operator.sweep._list_task.busy
    assert operator.sweep._status_task.busy
    began = operator.loop.time()
    operator.task.cancel()
    await asyncio.gather(operator.task, return_exceptions=True)
    assert operator.loop.time() - began <= 2
    assert operator.cluster.get(POLICIES, "default")["status"]["nodes"]["selected"] == 4
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_background_task_that_was_never_started_can_be_checked_and_stopped() -> None:
    """There is nothing to wait for, to raise or to stop."""
    task = BackgroundTask("nothing", on_end=lambda: None)
    assert not task.busy
    task.check()
    drive(task.wait())
    drive(task.stop(within=1.0))
