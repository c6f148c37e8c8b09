"""The labels and taints that nodegauge set on the node, and how to request a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from e2e.cluster import REPORTS, Cluster

PREFIX = "nodegauge.dev/"
HEALTHY = {
    "interconnect": "nvlink",
    f"{PREFIX}interconnect": "nvlink",
    f"{PREFIX}nvlink-gbps": "450",
    f"{PREFIX}health": "pass",
}
"""H100 SXM: 18 links of 25 GB/s each way (NVIDIA's data sheet), all of them up."""
POLICY = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default"


def labels(cluster: Cluster) -> dict[str, str]:
    """Our labels on the node."""
    result = cluster.node_object()["metadata"].get("labels", {})
    return {k: v for k, v in result.items() if k.startswith(PREFIX) or k == "interconnect"}


def taints(cluster: Cluster) -> list[str]:
    """Our taints on the node."""
    return [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for taint in cluster.node_object()["spec"].get("taints") or ()
        if taint["key"].startswith(PREFIX)
    ]


def ask(cluster: Cluster) -> str:
    """Ask for a run, as anybody may; the request's mark."""
    cluster.asked = max(cluster.asked + timedelta(seconds=1), datetime.now(UTC))
    mark = cluster.asked.strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.api.patch(f"{REPORTS}/{cluster.node.name}", {"spec": {"requestedAt": mark}})
    return mark


def probe(cluster: Cluster, name: str = "health") -> dict[str, Any]:
    """The status of one probe in the node's report; empty before its first run."""
    result: list[dict[str, Any]] = cluster.report().get("probes") or []
    return next((one for one in result if one["name"] == name), {})


def last_run(cluster: Cluster, name: str = "health") -> dict[str, Any]:
    """How the last run of a probe ended; empty before the first."""
    result: dict[str, Any] = probe(cluster, name).get("lastRun") or {}
    return result


def answered(cluster: Cluster) -> str:
    """The request that the last judged run answered."""
    return str(probe(cluster).get("request", ""))


def measure(cluster: Cluster) -> dict[str, Any]:
    """Ask for a run and wait until it is judged; how it ended."""
    mark = ask(cluster)
    cluster.until(lambda: answered(cluster) == mark, what="the run's judgement")
    return last_run(cluster)
