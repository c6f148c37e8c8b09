"""How the resident container of a node does, from its pods alone: does it run, stay and write?"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.watch_pod import WatchView

RESTARTS, SHORT_LIFE = 3, 600.0
"""A container restarts for ever if it was started again so often, and ran for less than so many seconds both
before the last time and since: a kubelet takes one that ran for ten minutes for well, and starts its
back-off anew (kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle, "Container restarts")."""


class Watcher(StrEnum):
    """The container of one node."""

    READY = "ready"
    """It runs and writes."""
    STARTING = "starting"
    """It does not write yet, and still has time."""
    MISSING = "missing"
    """None runs, and its time is over."""
    RESTARTING = "restarting"
    """It ends again and again."""
    LATE = "late"
    """It runs, and has written nothing in time."""
    UNJUDGED = "unjudged"
    """It writes, and the operator does not judge it."""
    NOT_EXPECTED = "not-expected"
    """The node can run none now: it is not ready, cordoned, leaving, or its driver is being changed."""
    HELD_OFF = "held-off"
    """It takes jobs, while its labels have said for too long that its driver is being changed."""


HELD_OFF_SECONDS = 3600.0
"""Chosen by this project: the GPU Operator changes a driver or a MIG layout within minutes, and on a cordoned
node."""
BAD = (Watcher.MISSING, Watcher.RESTARTING, Watcher.LATE, Watcher.UNJUDGED)
"""States in which health pods read the node, the commonest cause first."""


class Look(Struct, frozen=True, kw_only=True):
    """What one look at a node's pods says; `why`: in words, empty for nothing to say."""

    state: Watcher
    why: str = ""


def is_expected(node: NodeView) -> bool:
    """Whether a container should run there: a drain may have just ended that of a cordoned node."""
    return node.may_run and not node.unschedulable


def not_expected(node: NodeView) -> Look:
    """A node that can run no container now, and whether it takes jobs all the same."""
    idle = not node.ready or not node.runs_probes or node.leaving or node.unschedulable
    state = Watcher.NOT_EXPECTED if idle else Watcher.HELD_OFF
    return Look(state=state, why="" if idle else f"label {node.driver_change}")


def look(pods: Iterable[WatchView], *, trusted: str, now: float, unjudged: str = "") -> Look:
    """The container of a node that should have one, by its DaemonSet's pods there; nothing is still starting,
    which only time tells.  `trusted`: the admission policy under which readings count; `unjudged`: the pod
    whose reading waits to be judged, by UID."""
    there = [pod for pod in pods if not pod.gone]
    restarting = next((pod for pod in there if _restarts(pod, now)), None)
    if restarting is not None:
        why = f"{restarting.restarts} restarts, the last after {restarting.lived:.0f} s"
        return Look(state=Watcher.RESTARTING, why=why)
    if any(pod.ready and pod.trust == trusted for pod in there):
        waits = any(pod.uid == unjudged for pod in there)
        return Look(state=Watcher.UNJUDGED) if waits else Look(state=Watcher.READY)
    if any(pod.ready for pod in there):
        return Look(
            state=Watcher.LATE,
            why="its pod is older than the admission policy of readings, and waits "
            "to be replaced: nothing that it writes counts",
        )
    if any(pod.started_at for pod in there):
        return Look(state=Watcher.LATE, why="it runs and writes nothing")
    why = next((pod.waits_for for pod in there if pod.waits_for), "its pod does not start")
    return Look(state=Watcher.MISSING, why=why if there else "no pod was made")


def _restarts(pod: WatchView, now: float) -> bool:
    young = not pod.started_at or now - pod.started_at < SHORT_LIFE
    return pod.restarts >= RESTARTS and pod.lived < SHORT_LIFE and young
