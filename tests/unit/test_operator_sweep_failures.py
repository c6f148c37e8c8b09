"""The loop in trouble: lists that fail, lost connections, webhooks, gaps, errors, and a sweep that hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator.kube.errors import Refused
from nodegauge_operator.reconcile.resync import SHORTEST
from support.api_server import NODES, PODS, POLICIES, REPORTS
from support.client import unavailable
from support.operator import SETTINGS
from support.virtual_operator import VirtualTimeOperator, on_virtual_time, refusing


@on_virtual_time
async def test_a_list_that_fails_later_decides_nothing_and_is_repeated(operator: VirtualTimeOperator) -> None:
    """The API server answers 500 to lists for ten minutes: every label stays."""
    await operator.begin(2, after=30)
    before = operator.cluster.state()["nodes"]
    for path in (POLICIES, REPORTS, PODS, NODES):
        operator.client.refuse = refusing(unavailable(500), "GET", path)
        operator.sweep._list_schedule._regular_at = 0.0
        operator.sweep.wake("node-0")
        await operator.after(20)
        assert operator.cluster.state()["nodes"] == before
    lists = operator.lists()
    assert operator.metrics.failed_lists._value.get() >= 2
    operator.client.refuse = lambda verb, path: None
    await operator.after(300)
    assert operator.lists() > lists
    assert operator.metrics.failed_lists._value.get() == 0


@pytest.mark.parametrize("status", [0, 429, 500, 503])
@on_virtual_time
async def test_refused_creates_become_rare(operator: VirtualTimeOperator, status: int) -> None:
    """A webhook that is down, an API server that is full: a few calls per node and hour, and no full list,
    the last thing that an API server needs which does not keep up."""
    operator.client.refuse = refusing(unavailable(status), "POST", PODS)
    await operator.begin(4, after=60, budget={"concurrentProbes": 4})
    calls, lists = operator.client.calls, operator.lists()
    await operator.after(3600)
    assert operator.lists() - lists <= 7  # one every ten minutes
    assert operator.client.calls - calls <= 4 * 130
    operator.client.refuse = lambda verb, path: None
    await operator.after(90)
    assert len(operator.read()) == 4


@on_virtual_time
async def test_one_node_s_trouble_stops_nobody_else(operator: VirtualTimeOperator) -> None:
    """Refused writes and plain bugs on one node: the others are measured, and it is tried again."""
    operator.nodes(3)
    operator.cluster.add_policy(budget={"concurrentProbes": 3})
    reconcile = operator.sweep._reconciler.reconcile

    async def sometimes(name: str, **how: Any) -> Any:
        if name == "node-0":
            raise ZeroDivisionError("a bug")
        return await reconcile(name, **how)

    operator.sweep._reconciler.reconcile = sometimes  # type: ignore[method-assign]
    operator.client.refuse = refusing(Refused("denied by policy"), "PATCH", f"{NODES}/node-1")
    operator.start()
    await operator.after(120)
    assert operator.read() == ["node-2"]
    failures = {
        s.labels["kind"]: s.value
        for m in operator.metrics.failures.collect()
        for s in m.samples
        if s.name.endswith("_total")
    }
    assert failures.keys() == {"Unexpected", "Refused"}
    assert all(3 <= count <= 15 for count in failures.values())
    operator.sweep._reconciler.reconcile = reconcile  # type: ignore[method-assign]
    operator.client.refuse = lambda verb, path: None
    await operator.after(120)
    assert len(operator.read()) == 3


@on_virtual_time
async def test_an_error_in_the_loop_itself_ends_the_task(operator: VirtualTimeOperator) -> None:
    """And with it the process: a loop that is broken must not look alive."""
    operator.sweep._grant = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    operator.start()
    with pytest.raises(ZeroDivisionError):
        await operator.after(10)


@pytest.mark.parametrize("steps", range(5))
@on_virtual_time
async def test_the_loop_ends_when_it_is_woken_and_stopped_at_once(
    operator: VirtualTimeOperator, steps: int
) -> None:
    """SIGTERM may come at any step of the event loop between a wake-up and the pass that follows."""
    await operator.begin(1, after=60)
    assert operator.task is not None
    operator.sweep.wake("node-0")
    for _ in range(steps):
        await asyncio.sleep(0)
    operator.task.cancel()
    await asyncio.wait({operator.task}, timeout=30)
    assert operator.task.cancelled()


@on_virtual_time
async def test_a_gap_wakes_the_sweep(operator: VirtualTimeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the sweep is set to wake once in five minutes."""
    monkeypatch.setattr(
        "support.operator.SETTINGS", slow := replace(SETTINGS, sweep_interval=300.0, relist_interval=86_400.0)
    )
    operator.sweep._settings = slow
    await operator.begin(1, after=60)
    operator.sweep.listed_by_watch("a")
    operator.sweep.listed_by_watch("b")
    lists = operator.lists()
    await operator.after(SHORTEST + 1)
    assert operator.lists() == lists + 1
    operator.sweep.listed_by_watch("a")
    await operator.after(2 * SHORTEST + 1)
    assert operator.lists() == lists + 2


@on_virtual_time
async def test_liveness_fails_for_a_stuck_loop_only(operator: VirtualTimeOperator) -> None:
    """Liveness fails for a loop that is stuck, not for a list that takes its minute."""
    operator.nodes(1)
    operator.start()
    await operator.after(30)
    operator.latency = 55.0
    operator.sweep._list_schedule._regular_at = 0.0
    operator.sweep.wake("node-0")
    for _ in range(30):
        await operator.after(10)
        assert operator.sweep.alive()
    operator.latency = 10_000.0
    operator.sweep._list_schedule._regular_at = 0.0
    await operator.after(1000)
    assert not operator.sweep.alive()
