"""The bare loops that the operator is compared with: the same client, as many writes, in flight as many.

They decide nothing, remember nothing, watch nothing, and do not even decode the answers.

`patches`: the naive yardstick, a merge patch of the node's labels for every write.  `same_writes`: the kinds
of writes that the operator makes when a node's first run has ended, in its order: patch the report's status,
patch the node's labels and its condition, post the event, delete the pod.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import quote

from loadtest import objects
from loadtest.figures import Rate
from loadtest.population import in_flight, pods_path
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Report
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube.client import MERGE, STRATEGIC, Client

Object = dict[str, Any]

NODES = "/api/v1/nodes"
REPORTS = f"/apis/{names.API_VERSION}/{names.REPORT_PLURAL}"
EVENTS = "/api/v1/namespaces/default/events"
MANAGER = {"fieldManager": "loadtest"}
LONG_SECONDS = 120.0
"""For deleting all reports in one call."""
AT = "2026-11-01T08:00:00Z"


async def patches(client: Client, nodes: Sequence[NodeView], *, each: int, at_a_time: int, mark: str) -> Rate:
    """`each` patches of every node's labels, every one of them a change."""

    async def work(node: NodeView) -> None:
        for number in range(each):
            labels = {f"load.example/label-{key}": f"{mark}-{number}" for key in range(5)}
            await client.call(
                "PATCH",
                f"{NODES}/{node.name}",
                query=MANAGER,
                body={"metadata": {"labels": labels}},
                content_type=MERGE,
            )

    seconds, cpu = await _timed(in_flight(nodes, work, at_a_time=at_a_time))
    return Rate(nodes=len(nodes), writes=len(nodes) * each, seconds=seconds, cpu=cpu)


class SameWrites:
    """The operator's kinds of writes on nodes that it will not see: under other names and keys."""

    def __init__(
        self, client: Client, *, policy: Policy, result: Result, namespace: str, at_a_time: int
    ) -> None:
        self._client = client
        self._policy = policy
        self._result = result
        self._namespace = namespace
        self._at_a_time = at_a_time

    async def run(self, nodes: Sequence[NodeView], *, mark: str) -> Rate:
        """The writes of a first run on every node; the reports are removed before and after, untimed."""
        await self._client.call("DELETE", REPORTS, within=LONG_SECONDS)
        pods = {node.name: await self._pod(node, mark) for node in nodes}
        for node in nodes:
            await self._client.call("POST", REPORTS, query=MANAGER, body=_report(node))
        status = objects.report_status(nodes[0], self._result, policy=self._policy, now=time.time())
        writes = 0

        async def work(node: NodeView) -> None:
            nonlocal writes
            for method, path, body, content_type in self._writes(node, status, pods[node.name], mark):
                query = MANAGER if method != "DELETE" else None
                await self._client.call(method, path, query=query, body=body, content_type=content_type)
                writes += 1

        seconds, cpu = await _timed(in_flight(nodes, work, at_a_time=self._at_a_time))
        await self._client.call("DELETE", REPORTS, within=LONG_SECONDS)
        return Rate(nodes=len(nodes), writes=writes, seconds=seconds, cpu=cpu)

    async def _pod(self, node: NodeView, mark: str) -> str:
        report = Report(name=node.name, uid="", resource_version="", node_uid=node.uid)
        pod = objects.pod_body(node, policy=self._policy, report=report, namespace=self._namespace)
        del pod["metadata"]["labels"][names.POD_PROBE], pod["metadata"]["ownerReferences"]
        pod["metadata"]["name"] += f"-{mark}"
        await self._client.call("POST", pods_path(self._namespace), body=pod)
        return str(pod["metadata"]["name"])

    def _writes(
        self, node: NodeView, status: Object, pod: str, mark: str
    ) -> list[tuple[str, str, Object, str]]:
        report = quote(node.name)
        taken = status["desired"]["labels"]
        labels = {f"load.example/{key.rpartition('/')[2]}": f"{value}-{mark}" for key, value in taken.items()}
        condition = {
            "type": "BenchValidated",
            "status": "True",
            "reason": "Validated",
            "message": f"{status['summary']} {mark}",
            "lastHeartbeatTime": AT,
            "lastTransitionTime": AT,
        }
        return [
            ("PATCH", f"{REPORTS}/{report}/status", {"status": status}, MERGE),
            ("PATCH", f"{NODES}/{node.name}", {"metadata": {"labels": labels}}, MERGE),
            ("PATCH", f"{NODES}/{node.name}/status", {"status": {"conditions": [condition]}}, STRATEGIC),
            ("POST", EVENTS, _event(node, status["summary"], mark), "application/json"),
            ("DELETE", pods_path(self._namespace, pod), {"gracePeriodSeconds": 0}, "application/json"),
        ]


async def _timed(work: Awaitable[None]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time of this process."""
    started, cpu = time.monotonic(), time.process_time()
    await work
    return time.monotonic() - started, time.process_time() - cpu


def _report(node: NodeView) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.REPORT_KIND,
        "metadata": {"name": node.name, "ownerReferences": [owner]},
        "spec": {},
    }


def _event(node: NodeView, note: str, mark: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node.name}.{mark}", "namespace": "default"},
        "eventTime": "2026-11-01T08:00:00.000000Z",
        "type": "Normal",
        "reason": "Validated",
        "message": note,
        "action": "Validate",
        "reportingComponent": "load.example/loop",
        "reportingInstance": "loadtest",
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
    }
