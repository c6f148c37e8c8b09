"""What is told in events: each change once, none lost to another, nothing told that did not change."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import Power
from support import INTERVAL, STALE
from support.client import unavailable
from support.cluster import EVENTS, NODES
from support.operator import Operator, World

pytestmark = pytest.mark.timeout(5)


class Scene:
    """One node and its events."""

    def __init__(self) -> None:
        self.world = World()
        self.world.cluster.add_node()
        self.world.cluster.add_policy()
        self.operator = Operator(self.world.cluster)
        self.operator.list()

    def label(self, **labels: str | None) -> None:
        """A stranger labels the node."""
        self.world.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})

    def run(self, message: str | None = None) -> None:
        """One whole run."""
        self.operator.deliver()
        self.operator.settle()
        for pod in self.world.cluster.pods():
            self.world.end(pod, self.world.result(pod) if message is None else message)
        self.settle()

    def settle(self) -> None:
        """See everything, write everything."""
        for _ in range(2):
            self.operator.deliver()
            self.operator.settle(granted=False)

    def told(self) -> list[tuple[str, str]]:
        """Reason and words of all events, in order."""
        return [(body["reason"], body["note"]) for body in self.world.cluster.objects[EVENTS].values()]

    def reasons(self) -> list[str]:
        """The reasons alone."""
        return [reason for reason, _ in self.told()]


@pytest.fixture
def scene() -> Scene:
    """Nothing run yet."""
    return Scene()


def test_a_conflict_is_told_once_with_the_way_out(scene: Scene) -> None:
    """However many runs find it there."""
    scene.run()
    scene.label(interconnect="infiniband")
    scene.settle()
    for _ in range(3):
        scene.world.pass_time(INTERVAL)
        scene.run()
    assert scene.reasons() == ["Validated", "LabelConflict"]
    assert "interconnect=infiniband" in scene.told()[1][1]
    assert "takeOver" in scene.told()[1][1]


def test_a_conflict_at_rest_writes_nothing(scene: Scene) -> None:
    """It is known: looking again is no change, and a quiet run costs its three writes."""
    scene.label(interconnect="infiniband")
    scene.run()
    scene.operator.client.log.clear()
    scene.world.pass_time(60)
    scene.settle()
    assert scene.operator.client.log == []
    scene.world.pass_time(INTERVAL)
    scene.run()
    assert scene.operator.client.log == ["POST pods", "PATCH nodereports/status", "DELETE pods"]


def test_a_conflict_at_the_first_run_does_not_hide_what_the_run_found(scene: Scene) -> None:
    """A fault and somebody's label at once: both are told."""
    scene.label(interconnect="infiniband")
    scene.run()
    words = " ".join(f"{reason} {note}" for reason, note in scene.told())
    assert "Validated" in words
    assert "interconnect=infiniband" in words


def test_a_finding_whose_event_found_no_answer_is_not_lost_to_a_conflict(scene: Scene) -> None:
    """What is young and not yet posted goes first."""
    scene.run()
    scene.world.pass_time(INTERVAL)
    capped = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)
    scene.world.machines["node-1"] = made.with_gpu(made.titan(), 0, power=capped)
    scene.operator.client.refuse = lambda verb, path: unavailable() if path == EVENTS else None
    scene.run()
    scene.operator.client.refuse = lambda verb, path: None
    scene.label(interconnect="infiniband")
    scene.settle()
    assert scene.reasons() == ["Validated", "Warnings", "LabelConflict"]


def test_staleness_is_told_once(scene: Scene) -> None:
    """At the moment when the labels go, not at every failed run after it."""
    scene.run()
    for _ in range(12):
        scene.world.pass_time(STALE / 4)
        scene.run("garbage")
    assert scene.reasons() == ["Validated", "ProbeFailed", "Stale"]


def test_a_healthy_node_is_told_about_once(scene: Scene) -> None:
    """A hundred quiet runs are one event."""
    for _ in range(20):
        scene.run()
        scene.world.pass_time(INTERVAL)
    assert scene.reasons() == ["Validated"]


def test_a_restart_tells_nothing_twice(scene: Scene) -> None:
    """The name of an event is made of what it says."""
    scene.run()
    scene.label(interconnect="infiniband")
    scene.settle()
    before = scene.told()
    scene.operator = Operator(scene.world.cluster)
    scene.operator.list()
    scene.settle()
    assert scene.told() == before
