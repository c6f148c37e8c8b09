"""Benchmarks in the loop on virtual time: places, turns, pods that are soon gone, refusals, counts."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.kube.errors import Forbidden
from support.api_server import NODES, PODS, REPORTS, Body
from support.virtual_operator import RUN_SECONDS, on_virtual_time, with_nccl
from support.virtual_operator import VirtualTimeOperator as Operator


@pytest.mark.parametrize(("setting", "most"), [(1, 1), ("20%", 2), (0, 0)])
@with_nccl
async def test_nccl_runs_keep_to_their_budget(operator: Operator, setting: int | str, most: int) -> None:
    budget = {"concurrentProbes": 5, "concurrentNcclProbes": setting}
    await operator.begin(10, gpus=2, after=10 + 3 * RUN_SECONDS * 10 / max(most, 1), budget=budget)
    assert len(operator.read()) == 10
    measured = [n for n in operator.cluster.objects[NODES] if operator.probe(n).get("readAt")]
    assert len(measured) == (10 if most else 0)
    assert operator.most[names.PROBE_HEALTH] == 5
    assert max(operator.most[name] for name in (names.PROBE_PULL, names.PROBE_NCCL)) == most
    for pool in ("nccl", "health"):
        assert operator.sample("nodegauge_waiting_nodes", probe=pool) == 0, "nobody waits for what is off"


@with_nccl
async def test_a_node_is_measured_after_health_and_pull(operator: Operator) -> None:
    await operator.begin(1, gpus=2, after=4 * RUN_SECONDS)
    assert [name for name, _ in operator.begun] == ["health", "pull", "nccl"]
    assert operator.most_pods == 1
    labels = operator.cluster.get(NODES, "node-0")["metadata"]["labels"]
    assert labels["nodegauge.dev/interconnect-evidence"] == "measured"
    assert labels["nodegauge.dev/busbw-allreduce"] in ("39", "40")
    assert operator.sample("nodegauge_measured_nodes", policy="default", agreement="confirmed") == 1
    for name in (names.PROBE_HEALTH, names.PROBE_PULL, names.PROBE_NCCL):
        assert operator.sample("nodegauge_runs_total", probe=name, outcome="read", reason="Read") == 1


@pytest.mark.parametrize("seen", ["first its mark, then its end", "its end alone"])
@with_nccl
async def test_a_preempted_run_is_seen_after_its_pod_is_gone(operator: Operator, seen: str) -> None:
    await operator.begin(1, gpus=2)
    pod = await operator.until_held()
    name = pod["metadata"]["name"]
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    labels = operator.cluster.get(NODES, "node-0")["metadata"]["labels"]
    with operator.unheard() if seen == "its end alone" else nullcontext():
        operator.cluster.pod_status(name, {"conditions": [mark]})
    await operator.after(0.5)
    if name in operator.cluster.objects[PODS]:
        operator.cluster.remove(PODS, name)
    await operator.after(1)
    last = operator.probe()["lastRun"]
    assert (last["outcome"], last["reason"]) == ("skipped", "Preempted")
    assert operator.cluster.get(NODES, "node-0")["metadata"]["labels"] == labels
    assert operator.sample("nodegauge_runs_total", probe="nccl", outcome="skipped", reason="Preempted") == 1
    await operator.after(600 + 2 * RUN_SECONDS)
    assert operator.probe()["lastRun"]["outcome"] == "read"


HOUR = 3600.0


@with_nccl
async def test_a_first_pull_that_is_refused_is_tried_later(operator: Operator) -> None:
    """Sixty were asked for in ten seconds, under a quota."""
    error = Forbidden("exceeded quota", status=403)
    operator.client.refuse = lambda *call: error if operator.begun and call == ("POST", PODS) else None
    await operator.begin(1, gpus=2, after=120)
    assert operator.probe(name=names.PROBE_PULL)["lastRun"]["number"] == 1


def on_new_pods(operator: Operator, write: Callable[[str], Body]) -> None:
    """A kubelet binds each new pod and writes this status at once, by the pod's probe."""

    def seen(path: str, kind: str, body: Body) -> None:
        metadata = body["metadata"]
        if path == PODS and kind == "ADDED" and (status := write(metadata["labels"][names.POD_PROBE])):
            node = metadata["annotations"][names.POD_NODE]
            operator.cluster.pod_status(metadata["name"], status, node=node)

    operator.cluster.subscribers.append(seen)


@with_nccl
async def test_held_time_is_counted_from_the_scheduler_s_word(operator: Operator) -> None:
    """Not from the pod's creation: while it waits it holds nothing."""
    operator.nodes(1, gpus=2)
    operator.cluster.add_policy()

    def placed(_: str, *, ago: float = 0.0) -> Body:
        at = stamp(operator.cluster.clock() - ago)
        return {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]}

    on_new_pods(operator, placed)
    operator.start()
    pod = await operator.until_held()
    operator.cluster.pod_status(pod["metadata"]["name"], placed("", ago=40))
    await operator.after(2 * RUN_SECONDS)
    assert operator.sample("nodegauge_nccl_held_seconds_count") == 1
    assert 40 <= operator.sample("nodegauge_nccl_held_seconds_sum") <= 42 + RUN_SECONDS


@with_nccl
async def test_an_image_that_does_not_come_delays_no_health_run(operator: Operator) -> None:
    """A pull may take half an hour, and holds no GPU: health is read meanwhile, on time."""
    operator.nodes(3, gpus=2)
    operator.cluster.add_policy(budget={"concurrentNcclProbes": "100%", "concurrentProbes": "100%"})
    end = operator._end
    operator._end = lambda name: None if names.PROBE_PULL in name else end(name)  # type: ignore[method-assign]
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    stuck = {"containerStatuses": [{"name": names.PROBE_CONTAINER, "state": waiting}]}
    on_new_pods(operator, lambda name: stuck if name == names.PROBE_PULL else {})
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


@on_virtual_time
async def test_a_load_run_follows_within_the_interval_and_then_one_each(
    operator: Operator,
) -> None:
    await operator.begin(1, gpus=2, after=3 * RUN_SECONDS, probes={"load": {"interval": "1h"}})
    assert [name for name, _ in operator.begun] == ["health"]
    await operator.after(HOUR)
    assert [name for name, _ in operator.begun].count("load") == 1
    assert operator.most_pods == 1
    assert operator.cluster.objects[REPORTS]["node-0"]["status"]["load"]["tflops"] == 610.0
    await operator.after(5 * HOUR)
    assert [name for name, _ in operator.begun].count("load") in (5, 6)
