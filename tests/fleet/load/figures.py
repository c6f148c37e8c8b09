"""What was measured at each size, and the table that a stranger understands.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.table import table


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`results` results for which a process spent `cpu` seconds of CPU time and made `writes` writes.

    `server`: CPU seconds of API server and etcd meanwhile, for everybody; 0.0 if not measured."""

    results: int
    writes: int
    seconds: float
    cpu: float
    server: float = 0.0

    @property
    def milliseconds(self) -> float:
        """CPU time of one result, in ms."""
        return self.cpu * 1000 / self.results

    @property
    def server_milliseconds(self) -> float:
        """CPU time of API server and etcd for one result, in ms."""
        return self.server * 1000 / self.results

    @property
    def results_per_second(self) -> float:
        return self.results / self.seconds

    @property
    def writes_per_second(self) -> float:
        return self.writes / self.seconds

    @property
    def writes_per_result(self) -> float:
        return self.writes / self.results

    def __add__(self, other: Cost) -> Cost:
        """Both together, one after the other."""
        return Cost(
            results=self.results + other.results,
            writes=self.writes + other.writes,
            seconds=self.seconds + other.seconds,
            cpu=self.cpu + other.cpu,
            server=self.server + other.server,
        )


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Milliseconds from a container's end in the API to its node's labels."""

    samples: int
    p50: float
    p99: float
    worst: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.0f} ms, p99 {self.p99:.0f} ms, worst {self.worst:.0f} ms"


def latency_of(milliseconds: Sequence[float]) -> Latency:
    """Percentiles by nearest rank; ValueError without a sample."""
    return Latency(
        samples=len(milliseconds),
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
class Steady:
    """A while in which each node reports once an interval.

    `writes`: accepted writes a second, by who made them and by kind, without heartbeats of nodes; `reports`:
    ends of containers a second; `cpu`: part of one core that the operator used.
    """

    seconds: float
    reports: float
    writes: Mapping[str, Mapping[str, float]]
    cpu: float

    @property
    def total(self) -> float:
        """Writes a second, everybody's."""
        return sum(map(self.of, self.writes))

    def of(self, who: str) -> float:
        """Writes a second of one."""
        return sum(self.writes.get(who, {}).values())

    def __str__(self) -> str:
        return "; ".join(
            f"{who} {self.of(who):.2f} ({', '.join(f'{kind} {rate:.2f}' for kind, rate in kinds.items())})"
            for who, kinds in self.writes.items()
        )


@dataclass(frozen=True, kw_only=True)
class Start:
    """A start of the operator on a fleet at work: seconds until its first full list, its CPU seconds until
    then, and both from then on until it had nothing to do."""

    listed: float
    cpu: float
    calm: float
    calm_cpu: float


@dataclass(frozen=True, kw_only=True)
class Relist:
    """One full list when nothing was missed: bytes of the API server's answers, by resource."""

    bytes: Mapping[str, int]
    seconds: float
    cpu: float

    @property
    def megabytes(self) -> float:
        return sum(self.bytes.values()) / 1e6

    def __str__(self) -> str:
        return ", ".join(f"{resource} {count / 1e6:.1f} MB" for resource, count in self.bytes.items())


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Everything of one size.

    `bare`, `watch` and `pods`: by what was measured (`CHANGED`, ...).  A cluster of copies has no scheduler
    that would place pods, and no controllers whose writes would count.
    """

    nodes: int
    node_kilobytes: float
    bare: Mapping[str, Cost]
    roll_out: Cost
    watch: Mapping[str, Cost]
    pods: Mapping[str, Cost]
    paced: Latency
    rack: Latency
    steady: Steady
    relist: Relist
    start: Start
    rss_steady_mib: float
    rss_peak_mib: float


CHANGED, SAME, SAME_16 = "other machine, 8 GPUs", "the same, 8 GPUs", "the same, 16 GPUs"

Row = tuple[str, Callable[[Figures], str], str]

ROWS: Sequence[Row] = (
    ("Container ended to node labelled, 50 results/s: p50, ms", lambda f: _round(f.paced.p50), ""),
    ("  p99, ms", lambda f: _round(f.paced.p99), "<= 200"),
    ("  worst, ms", lambda f: _round(f.paced.worst), ""),
    ("A rack at once: p50, ms", lambda f: _round(f.rack.p50), ""),
    ("  p99, ms", lambda f: _round(f.rack.p99), "<= 200"),
    ("  worst, ms", lambda f: _round(f.rack.worst), ""),
    ("Steady state, writes/s of everybody", lambda f: f"{f.steady.total:.2f}", "< 5"),
    ("  reports/s", lambda f: f"{f.steady.reports:.2f}", ""),
    *((f"  {who}", lambda f, who=who: f"{f.steady.of(who):.2f}", "") for who in ("kubelets", "operator")),
    ("  controllers", lambda f: _controllers(f.steady), ""),
    ("  CPU of the operator, % of a core", lambda f: f"{100 * f.steady.cpu:.1f}", ""),
    ("CPU of a result, ms: Watch, other machine, 8 GPUs", lambda f: _ms(f.watch[CHANGED]), ""),
    ("  Watch, the same, 8 GPUs", lambda f: _ms(f.watch[SAME]), ""),
    ("  Watch, the same, 16 GPUs", lambda f: _ms(f.watch[SAME_16]), ""),
    ("  Periodic (a pod), the same, 8 GPUs", lambda f: _ms(f.pods.get(SAME)), ""),
    ("  Periodic (a pod), the same, 16 GPUs", lambda f: _ms(f.pods.get(SAME_16)), ""),
    ("  bare loop, as many writes: other machine", lambda f: _ms(f.bare[CHANGED]), ""),
    ("  bare loop, as many writes: the same", lambda f: _ms(f.bare[SAME]), ""),
    ("CPU of API server and etcd for it, ms: other machine", lambda f: _server_ms(f.watch[CHANGED]), ""),
    ("  the same", lambda f: _server_ms(f.watch[SAME]), ""),
    ("Roll-out: results/s", lambda f: _round(f.roll_out.results_per_second), ""),
    ("  CPU of a first result, ms", lambda f: _ms(f.roll_out), ""),
    ("Bare loop, other machine: writes/s", lambda f: _round(f.bare[CHANGED].writes_per_second), ""),
    ("Full list: MB from the API server", lambda f: f"{f.relist.megabytes:.1f}", ""),
    ("  CPU, s", lambda f: f"{f.relist.cpu:.2f}", ""),
    ("Operator started to first full list, s", lambda f: f"{f.start.listed:.1f}", ""),
    ("  CPU, s", lambda f: f"{f.start.cpu:.1f}", ""),
    ("  CPU until it has nothing to do, s", lambda f: f"{f.start.cpu + f.start.calm_cpu:.1f}", ""),
    ("Memory of the operator (RSS), idle, MiB", lambda f: _round(f.rss_steady_mib), "< 200"),
    ("  highest, MiB", lambda f: _round(f.rss_peak_mib), ""),
)
"""Label, value, and the target (of 5,000 nodes) where there is one."""


def summary(sizes: Sequence[Figures]) -> str:
    """One column per size."""
    head = ["", *(f"{figures.nodes:,} nodes" for figures in sizes), "target"]
    rows = [[label, *(value(figures) for figures in sizes), target] for label, value, target in ROWS]
    return table([head, *rows])


def _ms(cost: Cost | None) -> str:
    return "-" if cost is None else f"{cost.milliseconds:.1f}"


def _server_ms(cost: Cost) -> str:
    return f"{cost.server_milliseconds:.1f}"


def _controllers(steady: Steady) -> str:
    return f"{steady.of('controllers'):.2f}" if "controllers" in steady.writes else "not run"


def _round(value: float) -> str:
    return f"{value:,.0f}"
