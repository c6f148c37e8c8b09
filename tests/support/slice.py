"""The whole slice as a user has it: the chart, installed by helm, on four simulated GPU nodes."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from support.cluster_under_test import GROUP, OURS, ROOT, ClusterUnderTest
from testbed.audit import AuditTrail
from testbed.cluster import PodProcess, Testbed
from testbed.rest import Object
from testbed.wait import wait_for

NAMESPACE = RELEASE = "nodegauge"
POLICY = f"{GROUP}/gpuvalidationpolicies/default"
GPU_NODES = {
    "gpu-h100": "h100-sxm-8",
    "gpu-dgx1": "dgx1-v100-8",
    "gpu-titan": "titan-rtx-nv2",
    "gpu-phb": "pcie-phb-2",
}
OPERATOR = {
    "sweepInterval": "1s",
    "nodeSelector": {"kubernetes.io/hostname": "system-1"},
    "maxGatedNodesPerHour": "100%",
}
HEALTH = {"mode": "Periodic", "interval": "12h", "deadline": "2m", "window": "500ms"}
SPEC = {
    "probes": {"health": HEALTH, "load": {"enabled": False}},
    "budget": {"concurrentProbes": "100%", "gatedNodesPerHour": "100%"},
    "hysteresis": {"leaveRuns": 1, "dwell": "1s", "probationAfter": []},
}
REGISTRY = {"registry": "registry.example.com"}
VALUES = {"image": REGISTRY, "operator": OPERATOR, "nccl": {"enabled": False}, "policy": {"spec": SPEC}}
"""Runs start when a test asks for one, and one good run lifts a taint.  A request would ask for a load run
too.  The deadline lets a run live through a machine that stands still; a call that hangs ends it after ten
seconds.  All else is the default."""


class Slice(ClusterUnderTest):
    def __init__(self, testbed: Testbed) -> None:
        directory, plane = testbed.directory, testbed.control_plane
        kubeconfig, api = plane.kubeconfig, plane.rest()
        super().__init__(api, namespace=NAMESPACE, directory=directory, kubeconfig=kubeconfig, protected=True)
        self.chart: Path = ROOT / "charts" / "nodegauge"
        self.testbed = testbed
        self.nodes = list(GPU_NODES)
        self.audit = AuditTrail(plane.audit_log, plane.rest())
        self.values = directory / "values.yaml"
        self.values.write_text(json.dumps(VALUES))

    # -- the release -----------------------------------------------------------------------------------------

    def installed(self) -> bool:
        known = f"/api/v1/namespaces/{NAMESPACE}/secrets?labelSelector=owner=helm,name={RELEASE}"
        return bool(self.api.get(known)["items"])

    def install(self) -> None:
        where = ["--namespace", NAMESPACE, "--create-namespace", "--values", str(self.values)]
        self.testbed.helm("install", RELEASE, str(self.chart), *where, "--wait", "--timeout", "120s")

    def upgrade(self, *settings: str) -> None:
        changed = [word for setting in settings for word in ("--set", setting)]
        where = ["--namespace", NAMESPACE, "--values", str(self.values)]
        command = ["upgrade", RELEASE, str(self.chart), *where, *changed]
        self.testbed.helm(*command, "--wait", "--timeout", "120s")

    def read_by(self, mode: str) -> None:
        """A mode of the health probe, without helm."""
        self.api.patch(POLICY, {"spec": {"probes": {"health": {"mode": mode}}}})

    def uninstall(self) -> None:
        self.testbed.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "180s")

    @contextlib.contextmanager
    def released(self) -> "Iterator[Slice]":
        yield self
        if self.installed():
            self.uninstall()

    # -- its parts -------------------------------------------------------------------------------------------

    def pods(self) -> list[Object]:
        return [pod for pod in super().pods() if OURS + "run" in pod["metadata"].get("annotations", {})]

    def watch_sets(self) -> list[Object]:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
        items: list[Object] = self.api.get(path)["items"]
        return items

    def watch_pods(self) -> dict[str, Object]:
        marked = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={OURS}watch-set"
        pods = self.api.get(marked)["items"]
        return {p["spec"]["nodeName"]: p for p in pods if p["status"].get("phase") == "Running"}

    def operator_pod(self) -> Object:
        component = "app.kubernetes.io/component"
        [pod] = [p for p in super().pods() if p["metadata"]["labels"].get(component) == "operator"]
        return pod

    def probing(self) -> list[PodProcess]:
        return self.testbed.processes(NAMESPACE, "nodegauge-health")

    # -- runs ------------------------------------------------------------------------------------------------

    def measure(self, node: str) -> Object:
        number = self.last_run(node)["number"] + 1
        self.ask_for_run(node)
        self.wait_up_to_date(node, number)
        return self.last_run(node)

    def faulty(self, node: str, fault: str, **parameters: str | int) -> Object:
        self.testbed.hardware(node).fault(fault, **parameters)
        return self.measure(node)

    def healed(self, node: str) -> None:
        self.testbed.hardware(node).heal()
        self.measure(node)
        wait_for(lambda: not self.taints(node), what="no taint")

    def ready(self) -> None:
        if not self.installed():
            self.install()
        for node in self.nodes:
            wait_for(lambda n=node: self.last_run(n), what=f"a first run on {node}")
            self.wait_up_to_date(node)
