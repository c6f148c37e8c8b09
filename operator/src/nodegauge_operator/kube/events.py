"""Events about nodes and policies; their names make a second post harmless.

They are core/v1 events with legacy timestamps: `kubectl describe` sorts by `lastTimestamp` alone
(kubectl, pkg/util/event/sorted_event_list.go), and the API server refuses one in events.k8s.io/v1
(kubernetes, pkg/apis/core/validation/events.go).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import AlreadyExists

NAMESPACE = "default"
"""The API server requires this namespace for events about cluster-scoped objects."""


async def post(client: Client, node: NodeView, change: Change, *, instance: str, now: float) -> None:
    """Post the event of a change at `now` (epoch seconds), unless it has been posted already."""
    involved = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    await _post(client, involved, change, instance=instance, now=now)


async def post_of_policy(
    client: Client, policy: Policy, change: Change, *, instance: str, now: float
) -> None:
    """The same of an event regarding a policy."""
    kind = {"apiVersion": names.API_VERSION, "kind": names.POLICY_KIND}
    involved = kind | {"name": policy.name, "uid": policy.uid}
    await _post(client, involved, change, instance=instance, now=now)


async def _post(
    client: Client, involved: dict[str, str], change: Change, *, instance: str, now: float
) -> None:
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": names.event_name(node=involved["name"], run=change.run, reason=change.reason),
            "namespace": NAMESPACE,
        },
        "eventTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
        "type": change.type,
        "reason": change.reason,
        "message": change.message,
        "action": "Validate",
        "source": {"component": "nodegauge"},
        "reportingComponent": "nodegauge.dev/operator",
        "reportingInstance": instance[:128] or "nodegauge",
        "involvedObject": involved,
    }
    try:
        await client.call("POST", f"/api/v1/namespaces/{NAMESPACE}/events", body=body)
    except AlreadyExists:
        return
