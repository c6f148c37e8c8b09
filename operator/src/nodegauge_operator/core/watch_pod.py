"""What the operator keeps of a pod of a watch DaemonSet: whose it is, and where it runs.

What its container read is in the node's NodeReading (`readings`), which names the pod by its UID.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.report import unstamp


class WatchView(Struct, frozen=True, kw_only=True):
    """A pod of a watch DaemonSet, trimmed."""

    name: str
    """Its name."""
    uid: str
    """Its UID, which the parts that it writes name."""
    resource_version: str
    """Version that was read."""
    node: str
    """The node that it is bound to."""
    owner_uid: str
    """UID of the DaemonSet that controls it."""
    created_at: float
    """Epoch seconds."""
    trust: str = ""
    """The admission policy for which it was made."""
    gone: bool = False
    """It was deleted; this is the last that was seen of it."""


def watch_view(body: Mapping[str, Any], *, gone: bool = False) -> WatchView | None:
    """The view of a v1.Pod of a watch DaemonSet that is bound to a node; None for any other pod."""
    metadata, node = body["metadata"], (body.get("spec") or {}).get("nodeName") or ""
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
    )
