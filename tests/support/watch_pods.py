"""A watch pod on a cluster in memory: its container writes when a test says so."""

from typing import Any

from msgspec.structs import replace

from nodegauge_contract import Result, text
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from support.api_server import DAEMONSETS, PODS, Body
from support.cluster import FakeCluster


class WatchPod:
    def __init__(self, cluster: FakeCluster, node: str = "node-1", *, owner: str = "") -> None:
        self._cluster, self.node = cluster, node
        ((name, made),) = cluster.objects[DAEMONSETS].items()
        uid = owner or made["metadata"]["uid"]
        self.sequence = 0
        body: Body = {
            "metadata": {
                "name": f"{name}-{node}-{len(cluster.objects[PODS])}",
                "labels": made["spec"]["template"]["metadata"]["labels"],
                "annotations": made["spec"]["template"]["metadata"]["annotations"],
                "ownerReferences": [{"kind": "DaemonSet", "name": name, "uid": uid, "controller": True}],
            },
            "spec": {"nodeName": node},
        }
        self.body = cluster.create(PODS, body)
        self.becomes(ready=True)
        self.uid, self.name = self.body["metadata"]["uid"], self.body["metadata"]["name"]

    def becomes(self, *, ready: bool, **box: Any) -> None:
        condition = {"type": "Ready", "status": str(ready)}
        state = {"running": {"startedAt": stamp(self._cluster.clock())}}
        box = {"name": names.PROBE_CONTAINER, "state": state} | box
        status: Body = {"phase": "Running", "conditions": [condition], "containerStatuses": [box]}
        self._cluster.patch(PODS, self.body["metadata"]["name"], {"status": status})

    def reports(self, result: Result, *, later: float = 20.0, **other: Any) -> None:
        given = {"run": self.uid, "node": self.node, "probe": "health"} | other
        self.writes(text(replace(result, **given)), later=later)

    def writes(self, document: str, *, later: float = 20.0) -> None:
        self._cluster.pass_time(later)
        self.sequence += 1
        self._cluster.write_reading(
            self.node, names.PROBE_HEALTH, document, pod=self.body, sequence=self.sequence
        )
