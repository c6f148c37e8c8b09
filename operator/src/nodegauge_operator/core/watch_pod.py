"""What the operator keeps of a pod of a watch DaemonSet: whose it is, and where it runs.

What its container read is in the node's NodeReading (`readings`), which names the pod by its UID.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.times import unstamp

MAX_REASON = 200
"""Characters of a reason that are kept: the kubelet's message about an image repeats its name."""


class WatchView(Struct, frozen=True, kw_only=True):
    """A pod of a watch DaemonSet, trimmed."""

    name: str
    """Its name."""
    uid: str
    """Its UID, which the parts that it writes name."""
    resource_version: str
    """Version that was read."""
    node: str
    """The node that it is bound to, or is made for."""
    owner_uid: str
    """UID of the DaemonSet that controls it."""
    created_at: float
    """Epoch seconds."""
    trust: str = ""
    """The admission policy for which it was made."""
    ready: bool = False
    """Its container has written a reading."""
    waits_for: str = ""
    """Why its container does not run, in the kubelet's or the scheduler's words; empty for no reason."""
    started_at: float = 0.0
    """Since when its container runs, epoch seconds; 0.0 while it does not."""
    restarts: int = 0
    """How often its container was started again."""
    lived: float = 0.0
    """How long its container ran the last time, seconds."""
    gone: bool = False
    """It was deleted; this is the last that was seen of it."""


def watch_view(body: Mapping[str, Any], *, gone: bool = False) -> WatchView | None:
    """The view of a v1.Pod that a DaemonSet controls for a node; None for any other pod."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    node = spec.get("nodeName") or _made_for(spec)
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or ()
    owner = next((o for o in owners if o.get("controller") and o.get("kind") == "DaemonSet"), None)
    if labels.get(names.POD_PROBE) != names.PROBE_WATCH or owner is None or not node:
        return None
    return WatchView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node=node,
        owner_uid=owner.get("uid") or "",
        created_at=unstamp(metadata.get("creationTimestamp", "")),
        trust=(metadata.get("annotations") or {}).get(names.POD_TRUST, ""),
        gone=gone,
        **_running(body.get("status") or {}),
    )


def _made_for(spec: Mapping[str, Any]) -> str:
    """The node for which the DaemonSet controller made a pod, before the scheduler has bound it (kubernetes,
    pkg/controller/daemon/util: ReplaceDaemonSetPodNodeNameNodeAffinity); empty if it does not say."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    fields = (f for term in required.get("nodeSelectorTerms") or () for f in term.get("matchFields") or ())
    return next((f["values"][0] for f in fields if f.get("key") == "metadata.name" and f.get("values")), "")


def _running(status: Mapping[str, Any]) -> dict[str, Any]:
    """Whether its container runs and has written, and why it does not."""
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    box: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or () if c.get("name") == names.PROBE_CONTAINER), {}
    )
    state, ended = box.get("state") or {}, (box.get("lastState") or {}).get("terminated") or {}
    placed = conditions.get("PodScheduled") or {}
    why = state.get("waiting") or (placed if placed.get("status") == "False" else status)
    parts = (str(why.get(part) or "") for part in ("reason", "message"))
    return {
        "ready": (conditions.get("Ready") or {}).get("status") == "True",
        "waits_for": ": ".join(part for part in parts if part)[:MAX_REASON],
        "started_at": unstamp((state.get("running") or {}).get("startedAt", "")),
        "restarts": int(box.get("restartCount") or 0),
        "lived": max(0.0, unstamp(ended.get("finishedAt", "")) - unstamp(ended.get("startedAt", ""))),
    }
