"""A cluster with everything that an operator writes, for tests of the clean-up in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

from nodegauge_cli.cleanup import command
from nodegauge_operator import names
from nodegauge_operator.kube.errors import KubeError, NotFound
from nodegauge_operator.kube.workloads import OPERATOR
from support.api_server import HISTORIES, NAMESPACE, NODES, PODS, REPORTS, Body
from support.client import FakeClient, unavailable
from support.cluster import FakeCluster
from support.virtual_time import run

DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
TAINTS = [
    {"key": "theirs", "effect": "NoExecute", "timeAdded": "2026-11-21T03:00:00Z"},
    {"key": names.TAINT_THROTTLED, "value": "thermal", "effect": "NoSchedule"},
    {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"},
    {"key": "nodegauge.dev.example.com/throttled", "value": "x", "effect": "PreferNoSchedule"},
]
MARKS = ["interconnect", names.LABEL_HEALTH, names.TAINT_THROTTLED, names.TAINT_UNVALIDATED]
CONDITION = {"type": names.CONDITION, "status": "True", "reason": "Validated", "message": "fine"}
FOREIGN = [TAINTS[0], TAINTS[3]]
CLEAN: tuple[dict[str, list[str]], list[str], list[str]] = ({}, [], [])


class DirtyCluster(FakeClient):
    """The API server of that cluster, with the operator's Deployments and pods, and a log of all calls."""

    def __init__(self) -> None:
        super().__init__(FakeCluster(lambda: 1_800_000_000.0))
        self.deployments: list[str] = []
        self.operators: dict[str, Body] = {}
        self.dead_kubelets = False
        self.took = 0.0
        self.order: list[str] = []
        for number in range(3):
            self.add(f"node-{number}")
        for name in ("default", "mine"):
            self.cluster.add_policy(name)

    def add(self, name: str) -> None:
        self.cluster.add_node(name, theirs="kept")
        labels = {names.LABEL_HEALTH: "pass", "interconnect": "nvlink"}
        marks = {"metadata": {"labels": labels}, "spec": {"taints": TAINTS}}
        body = self.cluster.patch(NODES, name, marks, manager=names.FIELD_MANAGER)
        self.cluster.patch_conditions(name, {"status": {"conditions": [CONDITION]}})
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": body["metadata"]["uid"]}
        kind = {"apiVersion": names.API_VERSION, "kind": names.REPORT_KIND, "spec": {}}
        self.cluster.create(REPORTS, kind | {"metadata": {"name": name, "ownerReferences": [owner]}})
        self.cluster.create(HISTORIES, {"metadata": {"name": name}})

    def add_probe(self, name: str, *, phase: str = "Running") -> None:
        annotations = {names.POD_NODE: "node-0", names.POD_NODE_UID: "uid", names.POD_RUN: "1"}
        labels = {names.POD_PROBE: names.PROBE_HEALTH}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        self.cluster.create(PODS, {"metadata": metadata, "spec": {"terminationGracePeriodSeconds": 5}})
        self.cluster.pod_status(name, {"phase": phase}, node="node-0")

    def add_operator(self, *, namespace: str = NAMESPACE) -> None:
        name = "operator-1"
        self.operators[name] = {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}}

    async def call(self, method: str, path: str, **options: Any) -> Body:
        self.order.append(f"{method} {path}")
        selected = (options.get("query") or {}).get("labelSelector", "")
        of_operators = "component=operator" in selected or path.rpartition("/")[2] in self.operators
        if not path.startswith(DEPLOYMENTS) and not of_operators:
            return await super().call(method, path, **options)
        if (refusal := self.refuse(method, path)) is not None:
            raise refusal
        match method, path.removeprefix(DEPLOYMENTS).split("/"):
            case "GET", [""]:
                return {"items": [{"metadata": {"name": name}} for name in self.deployments]}
            case "PATCH", ["", name, "scale"]:
                if name not in self.deployments:
                    raise NotFound(name, status=404)
                assert options["body"] == {"spec": {"replicas": 0}}
                self._stop()
                return {"status": {"selector": OPERATOR}}
            case "DELETE", _:
                name = path.rpartition("/")[2]
                assert options["body"]["preconditions"] == {"uid": f"uid-{name}"}
                assert options["body"]["gracePeriodSeconds"] == 0
                del self.operators[name]
                return {}
        here = [o for o in self.operators.values() if path in ("/api/v1/pods", PODS)]
        return {"items": [o for o in here if path != PODS or o["metadata"]["namespace"] == NAMESPACE]}

    def _stop(self) -> None:
        own = {k: v for k, v in self.operators.items() if v["metadata"]["namespace"] == NAMESPACE}
        for name, body in own.items():
            if self.dead_kubelets:
                gone = {"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": 30}
                body["metadata"] |= gone
            else:
                del self.operators[name]

    def clean(self, **options: Any) -> float:
        wanted: dict[str, Any] = {"namespace": NAMESPACE, "within": 120.0, "dry_run": False}
        wanted |= dict.fromkeys(("deployment", "release", "policy"), "")

        async def work() -> None:
            try:
                await command.clean(self, **(wanted | options))
            finally:
                self.took = asyncio.get_running_loop().time()

        run(work())
        return self.took

    def marks(self) -> dict[str, list[str]]:
        marks = {}
        for name, body in self.cluster.objects[NODES].items():
            labels = set(body["metadata"]["labels"]) & {names.LABEL_HEALTH, "interconnect"}
            conditions = {c["type"] for c in body["status"]["conditions"]} & {names.CONDITION}
            taints = {t["key"] for t in body["spec"]["taints"]} & names.NODE_TAINTS.keys()
            if labels | taints | conditions:
                marks[name] = sorted(labels | taints | conditions)
            assert body["metadata"]["labels"]["theirs"] == "kept"
            assert [t for t in body["spec"]["taints"] if t["key"] not in names.NODE_TAINTS] == FOREIGN
        return marks

    def left(self) -> tuple[dict[str, list[str]], list[str], list[str]]:
        objects = self.cluster.objects
        return self.marks(), sorted(objects[REPORTS] | objects[HISTORIES]), sorted(objects[PODS])


def failing(
    times: int, where: str, error: Callable[[], KubeError | None] = unavailable
) -> Callable[..., KubeError | None]:
    """Refuses the first `times` calls whose "VERB path" holds `where`; without an error they only happen."""
    left = [times]

    def refuse(verb: str, path: str) -> KubeError | None:
        if where in f"{verb} {path}" and left[0]:
            left[0] -= 1
            return error()
        return None

    return refuse
