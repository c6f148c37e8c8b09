"""Load runs in the loop on virtual time: after health, within their budget, and gone at once."""

from __future__ import annotations

from nodegauge_operator import names
from support.api_server import NODES, PODS, REPORTS, Body
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time, with_nccl

LOAD = names.PROBE_LOAD
WANTED = {"load": {"enabled": True}}


def status(operator: VirtualTimeOperator, node: str = "node-0") -> Body:
    """The load probe's status in a report; empty before its first run."""
    probes = operator.cluster.objects[REPORTS][node].get("status", {}).get("probes", ())
    return next((p for p in probes if p["name"] == LOAD), {})


def holder(operator: VirtualTimeOperator) -> Body | None:
    """The pod of a load run, where there is one."""
    pods = operator.cluster.objects[PODS].values()
    return next((p for p in pods if p["metadata"]["labels"][names.POD_PROBE] == LOAD), None)


@on_virtual_time
async def test_load_runs_follow_health_where_the_policy_asks(operator: VirtualTimeOperator) -> None:
    """Without an NCCL image, one pod at a time, and no second run within the week."""
    await operator.begin(1, gpus=2, after=3 * RUN_SECONDS, probes=WANTED)
    assert [name for name, _ in operator.begun] == ["health", "load"]
    assert operator.most_pods == 1
    assert operator.cluster.objects[REPORTS]["node-0"]["status"]["load"]["tflops"] == 610.0
    await operator.after(86_400)
    assert [name for name, _ in operator.begun].count("load") == 1


@on_virtual_time
async def test_no_load_run_is_made_by_default(operator: VirtualTimeOperator) -> None:
    """Nor on nodes that offer no GPU."""
    await operator.begin(2, gpus=2, after=86_400)
    assert {name for name, _ in operator.begun} == {"health"}


@with_nccl
async def test_load_and_nccl_runs_share_their_budget(operator: VirtualTimeOperator) -> None:
    """Two nodes at a time are held, by whichever; each is measured and loaded."""
    budget = {"concurrentProbes": 5, "concurrentNcclProbes": 2}
    await operator.begin(6, gpus=2, after=60 * RUN_SECONDS, probes=WANTED, budget=budget)
    assert all(status(operator, name).get("readAt") for name in operator.cluster.objects[NODES])
    runs = [name for name, _ in operator.begun if name != names.PROBE_HEALTH]
    assert (runs.count("nccl"), runs.count("load")) == (6, 6)
    assert max(operator.most[name] for name in ("pull", "nccl", LOAD)) <= 2


@on_virtual_time
async def test_a_cordoned_node_is_free_at_once(operator: VirtualTimeOperator) -> None:
    """The pod of a running load is deleted within seconds, and leaves no verdict."""
    await operator.begin(1, gpus=2, probes=WANTED)
    while (pod := holder(operator)) is None:
        await operator.after(0.1)
    operator.cluster.schedule(pod)
    operator.cluster.change(NODES, "node-0", {"spec": {"unschedulable": True}})
    await operator.after(2)
    left = holder(operator)
    assert left is None or left["metadata"]["deletionTimestamp"]
    assert status(operator)["lastRun"]["outcome"] == "skipped"
    assert "readAt" not in status(operator)
