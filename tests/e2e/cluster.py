"""What every step uses.  Without kube-proxy, the address of the service `kubernetes` is on the namespace's
`lo`: a pod's packets find it by the route that the bridge gives them."""

import csv
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from e2e.mounts import SERVICE_ADDRESS
from e2e.node import Node
from e2e.sandbox import CGROUPS
from testbed.controlplane import APISERVER, ControlPlane
from testbed.errors import TestbedError
from testbed.hardware import Hardware
from testbed.marks import PREFIX as PREFIX
from testbed.marks import probe_of
from testbed.marks import taints_of as taints_of
from testbed.processes import with_variable
from testbed.rest import Object, Rest
from testbed.wait import Progress, T, wait_for

NAMESPACE = "nodegauge"
WORKLOADS = "workloads"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
READINGS = "/apis/nodegauge.dev/v1alpha1/nodereadings"
POLICY = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default"
HEALTHY = {
    "interconnect": "nvlink",
    f"{PREFIX}interconnect": "nvlink",
    f"{PREFIX}nvlink-gbps": "450",
    f"{PREFIX}health": "pass",
}
"""H100 SXM: 18 links of 25 GB/s each way (NVIDIA's data sheet), all of them up."""
PORT = 443
NODE_GRACE_SECONDS = 14
POLL_SECONDS = 0.5
"""What is waited for takes seconds, and each look costs client, API server and etcd 5 ms of CPU time."""
EXTRA = {
    APISERVER: (
        f"--bind-address={SERVICE_ADDRESS}",
        f"--advertise-address={SERVICE_ADDRESS}",
        f"--secure-port={PORT}",
    ),
    "kube-controller-manager": (
        f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        "--node-monitor-period=2s",
    ),
}
"""Flags that win over the testbed's, as the last ones given."""


class PodPlane(ControlPlane):
    """The control plane below `directory`, for the kubelet of the node `node`: a node's own user, held by the
    Node authorizer and NodeRestriction.  A silent node is taken for lost soon."""

    address = SERVICE_ADDRESS

    def __init__(self, directory: Path, *, node: str) -> None:
        super().__init__(directory)
        self._node_user = f"system:node:{node}"

    @property
    def server(self) -> str:
        return f"https://{SERVICE_ADDRESS}:{PORT}"

    def node_kubeconfig(self) -> Path:
        return self.user_kubeconfig(self._node_user, token=self.tokens()[self._node_user])

    def _write_files(self) -> None:
        super()._write_files()
        if self._node_user not in self.tokens():
            with self.layout.tokens.open("a", newline="", encoding="utf-8") as lines:
                row = [secrets.token_urlsafe(24), self._node_user, self._node_user, "system:nodes"]
                csv.writer(lines).writerow(row)

    def _start(self, name: str, program: Path, flags: Sequence[str]) -> None:
        super()._start(name, program, [*flags, *EXTRA.get(name, ())])


class Cluster(Progress):
    def __init__(self, directory: Path, *, plane: PodPlane, node: Node, hardware: Hardware) -> None:
        super().__init__()
        self.directory = directory
        self.plane, self.node, self.hardware = plane, node, hardware
        self.asked = datetime.now(UTC)
        self.all_gpus = "nvidia.com/gpu: 8"
        """What a pod that holds all GPUs asks for: this, or by DRA the template of its claim."""

    @property
    def api(self) -> Rest:
        return self.plane.rest()

    def until(self, condition: Callable[[], T], *, what: str, every: float = POLL_SECONDS) -> T:
        return wait_for(condition, what=what, every=every)

    def must_be(self, seen: object, wanted: object, *, what: str) -> None:
        if seen != wanted:
            raise TestbedError(f"{what} is {seen!r}, and must be {wanted!r}")

    def find(self, path: str) -> Object | None:
        return self.api.find(path) or None

    def node_object(self) -> Object:
        return self.api.get(f"/api/v1/nodes/{self.node.name}")

    def node_is_ready(self) -> str:
        conditions = self.node_object()["status"]["conditions"]
        return str(next(one["status"] for one in conditions if one["type"] == "Ready"))

    def make_namespace(self, name: str, *, labels: dict[str, str] | None = None) -> None:
        metadata = {"name": name, "labels": labels or {}}
        self.api.create("/api/v1/namespaces", {"metadata": metadata})
        self.plane.await_objects(namespace=name)

    def pod(self, name: str, *, namespace: str = WORKLOADS) -> Object | None:
        return self.find(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def make_pod(self, name: str, spec: Object, **labels: str) -> None:
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self.api.create(f"/api/v1/namespaces/{WORKLOADS}/pods", body)

    def delete_pod(self, name: str, *, namespace: str = WORKLOADS, **options: int) -> None:
        self.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", options or None)

    def pods(self, selector: str) -> list[Object]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}"
        result: list[Object] = self.api.get(path)["items"]
        return result

    def policy(self, *, awaited: bool = True, **spec: Any) -> None:
        """Change the policy; `awaited`: until the operator has seen it."""
        generation = self.api.patch(POLICY, {"spec": spec})["metadata"]["generation"]

        def is_seen() -> bool:
            return bool(self.api.get(POLICY)["status"].get("observedGeneration", 0) >= generation)

        if awaited:
            self.until(is_seen, what=f"the operator to see generation {generation} of the policy")

    def report(self) -> Object:
        result = self.find(f"{REPORTS}/{self.node.name}")
        return {} if result is None else result.get("status") or {}

    def labels(self) -> dict[str, str]:
        result = self.node_object()["metadata"].get("labels", {})
        return {k: v for k, v in result.items() if k.startswith(PREFIX) or k == "interconnect"}

    def taints(self) -> list[str]:
        return taints_of(self.node_object())

    def ask(self) -> str:
        """Ask for a run, as anybody may; the request's mark."""
        self.asked = max(self.asked + timedelta(seconds=1), datetime.now(UTC))
        mark = self.asked.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.api.patch(f"{REPORTS}/{self.node.name}", {"spec": {"requestedAt": mark}})
        return mark

    def probe(self, name: str = "health") -> Object:
        return probe_of(self.report(), name)

    def last_run(self, name: str = "health") -> Object:
        result: Object = self.probe(name).get("lastRun") or {}
        return result

    def has_answered(self, mark: str) -> bool:
        return bool(self.probe().get("request") == mark)

    def reading(self, part: str = "health") -> Object:
        result: Object = (self.find(f"{READINGS}/{self.node.name}") or {}).get(part) or {}
        return result

    def measure(self) -> Object:
        mark = self.ask()
        self.until(lambda: self.has_answered(mark), what="the run's judgement")
        return self.last_run()


def first_status(pod: Object | None) -> Object:
    result: Object = ((pod or {}).get("status", {}).get("containerStatuses") or [{}])[0]
    return result


def runs(pod: Object | None) -> bool:
    return "running" in first_status(pod).get("state", {})


def terminated(pod: Object | None) -> Object:
    result: Object = first_status(pod).get("state", {}).get("terminated") or {}
    return result


HOG = """\
import os, sys
procs, victim = sys.argv[1:]
open(procs, "w").write(str(os.getpid()))
taken = []
while os.path.exists(victim):
    taken.append(b"x" * (4 << 20))
"""


def find(pod: Object) -> int | None:
    there = with_variable(f"HOSTNAME={pod['metadata']['name']}")
    return next((number for number in there if process_field(number, "NSpid", at=-1) == 1), None)


def process_field(number: int, name: str, *, base: int = 10, at: int = 1) -> int:
    """A number from a line of /proc/PID/status, the word `at`; 0 when the process has gone."""
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    return int(next(line for line in lines if line.startswith(name)).split()[at], base)


def process(pod: Object) -> int:
    if (result := find(pod)) is None:
        raise TestbedError(f"no process of pod {pod['metadata']['name']} is to be found")
    return result


def speaks(pod: Object) -> bool:
    """Whether SIGTERM makes the probe say what it has read: once it has started the thread that measures."""
    result = find(pod) if runs(pod) else None
    return result is not None and process_field(result, "Threads") > 1


def pending(number: int, sent: signal.Signals) -> bool:
    waiting = process_field(number, "SigPnd", base=16) | process_field(number, "ShdPnd", base=16)
    return bool(waiting >> (sent - 1) & 1)


def use_up_memory(pod: Object) -> None:
    """Have the kernel kill the container's first process: one of ours takes its cgroup's memory."""
    number = process(pod)
    # Killed first, as a pod that requests less than it may use is on any node.
    Path(f"/proc/{number}/oom_score_adj").write_text("1000")
    lines = Path(f"/proc/{number}/cgroup").read_text().splitlines()
    paths = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    v1 = "memory" in paths
    cgroup = CGROUPS / "memory" / paths["memory"][1:] if v1 else CGROUPS / paths[""][1:]
    command = [sys.executable, "-c", HOG, str(cgroup / "cgroup.procs"), f"/proc/{number}"]
    subprocess.run(command, timeout=60, check=False)  # the kernel may kill it, too
