"""The stock scheduler places a gang within one value of nodegauge.dev/class by a PodGroup, whichever version
of the API the cluster serves; the recipe is that of docs/placement.md."""

from collections.abc import Iterator

import pytest

from nodegauge_operator import names
from support.gangs import FULL, NODES, RING, GangNodes, bound
from testbed import placing
from testbed.controlplane import ControlPlane
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TAINT = {"key": names.TAINT_UNHEALTHY, "value": "nvlink", "effect": "NoSchedule"}


@pytest.fixture
def nodes(control_plane: ControlPlane) -> Iterator[GangNodes]:
    rest = control_plane.rest()
    made = GangNodes(rest, {f"full-{i}": FULL for i in range(3)} | {f"ring-{i}": RING for i in range(2)})
    yield made
    for name in made.classes:
        rest.delete(f"{NODES}/{name}")
    placing.end_gang(rest)
    wait_for(lambda: not made.pods(), what="no pod is left")


def test_a_gang_is_placed_on_one_class_and_waits_whole_around_our_taint(nodes: GangNodes) -> None:
    nodes.taint("full-0", TAINT)
    placing.start_gang(nodes.rest, 3)
    wait_for(lambda: len(placing.refusals(nodes.pods())) == 3, what="all pods are refused")
    assert not any(pod["spec"].get("nodeName") for pod in nodes.pods())
    nodes.taint("full-0")
    placed: dict[str, str] = wait_for(lambda: bound(nodes, 3), what="the gang, once the taint is gone")
    assert {nodes.classes[node] for node in placed.values()} == {FULL}
