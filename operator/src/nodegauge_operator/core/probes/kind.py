"""What the operator knows of one kind of probe: everything that differs between kinds is a method here.

A new kind is a module beside this one and an entry in `registry.KINDS`; no module outside of this package
branches on a probe's name.  A kind without pods derives from `Kind` alone and stands in
`registry.READINGS`.

What kinds share of their schedules is here too: a request for now, and the pause after a failed run.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from nodegauge_operator.api.policy import Budget, Limits, Policy
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus, Run, unstamp
from nodegauge_operator.core import pod_outcome
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.pod_outcome import RunEnd


class Pool(Struct, frozen=True, kw_only=True):
    """Probe pods that share one concurrency budget.  `setting`: the policy's count or percentage of nodes."""

    name: str
    setting: Callable[[Budget], int | str]


class Wait(Struct, frozen=True, kw_only=True):
    """A node that wants a slot: `since` when, epoch seconds (0.0 goes first), for a run of `probe` in this
    `image` (empty for kinds that do not start slowly)."""

    since: float
    probe: str = ""
    image: str = ""


class EndedRun(Struct, frozen=True, kw_only=True):
    """A run that ended: number, pod and start in `run`, how it ended in `end`, the `spec.requestedAt` that it
    answers, its image, and the part of the NodeReading that it left, empty for none."""

    run: Run
    end: RunEnd
    request: str = ""
    image: str = ""
    reading: str = ""

    @property
    def identity(self) -> str:
        """What tells it from other runs."""
        return self.reading or self.run.pod_uid


class Kind(ABC):
    """One kind of reading.  An instance has no state."""

    name: str
    """The name in the report; of a probe also the value of its pods' label and the program's command."""
    event_prefix = ""
    """Starts each event about a run of this kind."""
    announces_verdict = True
    """A changed verdict is an event; a failed first run is one for every kind."""

    @abstractmethod
    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        """The status after a run that ended; `context.node` is the node as it was when it was planned."""

    def event_suffix(self, before: ReportStatus, after: ReportStatus) -> str:
        """What an event about a readable run adds to the summary."""
        return ""


class ProbeKind(Kind):
    """A kind whose runs are pods on the node."""

    pool: Pool
    holds_gpus = False
    """Its pod reserves all GPUs of the node.  Runs in an image that few nodes have run start slowly."""
    in_background = False
    """Its pod holds no GPU, opens no NVML and may take half an hour."""
    ignores_background = False
    """It does not wait for a background pod to end."""

    @abstractmethod
    def deadline(self, policy: Policy) -> float:
        """Seconds that one run may take."""

    def limits(self, policy: Policy) -> Limits:
        """When the operator ends a pod of this kind itself."""
        return policy.spec.limits

    @abstractmethod
    def due_at(self, context: Context) -> float:
        """When the next run may start, epoch seconds; 0.0 for at once, `NEVER` for not at all."""

    def waits_since(self, context: Context) -> float:
        """What orders the nodes that wait for a slot, epoch seconds: the smallest goes first."""
        return self.due_at(context)

    def wait(self, context: Context) -> Wait:
        """What the node waits for if a run of this kind is due."""
        since = self.waits_since(context)
        if not self.holds_gpus:
            return Wait(since=since)
        return Wait(since=since, probe=self.name, image=self.image(context))

    def image(self, context: Context) -> str:
        """The image of its pod, as the policy or the installation names it."""
        return context.policy.spec.pod_template.image or context.defaults.image

    @abstractmethod
    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        """The parts of the pod's spec that differ from those in `pod`; None removes one."""

    def ending(self, pod: PodView, context: Context) -> RunEnd | None:
        """How the pod's run ended; None while it goes on.  A reading is its end, whatever becomes of the
        pod; but why it was ended early is told by the pod, which may be seen after its last words."""
        policy, part = context.policy, context.part(self.name)
        trusted = pod.trust == context.trusted and not context.distrust
        limits, deadline = self.limits(policy), self.deadline(policy)
        of_pod = pod_outcome.ending(pod, limits=limits, deadline=deadline, now=context.now)
        if trusted and part is not None and part.pod_uid == pod.uid:
            end = pod_outcome.of_reading(part, pod, node=context.node.name, now=context.now)
            return end if of_pod is not None or end.reason != pod_outcome.TERMINATED else None
        if not trusted and pod.terminated is not None:
            message = (
                context.distrust or "the admission policy of NodeReadings has changed: the run is made again"
            )
            return RunEnd(outcome=Outcome.UNKNOWN, reason="ReadingsUnprotected", message=message)
        return of_pod


def shown_change(what: str, before: str, after: str) -> str:
    """`what: before -> after`; empty if both read the same, whatever differs behind them."""
    return "" if before == after else f"{what}: {before} -> {after}"


AT_ONCE = 0.0


def wanted_now(context: Context, probe: ProbeStatus) -> bool:
    """The probe never ran, somebody asked for a run since, or the node rebooted since."""
    last = probe.last_run
    if last is None or requested(context, probe):
        return True
    return bool(last.boot_id and context.node.boot_id) and last.boot_id != context.node.boot_id


def requested(context: Context, probe: ProbeStatus) -> bool:
    """Somebody asked for a run by `spec.requestedAt`, and it has not been made yet."""
    return bool(context.report.requested_at) and context.report.requested_at != probe.request


def finished_at(probe: ProbeStatus) -> float:
    """When the last run ended, epoch seconds; 0.0 before the first."""
    return unstamp(probe.last_run.finished_at) if probe.last_run else 0.0


def backed_off(probe: ProbeStatus, *, first: float, most: float) -> float:
    """Seconds to wait after runs that read nothing: `first`, then twice that each time, up to `most`."""
    return min(most, first * doubled(probe.unread))


def share_of(node: str) -> float:
    """The node's own share of an interval, 0 to 1: first runs at these shares are spread over the nodes, and
    the same after each restart.  CRC-32 of the name (RFC 1952), which is the same on every Python."""
    return zlib.crc32(node.encode()) / 2**32


def doubled(times: int) -> float:
    """1, 1, 2, 4, ... up to 1024 for 0, 1, 2, 3, ... times."""
    return float(1 << min(max(0, times - 1), 10))
