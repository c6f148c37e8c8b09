"""What alerts say of one node: each cause of a confirmed fault once, and that nobody reads the node.

Made of the same `Fault`s as condition, event and `nodegauge explain`.  Nothing is said of a node that a
person speaks for (an override in force), nor of a fault that an incident holds back: that has an alert of its
own.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_judge import CATALOGUE, Cause
from nodegauge_judge.rule import NEXT, filled
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import BEST_FIRST, GateState, ProbeStatus, ReportStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.context import HEALTH
from nodegauge_operator.core.faults import faults
from nodegauge_operator.core.gates import FIRST_IN_LINE, LAST_IN_LINE, UNREAD
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.report_size import cut

CAUSE_UNREAD = "unread"
"""The cause of a node that nobody reads, beside the causes of taints."""
NOT_READY, NEVER_READ, STALE = "not-ready", "never-read", "stale"
"""Why nobody reads it, where its probe does not say (`Unreadable.symptom`)."""
MOST = 400
"""Bytes of what was measured, and of the next step.  Chosen by this project: a text message holds them."""
FEW = 2
"""GPUs whose serial numbers and addresses are labels."""
_LOOK_AT_NODE = "`kubectl describe node NODE`: its conditions say what the kubelet lacks."
_LOOK_AT_REPORT = "`kubectl describe nodereport NODE`: lastRun of the probe health says why no run was read."


class Alert(Struct, frozen=True, kw_only=True):
    """One cause on one node."""

    taint: str = ""
    """`unhealthy` or `throttled`, whether or not it stands; empty for a node that nobody reads."""
    cause: str
    """The taint's value, or `unread`."""
    code: str
    """That of the worst finding of this cause, or why nobody reads the node."""
    gpu: str = ""
    """Index of the GPU; several with commas; empty if it is about none."""
    serial: str = ""
    """Of the GPU, or of both of a pair, with a comma; empty if it is about more."""
    pci: str = ""
    """Likewise."""
    taint_state: str = ""
    """`set`, or why the taint is not set; empty for a node that nobody reads."""
    measured: str
    """What was measured, with its numbers."""
    since: str = ""
    """The first run that showed it.  RFC 3339, UTC; empty if unknown."""
    next_step: str
    """The first thing to do."""

    @property
    def turn(self) -> int:
        """The worst cause has the smallest; a node that nobody reads comes last."""
        return FIRST_IN_LINE.get(self.cause, LAST_IN_LINE)


def alerts(status: ReportStatus, node: NodeView, policy: Policy) -> tuple[Alert, ...]:
    """What is to be said of the node now, the worst first.  `policy`: as it is in force there."""
    if status.override is not None and not status.override.problem:
        return ()
    incidents = {gate.code for gate in status.gates if gate.incident and gate.state is GateState.HELD_BACK}
    by_cause: dict[str, Alert] = {}
    for fault in faults(status, policy=policy, node=node.name) if status.gates else ():
        if fault.cause and GateState(fault.state).entered and fault.code not in incidents:
            by_cause.setdefault(fault.cause, _of_fault(fault, node.name))
    unread = _unread(status, node, policy) if Cause.UNREADABLE not in by_cause else None
    of_node = [*by_cause.values(), *([unread] if unread is not None else [])]
    return tuple(sorted(of_node, key=lambda alert: alert.turn))


def why_unread(status: ReportStatus, node: NodeView, policy: Policy) -> str:
    """Why nobody reads the node, in a word; empty if somebody does, or it was taken away on purpose."""
    if policy.paused or not policy.spec.probes.health.enabled:
        return ""
    if not node.may_run:
        away = node.unschedulable or node.leaving or node.driver_changing or not node.runs_probes
        return "" if away else NOT_READY
    probe = status.probe[HEALTH]
    if probe.unreadable is not None:
        return probe.unreadable.symptom
    if status.raw_verdict in BEST_FIRST:
        return ""
    return STALE if probe.read_at else NEVER_READ


def _of_fault(fault: Fault, node: str) -> Alert:
    few = fault.gpus if len(fault.gpus) <= FEW else []
    on = f"On {fault.scope}, such as this: " if fault.locations > 1 and fault.scope else ""
    on = on if fault.gpus or fault.worst in fault.measured else f"{fault.worst}: "
    also = f" Also: {fault.also}." if fault.also else ""
    return Alert(
        taint=fault.taint.partition("=")[0],
        cause=fault.cause,
        code=fault.code,
        gpu=",".join(str(gpu.index) for gpu in fault.gpus if gpu.index is not None),
        serial=",".join(gpu.serial for gpu in few if gpu.serial),
        pci=",".join(gpu.pci for gpu in few if gpu.pci),
        taint_state="set" if fault.tainted else fault.no_taint,
        measured=cut(f"{on}{fault.measured or fault.title}{also}", MOST),
        since=fault.since,
        next_step=_step(fault.next_step, node),
    )


def _unread(status: ReportStatus, node: NodeView, policy: Policy) -> Alert | None:
    code, probe = why_unread(status, node, policy), status.probe[HEALTH]
    if not code:
        return None
    [of_gate] = UNREAD
    by_probe = probe.unreadable.since if probe.unreadable is not None else ""
    since, step = {
        NOT_READY: (stamp(node.ready_since), _LOOK_AT_NODE),
        NEVER_READ: (stamp(node.created_at), _LOOK_AT_REPORT),
        STALE: (probe.read_at, _LOOK_AT_REPORT),
    }.get(code, (by_probe, CATALOGUE[code if code in CATALOGUE else of_gate].next_step))
    return Alert(
        cause=CAUSE_UNREAD,
        code=code,
        measured=cut(_why(code, probe), MOST),
        since=since,
        next_step=_step(step, node.name),
    )


def _why(code: str, probe: ProbeStatus) -> str:
    if code == NOT_READY:
        return "The node is not Ready."
    last = probe.last_run.message if probe.last_run is not None else ""
    message = probe.unreadable.message if probe.unreadable is not None else last
    return message.partition(NEXT)[0] or ("No run has ended yet." if probe.last_run is None else code)


def _step(text: str, node: str) -> str:
    return cut(filled(text, gpus=(), evidence={}, node=node), MOST)
