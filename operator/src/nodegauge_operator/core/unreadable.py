"""Which failed runs speak of the node itself, and whether one counts for its gate (ADRs 0019 and 0043).

The state is said from the first such run on (`ProbeStatus.unreadable`).  The taint needs several, each with a
control that shows that the rest works: another node of the policy was read, or this node's own probe had
answered before.  An image, a registry or a driver roll-out that breaks all nodes taints none.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodegauge_judge import Cause, Finding
from nodegauge_operator import names
from nodegauge_operator.api.policy import Effect, seconds
from nodegauge_operator.api.report import GateStatus, Outcome, ReportStatus, Unreadable
from nodegauge_operator.api.times import stamp, unstamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.report_size import cut

MAX_MESSAGE = 500
SILENT = frozenset({"DeadlineExceeded", "KubeletSilent"})
"""Reasons of a run's end: silent until its deadline, and beyond it (a process that cannot be killed)."""
HARD_REASONS = SILENT | {
    "NoReading",  # it crashed, was killed by a signal, or could not write
    "ResultUnreadable",
    "StartError",  # the runtime's hook, which asks the driver, failed
    "ContainerCannotRun",
    "CreateContainerError",
    "RunContainerError",
}
"""Reasons of a run's end.  A pod that was evicted, refused or not started in time speaks of the cluster, and
one that ran out of memory of its limit."""
ANSWERLESS = ("call-hung", "gpu-unreadable")
"""Findings that the node's own probe wrote: it ran, and reached the API server, but the driver did not
answer.  Only these can do without a peer that was read."""
HARD_FINDINGS = (*ANSWERLESS, "driver-not-loaded", "driver-mismatch", "probe-deadline")
"""Findings that leave a node unjudged.  GPUs or a driver that the container was not given speak of the
installation, and a probe that crashed in its own code of the probe."""
SOFT = frozenset({*ANSWERLESS, "probe-deadline"}) | SILENT
"""What counts unless the policy asks for the cause: a driver that does not answer.  A roll-out of a driver, a
runtime or an image gives the others."""


def noted(
    context: Context, ended: EndedRun, findings: Sequence[Finding], *, driver: str
) -> Unreadable | None:
    """What the report says of a node after a run that read nothing; `driver`: the one that answered, if any.

    `ended` may speak of the cluster, or come while the node may not be read (not ready, its driver is being
    changed): it neither begins nor ends what the node's own failures began.
    """
    probe, symptom = context.status.probe[HEALTH], _symptom(ended.end, findings)
    before = probe.unreadable
    if not symptom or not context.may_run or (before is not None and before.symptom == symptom):
        return before
    message = cut(ended.end.message, MAX_MESSAGE)
    if before is not None:
        return Unreadable(
            symptom=symptom, since=before.since, message=message, read_before=before.read_before
        )
    same_image = probe.image == ended.image and not probe.unread
    same_driver = not driver or driver == context.status.gpus.driver
    read_before = bool(probe.read_at) and same_image and same_driver and not context.rebooted_since(probe)
    since = stamp(ended.end.finished_at or context.now)
    return Unreadable(symptom=symptom, since=since, message=message, read_before=read_before)


def gates_after(
    context: Context, after: ReportStatus, end: RunEnd, findings: Sequence[Finding]
) -> list[GateStatus]:
    """The gates after a health run that read nothing; `after`: the status with what it says of the node;
    `findings`: why its result could not be judged."""
    policy, failed = context.policy, _symptom(end, findings)
    asked = policy.effects[Cause.UNREADABLE] is not Effect.NONE
    if Cause.UNREADABLE in policy.spec.taints.soft:
        asked = asked and failed in SOFT
    if not (failed and asked and context.may_run):
        return context.status.gates
    if not (_peers_were_read(context) or _answered_before(context, after.probe[HEALTH].unreadable)):
        return context.status.gates
    numbers = policy.spec.hysteresis
    return gates.after_failure(
        context.status.gates, symptom=failed, message=end.message, policy=numbers, now=context.now
    )


def _symptom(end: RunEnd, findings: Sequence[Finding]) -> str:
    """What failed, in a word that is the same for the same failure; empty for what speaks of no node."""
    if end.outcome is not Outcome.UNKNOWN:
        return ""
    code = next((finding.code for finding in findings if finding.code in HARD_FINDINGS), "")
    return code or (end.reason if end.reason in HARD_REASONS else "")


def _peers_were_read(context: Context) -> bool:
    """Another node of the policy was read since the last failure that counted; for the first: within an
    interval."""
    known = (gate for gate in context.status.gates if gate.code in gates.UNREAD and gate.bad)
    since = context.now - context.policy.interval_of(names.PROBE_HEALTH)
    since = max((gate.bad_epoch for gate in known), default=since)
    return context.last_peer_read() > since


def _answered_before(context: Context, unreadable: Unreadable | None) -> bool:
    """The node is its own control: the same probe and driver had read it, now the driver alone does not
    answer, and no other node of the policy became unreadable with it or since."""
    if unreadable is None or not unreadable.read_before or unreadable.symptom not in ANSWERLESS:
        return False
    together = unstamp(unreadable.since) - seconds(context.policy.spec.breaker.window)
    return context.last_peer_unreadable() < together
