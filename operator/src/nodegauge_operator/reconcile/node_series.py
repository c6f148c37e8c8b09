"""The gauges of a fleet's GPUs, and the series that name nodes, in a bounded number.

Thousands of nodes must not make thousands of series: only nodes with something to say have some, the worst
first, and what the limit leaves out is a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nodegauge_operator.api.report import unstamp
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.node_counts import NodeCounters


def export(metrics: Metrics, counters: NodeCounters, policies: Iterable[str], *, most_nodes: int) -> None:
    """Set all of them anew; `most_nodes`: nodes that are named, of all policies together, 0 for none."""
    policies = list(policies)
    of_gpus = (metrics.gpus, metrics.usable_gpus, metrics.unusable_gpus, metrics.uncounted_nodes)
    for gauge in (*of_gpus, metrics.node_fault, metrics.node_fault_info, metrics.node_faults_left_out):
        gauge.clear()
    for policy in policies:
        _export_gpus(metrics, counters, policy)
    if most_nodes:
        _export_nodes(metrics, counters, policies, most_nodes)


def _export_gpus(metrics: Metrics, counters: NodeCounters, policy: str) -> None:
    lost = counters.lost_gpus(policy)
    metrics.uncounted_nodes.labels(policy).set(counters.uncounted(policy))
    for klass, gpus in counters.gpus(policy).items():
        metrics.gpus.labels(policy, klass).set(gpus)
        unusable = sum(count for (of, _), count in lost.items() if of == klass)
        metrics.usable_gpus.labels(policy, klass).set(gpus - unusable)
    for (klass, cause), count in lost.items():
        metrics.unusable_gpus.labels(policy, klass, cause).set(count)


def _export_nodes(metrics: Metrics, counters: NodeCounters, policies: list[str], most: int) -> None:
    """A node's name is the tie-break, so that the same nodes are named each time."""
    nodes = [(policy, *item) for policy in policies for item in counters.alerts(policy).items()]
    nodes.sort(key=lambda item: (item[2][0].turn, item[1]))
    left_out = Counter(policy for policy, _, _ in nodes[most:])
    for policy in policies:
        metrics.node_faults_left_out.labels(policy).set(left_out[policy])
    for policy, node, alerts in nodes[:most]:
        for a in alerts:
            metrics.node_fault.labels(policy, node, a.taint, a.cause, a.code, a.gpu, a.serial, a.pci).set(1)
            texts = (a.measured, a.since, a.taint_state, a.next_step)
            metrics.node_fault_info.labels(policy, node, a.code, *texts).set(unstamp(a.since))
