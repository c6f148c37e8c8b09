"""The NCCL probe: collectives over all GPUs of an idle node, and what their bandwidth changes in the report.

It touches its own probe, the bandwidth, and the gates that it answers for.  What NVML reports of the node
belongs to the health probe; `bandwidth.with_agreement` joins the two.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import History, NodeFacts, Probe, Thresholds
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.interconnect_agreement import INTERCONNECT_CONTRADICTED
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import Agreement, NcclJudgement
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.api.report import (
    NEVER,
    BandwidthStatus,
    ProbeStatus,
    ReportStatus,
    unstamp,
)
from nodegauge_operator.core import bandwidth, gates, gpu_eligibility, report_update
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes import kind, nccl_pod
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.whole_node import WholeNodeKind, may_hold, runs_in_vain, unreadable
from nodegauge_operator.core.report_size import cut
from nodegauge_operator.core.report_update import Reading

NO_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "ContainerCreating",
    "NotStarted",
)
"""Reasons of a pod that never started because its image is not on the node (any more)."""
MAX_MESSAGE = 300


class NcclKind(WholeNodeKind):
    """Holds every GPU of the node for minutes."""

    name = names.PROBE_NCCL
    event_prefix = "NCCL probe: "

    def deadline(self, policy: Policy) -> float:
        return seconds(policy.spec.probes.nccl.deadline)

    def due_at(self, context: Context) -> float:
        return next_measurement_at(context) if image_is_there(context) else NEVER

    def waits_since(self, context: Context) -> float:
        """Never measured goes first, then measured longest ago."""
        return last_measured_at(context.status)

    def image(self, context: Context) -> str:
        return context.nccl_image

    def pod_spec(self, context: Context, run: str) -> dict[str, Any]:
        return nccl_pod.nccl_spec(context, run, deadline=self.deadline(context.policy))

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        judgement, status = _judge(context, ended), context.status
        if judgement is not None and not judgement.readable:
            ended = replace(ended, end=unreadable(judgement))
        if judgement is None or not judgement.readable:
            probes = status.with_probe(report_update.unread(context, self.name, ended))
            after = replace(status, probes=probes)
            return _without_image(after) if ended.end.reason in NO_IMAGE else after
        probe = report_update.read(context, self.name, ended, _reading(judgement))
        measured = replace(
            _bandwidth(judgement, context.policy),
            boot_id=probe.boot_id,
            hardware=gpu_eligibility.hardware(status.gpus),
        )
        numbers = context.policy.spec.hysteresis
        after = replace(
            status,
            probes=status.with_probe(probe),
            bandwidth=_still_contradicted(status.bandwidth, measured),
            gates=gates.after_run(status.gates, judgement, policy=numbers, now=context.now, probe=Probe.NCCL),
        )
        return bandwidth.with_agreement(context.after(after))

    def event_suffix(self, before: ReportStatus, after: ReportStatus) -> str:
        change = kind.shown_change("Interconnect label", _label(before), _label(after))
        why = f": {after.interconnect.message}" if after.interconnect.reported else ""
        return f" {change}{why}." if change else ""


def next_measurement_at(context: Context) -> float:
    """When the GPUs may be measured again, whether or not the image has to be pulled first.

    Never: without an NCCL image, without a health reading of this boot, and where no NCCL run can be made.  A
    run that read nothing, or found the GPUs taken, is repeated after `recheck`, then twice that each time, up
    to the interval.
    """
    if not context.nccl_image or not may_hold(context, names.PROBE_NCCL):
        return NEVER
    policy, probe = context.policy, context.status.probe(names.PROBE_NCCL)
    if kind.wanted_now(context, probe):
        return kind.AT_ONCE
    if probe.unread:
        return kind.finished_at(probe) + recheck_delay(probe, policy)
    return kind.finished_at(probe) + _wait_after_reading(context, probe)


def _wait_after_reading(context: Context, probe: ProbeStatus) -> float:
    """Seconds from a readable run to the next: the interval, or less if something waits for a measurement."""
    status, policy = context.status, context.policy
    recheck = seconds(policy.spec.probes.nccl.recheck)
    waits = [policy.interval_of(names.PROBE_NCCL)]
    if status.bandwidth.again or not gpu_eligibility.same_hardware(status.bandwidth.hardware, status.gpus):
        waits.append(recheck)
    if status.bandwidth.gpus < status.bandwidth.of <= gpu_eligibility.allocatable(context.node):
        waits.append(recheck * kind.doubled(probe.streak))  # the missing GPUs are back
    if _cleared_by_grading(status, probe):
        waits.append(recheck)
    leave = policy.spec.hysteresis.leave_runs
    in_vain = runs_in_vain(status.gates, probe=Probe.NCCL, leave=leave)
    if status.bandwidth.agreement == Agreement.CONTRADICTED and not in_vain:
        in_vain.append(probe.streak)  # only a run that agrees brings the label back
    return min(waits + [recheck * kind.doubled(runs) for runs in in_vain])


def _cleared_by_grading(status: ReportStatus, probe: ProbeStatus) -> bool:
    """A gate counts the last run as bad, and the policy of now no longer does: good runs will lift it."""
    codes = {finding.code for finding in probe.findings}
    return any(
        gate.bad and not gate.readable_since and gate.code not in codes
        for gate in status.gates
        if gates.PROBES.get(gate.code) is Probe.NCCL
    )


def recheck_delay(probe: ProbeStatus, policy: Policy) -> float:
    """Seconds to wait after runs that read nothing."""
    first, most = seconds(policy.spec.probes.nccl.recheck), policy.interval_of(names.PROBE_NCCL)
    return kind.backed_off(probe, first=first, most=most)


def image_is_there(context: Context) -> bool:
    """The image of NCCL runs was pulled in this boot: no GPU is held for a pull."""
    pull = context.status.probe(names.PROBE_PULL)
    return pull.image == context.nccl_image and not pull.unread and not context.rebooted_since(pull)


def last_measured_at(status: ReportStatus) -> float:
    """When the node was last measured: a run that found the GPUs taken measured nothing."""
    return unstamp(status.probe(names.PROBE_NCCL).read_at)


def regraded(context: Context) -> ReportStatus:
    """The status with its last measurement graded by the policy's expectations and thresholds of now.

    Findings and agreement may change; no run is counted, and no gate is entered or left.
    """
    status = context.status
    probe, before = status.probe(names.PROBE_NCCL), status.bandwidth
    if not probe.history or not before.grade or before.grade == grading(context.policy).digest:
        return status
    by = grading(context.policy)
    judgement = regrade(
        probe.history,
        expectations=by.expectations,
        thresholds=by.thresholds,
        node=_facts(context.node),
        peers=context.peers,
        known=status.gpus.known(),
    )
    if not judgement.readable:
        return replace(status, bandwidth=replace(before, grade=by.digest))
    measured = replace(
        _bandwidth(judgement, context.policy),
        boot_id=before.boot_id,
        hardware=before.hardware,
        reason=before.reason,
        detail=before.detail,
    )
    # a contradiction that an earlier run measured stays; one that the last run measured itself is graded anew
    if all(finding.code != INTERCONNECT_CONTRADICTED.code for finding in probe.findings):
        measured = _still_contradicted(before, measured)
    graded = report_update.graded_again(probe, _reading(judgement))
    return replace(status, probes=status.with_probe(graded), bandwidth=measured)


class Grading(Struct, frozen=True, kw_only=True):
    """What grades bandwidth; `digest` identifies it, whichever policy it is from."""

    expectations: Expectations
    thresholds: Thresholds
    digest: str


def grading(policy: Policy) -> Grading:
    """The policy's own expectations before the built-in ones, and its thresholds."""
    return _grading(msgspec.json.encode((policy.spec.expectations, policy.spec.thresholds)))


@lru_cache(maxsize=64)
def _grading(encoded: bytes) -> Grading:
    """Cached: it is needed at every look at every measured node, and most share a few policies."""
    own, thresholds = msgspec.json.decode(encoded, type=tuple[list[Expectation], Thresholds])
    expectations = Expectations.default().with_policy(own)
    digest = names.digest(f"{expectations.digest()}{msgspec.json.encode(thresholds).decode()}")
    return Grading(expectations=expectations, thresholds=thresholds, digest=digest)


def _judge(context: Context, ended: EndedRun) -> NcclJudgement | None:
    """The judgement of a run that brought a result; None for any other."""
    if ended.end.result is None:
        return None
    status, by = context.status, grading(context.policy)
    return judge_nccl(
        ended.end.result,
        expectations=by.expectations,
        thresholds=by.thresholds,
        previous=status.probe(names.PROBE_NCCL).history,
        history=History.decode(status.probe(names.PROBE_HEALTH).history),
        node=_facts(context.node),
        peers=context.peers,
        known=status.gpus.known(),
        environment=context.policy.spec.probes.nccl.environment,
    )


def _facts(node: NodeView) -> NodeFacts:
    return NodeFacts.of(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpu_capacity})


def _reading(judgement: NcclJudgement) -> Reading:
    return Reading(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        history=judgement.record,
    )


def _bandwidth(judgement: NcclJudgement, policy: Policy) -> BandwidthStatus:
    return BandwidthStatus(
        all_reduce=judgement.busbw.get("all_reduce"),
        all_gather=judgement.busbw.get("all_gather"),
        reduce_scatter=judgement.busbw.get("reduce_scatter"),
        p2p_off=judgement.p2p_off,
        gpus=judgement.ranks,
        of=judgement.expected,
        agreement=judgement.agreement.value,
        message=cut(judgement.message, MAX_MESSAGE),
        fingerprint=judgement.fingerprint,
        grade=grading(policy).digest,
        again=judgement.again,
    )


def _still_contradicted(before: BandwidthStatus, after: BandwidthStatus) -> BandwidthStatus:
    """A run that cannot tell does not end a contradiction of the same boot: only bandwidth that agrees brings
    the label back."""
    same = before.boot_id == after.boot_id and before.agreement == Agreement.CONTRADICTED
    if not same or after.agreement != Agreement.UNSURE:
        return after
    return replace(after, agreement=before.agreement, message=before.message)


def _without_image(status: ReportStatus) -> ReportStatus:
    """The image has to be pulled again before GPUs are held."""
    pull = status.probe(names.PROBE_PULL)
    return replace(status, probes=status.with_probe(replace(pull, image=""))) if pull.image else status


def _label(status: ReportStatus) -> str:
    interconnect = status.interconnect
    return f"{interconnect.klass} ({interconnect.evidence})" if interconnect.klass else "none"
