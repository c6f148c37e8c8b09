"""Load runs in the loop on virtual time: after health, within their budget, and gone at once."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from support.api_server import NODES, PODS, REPORTS, Body
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time, with_nccl

LOAD = names.PROBE_LOAD
HOUR = 3600.0
WANTED = {"load": {"interval": "1h"}}


def status(operator: VirtualTimeOperator, node: str = "node-0") -> Body:
    """The load probe's status in a report; empty before its first run."""
    probes = operator.cluster.objects[REPORTS][node].get("status", {}).get("probes", ())
    return next((p for p in probes if p["name"] == LOAD), {})


def holder(operator: VirtualTimeOperator) -> Body | None:
    """The pod of a load run, where there is one."""
    pods = operator.cluster.objects[PODS].values()
    return next((p for p in pods if p["metadata"]["labels"][names.POD_PROBE] == LOAD), None)


@on_virtual_time
async def test_a_load_run_follows_within_the_interval_and_then_one_each(
    operator: VirtualTimeOperator,
) -> None:
    """Without an NCCL image, and one pod at a time."""
    await operator.begin(1, gpus=2, after=3 * RUN_SECONDS, probes=WANTED)
    assert [name for name, _ in operator.begun] == ["health"]
    await operator.after(HOUR)
    assert [name for name, _ in operator.begun].count("load") == 1
    assert operator.most_pods == 1
    assert operator.cluster.objects[REPORTS]["node-0"]["status"]["load"]["tflops"] == 610.0
    await operator.after(5 * HOUR)
    assert [name for name, _ in operator.begun].count("load") in (5, 6)


@pytest.mark.slow
@on_virtual_time
async def test_an_install_starts_no_wave_of_load_runs(operator: VirtualTimeOperator) -> None:
    """Thirty nodes: within a day about a seventh of them, after a week all, rarely two at a time."""
    await operator.begin(30, gpus=2, after=24 * HOUR, probes={"health": {"interval": "12h"}})
    loaded = [node for name, node in operator.begun if name == LOAD]
    assert 1 <= len(loaded) <= 10
    await operator.after(6 * 24 * HOUR + 3 * RUN_SECONDS)
    loaded = [node for name, node in operator.begun if name == LOAD]
    assert (len(loaded), len(set(loaded))) == (30, 30)
    assert operator.most[LOAD] <= 2


@with_nccl
async def test_load_and_nccl_runs_share_their_budget(operator: VirtualTimeOperator) -> None:
    """Two nodes at a time are held, by whichever; each is measured and loaded within an hour."""
    budget = {"concurrentProbes": 5, "concurrentNcclProbes": 2}
    await operator.begin(6, gpus=2, after=HOUR + 10 * RUN_SECONDS, probes=WANTED, budget=budget)
    assert all(status(operator, name).get("readAt") for name in operator.cluster.objects[NODES])
    runs = [name for name, _ in operator.begun if name != names.PROBE_HEALTH]
    assert (runs.count("nccl"), runs.count("load")) == (6, 6)
    assert max(operator.most[name] for name in ("pull", "nccl", LOAD)) <= 2


@on_virtual_time
async def test_a_cordoned_node_is_free_at_once(operator: VirtualTimeOperator) -> None:
    """The pod of a running load is deleted within seconds, and leaves no verdict."""
    await operator.begin(1, gpus=2, probes=WANTED)
    while (pod := holder(operator)) is None:
        await operator.after(1)
    operator.cluster.schedule(pod)
    operator.cluster.change(NODES, "node-0", {"spec": {"unschedulable": True}})
    await operator.after(2)
    left = holder(operator)
    assert left is None or left["metadata"]["deletionTimestamp"]
    assert status(operator)["lastRun"]["outcome"] == "skipped"
    assert "readAt" not in status(operator)
