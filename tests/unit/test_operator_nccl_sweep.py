"""Benchmarks in the loop on virtual time: places, turns, pods that are soon gone, refusals, counts."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from support.api_server import NODES, PODS, REPORTS, Body
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, with_nccl

NCCL = (names.PROBE_PULL, names.PROBE_NCCL)


def probe(operator: VirtualTimeOperator, node: str, name: str = names.PROBE_NCCL) -> Body:
    """One probe's status in a report; empty before its first run."""
    probes = operator.cluster.objects[REPORTS][node].get("status", {}).get("probes", ())
    return next((p for p in probes if p["name"] == name), {})


def sample(operator: VirtualTimeOperator, name: str, **labels: str) -> float:
    """The value of one sample of the metrics; 0.0 where it has not been counted."""
    return operator.metrics.registry.get_sample_value(name, labels) or 0.0


def holder(operator: VirtualTimeOperator) -> Body | None:
    """The pod of a benchmark, where there is one."""
    pods = operator.cluster.objects[PODS].values()
    return next((p for p in pods if p["metadata"]["labels"][names.POD_PROBE] == names.PROBE_NCCL), None)


async def until_held(operator: VirtualTimeOperator) -> Body:
    """Wait for a benchmark's pod; it is placed on its node."""
    while (pod := holder(operator)) is None:
        await operator.after(0.1)
    await operator.after(0.1)
    operator.cluster.schedule(pod)
    await operator.after(0.1)
    return pod


@pytest.mark.parametrize(("setting", "most"), [(1, 1), ("20%", 2), (0, 0)])
@with_nccl
async def test_nccl_runs_keep_to_their_budget(
    operator: VirtualTimeOperator, setting: int | str, most: int
) -> None:
    """Each node is pulled for and measured once, so many at a time; health runs keep theirs."""
    await operator.begin(
        10,
        gpus=2,
        after=10 + 3 * RUN_SECONDS * 10 / max(most, 1),
        budget={"concurrentProbes": 5, "concurrentNcclProbes": setting},
    )
    assert len(operator.read()) == 10
    measured = [n for n in operator.cluster.objects[NODES] if probe(operator, n).get("readAt")]
    assert len(measured) == (10 if most else 0)
    assert operator.most[names.PROBE_HEALTH] == 5
    assert max(operator.most[name] for name in NCCL) == most
    assert sample(operator, "nodegauge_waiting_nodes", probe="nccl") == 0, (
        "nobody waits for what is switched off"
    )
    assert sample(operator, "nodegauge_waiting_nodes", probe="health") == 0


@with_nccl
async def test_a_node_is_measured_after_health_and_pull(operator: VirtualTimeOperator) -> None:
    """One pod at a time, in this order, and labels that say what was measured."""
    await operator.begin(1, gpus=2, after=4 * RUN_SECONDS)
    assert [name for name, _ in operator.begun] == ["health", "pull", "nccl"]
    assert operator.most_pods == 1
    labels = operator.cluster.get(NODES, "node-0")["metadata"]["labels"]
    assert labels[names.LABEL_EVIDENCE] == "measured"
    assert labels[names.LABEL_BUSBW_ALLREDUCE] in ("39", "40")
    assert sample(operator, "nodegauge_measured_nodes", policy="default", agreement="confirmed") == 1
    for name in (names.PROBE_HEALTH, names.PROBE_PULL, names.PROBE_NCCL):
        assert sample(operator, "nodegauge_runs_total", probe=name, outcome="read", reason="Read") == 1


@pytest.mark.parametrize("seen", ["first its mark, then its end", "its end alone"])
@with_nccl
async def test_a_preempted_run_is_seen_after_its_pod_is_gone(
    operator: VirtualTimeOperator, seen: str
) -> None:
    """The scheduler marks and deletes it within a second: both watch events, or only the last, tell why."""
    await operator.begin(1, gpus=2)
    pod = await until_held(operator)
    name = pod["metadata"]["name"]
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    labels = operator.cluster.get(NODES, "node-0")["metadata"]["labels"]
    if seen == "its end alone":
        subscribers, operator.cluster.subscribers = operator.cluster.subscribers, []
        operator.cluster.pod_status(name, {"conditions": [mark]})
        operator.cluster.subscribers = subscribers
    else:
        operator.cluster.pod_status(name, {"conditions": [mark]})
        await operator.after(0.5)
    if name in operator.cluster.objects[PODS]:
        operator.cluster.remove(PODS, name)
    await operator.after(1)
    last = probe(operator, "node-0")["lastRun"]
    assert (last["outcome"], last["reason"]) == ("skipped", "Preempted")
    assert operator.cluster.get(NODES, "node-0")["metadata"]["labels"] == labels
    assert sample(operator, "nodegauge_runs_total", probe="nccl", outcome="skipped", reason="Preempted") == 1
    await operator.after(600 + 2 * RUN_SECONDS)
    assert probe(operator, "node-0")["lastRun"]["outcome"] == "read"


def placed_at_once(operator: VirtualTimeOperator, path: str, kind: str, body: Body) -> None:
    """Each new pod is on its node at once, as its condition says."""
    if path == PODS and kind == "ADDED":
        at = stamp(operator.cluster.clock())
        placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        node = body["metadata"]["annotations"][names.POD_NODE]
        operator.cluster.pod_status(body["metadata"]["name"], {"conditions": [placed]}, node=node)


@with_nccl
async def test_held_time_is_counted_from_the_scheduler_s_word(operator: VirtualTimeOperator) -> None:
    """Not from the pod's creation: while it waits it holds nothing."""
    operator.nodes(1, gpus=2)
    operator.cluster.add_policy()
    operator.cluster.subscribers.append(lambda path, kind, body: placed_at_once(operator, path, kind, body))
    operator.start()
    pod = await until_held(operator)
    at = stamp(operator.cluster.clock() - 40)
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    operator.cluster.pod_status(pod["metadata"]["name"], {"conditions": [placed]})
    await operator.after(2 * RUN_SECONDS)
    assert sample(operator, "nodegauge_nccl_held_seconds_count") == 1
    assert 40 <= sample(operator, "nodegauge_nccl_held_seconds_sum") <= 42 + RUN_SECONDS
