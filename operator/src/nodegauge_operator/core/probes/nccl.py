"""The report's next status after a benchmark, after the pull of its image, and when rules have changed.

A benchmark touches what is its own alone: its probe, the bandwidth, the rows of the catalogue that it
answers.  What NVML reports of the node stays the health probe's; `bandwidth` joins the two.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Result
from nodegauge_judge import History, NodeFacts, Probe, Verdict
from nodegauge_judge.nccl.agreement import INTERCONNECT_CONTRADICTED
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.model import Agreement, NcclJudgement, Peers, no_peers
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import BandwidthStatus, Outcome, ReportStatus, Run
from nodegauge_operator.core import bandwidth, readings
from nodegauge_operator.core import gates as rows
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.nccl_grading import rules_of
from nodegauge_operator.core.readings import Reading

NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ContainerCreating", "NotStarted")
"""Reasons of a pod that never started because its image was not on the node (any more)."""
MAX_MESSAGE = 300


class Met(Struct, frozen=True, kw_only=True):
    """What a run met: the node, the policy, the time in epoch seconds, what nodes like this one reach."""

    node: NodeView
    policy: Policy
    now: float
    peers: Peers = no_peers


def after_run(status: ReportStatus, *, run: Run, end: RunEnd, met: Met, request: str) -> ReportStatus:
    """The status after a benchmark that answers `request`."""
    before = status.probe(names.PROBE_NCCL)
    judgement = None
    if end.result is not None:
        judgement = _judged(end.result, status, met)
        end = end if judgement.readable else _unreadable(judgement)
    ended = readings.ended(run, end, node=met.node, now=met.now)
    if judgement is None or not judgement.readable:
        probe = readings.unread(before, ended, request=request)
        after = replace(status, probes=status.with_probe(probe))
        return _without_image(after) if end.reason in NO_IMAGE else after
    gates = rows.after_run(
        status.gates, judgement, policy=met.policy.spec.hysteresis, now=met.now, probe=Probe.NCCL
    )
    measured = replace(
        _measured(judgement, met.policy),
        boot_id=ended.boot_id,
        hardware=bandwidth.hardware(status.gpus),
    )
    measured = _still_contradicted(status.bandwidth, measured)
    probe = readings.read(before, ended, _reading(judgement), request=request)
    after = replace(status, probes=status.with_probe(probe), bandwidth=measured, gates=gates)
    return replace(after, interconnect=bandwidth.agreed(after, node=met.node, policy=met.policy, now=met.now))


def after_pull(
    status: ReportStatus, *, run: Run, end: RunEnd, met: Met, request: str, image: str
) -> ReportStatus:
    """The status after a pod that was to bring `image` to the node, and to say whether it can be used."""
    before = status.probe(names.PROBE_PULL)
    problem = end.result.problem if end.result is not None else None
    if problem is not None:
        end = RunEnd(outcome=Outcome.UNKNOWN, reason="ImageUnusable", message=f"{image}: {problem.message}")
    ended = readings.ended(run, end, node=met.node, now=met.now)
    if end.outcome is not Outcome.READ:
        failed = readings.unread(before, ended, request=request)
        return replace(status, probes=status.with_probe(replace(failed, image=image or before.image)))
    reading = Reading(verdict=Verdict.PASS, summary="The image is on the node.")
    pulled = replace(readings.read(before, ended, reading, request=request), image=image)
    return replace(status, probes=status.with_probe(pulled))


def regraded(status: ReportStatus, met: Met) -> ReportStatus:
    """The status with its last measurement graded by the policy's rules of now: findings and agreement may
    be others, but no run is counted, and no gate entered or left."""
    probe, found = status.probe(names.PROBE_NCCL), status.bandwidth
    if not probe.history or not found.grade or found.grade == rules_of(met.policy).grade:
        return status
    rules = rules_of(met.policy)
    judgement = regrade(
        probe.history,
        expectations=rules.expectations,
        thresholds=rules.thresholds,
        node=_facts(met.node),
        peers=met.peers,
    )
    if not judgement.readable:
        return replace(status, bandwidth=replace(found, grade=rules.grade))
    measured = replace(
        _measured(judgement, met.policy),
        boot_id=found.boot_id,
        hardware=found.hardware,
        reason=found.reason,
        detail=found.detail,
    )
    if not _by_its_own_number(status):
        measured = _still_contradicted(found, measured)
    probe = readings.graded_again(probe, _reading(judgement))
    return replace(status, probes=status.with_probe(probe), bandwidth=measured)


def _judged(result: Result, status: ReportStatus, met: Met) -> NcclJudgement:
    rules = rules_of(met.policy)
    return judge_nccl(
        result,
        expectations=rules.expectations,
        thresholds=rules.thresholds,
        previous=status.probe(names.PROBE_NCCL).history,
        history=History.decode(status.probe(names.PROBE_HEALTH).history),
        node=_facts(met.node),
        peers=met.peers,
        environment=met.policy.spec.probes.nccl.environment,
    )


def _facts(node: NodeView) -> NodeFacts:
    return NodeFacts.of(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpu_capacity})


def _unreadable(judgement: NcclJudgement) -> RunEnd:
    outcome = Outcome.SKIPPED if judgement.verdict is Verdict.SKIPPED else Outcome.UNKNOWN
    return RunEnd(outcome=outcome, reason=judgement.reason or "NotReadable", message=judgement.summary)


def _reading(judgement: NcclJudgement) -> Reading:
    return Reading(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        history=judgement.record,
    )


def _measured(judgement: NcclJudgement, policy: Policy) -> BandwidthStatus:
    return BandwidthStatus(
        all_reduce=judgement.busbw.get("all_reduce"),
        all_gather=judgement.busbw.get("all_gather"),
        reduce_scatter=judgement.busbw.get("reduce_scatter"),
        p2p_off=judgement.p2p_off,
        gpus=judgement.ranks,
        of=judgement.expected,
        agreement=judgement.agreement.value,
        message=judgement.message[:MAX_MESSAGE],
        fingerprint=judgement.fingerprint,
        grade=rules_of(policy).grade,
        again=judgement.again,
    )


def _by_its_own_number(status: ReportStatus) -> bool:
    """Whether the last run itself contradicted what NVML reports, and not one before it."""
    codes = {finding.code for finding in status.probe(names.PROBE_NCCL).findings}
    return INTERCONNECT_CONTRADICTED.code in codes


def _still_contradicted(before: BandwidthStatus, after: BandwidthStatus) -> BandwidthStatus:
    """A run that cannot tell lets a contradiction of the same boot stand: only a number that agrees brings a
    label back."""
    same = before.boot_id == after.boot_id and before.agreement == Agreement.CONTRADICTED
    if not same or after.agreement != Agreement.UNSURE:
        return after
    return replace(after, agreement=before.agreement, message=before.message)


def _without_image(status: ReportStatus) -> ReportStatus:
    """The image has to be brought anew: no GPUs are held for that."""
    pull = status.probe(names.PROBE_PULL)
    return replace(status, probes=status.with_probe(replace(pull, image=""))) if pull.image else status
