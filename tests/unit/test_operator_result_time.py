"""The metric of how long a result takes to its node: what is measured, and what is not."""

from __future__ import annotations

from nodegauge_operator import names
from support.api_server import NODES
from support.operator import SteppedOperator
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time


@on_virtual_time
async def test_only_the_time_from_a_result_to_its_node_is_measured(operator: VirtualTimeOperator) -> None:
    """From the arrival of the event that ended the run; a label put back by hand is no result."""
    await operator.begin(2, after=RUN_SECONDS + 10, budget={"concurrentProbes": 2})
    count, total = metric(operator)
    assert count == 2
    assert 0 < total < 2 * 0.2, "not from the first wake, a whole run ago"
    operator.cluster.change(NODES, "node-0", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    await operator.after(30)
    assert len(operator.read()) == 2
    assert metric(operator) == (count, total)


def metric(operator: VirtualTimeOperator | SteppedOperator) -> tuple[float, float]:
    """Count and sum of the metric."""
    samples = {s.name: s.value for m in operator.metrics.result_seconds.collect() for s in m.samples}
    name = "nodegauge_result_to_node_seconds"
    return samples[f"{name}_count"], samples[f"{name}_sum"]
