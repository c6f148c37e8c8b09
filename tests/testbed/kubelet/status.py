"""What a kubelet says about a pod, as pkg/kubelet of Kubernetes 1.37 does (getPhase, TerminatePod)."""

from dataclasses import dataclass, field

from testbed.rest import Object

CRASH_LOOP = "CrashLoopBackOff"
DEADLINE = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


def waiting(reason: str = "ContainerCreating", message: str = "") -> Object:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def running(started: str) -> Object:
    return {"running": {"startedAt": started}}


def terminated(code: int, reason: str, message: str, **more: str) -> Object:
    texts = {"message": message, **more}
    return {"terminated": {"exitCode": code, "reason": reason} | {k: v for k, v in texts.items() if v}}


def lost() -> Object:
    message = "The container could not be located when the pod was terminated"
    return terminated(137, "ContainerStatusUnknown", message)


@dataclass
class Record:
    """One container as its status shows it; `last` is empty before its second life."""

    name: str
    image: str
    state: Object = field(default_factory=waiting)
    last: Object = field(default_factory=dict)
    restarts: int = 0
    container_id: str = ""
    ready: bool = False
    started: bool = False

    @property
    def ended(self) -> bool:
        return "terminated" in self.state

    @property
    def has_run(self) -> bool:
        """Whether it runs or has run; a container that could not be started has not."""
        return bool(self.last) if "waiting" in self.state else bool(self.container_id)

    def render(self) -> Object:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image if self.container_id else "",
            "containerID": self.container_id,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last,
        }


def phase(records: list[Record], *, over: bool) -> str:
    """Final only when no container runs any more or will again (`over`), as kubelets do since 1.27."""
    if over:
        good = all(record.state.get("terminated", {}).get("exitCode") == 0 for record in records)
        return "Succeeded" if good else "Failed"
    return "Running" if all(record.has_run for record in records) else "Pending"


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
    return [
        condition(kind, str(value), reason, message, before=before, now=now) | {"lastProbeTime": None}
        for kind, value, reason, message in result
    ]


def condition(
    kind: str, status: str, reason: str | None, message: str | None, *, before: list[Object], now: str
) -> Object:
    since = [c["lastTransitionTime"] for c in before if (c["type"], c["status"]) == (kind, status)]
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since[0] if since else now,
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
    """As a strategic merge patch wants it.  `late`: the pod ends by its deadline."""
    current = "Failed" if late else phase(records, over=over)
    begun = any(record.container_id for record in records)
    status: Object = {
        "observedGeneration": pod["metadata"].get("generation"),
        "phase": current,
        "reason": DEADLINE if late else None,
        "message": DEADLINE_MESSAGE if late else None,
        "startTime": started,
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "conditions": conditions(current, records, before=before, now=now),
        "containerStatuses": [record.render() for record in records],
    }
    return status | ({"podIP": address, "podIPs": [{"ip": address}]} if begun else {})
