"""What a kubelet says about a pod: container states, phase and conditions, as pure functions.

The rules follow pkg/kubelet (getPhase, status/generate.go, TerminatePod) of Kubernetes 1.36 for the cases
that can occur here.  Times come in as strings; nothing is read from anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

CREATING = "ContainerCreating"
CRASH_LOOP = "CrashLoopBackOff"
LOST = "ContainerStatusUnknown"
LOST_MESSAGE = "The container could not be located when the pod was terminated"
LOST_CODE = 137
DEADLINE = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


@dataclass(frozen=True)
class Waiting:
    """Not started; `reason` as `kubectl get pods` shows it."""

    reason: str = CREATING
    message: str = ""

    def render(self) -> Object:
        text = {"reason": self.reason, "message": self.message}
        return {"waiting": {key: value for key, value in text.items() if value}}


@dataclass(frozen=True)
class Running:
    """Running since `started`."""

    started: str

    def render(self) -> Object:
        return {"running": {"startedAt": self.started}}


@dataclass(frozen=True, kw_only=True)
class Terminated:
    """Over, with the container's last words in `message`."""

    code: int
    reason: str
    message: str = ""
    started: str | None = None
    finished: str | None = None
    container_id: str = ""

    def render(self) -> Object:
        text = {
            "exitCode": self.code,
            "reason": self.reason,
            "message": self.message or None,
            "startedAt": self.started,
            "finishedAt": self.finished,
            "containerID": self.container_id or None,
        }
        return {"terminated": {key: value for key, value in text.items() if value is not None}}


@dataclass
class Record:
    """One container as its status shows it."""

    name: str
    image: str
    state: Waiting | Running | Terminated = Waiting()
    last: Terminated | None = None
    restarts: int = 0
    container_id: str = ""
    ready: bool = False
    started: bool = False

    def render(self) -> Object:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image if self.container_id else "",
            "containerID": self.container_id,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state.render(),
            "lastState": self.last.render() if self.last else {},
        }


def lost() -> Terminated:
    """The end of a container that nobody saw ending."""
    return Terminated(code=LOST_CODE, reason=LOST, message=LOST_MESSAGE)


def remember(record: Record, known: Object) -> None:
    """Continue from what an earlier kubelet wrote: what ran then is lost, since no process outlives it."""
    record.restarts = known.get("restartCount", 0)
    state = known.get("state", {})
    if "running" in state:
        record.state = lost()
        record.container_id = known.get("containerID", "")
    elif end := state.get("terminated"):
        record.container_id = end.get("containerID", "")
        record.state = Terminated(
            code=end["exitCode"],
            reason=end.get("reason", ""),
            message=end.get("message", ""),
            started=end.get("startedAt"),
            finished=end.get("finishedAt"),
            container_id=end.get("containerID", ""),
        )


def phase(records: list[Record], *, over: bool) -> str:
    """Pending, Running, Succeeded or Failed.

    A final phase is shown only when no container runs any more or will again (`over`), as kubelets do since
    1.27; until then a container's own end is to be read from its state.
    """
    if over:
        good = all(isinstance(record.state, Terminated) and record.state.code == 0 for record in records)
        return "Succeeded" if good else "Failed"
    return "Running" if all(_has_run(record) for record in records) else "Pending"


def _has_run(record: Record) -> bool:
    """Whether it runs or has run; a container that could not be started has not."""
    if isinstance(record.state, Waiting):
        return record.last is not None
    return isinstance(record.state, Running) or bool(record.container_id)


def conditions(phase_now: str, records: list[Record], *, before: list[Object], now: str) -> list[Object]:
    """The kubelet's conditions; the transition time changes only with the status."""
    done = phase_now in ("Succeeded", "Failed")
    why = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase_now)
    unready = [record.name for record in records if not record.ready]
    ready = not done and not unready
    created = any(record.container_id for record in records) and not done
    text = None if ready or done else f"containers with unready status: [{' '.join(unready)}]"
    blocked = None if ready else why or "ContainersNotReady"
    result = [
        ("PodReadyToStartContainers", created, None, None),
        ("Initialized", True, "PodCompleted" if phase_now == "Succeeded" else None, None),
        ("Ready", ready, blocked, text),
        ("ContainersReady", ready, blocked, text),
        ("PodScheduled", True, None, None),
    ]
    known = {condition["type"]: condition for condition in before}
    return [
        _condition(kind, "True" if value else "False", reason, message, known.get(kind), now)
        for kind, value, reason, message in result
    ]


def _condition(
    kind: str, status: str, reason: str | None, message: str | None, known: Object | None, now: str
) -> Object:
    same = known is not None and known["status"] == status
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": known["lastTransitionTime"] if same and known else now,
    }


def pod_status(
    pod: Object,
    records: list[Record],
    *,
    over: bool,
    late: bool,
    before: list[Object],
    started: str,
    host: str,
    address: str,
    now: str,
) -> Object:
    """The whole status as a strategic merge patch wants it (conditions merge by type, null removes).

    `late`: the pod ends by its deadline, not by its containers.  `host`, `address`: the node's and the pod's.
    """
    current = "Failed" if late else phase(records, over=over)
    begun = any(record.container_id for record in records)
    # A pod that is deleted before it has run keeps the conditions that it had.
    shown = current if begun or late or not pod["metadata"].get("deletionTimestamp") else "Pending"
    status: Object = {
        "observedGeneration": pod["metadata"].get("generation"),
        "phase": current,
        "reason": DEADLINE if late else None,
        "message": DEADLINE_MESSAGE if late else None,
        "startTime": started,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "conditions": conditions(shown, records, before=before, now=now),
        "containerStatuses": [record.render() for record in records],
    }
    if begun:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return status
