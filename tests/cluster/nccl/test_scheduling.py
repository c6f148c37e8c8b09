"""The NCCL run among other pods, with the real scheduler: it takes nothing from anybody and comes back."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

import support.nccl_results as nccl
from support.cluster_under_test import OURS
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

PROBES = {
    "health": {"interval": "12h", "deadline": "30s", "window": "1s"},
    "nccl": {"interval": "12h", "deadline": "60s", "recheck": "2s"},
    "load": {"enabled": False},
}
MEASURED = {
    OURS + "interconnect": "nvlink",
    OURS + "interconnect-evidence": "measured",
    OURS + "busbw-allreduce": "462",
}


def test_all_gpus_of_a_node_are_measured_once_its_image_is_there(rig: Any) -> None:
    """First a pull that asks for no GPU, then a pod that asks for all of them and one CPU for each; in a
    namespace that admits what Pod Security calls restricted, and nothing else."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    rig.api.patch(f"/api/v1/namespaces/{rig.namespace}", {"metadata": {"labels": level}})
    node = rig.add_node()
    rig.add_policy(probes=PROBES)
    seen: dict[str, Any] = {}

    def watching(pod: Any) -> str | None:
        seen.setdefault(pod["metadata"]["labels"].get(OURS + "probe"), pod)
        return rig.machine.answer(pod)

    with rig.kubelet(watching), rig.operator():
        rig.wait_nccl(node)
        rig.wait_labels(node, MEASURED)
        wait_for(lambda: rig.counts().get("measured") == 1, what="the policy's count")
    assert list(seen) == ["health", "pull", "nccl"]
    assert "nvidia.com/gpu" not in str(seen["pull"]["spec"]["containers"][0]["resources"])
    spec = seen["nccl"]["spec"]
    [container] = spec["containers"]
    assert (
        container["image"]
        == seen["pull"]["spec"]["containers"][0]["image"]
        == "localhost/nodegauge/nccl:test"
    )
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["resources"]["requests"]["cpu"] == "8"
    assert (spec["priorityClassName"], spec["priority"]) == (rig.low, -1000)
    assert "NVIDIA_VISIBLE_DEVICES" not in {entry["name"] for entry in container["env"]}
    bandwidth = rig.report(node)["status"]["bandwidth"]
    assert (bandwidth["allReduce"], bandwidth["gpus"], bandwidth["of"]) == (462, 8, 8)
    assert bandwidth["agreement"] == "confirmed"


def test_a_job_of_higher_priority_goes_first_and_the_labels_stay(rig: Any) -> None:
    """The scheduler evicts an NCCL run that does not end by itself; the run is repeated later."""
    node = rig.add_node()
    rig.add_policy(probes=PROBES)
    with rig.kubelet(), rig.operator() as operator:
        rig.wait_nccl(node)
        rig.wait_labels(node, MEASURED)
        labels = rig.ours(node)
        rig.machine.holding = True
        first = rig.nccl_run(node)["number"]
        rig.ask_for_run(node)
        rig.holder()
        job = rig.job(gpus=8, priority=rig.high)
        wait_for(lambda: rig.placed(job) == node, what="the job on the node")
        run = rig.wait_nccl(node, "skipped", more_than=first)
        assert run["reason"] == "Preempted"
        assert rig.ours(node) == labels
        assert rig.probe(node)["readAt"] != ""
        rig.machine.holding = False
        rig.end_job(job)
        rig.wait_nccl(node, more_than=run["number"])
        assert rig.ours(node) == labels
        assert operator.metric("nodegauge_nccl_held_seconds_count") >= 3


def test_what_finds_no_place_gives_way_and_waits_longer_each_time(rig: Any) -> None:
    """GPUs held by a job: pending ends after the limit, old labels stay, and the delay doubles."""
    node = rig.add_node()
    rig.add_policy(probes=PROBES, limits={"notScheduled": "2s"})
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        rig.wait_labels(node, MEASURED)
        labels, measured = rig.ours(node), rig.nccl_run(node)["number"]
        job = rig.job(gpus=1)
        wait_for(lambda: rig.placed(job), what="the job on the node")
        rig.ask_for_run(node)
        runs: list[Any] = []
        for _ in range(3):
            run = rig.wait_nccl(node, "skipped", more_than=runs[-1]["number"] if runs else 0)
            assert run["reason"] == "NotScheduled"
            assert "nvidia.com/gpu" in run["message"]
            runs.append(run)
        first, second = (pause(*both) for both in pairwise(runs))
        assert first >= 1, "2 s, in whole seconds"
        assert second >= 3, "4 s"
        probe = rig.probe(node)
        assert probe["unread"] == probe["lastRun"]["number"] - measured >= 3
        assert rig.ours(node) == labels
        assert rig.placed(job) == node, "it took nothing from anybody"
        rig.end_job(job)
        rig.wait_nccl(node, more_than=runs[-1]["number"])


def pause(earlier: Any, later: Any) -> float:
    """Seconds between the end of a run and the start of the next."""
    end, start = (
        datetime.fromisoformat(run[key]) for run, key in ((earlier, "finishedAt"), (later, "startedAt"))
    )
    return (start - end).total_seconds()


def test_a_cordoned_node_is_never_given_an_nccl_run(rig: Any) -> None:
    """Its health is read, the report says why there is no NCCL run, and uncordoning brings one."""
    node = rig.add_node()
    rig.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    rig.add_policy(probes=PROBES)
    with rig.kubelet() as kubelet, rig.operator():
        rig.wait_run(node, 1)
        wait_for(
            lambda: rig.report(node)["status"]["bandwidth"].get("reason") == "Cordoned", what="the reason"
        )
        rig.ask_for_run(node)
        rig.wait_run(node, 2)
        assert rig.nccl_run(node) == {}
        assert len(kubelet.ended) == 2, "two health runs and nothing else"
        rig.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
        rig.wait_nccl(node)
        rig.wait_labels(node, MEASURED)


def test_cordoning_ends_a_running_nccl_run(rig: Any) -> None:
    """Whoever cordons a node wants it empty: nothing of ours holds its GPUs for longer."""
    node = rig.add_node()
    rig.add_policy(probes=PROBES)
    rig.machine.holding = True
    with rig.kubelet(), rig.operator():
        rig.holder()
        rig.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        run = rig.wait_nccl(node, "skipped")
        assert run["reason"] == "Cordoned"
        wait_for(lambda: not rig.pods(), what="its pod gone")


@pytest.mark.parametrize(("most_nodes", "most"), [(1, 1), ("50%", 2)])
def test_no_more_nodes_are_held_than_the_budget_says(rig: Any, most_nodes: int | str, most: int) -> None:
    """Nodes take turns, each is measured, and health runs do not wait for it; after a first run that ended
    well."""
    first = rig.add_node()
    rig.add_policy(probes=PROBES, budget={"concurrentProbes": "100%", "concurrentNcclProbes": most_nodes})
    with rig.kubelet(), rig.operator() as operator:
        rig.wait_nccl(first)
        rig.machine.holding = True
        nodes = [rig.add_node() for _ in range(4)]
        wait_for(lambda: len(rig.nccl_pods("nccl")) == most, what="as many NCCL runs as places")
        for node in nodes:
            wait_for(lambda node=node: rig.last_run(node).get("outcome") == "read", what="health")
        assert len(rig.nccl_pods()) == most
        assert operator.metric("nodegauge_waiting_nodes") == len(nodes) - most
        rig.machine.holding = False
        for node in nodes:
            rig.wait_nccl(node)
        wait_for(lambda: rig.counts().get("measured") == 1 + len(nodes), what="the policy's count")


def test_seven_of_eight_gpus_are_measured_and_the_missing_one_is_named(rig: Any) -> None:
    """The pod asks for what can be had, instead of waiting for what cannot."""
    node = rig.add_node()
    rig.offer(node, 7, capacity=8)
    rig.machine.nccl = nccl.changed(nccl.h100(count=7), expected=8)
    rig.add_policy(probes=PROBES)
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        wait_for(lambda: rig.report(node)["status"]["bandwidth"].get("gpus") == 7, what="seven GPUs")
    findings = {finding["code"] for finding in rig.probe(node)["findings"]}
    assert "fewer-gpus" in findings
    assert rig.report(node)["status"]["bandwidth"]["of"] == 8


def test_an_nccl_run_that_is_preempted_while_the_operator_is_away_is_made_up_for(rig: Any) -> None:
    """Killed in the middle of it, the operator comes back to a pod that is gone without a word."""
    node = rig.add_node()
    rig.add_policy(probes=PROBES)
    operator = rig.operator()
    with rig.kubelet(), operator:
        rig.wait_nccl(node)
        rig.wait_labels(node, MEASURED)
        labels, number = rig.ours(node), rig.nccl_run(node)["number"]
        rig.machine.holding = True
        rig.ask_for_run(node)
        rig.holder()
        operator.kill()
        job = rig.job(gpus=8, priority=rig.high)
        wait_for(lambda: rig.placed(job) == node, what="the job on the node")
        wait_for(lambda: not rig.nccl_pods(), what="the NCCL probe's pod gone")
        rig.machine.holding = False
        rig.end_job(job)
        operator.start()
        rig.wait_nccl(node, more_than=number)
        assert rig.nccl_run(node)["number"] == number + 1, "the run that nobody saw end is made again"
        assert rig.ours(node) == labels
