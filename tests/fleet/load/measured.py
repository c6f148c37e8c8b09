"""The operator under measurement: with the chart's settings but for its API limit, on cores of its own."""

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nodegauge_operator.kube.client import Client
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.resync import list_all
from nodegauge_operator.reconcile.watch_sets import WatchPods
from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError
from testbed.operatorprocess import OperatorProcess

LOOK_SECONDS = 0.02
CALM_SHARE, CALM_LOOKS, CALM_SECONDS = 0.5, 3, 180.0
"""An operator that runs, or waits for its core, for less of the time in so many seconds in a row has only its
regular looks to do.  So long is waited for that."""
ENOUGH = 4
"""Cores from which everybody can have some of their own."""
LISTED = ("nodes", "pods", "nodereadings", "nodereports", "gpuvalidationpolicies")
_SIZES = re.compile(r'^apiserver_response_sizes_sum\{.*?\bresource="([^"]+)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Sets of cores; empty for no pinning.  `enough`: whether controllers and load generator have others."""

    server: frozenset[int]
    operator: frozenset[int]
    enough: bool

    def __str__(self) -> str:
        if not self.operator:
            return "One core: everything shares it."
        pinned = f"API server and etcd on {sorted(self.server)}, the operator on {sorted(self.operator)}"
        if self.enough:
            return f"Pinned to cores: {pinned}, everything else elsewhere."
        return (
            f"Pinned to cores: {pinned}. Load generator and kube-controller-manager have none of their own.\n"
            "While latencies and CPU time are measured, kube-controller-manager is stopped: on a "
            "cluster it is elsewhere."
        )


def split(available: Iterable[int]) -> Cores:
    """The last core for the operator, half of them for the API server and etcd, others for the rest."""
    *others, last = sorted(available)
    enough = len(others) + 1 >= ENOUGH
    server = others[: (len(others) + 1) // 2] if enough else others
    return Cores(server=frozenset(server), operator=frozenset([last] if others else []), enough=enough)


def pin(pid: int, cores: frozenset[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir() if cores else ():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def cpu_of(*pids: int) -> float:
    """CPU seconds of these processes so far (utime and stime of /proc/PID/stat, fields 14 and 15)."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


class Measured(OperatorProcess):
    async def begin(self, cores: frozenset[int], *, within: float) -> float:
        started = time.monotonic()
        self.start()
        pin(self.pid, cores)
        while '"listed ' not in self.output():
            self.alive()
            if time.monotonic() - started > within:
                raise TestbedError(f"no first full list after {within:.0f} s:\n{self.output()[-2000:]}")
            await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - started

    def cpu(self) -> float:
        return cpu_of(self.pid)

    async def calm(self) -> None:
        until, idle = time.monotonic() + CALM_SECONDS, 0
        while idle < CALM_LOOKS and time.monotonic() < until:
            before, at_work = time.monotonic(), self._at_work()
            await asyncio.sleep(1.0)
            self.alive()
            share = (self._at_work() - at_work) / (time.monotonic() - before)
            idle = idle + 1 if share < CALM_SHARE else 0

    def memory(self) -> tuple[float, float]:
        """Resident MiB, now and at its highest (VmRSS and VmHWM of /proc/PID/status)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        result = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
        return int(result["VmRSS"]) / 1024, int(result["VmHWM"]) / 1024

    def _at_work(self) -> float:
        """Seconds so far in which its main thread ran or waited for a core (/proc/PID/schedstat)."""
        ran, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text().split()
        return (int(ran) + int(waited)) / 1e9

    def finish(self) -> None:
        code = self.stop()
        if code:
            raise TestbedError(f"the operator ended with {code}:\n{self.output()[-2000:]}")


async def relist(plane: ControlPlane, client: Client, *, namespace: str) -> tuple[Mapping[str, int], float]:
    """The operator's own code, a second time on the same cache; bytes by resource, and CPU seconds."""
    cache = Cache()
    listing = partial(
        list_all, client, cache, namespace=namespace, node_selector="", watch_pods=WatchPods(cache)
    )
    await listing()
    before, cpu = _sizes(plane), time.process_time()
    await listing()
    cpu = time.process_time() - cpu
    return _sizes(plane) - before, cpu


def _sizes(plane: ControlPlane) -> Counter[str]:
    result: Counter[str] = Counter()
    for resource, count in _SIZES.findall(str(plane.rest().get("/metrics")["message"])):
        if resource in LISTED:
            result[resource] += int(float(count))
    return result
