"""A real descheduler evicts for a taint of nodegauge what its own policy says, and nothing else."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodegauge_operator import names
from support.chart import ROOT
from support.gangs import FULL, PODS, GangNodes
from testbed.binaries import DESCHEDULER_TOOL, build
from testbed.controlplane import ControlPlane
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

RECIPE = (ROOT / "docs" / "autoscaling.md").read_text("utf-8").partition("### The descheduler")[2]
OWNER = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"


def test_it_evicts_for_the_causes_of_its_policy_alone(control_plane: ControlPlane, tmp_path: Path) -> None:
    """By the recipe of the docs; a pod that tolerates the taint stays, and one on a node of another cause."""
    rest, causes = control_plane.rest(), {"bad": "corruption", "slow": "busbw", "good": ""}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt"}
    owned = {"ownerReferences": [owner | {"uid": rest.get(OWNER)["metadata"]["uid"]}]}  # else it evicts none
    GangNodes(rest, dict.fromkeys(causes, FULL))
    for node in causes:
        for pod, tolerations in ((node, []), (f"{node}-tolerant", [{"operator": "Exists"}])):
            spec: dict[str, Any] = {"nodeName": node, "tolerations": tolerations}
            spec["containers"] = [{"name": "c", "image": "x.example.com/x:1"}]
            rest.create(PODS, {"metadata": {"name": pod} | owned, "spec": spec})
    for node, cause in causes.items():
        taint = {"key": names.TAINT_UNHEALTHY, "value": cause, "effect": "NoSchedule"}
        rest.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint] if cause else []}})
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(yaml.safe_load(RECIPE.partition("```yaml\n")[2].partition("```")[0])))
    command = [*build(DESCHEDULER_TOOL), "-v=3", "--policy-config-file", policy]
    command += ["--kubeconfig", control_plane.kubeconfig, "--descheduling-interval=0", "--secure-port=0"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr

    def left() -> set[str]:
        alive = rest.get(PODS)["items"]
        return {p["metadata"]["name"] for p in alive if "deletionTimestamp" not in p["metadata"]}

    wait_for(lambda: "bad" not in left(), what="the pod beside wrong results goes")
    assert left() == {"bad-tolerant", "slow", "slow-tolerant", "good", "good-tolerant"}
