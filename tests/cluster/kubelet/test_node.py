"""The simulated kubelet's Node: registered, ready, schedulable."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.podtests import (
    Lab,
    Object,
    end,
    say,
    wait_for,
)

pytestmark = pytest.mark.cluster


def boot_id() -> str:
    """The boot id of this machine, which a node without hardware has too."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_a_node_registers_and_is_schedulable(lab: Lab) -> None:
    """A started kubelet's node is Ready, carries a kubelet's labels, and loses the not-ready taint."""

    async def schedulable() -> Object | None:
        node = await lab.api.get(f"/api/v1/nodes/{lab.node}")
        return None if node["spec"].get("taints") else node

    node = await wait_for(schedulable)
    conditions = {item["type"]: item["status"] for item in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == lab.node
    assert node["status"]["nodeInfo"]["bootID"] == boot_id()
    assert "nvidia.com/gpu" not in node["status"]["capacity"]


async def test_the_real_scheduler_places_pods_on_it(lab: Lab) -> None:
    """A pod without nodeName that selects the node is bound by the scheduler and runs."""
    selector = {"kubernetes.io/hostname": lab.node}
    name = await lab.run(say("placed"), nodeName=None, nodeSelector=selector)
    assert end(await lab.ended(name))["message"] == "placed"


async def test_the_lease_is_kept(lab: Lab) -> None:
    """A node's lease names its holder and goes with the Node."""
    lease = await lab.api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{lab.node}")
    assert lease["spec"]["holderIdentity"] == lab.node
    assert lease["metadata"]["ownerReferences"][0]["kind"] == "Node"
