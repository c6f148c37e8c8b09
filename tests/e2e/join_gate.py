"""The host joins closed: the collection's role writes the kubelet's flags, before the kubelet starts.

Ansible runs in the node's own namespaces, with a local connection.
"""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import Cluster
from e2e.node import FLAGS
from support.playbook import Ansible, stage
from testbed.errors import TestbedError

LABELS = {"nvidia.com/gpu.present": "true"}
"""What the policy selects nodes by."""


def host_prepared(cluster: Cluster) -> None:
    """The role `nodegauge.gpu.join_gate` sets taint and label, and changes nothing the second time."""
    folder = cluster.directory / "ansible"
    folder.mkdir()
    stage(folder)
    role = {"join_gate_method": "kubeadm", "join_gate_flags_file": str(FLAGS), "join_gate_labels": LABELS}
    task = {"ansible.builtin.include_role": {"name": "nodegauge.gpu.join_gate"}, "vars": role}
    Path(FLAGS).parent.mkdir(parents=True, exist_ok=True)
    for changes in (1, 0):
        done = Ansible(folder).play(
            [{"hosts": "all", "gather_facts": False, "tasks": [task]}], {cluster.node.name: {}}
        )
        if done.code:
            raise TestbedError(f"the role join_gate failed:\n{done.output}")
        cluster.must_be(len(done.changed), changes, what="the number of tasks that changed something")
    cluster.say(f"the role join_gate wrote {FLAGS.read_text().strip()}")
