"""The metric of how long a result takes to its node: what is measured, and what is not."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from support.cluster import NODES
from support.onenode import OneNode
from support.operator import Operator
from support.stage import RUN_SECONDS, Stage, staged

pytestmark = pytest.mark.timeout(20)


def test_the_time_from_a_result_to_its_node_is_measured_and_nothing_else() -> None:
    """From the arrival of the event that ended the run; a label put back by hand is no result."""

    async def play(stage: Stage) -> None:
        stage.nodes(2)
        stage.cluster.add_policy(budget={"concurrentProbes": 2})
        stage.start()
        await stage.after(RUN_SECONDS + 10)
        count, total = told(stage)
        assert count == 2
        assert 0 < total < 2 * 0.2, "not from the first wake, a whole run ago"
        stage.cluster.change(NODES, "node-0", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
        await stage.after(30)
        assert len(stage.read()) == 2
        assert told(stage) == (count, total)

    staged(play)


def test_a_write_without_a_judged_run_is_not_measured() -> None:
    """A pod of an earlier run goes for good, and the look at its node mends a label."""
    scene = OneNode()
    world, operator = scene.world, scene.operator
    operator.settle()
    world.kubelets()
    operator.deliver()
    operator.settle()
    (count, total) = told(operator)
    assert count == 1
    world.cluster.change(NODES, "node-1", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    operator.deliver()
    operator.settle()
    assert names.LABEL_HEALTH in world.cluster.get(NODES, "node-1")["metadata"]["labels"]
    assert told(operator) == (count, total)


def told(scene: Stage | Operator) -> tuple[float, float]:
    """Count and sum of the metric."""
    samples = {s.name: s.value for m in scene.metrics.result_seconds.collect() for s in m.samples}
    name = "nodegauge_result_to_node_seconds"
    return samples[f"{name}_count"], samples[f"{name}_sum"]
