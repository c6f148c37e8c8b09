"""Which failed runs speak of the node itself, and whether one counts for its gate (ADR 0019).

Missing data changes nothing unless the policy asks for the cause `unreadable`.  Then failures count that only
the node or its driver can explain, and only while other nodes of the policy are read: an image, a registry or
a driver rollout that breaks all nodes taints none.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodegauge_judge import Cause, Finding
from nodegauge_operator import names
from nodegauge_operator.api.policy import Effect
from nodegauge_operator.api.report import GateStatus, Outcome
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.pod_outcome import RunEnd

HARD_REASONS = frozenset(
    {
        "DeadlineExceeded",  # silent until its deadline
        "KubeletSilent",  # beyond it: a process that cannot be killed
        "NoReading",  # it crashed, was killed by a signal, or could not write
        "ResultUnreadable",
        "StartError",  # the runtime's hook, which asks the driver, failed
        "ContainerCannotRun",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons of a run's end.  A pod that was evicted, refused or not started in time speaks of the cluster, and
one that ran out of memory of its limit."""
HARD_FINDINGS = ("call-hung", "driver-not-loaded", "driver-mismatch", "probe-deadline", "gpu-unreadable")
"""Findings that leave a node unjudged.  GPUs or a driver that the container was not given speak of the
installation, and a probe that crashed in its own code of the probe."""


def after_failure(context: Context, end: RunEnd, findings: Sequence[Finding] = ()) -> list[GateStatus]:
    """The gates after a health run that read nothing; `findings`: why its result could not be judged."""
    status, policy = context.status, context.policy
    failed = _symptom(end, findings)
    asked = policy.spec.taints.effect_of(Cause.UNREADABLE) is not Effect.NONE
    if not (failed and asked and context.may_run and _peers_were_read(context)):
        return status.gates
    return gates.after_failure(
        status.gates, symptom=failed, message=end.message, policy=policy.spec.hysteresis, now=context.now
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
