"""What the operator keeps of a pod of a watch DaemonSet: where it runs, and how its container last ended.

The container ends whenever it has something to report, and the kubelet starts it again: its last message
stays in the pod's status until the next end (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.report import unstamp
from nodegauge_operator.core.model import Terminated, terminated_view

CLOCK_DIFFERS = 60.0
"""Seconds between an end by the kubelet's clock and the event that brought it, above which that clock orders
nothing.  Chosen by this project: no status takes so long to arrive, but after an outage."""
SHORT_ID = 12
"""Digits of a container's id that tell the lives of a pod's container apart; as container runtimes do."""


class WatchView(Struct, frozen=True, kw_only=True):
    """A watch pod, trimmed.  `owner_uid`: of the DaemonSet that controls it; `node`: where it is bound.

    `ended`: how its container last ended, None before; `ended_id` tells that end from those before;
    `arrived`: when an event brought it, epoch seconds, 0.0 if a list did.
    """

    name: str
    uid: str
    resource_version: str
    node: str
    owner_uid: str
    created_at: float
    ended: Terminated | None = None
    ended_id: str = ""
    arrived: float = 0.0
    deleting: bool = False
    gone: bool = False

    @property
    def identity(self) -> str:
        """The pod and the life of its container that ended last: each is judged once."""
        return f"{self.uid}/{self.ended_id}"

    def follows(self, identity: str) -> bool:
        """Whether the end with that identity was an earlier one of this pod: the kubelet tells of them in
        their order, whatever its clock says."""
        return identity.startswith(f"{self.uid}/") and identity != self.identity

    def ended_at(self, now: float) -> float:
        """When the container ended, epoch seconds: by the kubelet's clock where that can be true by ours."""
        latest = min(self.arrived or now, now)
        finished_at = self.ended.finished_at if self.ended is not None else 0.0
        return max(min(finished_at or latest, latest), min(self.created_at, now))

    def known_at(self, now: float) -> float:
        """`ended_at`, to compare with other runs; when it arrived, if the node's clock is wrong.  In whole
        seconds, as theirs."""
        ended_at = self.ended_at(now)
        return float(int(self.arrived if self.arrived - ended_at > CLOCK_DIFFERS else ended_at))

    def learned_at(self, now: float) -> float:
        """When the operator knew of it: as `known_at`, unless an event brought it later."""
        return max(self.known_at(now), min(self.arrived, now))


def watch_view(body: Mapping[str, Any], *, gone: bool = False) -> WatchView | None:
    """The view of a v1.Pod of a watch DaemonSet that is bound to a node; None for any other pod."""
    metadata, node = body["metadata"], (body.get("spec") or {}).get("nodeName") or ""
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or ()
    owner = next((o for o in owners if o.get("controller") and o.get("kind") == "DaemonSet"), None)
    if labels.get(names.POD_PROBE) != names.PROBE_WATCH or owner is None or not node:
        return None
    statuses = (body.get("status") or {}).get("containerStatuses") or ()
    container: Mapping[str, Any] = next((c for c in statuses if c.get("name") == names.PROBE_CONTAINER), {})
    ends = ((container.get(state) or {}).get("terminated") for state in ("state", "lastState"))
    ended: Mapping[str, Any] = next((end for end in ends if end), {})
    return WatchView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node=node,
        owner_uid=owner.get("uid") or "",
        created_at=unstamp(metadata.get("creationTimestamp", "")),
        ended=terminated_view(ended or None),
        ended_id=str(ended.get("containerID") or ended.get("finishedAt") or "")[-SHORT_ID:],
        deleting=bool(metadata.get("deletionTimestamp")),
        gone=gone,
    )
