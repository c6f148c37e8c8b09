"""A cluster in memory: an API server with a clock, a scheduler, kubelets, and other people who write."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import support.load_results as load_results
import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import NcclResult, Result
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import reading_admission
from nodegauge_operator.core.model import pod_view
from support import api_server
from support.objects import NOW, addressed, by_pods


def reading_protection(namespace: str) -> tuple[api_server.Body, api_server.Body]:
    user = f"system:serviceaccount:{namespace}:default"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [reading_admission.RULE | {"scope": "Cluster"}]},
        "variables": list(reading_admission.VARIABLES),
        "validations": [
            one | {"expression": one["expression"].replace(reading_admission.PROBE_USER, user)}
            for one in reading_admission.VALIDATIONS
        ],
    }
    return policy, {"policyName": reading_admission.NAME, "validationActions": ["Deny", "Audit"]}


class FakeCluster(api_server.FakeApiServer):
    """An API server with pods that run.  `clock` gives epoch seconds; `pass_time` moves the built-in one."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        right = clock or (lambda: self.now)
        super().__init__(lambda: right() + self.clock_error)
        self.clock_error = 0.0
        self.now = NOW
        self.results: dict[str, Result] = {}
        self.nccl_results: dict[str, Result] = {}
        policy, binding = reading_protection(api_server.NAMESPACE)
        for path, body in ((api_server.ADMISSION, policy), (api_server.BINDINGS, binding)):
            self.create(path, {"metadata": {"name": reading_admission.NAME, "generation": 1}, "spec": body})

    def add_node(
        self, name: str = "node-1", *, boot: str = "boot-1", taints: Iterable[str] = (), **labels: str
    ) -> api_server.Body:
        body = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | labels},
            "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": boot}},
        }
        return self.create(api_server.NODES, body)

    def add_policy(self, name: str = "default", **spec: Any) -> api_server.Body:
        """By pods unless it says otherwise; tests of the rate of new taints and of incidents state them."""
        budget = {"gatedNodesPerHour": "100%"} | spec.pop("budget", {})
        spec = by_pods({"nodeSelector": {}, "budget": budget, "breaker": api_server.NO_BREAKER} | spec)
        body = {"metadata": {"name": name, "generation": 1}, "spec": spec}
        return self.create(api_server.POLICIES, body)

    def change(self, path: str, name: str, patch: api_server.Body, *, sub: str = "") -> api_server.Body:
        return self.patch(path, name, patch, sub=sub, manager="stranger")

    def remove(self, path: str, name: str) -> None:
        uid = self.objects[path][name]["metadata"]["uid"]
        self._remove(path, name)
        if path == api_server.NODES:
            owned = self.objects[api_server.REPORTS].get(name)
            if owned and owned["metadata"]["ownerReferences"][0]["uid"] == uid:
                self._remove(api_server.REPORTS, name)

    def pods(self) -> Iterator[api_server.Body]:
        return iter([api_server.copied(body) for body in self.objects[api_server.PODS].values()])

    def pod_status(self, name: str, status: api_server.Body, *, node: str = "") -> None:
        body = api_server.copied(self.objects[api_server.PODS][name])
        body["status"] = body["status"] | status
        if node:
            body["spec"]["nodeName"] = node
        self._store(api_server.PODS, body, "MODIFIED")

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def result(self, pod: api_server.Body) -> str:
        view = pod_view(pod)
        assert view is not None
        results = {
            names.PROBE_HEALTH: self.results.get(view.node, made.titan()),
            names.PROBE_PULL: Result(probe=names.PROBE_PULL, nccl=NcclResult(engine="nccl4py")),
            names.PROBE_NCCL: self.nccl_results.get(view.node, nccl.titan()),
            names.PROBE_LOAD: load_results.everywhere(of=2),
        }
        return addressed(results[view.probe], view)

    def schedule(self, pod: api_server.Body) -> None:
        self._container(pod, "Running", {"running": {"startedAt": stamp(self.clock())}})

    def write_reading(
        self, node: str, probe: str, document: str, *, pod: api_server.Body, sequence: int = 1
    ) -> None:
        known = self.objects[api_server.NODES].get(node, {"metadata": {"uid": ""}, "status": {}})
        part = {
            "sequence": sequence,
            "at": stamp(self.clock()),
            "reason": "run",
            "pod": pod["metadata"]["name"],
            "podUID": pod["metadata"]["uid"],
            "nodeUID": known["metadata"]["uid"],
            "bootID": known["status"].get("nodeInfo", {}).get("bootID", ""),
            "reading": document,
        }
        if node in self.objects[api_server.READINGS]:
            self.patch(api_server.READINGS, node, {probe: None})
            self.patch(api_server.READINGS, node, {probe: part})
        else:
            self.create(api_server.READINGS, {"metadata": {"name": node}, probe: part})

    def end(self, pod: api_server.Body, document: str, *, code: int = 0) -> None:
        if document:
            node = pod["metadata"]["annotations"][names.POD_NODE]
            self.write_reading(node, pod["metadata"]["labels"][names.POD_PROBE], document, pod=pod)
        ended = {"exitCode": code, "message": "", "reason": "Error" if code else "Completed"}
        ended |= {"finishedAt": stamp(self.clock())}
        self._container(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _container(self, pod: api_server.Body, phase: str, state: api_server.Body) -> None:
        container = {"name": names.PROBE_CONTAINER, "state": state}
        status = {"phase": phase, "containerStatuses": [container]}
        self.pod_status(pod["metadata"]["name"], status, node=pod["metadata"]["annotations"][names.POD_NODE])

    def kubelets(self) -> bool:
        deleted = [pod for pod in self.pods() if pod["metadata"].get("deletionTimestamp")]
        unended = [pod for pod in self.pods() if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        for pod in deleted:
            self.remove(api_server.PODS, pod["metadata"]["name"])
        for pod in unended:
            if pod not in deleted:
                self.end(pod, self.result(pod))
        return bool(deleted or unended)

    def taints(self, name: str = "node-1") -> list[str]:
        taints = self.objects[api_server.NODES][name]["spec"].get("taints") or []
        texts = (f"{t['key'].removeprefix(names.PREFIX)}={t.get('value', '')}:{t['effect']}" for t in taints)
        return [text.replace("=:", ":") for text in texts]

    def faults(self, name: str = "node-1") -> list[str]:
        taints = self.objects[api_server.NODES][name]["spec"].get("taints") or []
        return [taint["value"] for taint in taints if taint["key"] in names.TAINTS_OF_FAULTS]

    def condition(self, kind: str, policy: str = "default") -> api_server.Body:
        """What a policy shows; empty while it has no such condition."""
        conditions = self.objects[api_server.POLICIES][policy]["status"]["conditions"]
        return next((c for c in conditions if c["type"] == kind), {})

    def policy_events(self) -> list[api_server.Body]:
        events = self.objects[api_server.EVENTS].values()
        return [event for event in events if event["involvedObject"]["kind"] == names.POLICY_KIND]

    def tainted_nodes(self) -> set[str]:
        return {name for name in self.objects[api_server.NODES] if self.faults(name)}

    def state(self) -> dict[str, Any]:
        objects = self.objects
        return {
            "nodes": {n: _node_state(b) for n, b in objects[api_server.NODES].items()},
            "reports": {n: _report_state(b) for n, b in objects[api_server.REPORTS].items()},
            "histories": {n: b["status"] for n, b in objects[api_server.HISTORIES].items()},
            "events": sorted(
                (b["involvedObject"]["name"], b["reason"], b["message"])
                for b in objects[api_server.EVENTS].values()
            ),
            "pods": sorted(objects[api_server.PODS]),
        }


def _node_state(body: api_server.Body) -> api_server.Body:
    conditions = {
        c["type"]: {k: v for k, v in c.items() if k not in ("lastHeartbeatTime", "lastTransitionTime")}
        for c in body["status"]["conditions"]
    }
    taints = (body.get("spec") or {}).get("taints") or []
    return {"labels": body["metadata"]["labels"], "taints": taints, "conditions": conditions}


def _report_state(body: api_server.Body) -> api_server.Body:
    status = api_server.copied(body.get("status", {}))
    for probe in status.get("probes", ()):
        for drawn in ("podUID", "podName", "nonce"):
            probe["lastRun"].pop(drawn, None)
        probe.pop("reading", None)
    if status.get("change"):
        status["change"].pop("run")
    return status
