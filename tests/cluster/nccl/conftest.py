"""A rig whose operator makes NCCL runs, on the real control plane with its real scheduler.

What NVML and NCCL say is scripted; pods, priorities, preemption, labels and reports are real.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
from nodegauge_contract import NcclResult, Result, encode_message
from support.cluster_under_test import OURS, ClusterUnderTest, Object, install_crds, run_of
from support.results import h100
from testbed.errors import ApiError
from testbed.operatorprocess import OperatorProcess
from testbed.rest import Rest
from testbed.scripted import ScriptedKubelet
from testbed.wait import wait_for

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
OFTEN = {"interval": "12h", "deadline": "60s", "recheck": "2s"}
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

    def offer(self, node: str, gpus: int, *, capacity: int = 0) -> None:
        """The node's device plugin offers so many GPUs, of `capacity` where that is more."""
        reported = {"allocatable": gpus, "capacity": capacity or gpus}
        known = self.node(node)["status"]
        status = {kind: known[kind] | {"nvidia.com/gpu": str(count)} for kind, count in reported.items()}
        self.api.patch(f"/api/v1/nodes/{node}/status", {"status": status})

    def probe(self, node: str, probe: str = "nccl") -> Object:
        """The status of one probe in the node's report; empty before its first run."""
        probes = self.report(node).get("status", {}).get("probes") or []
        return next((p for p in probes if p["name"] == probe), {})

    def nccl_run(self, node: str) -> Object:
        """The last NCCL run; empty before the first."""
        result: Object = self.probe(node).get("lastRun") or {}
        return result

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
            what=f"{wanted} on {node}, which has {self.ours(node)}",
        )

    def nccl_pods(self, *probes: str) -> list[Object]:
        """The NCCL probe's pods that are there and not on their way out."""
        wanted = probes or NCCL
        return [
            pod
            for pod in self.pods()
            if pod["metadata"]["labels"].get(OURS + "probe") in wanted
            and not pod["metadata"].get("deletionTimestamp")
        ]

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
            try:
                self.api.delete(f"{CLASSES}/{name}")
            except ApiError:
                continue

    def _path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")


@pytest.fixture
def rig(api: Rest, control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[NcclRig]:
    """A corner of the cluster, with the CRDs installed."""
    install_crds(api)
    made = NcclRig(api, namespace=namespace, directory=tmp_path, kubeconfig=control_plane.kubeconfig)
    yield made
    made.clean()
