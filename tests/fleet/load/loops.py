"""The bare loop that the operator is compared with: the same client, the same writes, in flight as many.

It decides nothing, remembers nothing and watches nothing.  Its writes are those of a result that shows
another machine: patch the evidence, the report's status, the node's labels and its condition, post the event;
and those of a result that shows the same: patch the report's status.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import to_builtins

from fleet.load import objects
from fleet.load.figures import CHANGED, SAME, Cost, Relist
from fleet.load.population import in_flight
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes.kind import AfterRun
from nodegauge_operator.kube.client import MERGE, STRATEGIC, Client, connect
from nodegauge_operator.kube.errors import NotFound
from nodegauge_operator.kube.reports import difference, without_nulls
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.resync import list_all
from nodegauge_operator.reconcile.watch_sets import WatchPods
from testbed.controlplane import ControlPlane

Object = dict[str, Any]
Call = tuple[str, str, Object, str]
"""Method, path, body and content type."""

NODES = "/api/v1/nodes"
REPORTS = f"/apis/{names.API_VERSION}/{names.REPORT_PLURAL}"
EVIDENCE = f"/apis/{names.API_VERSION}/{names.EVIDENCE_PLURAL}"
EVENTS = "/api/v1/namespaces/default/events"
JSON = "application/json"
MANAGER = {"fieldManager": "loadtest"}
AT = "2026-11-01T08:00:00Z"


class BareLoop:
    """The operator's kinds of writes on nodes that it will not see: under other names and keys."""

    def __init__(self, client: Client, *, policy: Policy, at_a_time: int) -> None:
        self._client = client
        self._policy = policy
        self._at_a_time = at_a_time

    async def run(self, nodes: Sequence[NodeView], *, mark: str) -> dict[str, Cost]:
        """Both kinds on every node.  The reports are made before and deleted after, untimed."""
        await self._delete(nodes, mark)
        machines = [objects.h100(), objects.other_boards(), objects.other_boards()]
        first, changed, same = objects.statuses(nodes[0], machines, policy=self._policy, now=time.time())
        before = [_plain(first.status), _plain(changed.status)]
        for node in nodes:
            await self._client.call("POST", REPORTS, query=MANAGER, body=_report(node))
            path = f"{REPORTS}/{quote(node.name)}/status"
            await self._call("PATCH", path, {"status": before[0]}, MERGE)
        of_changed = difference(before[0], before[1])
        of_same = difference(before[1], _plain(same.status))
        result = {
            CHANGED: await self._timed(nodes, lambda node: self._changed(node, changed, of_changed, mark)),
            SAME: await self._timed(nodes, lambda node: [_patched_report(node, of_same)]),
        }
        await self._delete(nodes, mark)
        return result

    async def _delete(self, nodes: Sequence[NodeView], mark: str) -> None:
        """The reports of these nodes, also the operator's, and the evidence beside them."""
        for node in nodes:
            for path in (f"{REPORTS}/{node.name}", f"{EVIDENCE}/{node.name}-{mark}"):
                with contextlib.suppress(NotFound):
                    await self._client.call("DELETE", path)

    def _changed(self, node: NodeView, after: AfterRun, patch: Object, mark: str) -> list[Call]:
        status = after.status
        labels = {
            f"load.example/{k.rpartition('/')[2]}": f"{v}-{mark}" for k, v in status.desired.labels.items()
        }
        condition = {
            "type": "BenchValidated",
            "status": "True",
            "reason": "Validated",
            "message": f"{status.summary} {mark}",
            "lastHeartbeatTime": AT,
            "lastTransitionTime": AT,
        }
        evidence = {
            "apiVersion": names.API_VERSION,
            "kind": names.EVIDENCE_KIND,
            "metadata": {"name": f"{node.name}-{mark}"},
            "probes": {names.PROBE_HEALTH: without_nulls(to_builtins(after.evidence))},
        }
        return [
            ("POST", EVIDENCE, evidence, JSON),
            _patched_report(node, patch),
            ("PATCH", f"{NODES}/{node.name}", {"metadata": {"labels": labels}}, MERGE),
            ("PATCH", f"{NODES}/{node.name}/status", {"status": {"conditions": [condition]}}, STRATEGIC),
            ("POST", EVENTS, _event(node, status.summary, mark), JSON),
        ]

    async def _timed(self, nodes: Sequence[NodeView], calls: Callable[[NodeView], list[Call]]) -> Cost:
        """Seconds by the clock, and of CPU time of this process."""
        writes = 0

        async def work(node: NodeView) -> None:
            nonlocal writes
            for call in calls(node):
                await self._call(*call)
                writes += 1

        started, cpu = time.monotonic(), time.process_time()
        await in_flight(nodes, work, at_a_time=self._at_a_time)
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        return Cost(results=len(nodes), writes=writes, seconds=seconds, cpu=cpu)

    async def _call(self, method: str, path: str, body: Object, content_type: str) -> None:
        await self._client.call(method, path, query=MANAGER, body=body, content_type=content_type)


def _plain(status: ReportStatus) -> Object:
    plain: Object = without_nulls(to_builtins(status))
    return plain


def _patched_report(node: NodeView, patch: Object) -> Call:
    return "PATCH", f"{REPORTS}/{quote(node.name)}/status", {"status": patch}, MERGE


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


_SIZES = re.compile(r"^apiserver_response_sizes_sum\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_RESOURCE = re.compile(r'(?:^|,)resource="(?P<resource>[^"]+)"')


async def relist(plane: ControlPlane, *, namespace: str) -> Relist:
    """A full list when nothing was missed: the operator's own code, a second time on the same cache.
    Bytes are the API server's own count of its answers (`apiserver_response_sizes`)."""
    client = await connect(environ={"KUBECONFIG": str(plane.kubelet_kubeconfig)})
    cache = Cache()
    watch_pods = WatchPods(cache)
    try:
        await list_all(client, cache, namespace=namespace, node_selector="", watch_pods=watch_pods)
        before = _sizes(plane)
        started, cpu = time.monotonic(), time.process_time()
        await list_all(client, cache, namespace=namespace, node_selector="", watch_pods=watch_pods)
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    finally:
        await client.close()
    sizes = {resource: count - before[resource] for resource, count in _sizes(plane).items()}
    listed = {resource: count for resource, count in sizes.items() if resource in LISTED}
    return Relist(bytes=dict(sorted(listed.items(), key=lambda item: -item[1])), seconds=seconds, cpu=cpu)


LISTED = ("nodes", "pods", "nodereports", "gpuvalidationpolicies")


def _sizes(plane: ControlPlane) -> Mapping[str, int]:
    """Bytes of answers so far, by resource."""
    text = str(plane.rest().get("/metrics")["message"])
    result: Counter[str] = Counter()
    for match in _SIZES.finditer(text):
        resource = _RESOURCE.search(match["labels"])
        if resource is not None:
            result[resource["resource"]] += int(float(match["value"]))
    return result
