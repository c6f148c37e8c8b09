"""What was measured at each size, as rows of the table that a stranger understands.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.table import table

Rows = dict[str, str]
TARGETS = {
    "Reading written to node labelled, 50 results/s: p99, ms": "<= 200",
    "A rack at once: p99, ms": "<= 200",
    "Steady state, writes/s of everybody": "< 4",
    "Memory of the operator (RSS), idle, MiB": "< 200",
}
"""Of 5,000 nodes, where there is one."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`cpu` seconds of a process for `results` results, and `server` of API server and etcd meanwhile."""

    results: int
    seconds: float
    cpu: float
    server: float

    @property
    def milliseconds(self) -> float:
        return self.cpu * 1000 / self.results

    @property
    def server_milliseconds(self) -> float:
        return self.server * 1000 / self.results


def latency(milliseconds: Sequence[float], *, of: str) -> Rows:
    """Percentiles by nearest rank: the smallest value that at least so large a share does not exceed."""
    ordered = sorted(milliseconds)
    ranks = {"p50": 0.5, "p99": 0.99, "worst": 1.0}
    return {
        f"{of}: {name}, ms": f"{ordered[math.ceil(share * len(ordered)) - 1]:,.0f}"
        for name, share in ranks.items()
    }


def summary(sizes: Mapping[int, Rows]) -> str:
    head = ["", *(f"{nodes:,} nodes" for nodes in sizes), "target"]
    labels = next(iter(sizes.values()))
    rows = [[label, *(rows[label] for rows in sizes.values()), TARGETS.get(label, "")] for label in labels]
    return table([head, *rows])
