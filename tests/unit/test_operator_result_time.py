"""The metric of how long a result takes to its node: what is measured, and what is not."""

from __future__ import annotations

from nodegauge_operator import names
from support.api_server import NODES
from support.operator import SteppedOperator, one_node
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time


@on_virtual_time
async def test_only_the_time_from_a_result_to_its_node_is_measured(operator: VirtualTimeOperator) -> None:
    """From the arrival of the event that ended the run; a label put back by hand is no result."""
    operator.nodes(2)
    operator.cluster.add_policy(budget={"concurrentProbes": 2})
    operator.start()
    await operator.after(RUN_SECONDS + 10)
    count, total = metric(operator)
    assert count == 2
    assert 0 < total < 2 * 0.2, "not from the first wake, a whole run ago"
    operator.cluster.change(NODES, "node-0", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    await operator.after(30)
    assert len(operator.read()) == 2
    assert metric(operator) == (count, total)


def test_a_write_without_a_judged_run_is_not_measured() -> None:
    """A pod of an earlier run goes for good, and the look at its node mends a label."""
    operator = one_node()
    operator.reconcile()
    operator.cluster.kubelets()
    operator.deliver()
    operator.reconcile()
    (count, total) = metric(operator)
    assert count == 1
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    operator.deliver()
    operator.reconcile()
    assert names.LABEL_HEALTH in operator.cluster.get(NODES, "node-1")["metadata"]["labels"]
    assert metric(operator) == (count, total)


def metric(operator: VirtualTimeOperator | SteppedOperator) -> tuple[float, float]:
    """Count and sum of the metric."""
    samples = {s.name: s.value for m in operator.metrics.result_seconds.collect() for s in m.samples}
    name = "nodegauge_result_to_node_seconds"
    return samples[f"{name}_count"], samples[f"{name}_sum"]
