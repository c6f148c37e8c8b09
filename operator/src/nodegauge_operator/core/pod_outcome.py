"""How a run ended, by the reading that it left or by its pod: read, unknown, skipped, or still running.

Promise 1 is kept here: only a reading that decodes and names this very run is `read`.  Any other end is
`unknown` with a reason and a message, or `skipped` if the node was too full or busy to run it.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import ContractError, ProblemKind, Result, decode
from nodegauge_operator import names
from nodegauge_operator.api.policy import Limits, seconds
from nodegauge_operator.api.report import Outcome, Run
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.reading_view import PartView

NO_ROOM = ("OutOf", "Preempting")
"""Prefixes of the reasons for which a kubelet refuses a pod: its admission found the node full (OutOfcpu,
OutOfpods, ...), or a critical pod needed the room (kubernetes, pkg/kubelet/lifecycle and
pkg/kubelet/preemption)."""

CREATE_REFUSED = "CreateRefused"
"""The reason of a run whose pod the API server refused to create: a webhook, a quota, missing rights."""

OF_IMAGE = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"),
        *("RegistryUnavailable", "SignatureValidationFailed"),
    }
)
"""Reasons of a pod whose image did not come (kubernetes, pkg/kubelet/images/types.go)."""

NOT_WRITTEN = "the reading is not written"
"""How the message of a probe begins that could not reach the API server, or was refused there."""

TERMINATED = "Terminated"
"""The reason of a run that a SIGTERM ended, by its own document."""

NEVER_RAN = "ContainerStatusUnknown"
"""What a kubelet writes for a container that it ended before it ran (while pulling the image, say)."""


class RunEnd(Struct, frozen=True, kw_only=True):
    """The end of one run."""

    outcome: Outcome
    """read, unknown or skipped."""
    reason: str
    """One word in PascalCase."""
    message: str = ""
    """For people; empty if it was read."""
    result: Result | None = None
    """The document; only with outcome read."""
    finished_at: float = 0.0
    """When it was read, epoch seconds; 0.0: when it was looked at."""


def of_reading(part: PartView, pod: PodView, *, node: str, now: float) -> RunEnd:
    """The end of a run that left this reading: when the node's clock says, but after its pod was made and
    before it arrived, which after a gap of a watch is late."""
    end = checked(part, run=names.run_of_pod(pod.name), probe=pod.probe, node=node, now=now)
    end = replace(end, finished_at=min(max(min(part.at, end.finished_at), pod.created_at), now))
    cut_short = end.reason == TERMINATED or (end.result is not None and end.result.problem is not None)
    return (_no_room(pod) or end) if cut_short else end


def checked(part: PartView, *, run: str, probe: str, node: str, now: float) -> RunEnd:
    """Whether the document can be read, and is of this run of this probe."""
    at = part.known_at(now)
    try:
        result = decode(part.text)
    except ContractError as error:
        reason, message = "ResultUnreadable", str(error)[:400]
        return RunEnd(outcome=Outcome.UNKNOWN, reason=reason, message=message, finished_at=at)
    if (result.run, result.node, result.probe) != (run, node, probe):
        received = f"probe {result.probe[:40]!r} run {result.run[:40]!r} node {result.node[:80]!r}"
        message = f"the result is of {received}; expected probe {probe!r} run {run!r} node {node!r}"
        return RunEnd(outcome=Outcome.UNKNOWN, reason="WrongRun", message=message, finished_at=at)
    problem = result.problem
    if problem is not None and problem.kind == ProblemKind.TERMINATED:
        message = problem.message or "ended by SIGTERM"
        return RunEnd(outcome=Outcome.UNKNOWN, reason=TERMINATED, message=message, finished_at=at)
    return RunEnd(outcome=Outcome.READ, reason="Read", result=result, finished_at=at)


def ending(pod: PodView, *, limits: Limits, deadline: float, now: float) -> RunEnd | None:
    """How the run of a pod ended that left no reading, or None while it goes on.

    `deadline` and `now` in seconds.  A run ends on our container's terminated state, not on the pod's phase
    (sidecars).  A pod that is gone or was disrupted ends it too.
    """
    if pod.terminated is not None:
        return _no_room(pod) or _of_message(pod)
    no_room = _no_room(pod)
    if no_room is not None:
        return no_room
    if pod.gone or pod.deleting_since:
        return RunEnd(
            outcome=Outcome.UNKNOWN, reason="PodDeleted", message="the pod was deleted before it ended"
        )
    if pod.finished:
        reason = pod.reason or "PodFailed"
        return RunEnd(
            outcome=Outcome.UNKNOWN, reason=reason, message=pod.message or "the pod ended without a result"
        )
    return _overdue(pod, limits=limits, deadline=deadline, now=now)


def is_refused(run: Run | None) -> bool:
    """Whether the run was not made for a reason that is not the node's: its pod was refused, or its image did
    not come."""
    if run is None or run.outcome is not Outcome.UNKNOWN:
        return False
    return run.reason == CREATE_REFUSED or run.reason in OF_IMAGE


def wake_at(pod: PodView, *, limits: Limits, deadline: float) -> float:
    """Epoch seconds at which `ending` has to be asked again if nothing happens to the pod before."""
    if not pod.scheduled:
        return pod.created_at + seconds(limits.not_scheduled)
    if not pod.started_at:
        return pod.created_at + seconds(limits.not_started)
    return started_at(pod, limits=limits) + deadline + seconds(limits.overtime)


def started_at(pod: PodView, *, limits: Limits) -> float:
    """When the container started, epoch seconds: by the kubelet's clock where that can be true by ours."""
    return max(pod.created_at, min(pod.started_at, pod.created_at + seconds(limits.not_started)))


def _no_room(pod: PodView) -> RunEnd | None:
    """The end of a run that the node had no room for, or none to go on with; None for any other."""
    if pod.disrupted.startswith("Preempt"):
        return RunEnd(
            outcome=Outcome.SKIPPED, reason="Preempted", message="a pod of higher priority preempted it"
        )
    if pod.finished and pod.reason.startswith(NO_ROOM):
        return RunEnd(
            outcome=Outcome.SKIPPED, reason=pod.reason, message=pod.message or "the node had no room"
        )
    return None


def _waits_for(pod: PodView) -> str:
    return ": ".join(part for part in (pod.pending_reason, pod.pending_message) if part)


def _overdue(pod: PodView, *, limits: Limits, deadline: float, now: float) -> RunEnd | None:
    if now < wake_at(pod, limits=limits, deadline=deadline):
        return None
    waited = f"after {now - pod.created_at:.0f} s"
    detail = _waits_for(pod)
    if not pod.scheduled:
        return RunEnd(
            outcome=Outcome.SKIPPED,
            reason="NotScheduled",
            message=f"not scheduled {waited}: {detail or 'no reason'}",
        )
    if not pod.started_at:
        return RunEnd(
            outcome=Outcome.UNKNOWN,
            reason=pod.pending_reason or "NotStarted",
            message=f"the probe did not start {waited}: {detail or 'no reason given'}",
        )
    return RunEnd(
        outcome=Outcome.UNKNOWN,
        reason="KubeletSilent",
        message=f"still running {waited}, beyond its deadline of {deadline:.0f} s: check the node's kubelet",
    )


def _of_message(pod: PodView) -> RunEnd:
    """Why the probe, the container runtime or the kubelet says that there is no reading."""
    ended = pod.terminated
    assert ended is not None
    how = f"exit code {ended.exit_code}" + (f", {ended.reason}" if ended.reason else "")
    if ended.reason == NEVER_RAN and pod.pending_reason:
        text = f"the probe did not start before its deadline: {_waits_for(pod)}"
        return RunEnd(outcome=Outcome.UNKNOWN, reason=pod.pending_reason, message=text[:400])
    if pod.reason == "DeadlineExceeded" and not ended.message:
        return RunEnd(
            outcome=Outcome.UNKNOWN,
            reason="DeadlineExceeded",
            message="the pod reached its deadline and left no message",
        )
    reason = ended.reason if ended.reason not in ("", "Completed", "Error") else "NoReading"
    if reason == "NoReading" and ended.message.startswith(NOT_WRITTEN):
        reason = "NotWritten"
    text = f"{ended.message[:400]} ({how})" if ended.message else f"the probe left no reading ({how})"
    return RunEnd(outcome=Outcome.UNKNOWN, reason=reason, message=text)
