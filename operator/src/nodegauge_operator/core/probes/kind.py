"""What the operator knows of one kind of probe: everything that differs between kinds is a method here.

A new kind is a module beside this one and a line in `registry`; no module outside of this package branches on
a kind's name, but for health, which every node has.  A kind without pods derives from `Kind` alone.

What kinds share of their schedules is here too: a request for now, and the pause after a failed run.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from nodegauge_judge.rule import Rule
from nodegauge_operator.api.policy import Budget, Limits, Policy
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus, Run
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core import pod_outcome
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.driver_access import Needs
from nodegauge_operator.core.gpu_eligibility import PASSING, Hindrance
from nodegauge_operator.core.label import Label
from nodegauge_operator.core.model import PodView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason


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
    """A run that ended: number, pod and start in `run`, how it ended in `end`, the request that it
    answers, its image, the part of the NodeReading that it left, empty for none, and the node's boot when it
    was planned, empty for the present one."""

    run: Run
    end: RunEnd
    request: str = ""
    image: str = ""
    reading: str = ""
    boot_id: str = ""


class Kind(ABC):
    """One kind of reading.  An instance has no state."""

    name: str
    """The name in the report; of a probe also the value of its pods' label and the program's command."""
    title = ""
    """Starts each sentence about a reading of this kind; empty for health."""
    reads = True
    """Its runs read the node, so that their verdict counts and ages."""
    needs_node = True
    """Its runs have to wait for a node that is away, full or paused."""
    announces_verdict = True
    """A changed verdict is an event; a failed first run is one for every kind."""
    rules: tuple[Rule[Any], ...] = ()
    """What its runs can find."""
    labels: tuple[Label, ...] = ()
    """What its readings put on the node."""
    peer_value: Callable[[ReportStatus], tuple[str, float] | None] | None = None
    """Of a report: the fingerprint of the hardware and the value that the judge compares between nodes with
    the same; None for a node without one."""

    @property
    def event_prefix(self) -> str:
        """Starts each event about a run of this kind."""
        return f"{self.title}: " if self.title else ""

    def asked_for(self, context: Context) -> bool:
        """Whether policy and installation ask for it."""
        settings = getattr(context.policy.spec.probes, self.name, None)
        return settings is None or bool(settings.enabled)

    def interval(self, context: Context) -> float:
        """Seconds between two readings."""
        return context.policy.interval_of(self.name)

    def run_interval(self, context: Context) -> float:
        """Seconds between two runs by pods; failed readings are counted in these."""
        return context.policy.run_interval_of(self.name)

    def same_machine(self, context: Context) -> bool:
        """Whether its last reading is of the machine as it is now."""
        return True

    def hindrance(self, context: Context) -> Hindrance | None:
        """Why no run can be made on the node, if runs are asked for at all."""
        return None

    def is_wanted(self, context: Context) -> bool:
        """Runs are asked for, and at most a passing hindrance keeps them off this node."""
        why = self.hindrance(context)
        return self.asked_for(context) and (why is None or why.reason in PASSING)

    @abstractmethod
    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        """The status after a run that ended; `context.node` is the node as it was when it was planned."""

    def at_look(self, context: Context) -> ReportStatus:
        """The status as policy, node and time have it now, without another run."""
        return context.status

    def news(self, context: Context) -> EndedRun | None:
        """A reading that no pod of a run brought and that was not judged yet; None for none."""
        return None

    def event_suffix(self, before: ReportStatus, after: ReportStatus) -> str:
        """What an event about a readable run adds to the summary."""
        return ""

    def announcement(self, before: ReportStatus, after: ReportStatus) -> tuple[Reason, str] | None:
        """Reason and type of the event that a readable run deserves whatever its verdict; None for none."""
        return None

    def amounts(self, status: ReportStatus) -> Mapping[tuple[str, str], float]:
        """What the node adds to gauges of its policy: by member of `Metrics` and by label, empty for none."""
        return {}

    def at_condition(self, status: ReportStatus) -> str:
        """A sentence for the node's condition beside verdict and gates; empty for none."""
        return ""

    def of_unread_node(self, context: Context) -> str | None:
        """What a reading that stands adds to its findings on a node that the health probe cannot read; None
        where it says nothing of such a node."""
        return None


class ProbeKind(Kind):
    """A kind whose runs are pods on the node."""

    pool: Pool
    holds_gpus = False
    """Its pod reserves all GPUs of the node.  Runs in an image that few nodes have run start slowly."""
    in_background = False
    """Its pod holds no GPU, opens no NVML and may take half an hour."""
    ignores_background = False
    """It does not wait for a background pod to end."""

    @property
    def needs(self) -> Needs:
        """What its pod needs of the GPUs."""
        return Needs.GPUS if self.holds_gpus else Needs.DRIVER

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
        policy, part = context.policy, context.unjudged_part(self.name)
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
    """Somebody asked for a run of this probe (`Report.request_of`), and it has not been made yet."""
    asked = context.report.request_of(probe.name)
    return bool(asked) and asked != probe.request


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
