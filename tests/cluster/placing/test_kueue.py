"""A real Kueue places gangs by nodegauge.dev/class, by the recipe of docs/placement.md, and what nodegauge
writes meanwhile disturbs no gang that runs."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from nodegauge_operator import names
from support.chart import ROOT
from support.gangs import FULL, RING, GangNodes, bound
from testbed.controlplane import ControlPlane
from testbed.kueue import API, Kueue
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

JOBS = "/apis/batch/v1/namespaces/default/jobs"
BLOCKS = re.findall(
    r"```yaml\n(.*?)```", (ROOT / "docs" / "placement.md").read_text("utf-8").partition("### Kueue")[2], re.S
)
PATHS = {"Topology": "topologies", "ResourceFlavor": "resourceflavors", "ClusterQueue": "clusterqueues"}
TAINT = {"key": names.TAINT_UNHEALTHY, "value": "nvlink", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangNodes]:
    """Three nodes of one class and three of another; the recipe is applied."""
    rest = control_plane.rest()
    nodes = GangNodes(rest, {f"full-{i}": FULL for i in range(3)} | {f"ring-{i}": RING for i in range(3)})
    with Kueue(control_plane, tmp_path_factory.mktemp("kueue")):
        for body in yaml.safe_load_all(BLOCKS[0]):
            where = PATHS.get(body["kind"]) or "namespaces/default/localqueues"
            rest.create(f"{API}/{where}", body)
        yield nodes


@pytest.fixture
def nodes(cluster: GangNodes) -> Iterator[GangNodes]:
    yield cluster
    for job in cluster.rest.get(JOBS)["items"]:
        cluster.rest.delete(f"{JOBS}/{job['metadata']['name']}", {"propagationPolicy": "Background"})
    wait_for(
        lambda: cluster.without_going() and not (cluster.pods() or workloads(cluster.rest)),
        what="no job is left",
    )
    cluster.restore()


def workloads(rest: Rest) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = rest.get(f"{API}/namespaces/default/workloads")["items"]
    return items


def conditions(rest: Rest, kind: str) -> list[dict[str, Any]]:
    """Of this type, the oldest Workload's first."""
    every = sorted(workloads(rest), key=lambda one: one["metadata"]["creationTimestamp"])
    return [c for one in every for c in one.get("status", {}).get("conditions", []) if c["type"] == kind]


def refused(rest: Rest) -> str:
    """What Kueue tells of a gang that waits; empty for none."""
    return next((c["message"] for c in conditions(rest, "QuotaReserved") if c["status"] == "False"), "")


def evicted(rest: Rest) -> bool:
    """Also one that Kueue has admitted again since: the condition stays, as False."""
    return bool(conditions(rest, "Evicted"))


def start(nodes: GangNodes, count: int) -> None:
    """The Job of the recipe, with so many pods."""
    job = yaml.safe_load(BLOCKS[1])
    job["spec"] |= {"parallelism": count, "completions": count}
    nodes.rest.create(JOBS, job)


def running(nodes: GangNodes, count: int = 3) -> dict[str, str]:
    """Names of nodes by pod, once all are bound and made to run."""
    start(nodes, count)
    placed: dict[str, str] = wait_for(lambda: bound(nodes, count), what="the gang is bound")
    nodes.run(placed)
    return placed


def test_a_gang_that_no_class_holds_is_refused_whole(nodes: GangNodes) -> None:
    start(nodes, 4)
    message = wait_for(lambda: refused(nodes.rest), what="a refusal")
    assert "allows to fit only 3 out of 4 pod(s)" in message
    assert not nodes.pods(), "not one of its pods"


def test_our_taint_is_named_and_placed_around(nodes: GangNodes) -> None:
    for name in nodes.of(RING):
        nodes.taint(name, TAINT)
    assert set(running(nodes).values()) == set(nodes.of(FULL))


def test_our_taint_is_named_where_nothing_fits(nodes: GangNodes) -> None:
    for name in ("full-0", "ring-0"):
        nodes.taint(name, TAINT)
    start(nodes, 3)
    message = wait_for(lambda: refused(nodes.rest), what="a refusal")
    assert f"{names.TAINT_UNHEALTHY}=nvlink:NoSchedule" in message
    for name in ("full-0", "ring-0"):
        nodes.taint(name)
    wait_for(lambda: bound(nodes, 3), what="the gang is bound once the taint is gone")


DISTURBANCES: dict[str, Callable[[GangNodes, str], object]] = {
    "NoSchedule": lambda nodes, node: nodes.taint(node, TAINT),
    "health=fail": lambda nodes, node: nodes.label(node, **{names.LABEL_HEALTH: "fail"}),
    "class gone": lambda nodes, node: nodes.label(node, **{names.LABEL_CLASS: None}),
    "class changed": lambda nodes, node: nodes.label(node, **{names.LABEL_CLASS: "nvlink-h200sxm-full"}),
}


@pytest.mark.parametrize("what", DISTURBANCES)
def test_a_running_gang_is_undisturbed(nodes: GangNodes, what: str) -> None:
    placed = running(nodes)
    DISTURBANCES[what](nodes, next(iter(placed.values())))
    start(nodes, 4)
    wait_for(lambda: refused(nodes.rest), what="Kueue has looked at the nodes again")
    assert bound(nodes, 3) == placed
    assert not evicted(nodes.rest)


def test_a_gang_that_is_admitted_and_not_bound_yet_is_evicted_whole(
    nodes: GangNodes, control_plane: ControlPlane
) -> None:
    with control_plane.frozen("kube-scheduler"):
        start(nodes, 3)
        chosen = wait_for(lambda: hosts(nodes), what="the gang is admitted")
        nodes.taint(chosen[0], TAINT)
        wait_for(lambda: evicted(nodes.rest), what="an eviction")


def hosts(nodes: GangNodes) -> list[str]:
    """Where Kueue sends the pods, once it says so of three."""
    asked = [pod["spec"].get("nodeSelector", {}).get("kubernetes.io/hostname") for pod in nodes.pods()]
    return asked if len(asked) == 3 and all(asked) else []


def test_no_execute_evicts_a_gang_whole(nodes: GangNodes) -> None:
    placed = running(nodes)
    nodes.taint(next(iter(placed.values())), TAINT | {"effect": "NoExecute"})
    wait_for(lambda: nodes.without_going() and evicted(nodes.rest), what="an eviction")
