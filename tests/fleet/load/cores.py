"""Which cores the API server and the operator have to themselves, where there are any; CPU time spent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ENOUGH = 4
"""Cores from which everybody can have some of their own."""


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Sets of cores; empty for no pinning."""

    server: frozenset[int]
    operator: frozenset[int]
    rest: frozenset[int]

    @property
    def enough(self) -> bool:
        """Whether controllers and load generator have cores that neither of the two uses."""
        return bool(self.rest)

    def __str__(self) -> str:
        if not self.operator:
            return "One core: everything shares it."
        pinned = f"API server and etcd on {listed(self.server)}, the operator on {listed(self.operator)}"
        if self.enough:
            return f"Pinned to cores: {pinned}, everything else on {listed(self.rest)}."
        return (
            f"Pinned to cores: {pinned}. Load generator and kube-controller-manager have none of their own.\n"
            "While latencies and CPU time are measured, kube-controller-manager is stopped: on a "
            "cluster it is elsewhere."
        )


def split(available: Iterable[int]) -> Cores:
    """The last core for the operator, half of them for the API server and etcd, others for the rest."""
    cores = sorted(available)
    if len(cores) < 2:
        return Cores(server=frozenset(), operator=frozenset(), rest=frozenset())
    server = cores[: len(cores) // 2] if len(cores) >= ENOUGH else cores[:-1]
    rest = frozenset(cores[len(server) : -1])
    return Cores(server=frozenset(server), operator=frozenset(cores[-1:]), rest=rest)


def pin(pid: int, cores: frozenset[int]) -> None:
    """Every thread of a process, and so those that they start."""
    for task in Path(f"/proc/{pid}/task").iterdir() if cores else ():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def cpu_of(*pids: int) -> float:
    """CPU seconds of these processes so far, of all threads (utime and stime of /proc/PID/stat, fields 14
    and 15)."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def listed(cores: frozenset[int]) -> str:
    """`0-3`, `1`, or `0, 2`."""
    ordered = sorted(cores)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(map(str, ordered))
