"""Benchmarks in the loop on virtual time: places, turns, pods that are soon gone, refusals, counts."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.kube.errors import Forbidden
from support.cluster import NODES, PODS, POLICIES, REPORTS, Body
from support.operator import MEASURING
from support.stage import RUN_SECONDS, Stage, staged

pytestmark = pytest.mark.timeout(20)

HOUR = 3600.0
NCCL = (names.PROBE_PULL, names.PROBE_NCCL)


def play(story: Any) -> Stage:
    """With a nccl image."""
    return staged(story, settings=MEASURING)


def probe(stage: Stage, node: str, name: str = names.PROBE_NCCL) -> Body:
    """One probe's status in a report; empty before its first run."""
    probes = stage.cluster.objects[REPORTS][node].get("status", {}).get("probes", ())
    found: Body = next((p for p in probes if p["name"] == name), {})
    return found


def sample(stage: Stage, name: str, **labels: str) -> float:
    """The value of one sample of the metrics; 0.0 where it has not been counted."""
    return stage.metrics.registry.get_sample_value(name, labels) or 0.0


def holder(stage: Stage) -> Body | None:
    """The pod of a benchmark, where there is one."""
    pods = stage.cluster.objects[PODS].values()
    return next((p for p in pods if p["metadata"]["labels"][names.POD_PROBE] == names.PROBE_NCCL), None)


async def until_held(stage: Stage) -> Body:
    """Wait for a benchmark's pod; it is placed on its node."""
    while (pod := holder(stage)) is None:
        await stage.after(0.1)
    await stage.after(0.1)
    stage.world.schedule(pod)
    await stage.after(0.1)
    return pod


@pytest.mark.parametrize(("setting", "most"), [(1, 1), ("20%", 2), (0, 0)])
def test_benchmarks_keep_to_their_own_places(setting: int | str, most: int) -> None:
    """Each node is pulled for and measured once, so many at a time; health runs keep theirs."""

    async def story(stage: Stage) -> None:
        stage.nodes(10, gpus=2)
        stage.cluster.add_policy(budget={"concurrentProbes": 5, "concurrentNcclProbes": setting})
        stage.start()
        await stage.after(10 + 3 * RUN_SECONDS * 10 / max(most, 1))
        assert len(stage.read()) == 10
        measured = [n for n in stage.cluster.objects[NODES] if probe(stage, n).get("readAt")]
        assert len(measured) == (10 if most else 0)
        assert stage.most[names.PROBE_HEALTH] == 5
        assert max(stage.most[name] for name in NCCL) == most
        assert sample(stage, "nodegauge_waiting_nodes", probe="nccl") == (0 if most else 10)
        assert sample(stage, "nodegauge_waiting_nodes", probe="health") == 0

    play(story)


def test_a_node_is_measured_after_its_health_was_read_and_its_image_is_there() -> None:
    """One pod at a time, in this order, and labels that say what was measured."""

    async def story(stage: Stage) -> None:
        stage.nodes(1, gpus=2)
        stage.cluster.add_policy()
        stage.start()
        await stage.after(4 * RUN_SECONDS)
        assert [name for name, _ in stage.begun] == ["health", "pull", "nccl"]
        assert stage.most_pods == 1
        labels = stage.cluster.get(NODES, "node-0")["metadata"]["labels"]
        assert labels[names.LABEL_EVIDENCE] == "measured"
        assert labels[names.LABEL_BUSBW_ALLREDUCE] in ("39", "40")
        for name in names.PROBES:
            assert sample(stage, "nodegauge_runs_total", probe=name, outcome="read", reason="Read") == 1

    play(story)


def test_nodes_take_turns_longest_unmeasured_first() -> None:
    """And a node that was never measured before all others."""

    async def story(stage: Stage) -> None:
        stage.nodes(3, gpus=2)
        budget = {"concurrentNcclProbes": 1, "concurrentProbes": 4}
        stage.cluster.add_policy(budget=budget, probes={"nccl": {"interval": "1h"}})
        stage.start()
        await stage.after(10 * RUN_SECONDS)
        first = [node for name, node in stage.begun if name == names.PROBE_NCCL]
        assert sorted(first) == ["node-0", "node-1", "node-2"]
        paused = {"spec": {"budget": budget | {"concurrentNcclProbes": 0}}}
        stage.cluster.change(POLICIES, "default", paused)
        await stage.after(2 * HOUR)
        stage.cluster.add_node("node-new")
        offered = {names.GPU_RESOURCE: "2"}
        stage.cluster.change(NODES, "node-new", {"status": {"capacity": offered, "allocatable": offered}})
        await stage.after(2 * RUN_SECONDS)
        stage.begun.clear()
        stage.cluster.change(POLICIES, "default", {"spec": {"budget": budget}})
        await stage.after(12 * RUN_SECONDS)
        order = [node for name, node in stage.begun if name == names.PROBE_NCCL]
        assert order[:4] == ["node-new", *first]

    play(story)


@pytest.mark.parametrize("seen", ["first its mark, then its end", "its end alone"])
def test_a_preempted_benchmark_is_seen_although_its_pod_is_gone(seen: str) -> None:
    """The scheduler marks and deletes it within a second: both watch events, or only the last, tell why."""

    async def story(stage: Stage) -> None:
        stage.nodes(1, gpus=2)
        stage.cluster.add_policy()
        stage.start()
        pod = await until_held(stage)
        name = pod["metadata"]["name"]
        mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        labels = stage.cluster.get(NODES, "node-0")["metadata"]["labels"]
        if seen == "its end alone":
            subscribers, stage.cluster.subscribers = stage.cluster.subscribers, []
            stage.cluster.pod_status(name, {"conditions": [mark]})
            stage.cluster.subscribers = subscribers
        else:
            stage.cluster.pod_status(name, {"conditions": [mark]})
            await stage.after(0.5)
        if name in stage.cluster.objects[PODS]:
            stage.cluster.remove(PODS, name)
        await stage.after(1)
        last = probe(stage, "node-0")["lastRun"]
        assert (last["outcome"], last["reason"]) == ("skipped", "Preempted")
        assert stage.cluster.get(NODES, "node-0")["metadata"]["labels"] == labels
        assert sample(stage, "nodegauge_runs_total", probe="nccl", outcome="skipped", reason="Preempted") == 1
        await stage.after(600 + 2 * RUN_SECONDS)
        assert probe(stage, "node-0")["lastRun"]["outcome"] == "read"

    play(story)


def test_a_quota_that_refuses_benchmarks_stops_no_health_run() -> None:
    """Its words stand with the benchmark, which comes back ever more seldom."""

    async def story(stage: Stage) -> None:
        stage.nodes(1, gpus=2)
        stage.cluster.add_policy(probes={"health": {"interval": "5m"}})
        create = stage.cluster.create

        def refusing(path: str, body: Body) -> Body:
            if path == PODS and body["metadata"]["labels"][names.POD_PROBE] == names.PROBE_NCCL:
                raise_forbidden()
            return create(path, body)

        stage.cluster.create = refusing  # type: ignore[method-assign]
        stage.start()
        await stage.after(HOUR)
        last = probe(stage, "node-0")["lastRun"]
        assert (last["outcome"], last["reason"]) == ("unknown", "CreateRefused")
        assert "exceeded quota" in last["message"]
        assert 2 <= last["number"] <= 4, "after 10, 20 and 40 minutes"
        assert probe(stage, "node-0", names.PROBE_HEALTH)["lastRun"]["number"] >= 11
        assert probe(stage, "node-0", names.PROBE_HEALTH)["lastRun"]["outcome"] == "read"

    play(story)


def raise_forbidden() -> None:
    """As a ResourceQuota does."""
    raise Forbidden("exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, limited: 0")


def placed_at_once(stage: Stage, path: str, kind: str, body: Body) -> None:
    """Each new pod is on its node at once, as its condition says."""
    if path == PODS and kind == "ADDED":
        at = stamp(stage.cluster.clock())
        placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        node = body["metadata"]["annotations"][names.POD_NODE]
        stage.cluster.pod_status(body["metadata"]["name"], {"conditions": [placed]}, node=node)


def test_held_time_is_counted_from_the_scheduler_s_word() -> None:
    """Not from the pod's creation: while it waits it holds nothing."""

    async def story(stage: Stage) -> None:
        stage.nodes(1, gpus=2)
        stage.cluster.add_policy()
        stage.cluster.subscribers.append(lambda path, kind, body: placed_at_once(stage, path, kind, body))
        stage.start()
        pod = await until_held(stage)
        at = stamp(stage.cluster.clock() - 40)
        placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        stage.cluster.pod_status(pod["metadata"]["name"], {"conditions": [placed]})
        await stage.after(2 * RUN_SECONDS)
        assert sample(stage, "nodegauge_nccl_held_seconds_count") == 1
        assert 40 <= sample(stage, "nodegauge_nccl_held_seconds_sum") <= 42 + RUN_SECONDS

    play(story)
