"""Events (events.k8s.io/v1) about nodes; their names make a second post harmless."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.api.report import Change
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import AlreadyExists

NAMESPACE = "default"
"""The API server requires this namespace for events about cluster-scoped objects."""


async def post(client: Client, node: NodeView, change: Change, *, instance: str) -> None:
    """Post the event of a change, unless it has been posted already."""
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": names.event_name(node=node.name, run=change.run, reason=change.reason),
            "namespace": NAMESPACE,
        },
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": change.type,
        "reason": change.reason,
        "note": change.message,
        "action": "Validate",
        "reportingController": "nodegauge.dev/operator",
        "reportingInstance": instance[:128] or "nodegauge",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
    }
    try:
        await client.call("POST", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events", body=body)
    except AlreadyExists:
        return
