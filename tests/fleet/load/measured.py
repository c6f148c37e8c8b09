"""The operator under measurement: with the chart's own settings, but for the limit of its API calls, and on
cores of its own where there are any."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import TestbedError
from testbed.operatorprocess import CHECKOUT, OperatorProcess

RATE, BURST = 10_000, 100_000
"""Calls a second, and at once, that are as good as no limit: what limits must be the operator itself."""

LOOK_SECONDS = 0.02
CALM_SHARE, CALM_LOOKS, CALM_SECONDS = 0.5, 3, 180.0
"""An operator that runs, or waits for its core, for less of the time in so many seconds in a row has only its
regular looks to do.  So long is waited for that."""


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


def memory_of(pid: int) -> tuple[float, float]:
    """Resident MiB of a process, now and at its highest (VmRSS and VmHWM of /proc/PID/status)."""
    status = Path(f"/proc/{pid}/status").read_text()
    result = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
    return int(result["VmRSS"]) / 1024, int(result["VmHWM"]) / 1024


def listed(cores: frozenset[int]) -> str:
    """`0-3`, `1`, or `0, 2`."""
    ordered = sorted(cores)
    if len(ordered) > 1 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ", ".join(map(str, ordered))


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run the operator.  `limited`: with the chart's limit of API calls."""

    cores: Cores
    limited: bool = False


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What the chart sets for everybody."""

    rate: float
    burst: int
    workers: int
    environment: Mapping[str, str]


def chart_defaults(chart: Path = CHECKOUT / "charts" / "nodegauge") -> Defaults:
    """Read from the chart's values, so that they cannot differ."""
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))["operator"]
    return Defaults(
        rate=values["api"]["rate"],
        burst=values["api"]["burst"],
        workers=values["workers"],
        environment={
            "NODEGAUGE_WORKERS": str(values["workers"]),
            "NODEGAUGE_SWEEP_INTERVAL": values["sweepInterval"],
            "NODEGAUGE_RELIST_INTERVAL": values["relistInterval"],
            "NODEGAUGE_LOG_LEVEL": values["logLevel"],
            "NODEGAUGE_LOG_FORMAT": values["logFormat"],
        },
    )


class Measured:
    """One operator process, and what can be seen of it from outside."""

    def __init__(
        self, *, kubeconfig: Path, namespace: str, directory: Path, defaults: Defaults, options: Options
    ) -> None:
        calls = {"NODEGAUGE_API_RATE": str(RATE), "NODEGAUGE_API_BURST": str(BURST)}
        if options.limited:
            calls = {"NODEGAUGE_API_RATE": f"{defaults.rate:g}", "NODEGAUGE_API_BURST": f"{defaults.burst}"}
        self._process = OperatorProcess(
            kubeconfig=kubeconfig,
            namespace=namespace,
            directory=directory,
            environment={**defaults.environment, **calls},
        )
        self._cores = options.cores

    async def start(self, *, within: float) -> tuple[float, float]:
        """Start it and wait for its first full list: the seconds that took, and when it was (epoch)."""
        started = time.monotonic()
        self._process.start()
        pin(self._process.pid, self._cores.operator)
        while '"listed ' not in self._process.output():
            self.alive()
            if time.monotonic() - started > within:
                raise TestbedError(
                    f"no first full list after {within:.0f} s:\n{self._process.output()[-2000:]}"
                )
            await asyncio.sleep(LOOK_SECONDS)
        return time.monotonic() - started, time.time()

    def alive(self) -> None:
        """Raises `TestbedError` with its last words when it has ended."""
        if not self._process.running():
            raise TestbedError(f"the operator ended:\n{self._process.output()[-2000:]}")

    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_of(self._process.pid)

    async def calm(self) -> tuple[float, float]:
        """Wait until it has nothing to do, or for `CALM_SECONDS`: seconds and CPU seconds from now on."""
        started, cpu, idle = time.monotonic(), self.cpu(), 0
        while idle < CALM_LOOKS and time.monotonic() - started < CALM_SECONDS:
            before, at_work = time.monotonic(), self._at_work()
            await asyncio.sleep(1.0)
            self.alive()
            share = (self._at_work() - at_work) / (time.monotonic() - before)
            idle = idle + 1 if share < CALM_SHARE else 0
        return time.monotonic() - started - idle, self.cpu() - cpu

    def _at_work(self) -> float:
        """Seconds so far in which its main thread ran or waited for a core (/proc/PID/schedstat)."""
        ran, waited, _ = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return (int(ran) + int(waited)) / 1e9

    def memory(self) -> tuple[float, float]:
        """Resident MiB, now and at its highest."""
        return memory_of(self._process.pid)

    def stop(self) -> None:
        """SIGTERM; raises `TestbedError` when that is not followed by a clean end."""
        code = self._process.stop()
        if code:
            raise TestbedError(f"the operator ended with {code}:\n{self._process.output()[-2000:]}")

    def kill(self) -> None:
        """At once, if it still runs."""
        self._process.kill()
