"""The first steps: the host joins closed, and its node is Ready."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import WORKLOADS, Cluster
from e2e.node import FLAGS
from nodegauge_operator.names import TAINT_UNVALIDATED
from support.playbook import Ansible, stage
from testbed.errors import TestbedError

LABELS = {"nvidia.com/gpu.present": "true"}


def host_prepared(cluster: Cluster) -> None:
    """The role `nodegauge.gpu.join_gate` sets taint and label, and changes nothing the second time."""
    folder = cluster.directory / "ansible"
    folder.mkdir()
    stage(folder)
    role = {"join_gate_method": "kubeadm", "join_gate_flags_file": str(FLAGS), "join_gate_labels": LABELS}
    task = {"ansible.builtin.include_role": {"name": "nodegauge.gpu.join_gate"}, "vars": role}
    play = {"hosts": "all", "gather_facts": False, "tasks": [task]}
    Path(FLAGS).parent.mkdir(parents=True, exist_ok=True)
    for changes in (1, 0):
        done = Ansible(folder).play([play], {cluster.node.name: {}})
        if done.code:
            raise TestbedError(f"the role join_gate failed:\n{done.output}")
        cluster.must_be(len(done.changed), changes, what="the number of tasks that changed something")
    cluster.say(f"the role join_gate wrote {FLAGS.read_text().strip()}")


def node_ready(cluster: Cluster) -> None:
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())

    def ready() -> bool:
        node = cluster.find(f"/api/v1/nodes/{cluster.node.name}")
        if node is None:
            return False
        states = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
        known = [taint["key"] for taint in node["spec"].get("taints") or ()]
        return states.get("Ready") == "True" and known == [TAINT_UNVALIDATED]

    cluster.until(ready, what=f"the node to be Ready, with {TAINT_UNVALIDATED} alone")
    cluster.make_namespace(WORKLOADS)
    registered = cluster.node_object()["metadata"]["labels"]
    cluster.must_be(LABELS.items() - registered.items(), set(), what="labels that are missing")
    info = cluster.node_object()["status"]["nodeInfo"]
    versions = f"kubelet {info['kubeletVersion']}, {info['containerRuntimeVersion']}, {info['osImage']}"
    cluster.say(f"node {cluster.node.name} is Ready and closed: {versions}")
