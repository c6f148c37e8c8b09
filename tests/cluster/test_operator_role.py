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

    def play(self, *plays: dict[str, Any], options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """What the role's task returned in each of these plays, given as variables beside `VALUES`."""
        given = {
            "operator_helm": str(self.plane.binaries.helm),
            "operator_kubeconfig": str(self.plane.kubeconfig),
            "operator_values": VALUES | {"operator": OPERATOR},
            "operator_timeout": 120,
        }
        play = {"hosts": "all", "gather_facts": False, "roles": ["nodegauge.gpu.operator"]}
        played = self.ansible.play([play | {"vars": own} for own in plays], {"cluster": given}, *options)
        assert played.code == 0, played.output
        return [task.result for task in played.tasks if task.name == TASK]

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
    nine = {"operator_values": VALUES | {"operator": OPERATOR | {"workers": 9}}}
    absent = {"operator_state": "absent"}
    first, again = role.play(nine, nine)
    assert (first["changed"], first["release"]["status"]) == (True, "deployed")
    assert again["changed"] is False, "the first install is complete, with the policy"
    wait_for(role.gpu_labels, what="labels on the GPU node")
    default, gone = role.play({}, absent, options=("--check", "--diff"))
    assert default["changed"]
    assert gone["changed"]
    assert '"workers": 9' in default["diff"]["before"]
    assert (role.workers(), bool(role.gpu_labels())) == ("9", True)
    assert role.play({})[0]["changed"]
    assert role.workers() == "8"
    assert role.gpu_labels()
    first, again = role.play(absent, absent)
    assert (first["changed"], again["changed"]) == (True, False)
    assert not role.gpu_labels()
    assert not role.api.get("/apis/nodegauge.dev/v1alpha1/nodereports")["items"]
