"""The stock scheduler places a gang within one value of nodegauge.dev/class by a PodGroup, whichever version
of the API the cluster serves; the recipe is that of docs/placement.md."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from nodegauge_operator import names
from support.chart import ROOT
from support.gangs import FULL, NODES, PODS, RING, GangNodes, bound
from testbed.controlplane import ControlPlane
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

GROUP = "/apis/scheduling.k8s.io"
TEXT = (ROOT / "docs" / "placement.md").read_text("utf-8").partition("### PodGroup")[2]
RECIPE = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
TAINT = {"key": names.TAINT_UNHEALTHY, "value": "nvlink", "effect": "NoSchedule"}


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[GangNodes]:
    rest = control_plane.rest()
    made = GangNodes(rest, {f"full-{i}": FULL for i in range(3)} | {f"ring-{i}": RING for i in range(2)})
    yield made
    for name in made.classes:
        rest.delete(f"{NODES}/{name}")
    for pod in made.pods():
        rest.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    rest.delete(f"{served(made)}/namespaces/default/podgroups/gang")
    wait_for(lambda: not made.pods(), what="no pod is left")


def served(nodes: GangNodes) -> str:
    """The API of PodGroups that this cluster serves and prefers."""
    for version in nodes.rest.get(GROUP)["versions"]:
        path = f"/apis/{version['groupVersion']}"
        if any(one["name"] == "podgroups" for one in nodes.rest.get(path)["resources"]):
            return path
    pytest.fail("this control plane serves no PodGroup")


def start(nodes: GangNodes, count: int) -> None:
    group, pod = (yaml.safe_load(text) for text in RECIPE[:2])
    api = served(nodes)
    group["apiVersion"] = api.removeprefix("/apis/")
    group["spec"]["schedulingPolicy"]["gang"]["minCount"] = count
    nodes.rest.create(f"{api}/namespaces/default/podgroups", group)
    for number in range(count):
        nodes.rest.create(PODS, pod | {"metadata": {"name": f"gang-{number}"}})


def refusals(nodes: GangNodes) -> list[str]:
    every: list[dict[str, Any]] = [
        c for pod in nodes.pods() for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"
    ]
    return [one.get("message", "") for one in every if one["status"] == "False"]


def test_a_gang_is_placed_on_one_class(nodes: GangNodes) -> None:
    start(nodes, 3)
    placed: dict[str, str] = wait_for(lambda: bound(nodes, 3), what="the gang is bound")
    assert {nodes.klass(node) for node in placed.values()} == {FULL}


def test_a_gang_that_no_class_holds_waits_whole_and_around_our_taint(nodes: GangNodes) -> None:
    nodes.taint("full-0", TAINT)
    start(nodes, 3)
    wait_for(lambda: len(refusals(nodes)) == 3, what="all pods are refused")
    assert not any(pod["spec"].get("nodeName") for pod in nodes.pods())
    nodes.taint("full-0")
    wait_for(lambda: bound(nodes, 3), what="the gang is bound once the taint is gone")
