"""Benchmarks that wait, in the loop on virtual time: for an image that does not come, for GPUs in use.

What they cost a cluster that has no room for them, and what they must never cost: a health run.
"""

from __future__ import annotations

from collections import Counter

import pytest

from nodegauge_operator import names
from support.api_server import PODS, Body
from support.virtual_operator import VirtualTimeOperator, with_nccl

pytestmark = pytest.mark.slow

HOUR = 3600.0


def never_ending(operator: VirtualTimeOperator, *probes: str) -> None:
    """Pods of these probes never end by themselves, and health runs do as usual."""
    end = operator._end

    def ending(name: str) -> None:
        pod = operator.cluster.objects[PODS].get(name)
        if pod is not None and pod["metadata"]["labels"][names.POD_PROBE] not in probes:
            end(name)

    operator._end = ending  # type: ignore[method-assign]


def stuck(operator: VirtualTimeOperator, path: str, kind: str, body: Body) -> None:
    """The kubelet cannot get the nccl image."""
    if path != PODS or kind != "ADDED" or body["metadata"]["labels"][names.POD_PROBE] != names.PROBE_PULL:
        return
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"containerStatuses": [{"name": names.PROBE_CONTAINER, "state": waiting}]}
    node = body["metadata"]["annotations"][names.POD_NODE]
    operator.loop.call_later(
        0.5, lambda: operator.cluster.pod_status(body["metadata"]["name"], status, node=node)
    )


@with_nccl
async def test_an_image_that_does_not_come_delays_no_health_run(operator: VirtualTimeOperator) -> None:
    """A pull may take half an hour, and holds no GPU: health is read meanwhile, on time."""
    operator.nodes(3, gpus=2)
    operator.cluster.add_policy(budget={"concurrentNcclProbes": "100%", "concurrentProbes": "100%"})
    never_ending(operator, names.PROBE_PULL)
    operator.cluster.subscribers.append(lambda path, kind, body: stuck(operator, path, kind, body))
    operator.start()
    await operator.after(60)
    for _ in range(48):
        await operator.after(HOUR / 6)
        assert len(operator.read()) == 3, "no health label is stale"
    runs = Counter(operator.begun)
    for n in range(3):
        assert 32 <= runs[names.PROBE_HEALTH, f"node-{n}"] <= 34
        assert 5 <= runs[names.PROBE_PULL, f"node-{n}"] <= 6, "after 10, 20, 40 ... minutes"
        assert runs[names.PROBE_NCCL, f"node-{n}"] == 0


@with_nccl
async def test_a_busy_cluster_is_asked_ever_less(operator: VirtualTimeOperator) -> None:
    """Each try is one pod that waits for a minute: pod, report, delete, and nothing on the node."""
    count = 3
    operator.nodes(count, gpus=2)
    operator.cluster.add_policy(
        budget={"concurrentNcclProbes": 1, "concurrentProbes": "100%"}, probes={"health": {"interval": "24h"}}
    )
    never_ending(operator, names.PROBE_NCCL)
    operator.start()
    tries = []
    for _ in range(3):
        before = len(nccl_runs(operator))
        await operator.after(24 * HOUR)
        tries.append(len(nccl_runs(operator)) - before)
    assert operator.most[names.PROBE_NCCL] == 1
    assert tries[0] in range(6 * count, 9 * count), "after 10, 20, 40 ... minutes"
    assert tries[1:] == [count, count], "once a day and node in the end"
    assert set(nccl_runs(operator)[-count:]) == {f"node-{n}" for n in range(count)}, "nobody is left out"


@with_nccl
async def test_a_try_on_a_busy_node_is_three_writes(operator: VirtualTimeOperator) -> None:
    """Make the pod, say in the report how it ended, delete it: no label, condition or event each time."""
    operator.nodes(1, gpus=2)
    operator.cluster.add_policy(probes={"health": {"interval": "24h"}})
    never_ending(operator, names.PROBE_NCCL)
    operator.start()
    await operator.after(5 * 60)
    assert len(nccl_runs(operator)) == 1
    operator.client.log.clear()
    await operator.after(3 * HOUR)
    made = len(nccl_runs(operator)) - 1
    calls = Counter(call for call in operator.client.log if "polic" not in call and "lease" not in call)
    assert made >= 3
    assert set(calls.values()) == {made}, calls
    assert len(calls) == 3, calls


def nccl_runs(operator: VirtualTimeOperator) -> list[str]:
    """The nodes that NCCL runs were made for, in that order."""
    return [node for probe, node in operator.begun if probe == names.PROBE_NCCL]
