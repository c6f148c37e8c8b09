"""One node under a policy in mode Watch, and what its container reports."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

import support.results as made
from nodegauge_contract import XidCount, Xids
from support.api_server import REPORTS, Body
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import NOW
from support.operator import SteppedOperator
from support.watch_pods import WatchPod

WATCH = {"probes": {"health": {"mode": "Watch"}, "load": {"enabled": False}}}
BAD = "p2p-refused=b"
BOOTED = int(NOW) - 100


def at(*times: int) -> XidCount:
    """As many Xids as there are times, seconds since boot."""
    return XidCount(count=len(times), first=times[0], last=times[-1])


class Watched(SteppedOperator):
    """One node under a policy in mode Watch, with its DaemonSet."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(FakeCluster())
        self.cluster.add_node(gpus="yes")
        self.cluster.add_policy(**WATCH | spec)
        self.list()
        self.keep_watch_sets()

    def after(self, pod: WatchPod, answer: str = "", *, later: float = 20.0) -> list[str]:
        """The container reports; the taints that follow."""
        pod.reports(saying(answer), later=later)
        self.catch_up()
        return self.taints

    def reported(self, pod: WatchPod, *counts: XidCount, later: float = 20.0) -> list[str]:
        """The container reports so many Xids 94 of GPU 1; the taints that follow."""
        up = int(self.cluster.now + later) - BOOTED
        xids = Xids(registered=True, seen=[94] * len(counts), counts=list(counts))
        listened = made.every_gpu(made.h100(), xids=Xids(registered=True))
        result = made.with_gpu(listened, 1, xids=xids)
        pod.reports(replace(result, host=replace(result.host, boottime_ms=up * 1000)), later=later)
        self.catch_up()
        return self.taints

    @property
    def taints(self) -> list[str]:
        """Values of our taints for faults."""
        return self.cluster.faults()

    @property
    def runs(self) -> int:
        """How many health runs the report knows."""
        reports = self.cluster.objects[REPORTS]
        return int(self.probe["lastRun"]["number"]) if reports and self.status else 0

    @property
    def run_pods(self) -> list[Body]:
        """Pods of single runs."""
        return [pod for pod in self.cluster.pods() if "annotations" in pod["metadata"]]

    def wait(self) -> float:
        """Let time pass until a health pod is wanted; the seconds."""
        began = self.cluster.now
        while not (reconciled := self.reconcile(granted=False)).waits:
            self.cluster.pass_time(max(1.0, reconciled.wake_at - self.cluster.now))
        return self.cluster.now - began
