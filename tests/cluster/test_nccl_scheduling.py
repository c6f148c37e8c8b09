"""The NCCL run among other pods, with the real scheduler: it takes nothing from anybody and comes back.

What NVML and NCCL say is scripted; pods, priorities, preemption, labels and reports are real.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
from nodegauge_contract import NcclResult, Result, encode_message
from support.cluster_under_test import OURS, ClusterUnderTest, Object, install_crds, run_of
from support.results import h100
from testbed.operatorprocess import OperatorProcess
from testbed.rest import Rest
from testbed.scripted import ScriptedKubelet
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
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
NCCL = ("pull", "nccl")
PULLED = Result(probe="pull", nccl=NcclResult(engine="nccl4py", nccl="2.32.3"))
"""The engine can be loaded; nothing is said of the machine."""


class Machine:
    """What the probes on every node find; a test changes it while they run."""

    def __init__(self) -> None:
        self.health: Result = h100()
        self.nccl: Result = nccl.h100()
        self.holding = False
        """NCCL runs go on until this is false again."""

    def answer(self, pod: Object) -> str | None:
        """The termination message of a pod, or None while it runs."""
        probe = pod["metadata"]["labels"].get(OURS + "probe")
        if probe is None or (probe == "nccl" and self.holding):
            return None
        run, node = run_of(pod)
        result = {"health": self.health, "pull": PULLED, "nccl": self.nccl}[probe]
        return encode_message(replace(result, run=run, node=node, probe=probe))


class NcclRig(ClusterUnderTest):
    """One test's corner of the cluster, with a priority class for its NCCL runs."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.machine = Machine()
        self.low = f"nccl-{self.mark}"
        self.high = f"jobs-{self.mark}"
        for name, value in ((self.low, -1000), (self.high, 100)):
            self.api.create(CLASSES, {"metadata": {"name": name}, "value": value})

    def operator(self, **env: Any) -> OperatorProcess:
        """An operator that has a nccl image."""
        ours = {
            "NODEGAUGE_NCCL_IMAGE": "localhost/nodegauge/nccl:test",
            "NODEGAUGE_NCCL_PRIORITY_CLASS": self.low,
        }
        return super().operator(**(ours | env))

    def kubelet(self, answer: Callable[[Object], str | None] | None = None) -> ScriptedKubelet:
        """Ends probe pods with what `machine` finds."""
        return super().kubelet(answer or self.machine.answer)

    def probe(self, node: str) -> Object:
        """The status of the NCCL probe in the node's report; empty before its first run."""
        probes = self.report(node).get("status", {}).get("probes") or []
        return next((p for p in probes if p["name"] == "nccl"), {})

    def nccl_run(self, node: str) -> Object:
        """The last NCCL run; empty before the first."""
        return self.probe(node).get("lastRun") or {}

    def wait_nccl(self, node: str, outcome: str = "read", *, more_than: int = 0) -> Object:
        """Wait for an NCCL run that ended so, after number `more_than`; the run."""

        def ended() -> bool:
            run = self.nccl_run(node)
            return run.get("number", 0) > more_than and run.get("outcome") == outcome

        wait_for(ended, what=f"an NCCL run of {node} that ends {outcome}")
        return self.nccl_run(node)

    def wait_labels(self, node: str, wanted: dict[str, str | None]) -> None:
        """Wait until these labels of ours stand on the node; None for absent."""
        wait_for(
            lambda: all(self.ours(node).get(key) == value for key, value in wanted.items()),
            what=f"{wanted} on {node}",
        )

    def nccl_pods(self, *probes: str) -> list[Object]:
        """The NCCL probe's pods that are there and not on their way out."""
        there = [pod for pod in self.pods() if not pod["metadata"].get("deletionTimestamp")]
        return [p for p in there if p["metadata"]["labels"].get(OURS + "probe") in (probes or NCCL)]

    def holder(self) -> Object:
        """Wait for an NCCL run's pod that the scheduler has placed; the pod."""

        def placed() -> Object | None:
            return next((pod for pod in self.nccl_pods("nccl") if pod["spec"].get("nodeName")), None)

        result: Object = wait_for(placed, what="an NCCL run that holds GPUs")
        return result

    def job(self, *, gpus: int, priority: str = "") -> str:
        """Somebody's pod that asks for so many GPUs on the rig's nodes; its name."""
        name = f"job-{uuid.uuid4().hex[:6]}"
        asked = {"nvidia.com/gpu": str(gpus)}
        container = {"name": "train", "image": "train:1", "resources": {"limits": asked, "requests": asked}}
        spec: Object = {"containers": [container], "nodeSelector": {"test": self.mark}}
        if priority:
            spec["priorityClassName"] = priority
        self.api.create(self._path(), {"metadata": {"name": name, "labels": {"team": "a"}}, "spec": spec})
        return name

    def placed(self, name: str) -> str:
        """The node of a pod; empty while it waits."""
        result: str = self.api.get(self._path(name))["spec"].get("nodeName", "")
        return result

    def end_job(self, name: str) -> None:
        """The job is over."""
        self.api.delete(self._path(name), {"gracePeriodSeconds": 0})

    def clean(self) -> None:
        """Take what the test made off the cluster."""
        super().clean()
        for name in (self.low, self.high):
            self.api.delete(f"{CLASSES}/{name}")

    def _path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")


@pytest.fixture
def rig(api: Rest, control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[NcclRig]:
    """A corner of the cluster, with the CRDs installed."""
    install_crds(api)
    made = NcclRig(api, namespace=namespace, directory=tmp_path, kubeconfig=control_plane.kubeconfig)
    yield made
    made.clean()


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
