"""What the node carries of ours, and how a run is asked for: what steps and trials share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from e2e.world import REPORTS, World

PREFIX = "nodegauge.dev/"
HEALTHY = {
    "interconnect": "nvlink",
    f"{PREFIX}interconnect": "nvlink",
    f"{PREFIX}nvlink-gbps": "450",
    f"{PREFIX}health": "pass",
}
"""H100 SXM: 18 links of 25 GB/s each way (NVIDIA's data sheet), all of them up."""
POLICY = "/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default"
FINDINGS_WITHIN = 120.0


def labels(world: World) -> dict[str, str]:
    """Our labels on the node."""
    found = world.node_object()["metadata"].get("labels", {})
    return {k: v for k, v in found.items() if k.startswith(PREFIX) or k == "interconnect"}


def taints(world: World) -> list[str]:
    """Our taints on the node."""
    return [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for taint in world.node_object()["spec"].get("taints") or ()
        if taint["key"].startswith(PREFIX)
    ]


def ask(world: World) -> str:
    """Ask for a run, as anybody may; the request's mark."""
    world.asked = max(world.asked + timedelta(seconds=1), datetime.now(UTC))
    mark = world.asked.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.api.patch(f"{REPORTS}/{world.node.name}", {"spec": {"requestedAt": mark}})
    return mark


def probe(world: World, name: str = "health") -> dict[str, Any]:
    """The status of one probe in the node's report; empty before its first run."""
    found: list[dict[str, Any]] = world.report().get("probes") or []
    return next((one for one in found if one["name"] == name), {})


def last_run(world: World, name: str = "health") -> dict[str, Any]:
    """How the last run of a probe ended; empty before the first."""
    found: dict[str, Any] = probe(world, name).get("lastRun") or {}
    return found


def answered(world: World) -> str:
    """The request that the last judged run answered."""
    return str(probe(world).get("request", ""))


def measure(world: World, *, within: float = FINDINGS_WITHIN) -> dict[str, Any]:
    """Ask for a run and wait until it is judged; how it ended."""
    mark = ask(world)
    world.until(lambda: answered(world) == mark, seconds=within, what="the run's judgement")
    return last_run(world)
