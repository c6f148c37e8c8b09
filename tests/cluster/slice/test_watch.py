"""Mode Watch on the whole slice: from a fault on the hardware to the taint, without a pod or anybody asking.

The containers are the real probe on simulated hardware; DaemonSet controller and scheduler are real.  The
simulated kubelet starts a container again after 1, 2, 4 to 10 s, a real one after 10 to 300 s.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.slice import WATCH
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("node", "fault", "taint"),
    [
        pytest.param("gpu-phb", "gpu-lost", "unhealthy=gpu-lost:NoSchedule", id="one run suffices"),
        pytest.param("gpu-titan", "p2p-refused", "unhealthy=p2p:NoSchedule", id="two runs are needed"),
    ],
)
def test_a_fault_is_tainted_and_lifted_without_a_pod(watched: Any, node: str, fault: str, taint: str) -> None:
    """The containers report and confirm it, and its end."""
    pods = watched.created()
    watched.testbed.hardware(node).fault(fault)
    wait_for(lambda: watched.taints(node), what="the taint")
    assert watched.taints(node) == [taint]
    watched.testbed.hardware(node).heal()
    wait_for(lambda: watched.is_well(node), what="the node as before")
    assert watched.created() == pods


def test_a_roll_out_of_the_daemonset_keeps_what_nodes_carry(watched: Any) -> None:
    """Every container ends by SIGTERM and a new one reads its node: labels stay, and no run fails."""

    def uids() -> dict[str, str]:
        return {node: pod["metadata"]["uid"] for node, pod in watched.watch_pods().items()}

    before = uids()
    writes = len(watched.account_writes(resource="nodes"))
    numbers = {node: watched.last_run(node)["number"] for node in watched.nodes}
    watched.upgrade(*WATCH, "policy.spec.podTemplate.labels.rolled=yes")
    wait_for(
        lambda: (new := uids()).keys() == before.keys() and not {*new.values()} & {*before.values()},
        what="new watch pods",
    )
    for node in watched.nodes:
        wait_for(lambda n=node: watched.last_run(n)["number"] > numbers[n], what=f"a reading of {node}")
        assert watched.last_run(node)["outcome"] == "read"
        assert watched.is_well(node)
    assert len(watched.account_writes(resource="nodes")) == writes


def test_containers_run_on_the_nodes_that_the_operator_watches(watched: Any) -> None:
    """`operator.nodeLabelSelector` bounds both; a node that comes back to it is read by its container."""
    node = "gpu-titan"
    marks = watched.seen(node)
    watched.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"site": "elsewhere"}}})
    watched.upgrade(*WATCH, "operator.nodeLabelSelector=gpus notin (none)\\,site!=elsewhere")
    others = set(watched.nodes) - {node}
    wait_for(lambda: watched.watch_pods().keys() == others, what="no container on the node")
    watched.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"site": None}}})
    wait_for(lambda: watched.watch_pods().keys() == set(watched.nodes), what="a container on the node")
    pod = watched.watch_pods()[node]["metadata"]["name"]
    wait_for(lambda: watched.last_run(node)["podName"] == pod, what=f"a reading by {pod}")
    wait_for(lambda: watched.seen(node) == marks, what="the node as before")
    watched.upgrade(*WATCH)


def test_a_rebooted_node_is_read_by_its_container(watched: Any) -> None:
    """The state of the boot before counts no more; labels come back, and no pod is made for it."""
    node, pods = "gpu-titan", watched.created()
    before = watched.last_run(node)
    watched.testbed.nodes.restart(node)
    wait_for(lambda: watched.last_run(node)["bootID"] != before["bootID"], what="a reading of the new boot")
    wait_for(lambda: watched.is_well(node), what="the node as before")
    assert watched.last_run(node)["podName"] == watched.watch_pods()[node]["metadata"]["name"]
    assert watched.created() == pods
