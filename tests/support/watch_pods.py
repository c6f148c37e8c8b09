"""A watch pod on a cluster in memory: its container ends when a test says so, and is started again."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nodegauge_contract import Result, encode_message
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from support.api_server import DAEMONSETS, PODS, Body
from support.cluster import FakeCluster


class WatchPod:
    """A pod of the policy's DaemonSet, bound to a node; `owner`: another UID than the DaemonSet's."""

    def __init__(self, cluster: FakeCluster, node: str = "node-1", *, owner: str = "") -> None:
        self._cluster, self.node = cluster, node
        ((name, made),) = cluster.objects[DAEMONSETS].items()
        uid = owner or made["metadata"]["uid"]
        self.restarts, self.ahead = 0, 0.0
        """`ahead`: seconds of the node's clock before the operator's."""
        body: Body = {
            "metadata": {
                "name": f"{name}-{node}-{len(cluster.objects[PODS])}",
                "labels": made["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [{"kind": "DaemonSet", "name": name, "uid": uid, "controller": True}],
            },
            "spec": {"nodeName": node},
        }
        self.uid = cluster.create(PODS, body)["metadata"]["uid"]
        self.name = body["metadata"]["name"]

    def reports(self, result: Result, *, later: float = 20.0, **other: Any) -> None:
        """The container ends with this reading, `later` seconds after what was before."""
        given = {"run": self.uid, "node": self.node, "probe": "health"} | other
        self.ends(encode_message(replace(result, **given)), later=later)

    def ends(self, message: str, *, later: float = 20.0, code: int = 0, reason: str = "Completed") -> None:
        """The container ends so, and runs again."""
        self._cluster.pass_time(later)
        self.stopped(message, code=code, reason=reason)
        self.started()

    def stopped(self, message: str, *, code: int = 0, reason: str = "Completed") -> None:
        """The container has ended."""
        self.restarts += 1
        ended = {
            "exitCode": code,
            "reason": reason,
            "message": message,
            "finishedAt": stamp(self._cluster.clock() + self.ahead),
            "containerID": f"containerd://{self.restarts:064x}",
        }
        self._ended = {"terminated": ended}
        self._status({"state": self._ended})

    def started(self) -> None:
        """It runs again."""
        running = {"running": {"startedAt": stamp(self._cluster.clock())}}
        self._status({"state": running, "lastState": self._ended, "restartCount": self.restarts})

    def _status(self, container: Body) -> None:
        """The kubelet's write."""
        statuses = [{"name": names.PROBE_CONTAINER} | container]
        self._cluster.pod_status(self.name, {"phase": "Running", "containerStatuses": statuses})
