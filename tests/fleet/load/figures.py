"""What was measured at each size, as rows of the table that a stranger understands."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from testbed.audit import entry_of
from testbed.table import table

Rows = dict[str, str]
TARGETS = {
    "Reading written to node labelled, 50 results/s: p99, ms": "<= 200",
    "A rack at once: p99, ms": "<= 200",
    "Reading written to device rule, 5 results/s: p99, ms": "< 200",
    "Reading written to device rule, 50 results/s: p99, ms": "< 200",
    "Steady state, writes/s of everybody": "< 4",
    "Memory of the operator (RSS), idle, MiB": "< 200",
}
"""Of 5,000 nodes, where there is one."""


class Write(NamedTuple):
    user: str
    kind: str
    name: str
    done: bool
    at: float


class Record:
    """The API server's own record of writes.  Both ends of a latency are read from its clock."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_to = 0
        self._writes: list[Write] = []

    def mark(self) -> None:
        self._read_to = self._log.stat().st_size
        self._writes = []

    def since_mark(self) -> Sequence[Write]:
        with self._log.open("rb") as log:
            log.seek(self._read_to)
            lines = log.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for entry in map(entry_of, map(json.loads, whole.splitlines())):
            if entry is not None and entry.is_write:
                at = datetime.fromisoformat(entry.raw["stageTimestamp"]).timestamp()
                kind = f"{entry.verb} {entry.resource}"
                self._writes.append(Write(entry.user, kind, entry.name, 200 <= entry.code < 300, at))
        return self._writes


def latencies(written: Iterable[Write], labelled: Iterable[Write]) -> dict[str, float]:
    """Node to milliseconds from the first write of its reading to the next patch of its labels, if any."""
    starts: dict[str, float] = {}
    for write in sorted(written, key=lambda one: one.at):
        if write.done:
            starts.setdefault(write.name, write.at)
    result: dict[str, float] = {}
    for write in sorted(labelled, key=lambda one: one.at):
        start = starts.get(write.name)
        if write.done and start is not None and write.name not in result and write.at >= start:
            result[write.name] = (write.at - start) * 1000
    return result


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
