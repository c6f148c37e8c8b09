"""The loop on virtual time: first list, wakes, timers, places, stopping.

`support.virtual_operator` is where it plays.
"""

from __future__ import annotations

import asyncio

import pytest

from nodegauge_operator.kube.errors import NotFound
from support.api_server import NODES, PODS, POLICIES, REPORTS
from support.client import unavailable
from support.objects import INTERVAL
from support.virtual_operator import LATENCY, RUN_SECONDS, VirtualTimeOperator, on_virtual_time, refusing


@on_virtual_time
async def test_every_node_is_measured_and_measured_again(operator: VirtualTimeOperator) -> None:
    """From nothing to labels, then once per interval, and no pod is left over."""
    await operator.begin(3, after=10, budget={"concurrentProbes": 3})
    assert operator.read() == ["node-0", "node-1", "node-2"]
    assert operator.cluster.objects[PODS] == {}
    await operator.after(4 * INTERVAL + 60)
    numbers = [
        body["status"]["probes"][0]["lastRun"]["number"]
        for body in operator.cluster.objects[REPORTS].values()
    ]
    assert numbers == [5, 5, 5]
    assert len(operator.cluster.judged) == 15


@on_virtual_time
async def test_nothing_is_decided_before_the_first_full_list(operator: VirtualTimeOperator) -> None:
    """Watch events alone are half the truth: no write, and not ready, until all has been listed."""
    operator.client.refuse = refusing(unavailable(), "GET", NODES)
    operator.start()
    operator.nodes(2)
    operator.cluster.add_policy()
    await operator.after(20)
    assert not operator.sweep.listed
    assert operator.sweep.alive()
    assert operator.client.log == []
    operator.client.refuse = lambda verb, path: None
    await operator.after(30)
    assert operator.sweep.listed
    assert operator.read() == ["node-0", "node-1"]


@on_virtual_time
async def test_missing_crds_are_waited_for(operator: VirtualTimeOperator) -> None:
    """Not an error that ends anything: they may be installed a minute later."""
    operator.nodes(1)
    operator.client.refuse = refusing(NotFound("no such resource", status=404), "GET", POLICIES)
    operator.start()
    await operator.after(60)
    assert not operator.sweep.listed
    assert operator.client.calls < 20
    operator.client.refuse = lambda verb, path: None
    operator.cluster.add_policy()
    await operator.after(15)
    assert operator.read() == ["node-0"]


@pytest.mark.parametrize(
    ("nodes", "setting", "most"), [(30, "10%", 3), (30, 4, 4), (30, 0, 0), (60, "100%", 60)]
)
@on_virtual_time
async def test_no_more_probes_at_a_time_than_the_budget_has_places(
    operator: VirtualTimeOperator, nodes: int, setting: int | str, most: int
) -> None:
    """A count, or per cent; 0 pauses (`test_budget` has the arithmetic)."""
    await operator.begin(
        nodes, after=10 + 2 * RUN_SECONDS * nodes / max(most, 1), budget={"concurrentProbes": setting}
    )
    assert operator.most_pods == most
    assert len(operator.read()) == (nodes if most else 0)


@on_virtual_time
async def test_metrics_count_who_runs_and_who_waits(operator: VirtualTimeOperator) -> None:
    """As of the moment at which they are read."""

    def counted() -> tuple[float | None, ...]:
        metrics = ("nodegauge_running_probes", "nodegauge_waiting_nodes")
        return tuple(operator.metrics.registry.get_sample_value(m, {"probe": "health"}) for m in metrics)

    await operator.begin(3, after=RUN_SECONDS / 2, budget={"concurrentProbes": 1})
    assert counted() == (1, 2)
    await operator.after(6 * RUN_SECONDS)
    assert counted() == (0, 0)


@on_virtual_time
async def test_each_policy_has_its_own_places(operator: VirtualTimeOperator) -> None:
    """A paused policy holds up nobody else's nodes."""
    for n in range(4):
        operator.cluster.add_node(f"node-{n}", tier="gold" if n < 2 else "tin")
    gold = {"matchLabels": {"tier": "gold"}}
    operator.cluster.add_policy("gold", nodeSelector=gold, priority=1, budget={"concurrentProbes": 0})
    operator.cluster.add_policy("rest", budget={"concurrentProbes": 1})
    operator.start()
    await operator.after(40)
    assert operator.read() == ["node-2", "node-3"]
    assert operator.most_pods == 1


@on_virtual_time
async def test_who_waited_longest_goes_first(operator: VirtualTimeOperator) -> None:
    """Never measured before measured, and of those the oldest reading."""
    await operator.begin(3, after=3 * RUN_SECONDS + 5, budget={"concurrentProbes": 1})
    first = list(operator.order)
    assert sorted(first) == ["node-0", "node-1", "node-2"]
    operator.cluster.change(POLICIES, "default", {"spec": {"budget": {"concurrentProbes": 0}}})
    await operator.after(2 * INTERVAL)
    operator.cluster.add_node("node-new")
    await operator.after(1)
    operator.cluster.change(POLICIES, "default", {"spec": {"budget": {"concurrentProbes": 1}}})
    await operator.after(4 * RUN_SECONDS + 10)
    assert operator.order[3:] == ["node-new", *first]


@on_virtual_time
async def test_shutdown_finishes_writes_and_creates_no_pod(operator: VirtualTimeOperator) -> None:
    """SIGTERM while results come in: what was judged is written, due nodes get no new pod."""
    await operator.begin(12, budget={"concurrentProbes": 6})
    while not (operator.sweep._in_flight and operator.cluster.judged):
        await operator.after(LATENCY / 3)
    pods = sum(operator.cluster.created.values())
    operator.task.cancel()
    await asyncio.gather(operator.task, return_exceptions=True)
    assert operator.task.cancelled()
    assert sum(operator.cluster.created.values()) == pods
    assert not operator.sweep._in_flight
    judged = {node for node, _, _ in operator.cluster.judged}
    assert judged
    assert judged == set(operator.read())


@on_virtual_time
async def test_cancelling_does_not_wait_for_ever_and_leaves_no_task(operator: VirtualTimeOperator) -> None:
    """An API server that never answers holds up the end for seconds at most."""
    await operator.begin(3, after=RUN_SECONDS + 2, budget={"concurrentProbes": 3})
    operator.latency = 1000.0
    operator.sweep.wake("node-0", "node-1", "node-2")
    operator.sweep.cache.suspects |= {"node-0", "node-1", "node-2"}
    await operator.after(1)
    assert operator.sweep._in_flight
    started = operator.loop.time()
    operator.task.cancel()
    await asyncio.gather(operator.task, return_exceptions=True)
    assert operator.loop.time() - started <= 6
    assert not [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]
