"""The playbook `repair` against a real API server: what is cordoned, evicted and uncordoned, and when."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage
from support.validated import finding, health, host, simulate
from testbed.binaries import build_kubectl
from testbed.controlplane import ControlPlane
from testbed.rest import STRATEGIC, Rest
from testbed.scripted import create_node
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

KEPT = "Keep the node cordoned"


class Repairs:
    """Nodes of the test's own, whose hosts answer the role validate as the test wants."""

    def __init__(self, plane: ControlPlane, ansible: Ansible) -> None:
        self.plane, self.ansible, self.api = plane, ansible, plane.rest()
        self.tasks = ansible.folder / "repair-tasks.yml"
        self.hosts: dict[str, dict[str, Any]] = {}
        self.repair("ansible.builtin.debug: {msg: repaired}")

    def repair(self, task: str) -> None:
        self.tasks.write_text(f"- name: Exchange the board\n  {task}\n", encoding="utf-8")

    def node(self, **modules: Any) -> str:
        """A new node; its host passes unless the results of other modules are given."""
        name = f"node-{len(self.hosts)}-{uuid.uuid4().hex[:8]}"  # played in the order of their names
        create_node(self.api, name)
        self.hosts[name] = host(self.ansible.folder, name, **(modules or {"gpu_health": health()}))
        return name

    def play(self, *options: str, **variables: Any) -> Played:
        given = {
            "repair_hosts": "all",
            "repair_tasks": str(self.tasks),
            "repair_kubectl": str(build_kubectl()),
            "repair_kubeconfig": str(self.plane.kubeconfig),
            "repair_drain_timeout": 120,
        } | variables
        play = [{"ansible.builtin.import_playbook": "nodegauge.gpu.repair", "vars": given}]
        return self.ansible.play(play, self.hosts, *options)

    def cordoned(self, name: str) -> bool:
        return bool(self.api.get(f"/api/v1/nodes/{name}")["spec"].get("unschedulable"))

    def marked(self, name: str) -> bool:
        """Whether the node says that the playbook cordoned it."""
        annotations = self.api.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations", {})
        return "nodegauge.dev/cordoned-by" in annotations


@pytest.fixture
def repairs(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Repairs]:
    simulate(stage(tmp_path))
    repairs = Repairs(control_plane, Ansible(tmp_path))
    yield repairs
    for name in repairs.hosts:
        repairs.api.delete(f"/api/v1/nodes/{name}")


def run_workload(api: Rest, namespace: str, *, node: str) -> Callable[[], set[str]]:
    """A pod of a ReplicaSet on this node, running; a function for the uids of its pods."""
    labels = {"app": node}
    container = {"name": "c", "image": "registry.example.com/c"}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    replica_set = {
        "metadata": {"name": node},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    api.create(f"/apis/apps/v1/namespaces/{namespace}/replicasets", replica_set)
    path = f"/api/v1/namespaces/{namespace}/pods"

    def pods() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = api.get(f"{path}?labelSelector=app={node}")["items"]
        return items

    [pod] = wait_for(pods, what="the pod")
    status = {"status": {"phase": "Running"}}
    api.patch(f"{path}/{pod['metadata']['name']}/status", status, content_type=STRATEGIC)
    return lambda: {pod["metadata"]["uid"] for pod in pods()}


def test_a_repaired_node_that_is_validated_takes_pods_again(repairs: Repairs, namespace: str) -> None:
    """Pods were evicted first.  A node that a person cordoned is repaired too, and stays cordoned."""
    name, cordoned = repairs.node(), repairs.node()
    repairs.api.patch(f"/api/v1/nodes/{cordoned}", {"spec": {"unschedulable": True}})
    uids = run_workload(repairs.api, namespace, node=name)
    [before] = uids()
    played = repairs.play()
    assert played.code == 0, played.output
    order = [task.name for task in played.tasks if (task.host, task.status) == (name, "ok")]
    assert order.index("Cordon") < order.index("Drain") < order.index("Exchange the board")
    assert order.index("Exchange the board") < order.index("Uncordon")
    assert before not in uids()
    assert (repairs.cordoned(name), repairs.marked(name)) == (False, False)
    message = played.task("Say who must uncordon it", cordoned).result["msg"]
    assert (f"kubectl uncordon {cordoned}" in message, repairs.cordoned(cordoned)) == (True, True)


def test_a_node_that_does_not_pass_stays_cordoned(repairs: Repairs) -> None:
    """The message has the verdict; the next node is not touched, and a good second run puts the node back."""
    bad, untouched = repairs.node(gpu_health=health("fail", finding())), repairs.node()
    played = repairs.play()
    assert played.code != 0
    message = played.task(KEPT, bad).result["msg"]
    assert f"{bad} stays cordoned" in message
    assert f"FAIL {bad} must not join" in message
    assert repairs.cordoned(bad)
    assert not [task for task in played.tasks if task.host == untouched]
    repairs.hosts[bad] = host(repairs.ansible.folder, bad, gpu_health=health())
    assert repairs.play().code == 0
    assert not repairs.cordoned(bad)


def test_nodes_that_cannot_be_repaired_hold_back_no_other_of_their_batch_where_asked(
    repairs: Repairs, namespace: str
) -> None:
    """A disruption budget is respected; a host whose repair failed is not validated."""
    kept, broken, good = repairs.node(), repairs.node(), repairs.node()
    uids = run_workload(repairs.api, namespace, node=kept)
    before = uids()
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": kept}}}
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    repairs.api.create(budgets, {"metadata": {"name": "keep"}, "spec": spec})
    wait_for(
        lambda: repairs.api.get(f"{budgets}/keep").get("status", {}).get("expectedPods"), what="the budget"
    )
    repairs.repair(f"ansible.builtin.command: test {{{{ inventory_hostname }}}} != {broken}")
    played = repairs.play(repair_serial=3, repair_drain_timeout=3, repair_max_fail_percentage=100)
    assert played.code != 0
    assert "disruption budget" in played.task(KEPT, kept).result["msg"]
    assert '"Exchange the board" failed' in played.task(KEPT, broken).result["msg"]
    assert uids() == before
    assert {task.host for task in played.tasks if task.name == "Exchange the board"} == {broken, good}
    assert [repairs.cordoned(name) for name in (kept, broken, good)] == [True, True, False]


@pytest.mark.parametrize(
    ("options", "variables"),
    [(("--check",), {}), ((), {"repair_tasks": "/none"})],
    ids=["check", "no-repair"],
)
def test_nothing_is_touched(repairs: Repairs, options: tuple[str, ...], variables: dict[str, Any]) -> None:
    """In check mode, and without a repair."""
    name = repairs.node()
    played = repairs.play(*options, **variables)
    assert (played.code == 0) == bool(options), played.output
    assert not repairs.cordoned(name)
    assert not repairs.marked(name)
