"""The gauges of a fleet's GPUs, and the series that name nodes, in a bounded number.

Thousands of nodes must not make thousands of series: only nodes with something to say have some, the worst
first, and what the limit leaves out is a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import Gauge

from nodegauge_operator.api.times import unstamp
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.node_counts import NodeCounters

Value = float | Callable[[], float]


class Series:
    """All series of some gauges; those that are as before are left alone, which costs far less."""

    def __init__(self) -> None:
        self._shown: dict[tuple[Gauge, tuple[str, ...]], Value] = {}
        self._wanted: dict[tuple[Gauge, tuple[str, ...]], Value] = {}

    def put(self, gauge: Gauge, *labels: str, value: Value) -> None:
        """Have this series from the next `show` on; a function is asked at each scrape."""
        self._wanted[gauge, labels] = value

    def show(self) -> None:
        """Show what was put since the last time, and nothing else."""
        for gauge, labels in self._shown.keys() - self._wanted.keys():
            gauge.remove(*labels)
        for (gauge, labels), value in self._wanted.items():
            if self._shown.get((gauge, labels)) == value:
                continue
            if callable(value):
                gauge.labels(*labels).set_function(value)
            else:
                gauge.labels(*labels).set(value)
        self._shown, self._wanted = self._wanted, {}


def export(
    series: Series, metrics: Metrics, counters: NodeCounters, policies: Iterable[str], *, most_nodes: int
) -> None:
    """Put all of them; `most_nodes`: nodes that are named, of all policies together, 0 for none."""
    policies = list(policies)
    for policy in policies:
        _export_gpus(series, metrics, counters, policy)
    if most_nodes:
        _export_nodes(series, metrics, counters, policies, most_nodes)


def _export_gpus(series: Series, metrics: Metrics, counters: NodeCounters, policy: str) -> None:
    lost = counters.lost_gpus(policy)
    series.put(metrics.uncounted_nodes, policy, value=counters.uncounted(policy))
    for klass, gpus in counters.gpus(policy).items():
        series.put(metrics.gpus, policy, klass, value=gpus)
        unusable = sum(count for (of, _), count in lost.items() if of == klass)
        series.put(metrics.usable_gpus, policy, klass, value=gpus - unusable)
    for (klass, cause), count in lost.items():
        series.put(metrics.unusable_gpus, policy, klass, cause, value=count)


def _export_nodes(
    series: Series, metrics: Metrics, counters: NodeCounters, policies: list[str], most: int
) -> None:
    """A node's name is the tie-break, so that the same nodes are named each time."""
    nodes = [(policy, *item) for policy in policies for item in counters.alerts(policy).items()]
    nodes.sort(key=lambda item: (item[2][0].turn, item[1]))
    left_out = Counter(policy for policy, _, _ in nodes[most:])
    for policy in policies:
        series.put(metrics.node_faults_left_out, policy, value=left_out[policy])
    for policy, node, alerts in nodes[:most]:
        for a in alerts:
            series.put(
                metrics.node_fault, policy, node, a.taint, a.cause, a.code, a.gpu, a.serial, a.pci, value=1
            )
            texts = (a.measured, a.since, a.taint_state, a.next_step)
            series.put(metrics.node_fault_info, policy, node, a.code, *texts, value=unstamp(a.since))
