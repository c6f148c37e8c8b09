"""A real Karpenter with its kwok provider beside a control plane: its nodes have no kubelet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from testbed.binaries import KARPENTER_TOOL, KEPT, build
from testbed.controlplane import ControlPlane
from testbed.loopback import reserve_port
from testbed.processes import Process, Running

API, KWOK = "/apis/karpenter.sh/v1", "/apis/karpenter.kwok.sh/v1alpha1"
NODE_CLASS = Path(__file__).with_suffix(".yaml")
READY = {"type": "Ready", "status": "True", "reason": "Ready", "message": "", "observedGeneration": 1}
READY |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}


class Karpenter(Running):
    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane, self._directory, self.rest = plane, directory, plane.rest()
        self.log = directory / "karpenter.log"
        self._process: Process | None = None

    def start(self) -> None:
        [program] = build(KARPENTER_TOOL)
        kept = [yaml.safe_load(file.read_text("utf-8")) for file in (program.parent / KEPT).glob("*.yaml")]
        self.rest.define(*kept, yaml.safe_load(NODE_CLASS.read_text("utf-8")))
        environ = {
            "KUBECONFIG": str(self._plane.kubeconfig),
            "PATH": "",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(reserve_port()),
            "HEALTH_PROBE_PORT": str(reserve_port()),
            "BATCH_IDLE_DURATION": "200ms",
            "BATCH_MAX_DURATION": "1s",
        }
        self._directory.mkdir(parents=True)
        made = {"kind": "KWOKNodeClass", "apiVersion": "karpenter.kwok.sh/v1alpha1"}
        self.rest.create(f"{KWOK}/kwoknodeclasses", made | {"metadata": {"name": "default"}})
        status = {"status": {"conditions": [READY]}}
        self.rest.patch(f"{KWOK}/kwoknodeclasses/default/status", status)
        self._process = Process("karpenter", [program], log=self.log, environ=environ, cwd=self._directory)
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(grace=30.0)
        for node in self.rest.get("/api/v1/nodes")["items"]:  # which it would have ended
            self.rest.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"metadata": {"finalizers": None}})

    def add_pool(self, startup_taints: Sequence[dict[str, str]]) -> None:
        """A pool of any machine, of which an empty one goes after a second."""
        spec = {
            "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            "startupTaints": list(startup_taints),
        }
        disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s"}
        pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpu"}}
        self.rest.create(
            f"{API}/nodepools", pool | {"spec": {"template": {"spec": spec}, "disruption": disruption}}
        )

    def claims(self) -> dict[str, dict[str, Any]]:
        """NodeClaims that are not being deleted, by name."""
        items = self.rest.get(f"{API}/nodeclaims")["items"]
        alive = (item for item in items if "deletionTimestamp" not in item["metadata"])
        return {item["metadata"]["name"]: item for item in alive}

    def reason(self, claim: str, condition: str = "Initialized") -> str:
        """Why a NodeClaim is, or is not, initialized."""
        conditions = self.claims()[claim].get("status", {}).get("conditions", [])
        return next((str(c["reason"]) for c in conditions if c["type"] == condition), "")
