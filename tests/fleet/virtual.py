"""The fleet on a cluster in memory: machines behind nodes, and kubelets that live in virtual time."""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from fleet.containers import WatchContainer
from fleet.machines import NO_FAULT, Machine
from fleet.record import Left, NodeRecord, Record
from nodegauge_operator import names
from nodegauge_operator.core.model import pod_view
from support.api_server import DAEMONSETS, NODES, PODS, READINGS, REPORTS, Body
from support.cluster import FakeCluster
from support.objects import NOW, addressed
from support.virtual_operator import VirtualTimeOperator
from testbed.kubelet.pod import is_terminal
from testbed.marks import last_run_of

POOL = "example.com/pool"
RUN_SECONDS = 6.0
GARBAGE = "Segmentation fault"
SEEN_BY_COMPARISON = ("gpu-lost", "nvlink")
"""Faults that only an earlier reading shows: whoever has the report deleted repairs the machine first."""
BAD_LUCK = 0.005
"""Share of runs that crash for no reason."""


def _seconds() -> float:
    """Virtual time; 0.0 before its loop runs."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


class Fleet(FakeCluster):
    def __init__(self, seconds: Callable[[], float] | None = None) -> None:
        """`seconds`: virtual time, by default that of the loop that runs."""
        self.seconds = seconds or _seconds
        super().__init__(lambda: NOW + self.seconds())
        self.machines: dict[str, Machine] = {}
        self.containers: dict[str, WatchContainer] = {}
        self.tainted: list[tuple[float, str, frozenset[str]]] = []
        """When the taints for faults of which node became which."""
        self._lives: list[asyncio.Task[None]] = []
        self._taints: dict[str, frozenset[str]] = {}
        self.subscribers.append(self._note_taints)

    def _note_taints(self, path: str, kind: str, body: Body) -> None:
        if path != NODES:
            return
        name, every = body["metadata"]["name"], body["spec"].get("taints") or ()
        ours = [taint for taint in every if taint["key"] in names.TAINTS_OF_FAULTS]
        taints = frozenset(f"{taint['key'].removeprefix(names.PREFIX)}={taint['value']}" for taint in ours)
        if taints != self._taints.get(name, frozenset()):
            self._taints[name] = taints
            self.tainted.append((self.seconds(), name, taints))

    def result(self, pod: Body) -> str:
        view = pod_view(pod)
        assert view is not None
        return addressed(self.machines[view.node].document(self.seconds()), view)

    def plug(self, machine: Machine, **labels: str) -> Body:
        self.machines[machine.name] = machine
        return self.add_node(machine.name, boot=machine.boot_id, **labels)

    def fault(self, name: str, fault: str) -> None:
        self.machines[name].fault = fault
        if name in self.containers:
            self.containers[name].changed()

    async def begin(
        self,
        operator: VirtualTimeOperator,
        machines: Iterable[Machine],
        *,
        mode: str,
        chance: random.Random,
        **spec: Any,
    ) -> None:
        """The machines are plugged, and the operator reads them by pods or by containers that stay.
        `spec`: more of the policy's."""
        for machine in machines:
            self.plug(machine)
        off = {"enabled": False}
        probes = {"health": {"mode": mode}, "load": off, "nccl": off}
        self.add_policy(probes=probes, budget={"gatedNodes": "100%"}, **spec)
        operator.start()
        if mode == "Watch":
            await operator.after(5.0)
            assert self.objects[DAEMONSETS], "the operator makes it at once"
            self.containers = {n: WatchContainer(self, m, chance=chance) for n, m in self.machines.items()}
            self._lives = [asyncio.create_task(container.live()) for container in self.containers.values()]


class LivingCluster(Fleet):
    """The same with pods that start, end, hang and vanish by themselves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, record: Record, chance: random.Random) -> None:
        super().__init__(loop.time)
        self.loop = loop
        self.record = record
        self.left: dict[str, Left] = {}
        self.wrong_read: Callable[[str], None] = lambda text: None
        self.pods_made = 0
        self._chance = chance
        self._last_pods: dict[str, str] = {}
        self._last_parts: dict[str, tuple[str, int]] = {}
        """By node: pod and sequence of the last part that was written."""
        self.subscribers.append(self._follow)

    # -- machines ------------------------------------------------------------------------------------------

    def register(self, machine: Machine) -> None:
        machine.there = machine.up = True
        machine.busy, machine.trouble, machine.drained = set(), "", False
        body = self.plug(machine, **{POOL: machine.pool})
        self.record.nodes[machine.name] = NodeRecord(
            machine=machine, uid=body["metadata"]["uid"], healthy_since=self.loop.time()
        )

    def set_ready(self, machine: Machine, ready: bool) -> None:
        machine.up = ready
        conditions = [
            c for c in self.objects[NODES][machine.name]["status"]["conditions"] if c["type"] != "Ready"
        ]
        conditions.append({"type": "Ready", "status": "True" if ready else "Unknown"})
        info = {"bootID": machine.boot_id}
        self.change(NODES, machine.name, {"status": {"conditions": conditions, "nodeInfo": info}})
        if ready:
            for pod in self.pods_on(machine.name):
                self._deleted(pod)

    def kill_pods(self, name: str) -> None:
        for pod in self.pods_on(name):
            if not is_terminal(pod):
                status: Body = {"phase": "Failed", "reason": "NodeShutdown", "message": "the node shut down"}
                self.pod_status(pod["metadata"]["name"], status, node=name)

    def pods_on(self, name: str) -> list[Body]:
        pods = list(self.objects[PODS].values())
        return [pod for pod in pods if pod["metadata"]["annotations"][names.POD_NODE] == name]

    # -- what happens to pods ------------------------------------------------------------------------------

    def _follow(self, path: str, kind: str, body: Body) -> None:
        if path == PODS:
            self._pod_changed(kind, body)
        elif path == READINGS:
            self._reading_changed(kind, body)
        elif path == REPORTS:
            self._report_changed(kind, body)

    def _pod_changed(self, kind: str, body: Body) -> None:
        name, uid = body["metadata"]["name"], body["metadata"]["uid"]
        if kind == "ADDED":
            self.pods_made += 1
            self.loop.call_later(self._chance.uniform(0.5, 3.0), self._schedule, name, uid)
        elif kind == "MODIFIED" and body["metadata"].get("deletionTimestamp"):
            self.loop.call_later(2.0, self._deleted, body)

    def _deleted(self, body: Body) -> None:
        """A kubelet that is up confirms a deletion."""
        pod = self.objects[PODS].get(body["metadata"]["name"])
        if pod is None or pod["metadata"]["uid"] != body["metadata"]["uid"]:
            return
        machine = self.machines[pod["metadata"]["annotations"][names.POD_NODE]]
        if pod["metadata"].get("deletionTimestamp") and machine.up:
            self.remove(PODS, pod["metadata"]["name"])

    def _schedule(self, name: str, uid: str) -> None:
        pod = self._pod(name, uid)
        if pod is None:
            return
        machine = self.machines[pod["metadata"]["annotations"][names.POD_NODE]]
        if machine.trouble == "full":
            waiting = {"type": "PodScheduled", "status": "False"}
            waiting |= {"reason": "Unschedulable", "message": "full"}
            self.pod_status(name, {"conditions": [waiting]})
        elif machine.there and machine.up:
            self.schedule(pod)
            self.loop.call_later(RUN_SECONDS, self._end, name, uid, machine.boot)

    def _end(self, name: str, uid: str, boot: int) -> None:
        pod = self._pod(name, uid)
        if pod is None:
            return
        machine = self.machines[pod["metadata"]["annotations"][names.POD_NODE]]
        if not machine.there or not machine.up or machine.boot != boot or is_terminal(pod):
            return
        trouble = machine.trouble or ("crash" if self._chance.random() < BAD_LUCK else "")
        match trouble:
            case "crash":
                self.end(pod, "", code=139)
            case "garbage":
                self.end(pod, GARBAGE, code=1)
            case "preempt":
                target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                self.pod_status(name, {"conditions": [target]})
                self.remove(PODS, name)
            case "silent":
                return
            case _:
                self.end(pod, self.result(pod))

    def _pod(self, name: str, uid: str) -> Body | None:
        pod = self.objects[PODS].get(name)
        same = pod is not None and pod["metadata"]["uid"] == uid
        return pod if same and pod is not None and not pod["metadata"].get("deletionTimestamp") else None

    # -- what probes write, and what reports say of it -----------------------------------------------------

    def _reading_changed(self, kind: str, body: Body) -> None:
        """A probe has written its part: that is what the node and its report may follow from."""
        name, part = body["metadata"]["name"], body.get(names.PROBE_HEALTH)
        if kind == "DELETED" or part is None:
            return
        identity = (part["podUID"], part["sequence"])
        if self._last_parts.get(name) == identity:
            return
        self._last_parts[name] = identity
        machine = self.machines[name]
        left = self.left[part["podUID"]] = Left(
            readable=part["reading"] != GARBAGE,
            fault=machine.visible_fault,
            loaded=machine.loaded,
            boot=machine.boot,
            ended_at=self.loop.time(),
            stamped=self.clock(),
        )
        if left.readable:
            self.record.nodes[name].written = left

    def _report_changed(self, kind: str, body: Body) -> None:
        name = body["metadata"]["name"]
        if kind == "DELETED":
            self._last_pods.pop(name, None)
            if name in self.record.nodes:
                self.record.nodes[name].forget(self.loop.time())
                self.record.nodes[name].note(self.loop.time(), "report deleted")
                if self.record.nodes[name].machine.fault in SEEN_BY_COMPARISON:
                    self.record.fault_changed(name, self.loop.time(), NO_FAULT)
            return
        run = last_run_of(body)
        if not run or self._last_pods.get(name) == f"{run['podUID']}/{run['number']}":
            return
        self._last_pods[name] = f"{run['podUID']}/{run['number']}"
        wrong = self.record.report_written(self.loop.time(), name, run, self.left.pop(run["podUID"], None))
        if wrong:
            self.wrong_read(wrong)
