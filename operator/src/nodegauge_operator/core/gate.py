"""What a node should carry: labels, taints and the condition as a pure function of its report.

The node is never asked what it carries now, except for who owns the short label key.  Stale readings expire
to absent labels and never to anything worse; topology labels, and those of bandwidth, live until the node
boots anew, or until runs that really failed (not merely found no room) have gone on past the staleness limit.
Taints do not expire at all: they follow the rows' states in the report (`hysteresis`, `rows`), which no data
cannot change.
"""

from __future__ import annotations

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, Policy
from nodegauge_operator.api.report import DesiredNode, Outcome, ProbeStatus, ReportStatus, unstamp, whole
from nodegauge_operator.core import bandwidth, gatewords
from nodegauge_operator.core import gates as rows
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.staleness import is_stale, rebooted, topology_stale_at
from nodegauge_operator.reasons import Reason

REWRITE_SHARE = 0.5
"""`validated-at` is rewritten once it is older than this share of the staleness limit (ADR 0008)."""

MESSAGE_LIMIT = 1000


def effective_verdict(
    status: ReportStatus, *, node: NodeView, policy: Policy, now: float, since: float = 0.0
) -> Verdict:
    """The node's verdict as it stands now: unknown once the last reading is stale, else the worse of it and
    of a benchmark that still stands."""
    probe = status.probe(names.PROBE_HEALTH)
    if is_stale(probe, policy=policy, now=now, since=since):
        return Verdict.UNKNOWN
    measured = bandwidth.stands(status, node=node, policy=policy, now=now, since=since)
    return bandwidth.verdict(status, probe.verdict) if measured else probe.verdict


def summary(status: ReportStatus, *, node: NodeView, policy: Policy, now: float, since: float = 0.0) -> str:
    """The last reading in a sentence, and a benchmark that still stands in another one."""
    words = status.probe(names.PROBE_HEALTH).summary
    if not words or not bandwidth.stands(status, node=node, policy=policy, now=now, since=since):
        return words
    return f"{words} NCCL benchmark: {status.probe(names.PROBE_NCCL).summary}"


def desired(
    status: ReportStatus, *, node: NodeView, policy: Policy | None, now: float, since: float = 0.0
) -> DesiredNode:
    """What the node should carry now; nothing at all without a policy or in mode Observe."""
    if policy is None or policy.spec.mode is Mode.OBSERVE:
        return DesiredNode()
    probe = status.probe(names.PROBE_HEALTH)
    stale = is_stale(probe, policy=policy, now=now, since=since)
    measured = bandwidth.stands(status, node=node, policy=policy, now=now, since=since)
    topology: dict[str, str] = {}
    conflicts: list[str] = []
    if now <= topology_stale_at(probe, policy=policy, since=since) and not rebooted(probe, node):
        topology, conflicts = _topology_labels(status, node=node, policy=policy)
    if measured:
        topology = topology | bandwidth.labels(status)
    verdict = bandwidth.verdict(status, probe.verdict) if measured else probe.verdict
    condition, reason, message = _stale_condition(probe) if stale else _condition(probe, verdict)
    taints = rows.taints(status, policy=policy)
    gates = gatewords.standing(status, taints, policy=policy)
    words = (
        message,
        bandwidth.words(status) if measured and message and not stale else "",
        bandwidth.withheld(status),
        f"Gates: {gates}." if gates else "",
    )
    return DesiredNode(
        labels=topology | ({} if stale else _health_labels(status, probe=probe, policy=policy)),
        taints=taints,
        condition=condition,
        reason=reason,
        message=" ".join(text for text in words if text)[:MESSAGE_LIMIT],
        conflicts=conflicts,
    )


def _topology_labels(
    status: ReportStatus, *, node: NodeView, policy: Policy
) -> tuple[dict[str, str], list[str]]:
    found = status.interconnect
    if not found.klass:
        return {}, []
    labels = {names.LABEL_INTERCONNECT: found.klass, names.LABEL_EVIDENCE: found.evidence or "reported"}
    if found.nvlink_gbps is not None:
        labels[names.LABEL_NVLINK_GBPS] = str(found.nvlink_gbps)
    key = policy.spec.labels.interconnect_key
    if not key:
        return labels, []
    current = node.labels.get(key)
    ours = current is None or key in node.managed_labels or policy.spec.labels.take_over
    if ours:
        return labels | {key: found.klass}, []
    return labels, [] if current == found.klass else [key]


def _health_labels(status: ReportStatus, *, probe: ProbeStatus, policy: Policy) -> dict[str, str]:
    if not probe.read_at:
        return {}
    labels = {names.LABEL_VALIDATED_AT: _validated_at(status, probe=probe, policy=policy)}
    if probe.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL):
        labels[names.LABEL_HEALTH] = probe.verdict.value
    throttled = rows.throttled_label(status)
    found = {names.LABEL_THROTTLED: throttled, names.LABEL_PSU: status.psu}
    return labels | {key: value for key, value in found.items() if value}


def _validated_at(status: ReportStatus, *, probe: ProbeStatus, policy: Policy) -> str:
    read_at = int(unstamp(probe.read_at))
    before = whole(status.desired.labels.get(names.LABEL_VALIDATED_AT, ""))
    if before is not None and 0 <= read_at - before <= policy.stale_seconds * REWRITE_SHARE:
        return str(before)
    return str(read_at)


def _stale_condition(probe: ProbeStatus) -> tuple[str, str, str]:
    last = probe.last_run
    words = f"last read at {probe.read_at}"
    if last is not None and last.outcome is not Outcome.READ:
        words += f"; since then {last.reason}: {last.message}"
    return "Unknown", Reason.STALE, words


def _condition(probe: ProbeStatus, verdict: Verdict) -> tuple[str, str, str]:
    """Status, reason and message; `verdict` also knows of a benchmark."""
    last = probe.last_run
    if last is None:
        return "", "", ""
    if not probe.read_at:
        return "Unknown", Reason.NOT_YET_VALIDATED, f"{last.reason}: {last.message}"
    match verdict:
        case Verdict.PASS:
            return "True", Reason.VALIDATED, probe.summary
        case Verdict.WARN:
            return "True", Reason.WARNINGS, probe.summary
        case Verdict.FAIL:
            return "False", Reason.FAULTS_FOUND, probe.summary
    return "Unknown", Reason.NOT_YET_VALIDATED, probe.summary


def label_patch(node: NodeView, wanted: dict[str, str]) -> dict[str, str | None]:
    """The merge patch of metadata.labels that turns what the node carries of ours into `wanted`.

    Ours are the keys of `names.NODE_LABELS` and whatever managedFields gives to our field manager (an earlier
    short key): nothing else is ever touched.  Empty when nothing differs.
    """
    patch: dict[str, str | None] = {k: v for k, v in wanted.items() if node.labels.get(k) != v}
    ours = node.managed_labels | names.NODE_LABELS.keys()
    patch.update({key: None for key in ours if key in node.labels and key not in wanted})
    return patch
