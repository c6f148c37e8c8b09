"""From readings to what the report holds for the node: rows, places, labels, taints, condition, event.

`settled` is asked after every run and again whenever a node is looked at: it is a pure function of the
report, the node, the policy and the time, so asking twice changes nothing.  What it says stands in the report
before anything is written to the node, and takes its place in the budget there (promise 3).
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import Probe, Verdict
from nodegauge_judge.nccl.model import Peers, no_peers
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, Policy, Until
from nodegauge_operator.api.report import DesiredNode, Report, ReportStatus
from nodegauge_operator.core import bandwidth, events, gate, gatechanges, nccl_eligibility
from nodegauge_operator.core import gates as rows
from nodegauge_operator.core.budget import is_gated
from nodegauge_operator.core.model import ConditionView, NodeView
from nodegauge_operator.core.probes import nccl
from nodegauge_operator.core.report_size import fitted
from nodegauge_operator.core.staleness import is_stale
from nodegauge_operator.core.taints import NOTHING, UNVALIDATED


class Ground(Struct, frozen=True, kw_only=True):
    """What a decision stands on.  `room`: the budget of gated nodes has a place for this node; `since`: when
    this process began to decide; `nccl_image`: the installation's; times in epoch seconds."""

    node: NodeView
    policy: Policy
    now: float
    since: float = 0.0
    room: bool = False
    nccl_image: str = ""
    peers: Peers = no_peers

    @property
    def benchmarks(self) -> bool:
        """Whether installation and policy ask for benchmarks."""
        return bool(self.policy.nccl_image(self.nccl_image))


def settled(report: Report, status: ReportStatus, ground: Ground) -> ReportStatus:
    """`status` (the report's own, or that after a run) with what the node should carry now, and with the
    change that this is, if it is one."""
    node, policy, now = ground.node, ground.policy, ground.now
    graded = nccl.regraded(status, nccl.Met(node=node, policy=policy, now=now, peers=ground.peers))
    status = _joined(graded, ground)
    stale = _stale(status, ground)
    room = is_gated(report) or (ground.room and Probe.HEALTH not in stale and not _loose(node))
    gates = rows.settled(status.gates, policy=policy, now=now, room=room, stale=stale)
    status = replace(
        status,
        policy=policy.name,
        gates=gates,
        throttle_judged_at=rows.throttle_judged_at(status.throttle_judged_at, gates),
        passed_at=status.passed_at or _passed(status, ground),
    )
    held = _held(status, ground, report)
    verdict = gate.effective_verdict(status, node=node, policy=policy, now=now, since=ground.since)
    summary = gate.summary(status, node=node, policy=policy, now=now, since=ground.since)
    after = replace(status, desired=held, verdict=verdict, summary=summary)
    change = events.together(
        gatechanges.of_rows(report.status, after, policy=policy, now=now),
        status.change if status.change != report.status.change else None,
        events.of_grade(report.status, after, now=now),
        events.of_gate(report.status, after, node=node, now=now),
    )
    fits = fitted(replace(after, change=change or status.change))
    return replace(fits, desired=_held(fits, ground, report)) if fits.probes != status.probes else fits


def idle(report: Report, policy: Policy) -> bool:
    """Nothing was measured yet, and nothing has to stand on the node before it is."""
    if report.status.probe(names.PROBE_HEALTH).last_run is not None or report.status.desired.taints:
        return False
    return not rows.bars(policy)


def left_alone(status: ReportStatus, policy: Policy) -> frozenset[str]:
    """Keys of ours that stay as they are: `unvalidated`, whoever set it, until the first pass lifts it."""
    return UNVALIDATED if policy.spec.mode is Mode.ENFORCE and not status.passed_at else NOTHING


def condition_of(held: DesiredNode) -> ConditionView | None:
    """The condition that `held` asks for; None for none."""
    if not held.condition:
        return None
    return ConditionView(status=held.condition, reason=held.reason, message=held.message)


def _loose(node: NodeView) -> bool:
    """The node carries a taint that no report reserves (somebody set it by hand, or it is on its way off).

    It counts as gated for that, which must not make room for a row of its own: the taint goes first.
    """
    return any(taint.key in names.TAINTS_OF_FAULTS for taint in node.taints)


def _held(status: ReportStatus, ground: Ground, report: Report) -> DesiredNode:
    """What the node should carry by this status, in words of what is left in it: findings for which a report
    has no room are not there to be named the next time either."""
    held = gate.desired(status, node=ground.node, policy=ground.policy, now=ground.now, since=ground.since)
    return replace(held, refusal=report.status.desired.refusal)


def _joined(status: ReportStatus, ground: Ground) -> ReportStatus:
    """The status with what bandwidth says of the interconnect, and with why no benchmark can run here."""
    why = nccl_eligibility.hindrance(status, ground.node) if ground.benchmarks else None
    interconnect = bandwidth.agreed(
        status,
        node=ground.node,
        policy=ground.policy,
        now=ground.now,
        since=ground.since,
        wanted=ground.benchmarks and (why is None or why.reason in nccl_eligibility.PASSING),
    )
    measured = replace(
        status.bandwidth, reason=why.reason.value if why else "", detail=why.detail if why else ""
    )
    return replace(status, interconnect=interconnect, bandwidth=measured)


def _stale(status: ReportStatus, ground: Ground) -> frozenset[Probe]:
    """Probes that have not read the node lately."""
    known = {probe: status.probe(probe.value) for probe in Probe}
    return frozenset(
        probe
        for probe, found in known.items()
        if is_stale(found, policy=ground.policy, now=ground.now, since=ground.since)
    )


def _passed(status: ReportStatus, ground: Ground) -> str:
    """When the node first passed, by what the policy asks for: a health run, or a benchmark where one can be
    made here at all (a report of an older version may hold a health run that it did not note)."""
    probe = status.probe(names.PROBE_HEALTH)
    if ground.benchmarks and ground.policy.spec.taints.unvalidated_until is Until.NCCL:
        why = nccl_eligibility.hindrance(status, ground.node)
        if why is None or why.reason in nccl_eligibility.PASSING:
            probe = status.probe(names.PROBE_NCCL)
    return probe.read_at if probe.verdict in (Verdict.PASS, Verdict.WARN) else ""
