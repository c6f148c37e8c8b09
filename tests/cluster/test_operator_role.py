"""The role operator on a real control plane, with helm, the chart's Jobs and the operator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible
from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = {"sweepInterval": "1s", "nodeSelector": {"kubernetes.io/hostname": "system-1"}}
VALUES = {"image": {"registry": "registry.example.com"}, "nccl": {"enabled": False}}
TASK = "nodegauge.gpu.operator : Install, upgrade or remove the release"


class Role:
    """Plays of the role on the testbed's cluster."""

    def __init__(self, testbed: Testbed, ansible: Ansible) -> None:
        self.plane, self.ansible, self.api = testbed.control_plane, ansible, testbed.control_plane.rest()

    def change(self, *options: str, workers: int = 0, **variables: Any) -> tuple[bool, dict[str, Any]]:
        """Whether a successful play with `VALUES` changed the release, and its task's result."""
        given = {
            "operator_helm": str(self.plane.binaries.helm),
            "operator_kubeconfig": str(self.plane.kubeconfig),
            "operator_values": VALUES | {"operator": OPERATOR | ({"workers": workers} if workers else {})},
            "operator_timeout": 120,
        }
        play = {"hosts": "all", "gather_facts": False, "roles": ["nodegauge.gpu.operator"]}
        played = self.ansible.play([play], {"cluster": given | variables}, *options)
        assert played.code == 0, played.output
        result = played.task(TASK, "cluster").result
        return result["changed"], result

    def workers(self) -> str:
        """What the operator is told in the cluster."""
        deployment = self.api.get("/apis/apps/v1/namespaces/nodegauge/deployments/nodegauge")
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        return next(e["value"] for e in container["env"] if e["name"] == "NODEGAUGE_WORKERS")

    def gpu_labels(self) -> set[str]:
        """nodegauge's labels on the GPU node."""
        labels = self.api.get("/api/v1/nodes/gpu-h100")["metadata"]["labels"]
        return {key for key in labels if key.startswith("nodegauge.dev/")}


@pytest.fixture
def role(control_plane: ControlPlane, tmp_path: Path, ansible: Ansible) -> Iterator[Role]:
    """The role on an empty cluster: one node for the operator, and one with GPUs."""
    nodes = {"system-1": None, "gpu-h100": "h100-sxm-8"}
    with Testbed(tmp_path / "role", nodes=nodes, control_plane=control_plane) as testbed:
        yield Role(testbed, ansible)


def test_a_release_is_installed_changed_left_alone_and_removed(role: Role) -> None:
    """A value that is taken back has its default again; check mode changes nothing."""
    changed, result = role.change(workers=9)
    assert (changed, result["release"]["status"], role.workers()) == (True, "deployed", "9")
    assert role.change(workers=9)[0] is False, "the first install is complete, with the policy"
    changed, result = role.change("--check", "--diff")
    assert (changed, '"workers": 9' in result["diff"]["before"], role.workers()) == (True, True, "9")
    assert role.change()[0]
    assert role.workers() == "8"
    wait_for(role.gpu_labels, what="labels on the GPU node")
    assert role.change("--check", operator_state="absent")[0]
    assert role.gpu_labels()
    assert role.change(operator_state="absent")[0]
    assert not role.gpu_labels()
    assert not role.api.get("/apis/nodegauge.dev/v1alpha1/nodereports")["items"]
    assert role.change(operator_state="absent")[0] is False
