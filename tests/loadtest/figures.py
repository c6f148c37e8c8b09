"""What was measured at each size, and the table that a stranger understands.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.table import table


@dataclass(frozen=True, kw_only=True)
class Rate:
    """`writes` writes on `nodes` nodes in `seconds`, for which the client spent `cpu` seconds of CPU time."""

    nodes: int
    writes: int
    seconds: float
    cpu: float

    @property
    def nodes_per_second(self) -> float:
        return self.nodes / self.seconds

    @property
    def writes_per_second(self) -> float:
        return self.writes / self.seconds

    @property
    def writes_per_node(self) -> float:
        return self.writes / self.nodes

    @property
    def cpu_per_thousand_nodes(self) -> float:
        return self.cpu * 1000 / self.nodes

    def __add__(self, other: Rate) -> Rate:
        """Both together, one after the other."""
        return Rate(
            nodes=self.nodes + other.nodes,
            writes=self.writes + other.writes,
            seconds=self.seconds + other.seconds,
            cpu=self.cpu + other.cpu,
        )

    def times_slower_than(self, bare: Rate) -> float:
        """How many times longer a write took than in `bare`: with as many writes a node, also a node."""
        return bare.writes_per_second / self.writes_per_second


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Milliseconds from a finished pod to its node's labels; `rate`: results offered per second."""

    samples: int
    rate: float
    p50: float
    p99: float
    worst: float


def latency_of(milliseconds: Sequence[float], *, rate: float) -> Latency:
    """Percentiles by nearest rank; ValueError without a sample."""
    return Latency(
        samples=len(milliseconds),
        rate=rate,
        p50=percentile(milliseconds, 0.50),
        p99=percentile(milliseconds, 0.99),
        worst=max(milliseconds),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank).

    ValueError for no values, or a share outside of 0 to 1.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(frozen=True, kw_only=True)
class Writes:
    """Writes of ours per validation, each kind and its count per node: `patch nodes` → 1.0."""

    kinds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.kinds.values())

    def __str__(self) -> str:
        return ", ".join(
            kind if count == 1 else f"{count:g}x {kind}" for kind, count in sorted(self.kinds.items())
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Everything of one size.  `start`: seconds from the operator's start to its first full list done."""

    nodes: int
    node_kilobytes: float
    patches: Rate
    same_writes: Rate
    operator: Rate
    conflicts: int
    calm: Latency
    busy: Latency
    first: Writes
    changed: Writes
    unchanged: Writes
    start: float
    rss_steady_mib: float
    rss_peak_mib: float


Row = tuple[str, Callable[[Figures], str], str]

ROWS: Sequence[Row] = (
    ("Bare loop, patches of nodes only: writes/s", lambda f: _round(f.patches.writes_per_second), ""),
    (
        "Bare loop, the operator's kinds of writes: writes/s",
        lambda f: _round(f.same_writes.writes_per_second),
        "",
    ),
    (
        "Operator, finished pods to labelled nodes: writes/s",
        lambda f: _round(f.operator.writes_per_second),
        "",
    ),
    ("  the same in nodes/s", lambda f: _round(f.operator.nodes_per_second), ""),
    ("  times slower than the bare patches", lambda f: f"{_ratio_patches(f):.2f}x", "<= 1.50x"),
    ("  times slower than the bare same writes", lambda f: f"{_ratio_same(f):.2f}x", ""),
    ("  CPU seconds per 1,000 validations", lambda f: f"{f.operator.cpu_per_thousand_nodes:.1f}", ""),
    (
        "  CPU seconds of the bare same writes for as many",
        lambda f: f"{f.same_writes.cpu_per_thousand_nodes:.1f}",
        "",
    ),
    ("Pod finished to node labelled at 10 results/s: p50, ms", lambda f: _round(f.calm.p50), ""),
    ("  p99, ms", lambda f: _round(f.calm.p99), ""),
    ("  worst, ms", lambda f: _round(f.calm.worst), ""),
    ("Pod finished to node labelled at 50 results/s: p50, ms", lambda f: _round(f.busy.p50), ""),
    ("  p99, ms", lambda f: _round(f.busy.p99), "< 200"),
    ("  worst, ms", lambda f: _round(f.busy.worst), ""),
    ("Writes per validation, first run", lambda f: f"{f.first.total:g}", ""),
    ("  run that found something else", lambda f: f"{f.changed.total:g}", ""),
    ("  run that found the same", lambda f: f"{f.unchanged.total:g}", "3"),
    ("Operator started to first full list, s", lambda f: f"{f.start:.1f}", ""),
    ("Memory of the operator (RSS), idle, MiB", lambda f: _round(f.rss_steady_mib), "< 300"),
    ("  highest, MiB", lambda f: _round(f.rss_peak_mib), "< 350"),
)
"""Label, value, and the budget (of 5,000 nodes) where there is one."""


def summary(sizes: Sequence[Figures]) -> str:
    """One column per size."""
    head = ["", *(f"{figures.nodes:,} nodes" for figures in sizes), "budget"]
    rows = [[label, *(value(figures) for figures in sizes), budget] for label, value, budget in ROWS]
    return table([head, *rows])


def _ratio_patches(figures: Figures) -> float:
    return figures.operator.times_slower_than(figures.patches)


def _ratio_same(figures: Figures) -> float:
    return figures.operator.times_slower_than(figures.same_writes)


def _round(value: float) -> str:
    return f"{value:,.0f}"
