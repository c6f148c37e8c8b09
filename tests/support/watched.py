"""One node under a policy in mode Watch, and what its container reports."""

from functools import cached_property
from typing import Any

from nodegauge_contract import Result, XidCount
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from support.api_server import PODS, REPORTS, Body
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import NOW
from support.operator import SteppedOperator
from support.watch_pods import WatchPod

WATCH = {"probes": {"health": {"mode": "Watch"}, "load": {"enabled": False}}}
BAD = "p2p-refused=b"
BOOTED = int(NOW) - 100


def at(*times: int) -> XidCount:
    return XidCount(count=len(times), first=times[0], last=times[-1])


class Watched(SteppedOperator):
    def __init__(self, **spec: Any) -> None:
        super().__init__(FakeCluster())
        self.cluster.add_node(gpus="yes")
        self.cluster.add_policy(**WATCH | spec)
        self.list()
        self.keep_watch_sets()

    @cached_property
    def pod(self) -> WatchPod:
        return WatchPod(self.cluster)

    def resume(self, *, granted: bool = True) -> None:
        self.restart()
        self.keep_watch_sets()
        self.catch_up(granted=granted)

    def after(self, answer: str = "", *, later: float = 20.0, pod: WatchPod | None = None) -> list[str]:
        return self.reports(saying(answer), later=later, pod=pod)

    def reports(self, result: Result, *, granted: bool = True, **how: Any) -> list[str]:
        self.write(result, **how)
        self.catch_up(granted=granted)
        return self.taints

    def write(
        self,
        result: Result,
        *,
        later: float = 20.0,
        pod: WatchPod | None = None,
        ahead: float = 0.0,
        **of: Any,
    ) -> None:
        """The container writes this result and nobody has looked at it yet; `ahead`: seconds of its clock."""
        self.cluster.pass_time(ahead)
        (pod or self.pod).reports(result, later=later, **of)
        self.cluster.pass_time(-ahead)

    def request(self) -> None:
        self.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": stamp(self.cluster.clock())}})

    def begin_health_pod(self) -> str:
        self.request()
        self.catch_up()
        return self.start_health_pod()

    def start_health_pod(self) -> str:
        pod = self.run_pods[-1]
        self.cluster.schedule(pod)
        self.cluster.pass_time(1)
        self.deliver()
        return str(pod["metadata"]["name"])

    def end_health_pod(
        self, name: str, result: Result | None = None, *, later: float = 3.0, ahead: float = 0.0
    ) -> int:
        if result is not None:
            self.cluster.results["node-1"] = result
        self.cluster.pass_time(later)
        pod = self.cluster.objects[PODS][name]
        message = self.cluster.result(pod)
        self.cluster.pass_time(ahead)
        self.cluster.end(pod, message)
        self.cluster.pass_time(-ahead)
        self.catch_up(granted=False)
        return self.runs

    @property
    def taints(self) -> list[str]:
        return self.cluster.faults()

    @property
    def runs(self) -> int:
        reports = self.cluster.objects[REPORTS]
        return int(self.probe["lastRun"]["number"]) if reports and self.status else 0

    @property
    def run_pods(self) -> list[Body]:
        return [
            pod for pod in self.cluster.pods() if names.POD_NODE in pod["metadata"].get("annotations", {})
        ]


def watched_once() -> Watched:
    node = Watched()
    node.after()
    return node
