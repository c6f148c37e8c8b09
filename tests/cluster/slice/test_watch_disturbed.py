"""What happens to nodes in mode Watch: cordons and drains, a driver that is reloaded or goes, no API server.

kubectl, DaemonSet controller, scheduler and eviction are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.slice import NAMESPACE
from testbed.cluster import PodProcess
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

GPU_LOST = ["unhealthy=gpu-lost:NoSchedule"]
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"


def test_a_drained_node_is_watched_on(watched: Any) -> None:
    """`kubectl drain --ignore-daemonsets` leaves the watch pod and does not wait for it; a fault that begins
    on the drained node is tainted, its end lifts the taint, and neither makes a pod."""
    node = "gpu-titan"
    before, made = watched.watch_pods()[node]["metadata"], watched.created()
    work(watched, node)
    output = watched.kubectl("drain", node, "--ignore-daemonsets", "--force", "--timeout=60s")
    assert f"ignoring DaemonSet-managed Pods: {NAMESPACE}/{before['name']}" in output
    assert "pod/work evicted" in output
    assert f"node/{node} drained" in output
    watched.testbed.hardware(node).fault("p2p-refused")
    wait_for(lambda: watched.taints(node), what="the taint of a drained node")
    assert watched.taints(node) == ["unhealthy=p2p:NoSchedule"]
    watched.testbed.hardware(node).heal()
    watched.kubectl("uncordon", node)
    wait_for(lambda: watched.is_well(node), what="the node as before")
    assert watched.watch_pods()[node]["metadata"]["uid"] == before["uid"]
    assert watched.created() == made


def test_a_drain_that_deletes_the_pod_loses_nothing(watched: Any) -> None:
    """As some tools do: the DaemonSet makes another pod, also on a cordoned node, which keeps its marks."""
    node = "gpu-phb"
    old, number = watched.watch_pods()[node]["metadata"], watched.last_run(node)["number"]
    watched.kubectl("cordon", node)
    with unchanged(watched, node):
        evict(watched, old["name"])
        wait_for(
            lambda: watched.watch_pods().get(node, {"metadata": old})["metadata"]["uid"] != old["uid"],
            what="another watch pod",
        )
        wait_for(lambda: watched.last_run(node)["number"] > number, what="its first reading")
        assert watched.last_run(node)["outcome"] == "read"
    watched.testbed.hardware(node).fault("gpu-lost")
    wait_for(lambda: watched.taints(node) == GPU_LOST, what="the taint of a cordoned node")
    watched.kubectl("uncordon", node)


@pytest.mark.parametrize(
    ("begins", "goes_on", "over", "version"),
    [
        ("cordon-required", "pod-restart-required", "upgrade-done", "550.90.07"),
        ("by-hand", "by-hand", None, "550.90.07"),
    ],
    ids=["upgrade controller", "an administrator, as docs/watch-mode.md says"],
)
def test_a_driver_upgrade_meets_no_open_session(
    watched: Any, begins: str, goes_on: str, over: str | None, version: str
) -> None:
    """The container ends at once and the driver can be unloaded; the node keeps its marks without a driver,
    and a new pod reads it under the new one."""
    node = "gpu-h100"
    hardware = watched.testbed.hardware(node)
    with unchanged(watched, node):
        wait_for(lambda: running(watched, node), what="the container running")
        label(watched, node, **{UPGRADE_STATE: begins})
        wait_for(lambda: not running(watched, node), what="the container's end")
        wait_for(lambda: node not in watched.watch_pods(), what="no watch pod on the node")
        hardware.unload_driver()  # refused while a session is open
        number = watched.last_run(node)["number"]
        label(watched, node, **{UPGRADE_STATE: goes_on})
        watched.measure("gpu-titan")  # the operator has seen the label by now
        wait_for(lambda: followed(watched), what="DaemonSets that have been brought in line")
        assert node not in watched.watch_pods()
        assert watched.last_run(node)["number"] == number
        hardware.load_driver(version)
        label(watched, node, **{UPGRADE_STATE: over})
        wait_for(lambda: watched.last_run(node)["number"] > number, what="a reading under the new driver")
        assert watched.last_run(node)["outcome"] == "read"
    assert watched.report(node)["status"]["gpus"]["driver"] == version
    label(watched, node, **{UPGRADE_STATE: None})


def test_a_driver_that_goes_without_a_word_is_reported(watched: Any) -> None:
    """NVML fails under the container: a run that says so, and no verdict; once it is back all is well."""
    node = "gpu-h100"
    state = watched.testbed.hardware(node).directory / "driver.state"
    wait_for(lambda: running(watched, node), what="the container running")
    with unchanged(watched, node):
        state.rename(state.with_name("away"))
        wait_for(
            lambda: watched.last_run(node)["outcome"] == "unknown", what="a run that cannot read the node"
        )
        assert "driver-not-loaded" in watched.last_run(node)["message"]
        state.with_name("away").rename(state)
        wait_for(lambda: watched.last_run(node)["outcome"] == "read", what="a run after the driver is back")


def test_an_outage_of_the_api_server_ends_as_the_hardware_says(watched: Any) -> None:
    """Faults come, go and stay meanwhile: afterwards those that stand are tainted and no others, a calm node
    is not even written to, and the operator is the same process."""
    hardware = watched.testbed.hardware
    hardware("gpu-phb").fault("gpu-lost")
    wait_for(lambda: watched.taints("gpu-phb") == GPU_LOST, what="a taint before the outage")
    operator = watched.operator_process()
    numbers = {node: watched.last_run(node)["number"] for node in watched.nodes}
    with unchanged(watched, "gpu-dgx1"):
        with watched.testbed.control_plane.without_apiserver():
            with new_readings(watched, "gpu-titan", "gpu-h100"):
                hardware("gpu-titan").fault("gpu-lost")
                hardware("gpu-h100").fault("gpu-lost")
            with new_readings(watched, "gpu-phb", "gpu-h100"):
                hardware("gpu-phb").heal()
                hardware("gpu-h100").heal()
        wait_for(lambda: watched.taints("gpu-titan"), what="the taint of a fault that stands")
        assert watched.taints("gpu-titan") == GPU_LOST
        for node in ("gpu-phb", "gpu-h100"):
            wait_for(lambda n=node: watched.last_run(n)["number"] > numbers[n], what=f"a reading of {node}")
            wait_for(lambda n=node: watched.is_well(n), what=f"{node} as before its fault")
    assert watched.operator_process() == operator


def running(cluster: Any, node: str) -> list[PodProcess]:
    """The process of the node's watch container, while it runs."""
    return [one for one in cluster.testbed.processes(NAMESPACE, "nodegauge-watch") if one.node == node]


def followed(cluster: Any) -> bool:
    """Whether the DaemonSet controller has done all that the operator asked of it."""
    statuses = [(one["metadata"]["generation"], one["status"]) for one in cluster.watch_sets()]
    return all(
        status.get("observedGeneration") == generation
        and status["currentNumberScheduled"] == status["desiredNumberScheduled"]
        for generation, status in statuses
    )


@contextmanager
def new_readings(cluster: Any, *nodes: str) -> Iterator[None]:
    """Afterwards the watch container of each node has said that it has something new to report."""

    def lines_of(node: str) -> int:
        logs = cluster.testbed.nodes.pods.glob(f"{node}/pods/{NAMESPACE}_nodegauge-watch*/*/*.log")
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return len([line for line in lines if " written" not in line])  # what became of a reading

    before = {node: lines_of(node) for node in nodes}
    yield
    for node in nodes:
        wait_for(lambda n=node: lines_of(n) > before[n], what=f"a word of the container on {node}")


@contextmanager
def unchanged(cluster: Any, node: str) -> Iterator[None]:
    """The operator writes nothing to the node meanwhile, and its marks are right in the end."""
    before = len(cluster.account_writes(resource="nodes", name=node))
    yield
    assert cluster.is_well(node)
    assert len(cluster.account_writes(resource="nodes", name=node)) == before


def work(cluster: Any, node: str) -> None:
    """Somebody's pod runs on the node."""
    box = {"name": "main", "image": "busybox", "command": ["sleep", "600"]}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [box]}
    pods = "/api/v1/namespaces/default/pods"
    cluster.api.create(pods, {"metadata": {"name": "work"}, "spec": spec})
    wait_for(lambda: cluster.api.get(f"{pods}/work")["status"].get("phase") == "Running", what="work")


def label(cluster: Any, node: str, **labels: str | None) -> None:
    """The GPU Operator labels the node."""
    cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})


def evict(cluster: Any, pod: str) -> None:
    """As a drain does."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    cluster.api.create(f"{path}/eviction", body)
