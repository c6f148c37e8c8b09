"""What the last NCCL run still says of a node: evidence for its interconnect, labels of its bandwidth.

A measurement counts for the boot, the GPUs and the driver that it was made with.  A confirmation expires to
`reported`; a contradiction stays until another NCCL run says otherwise, because a label must not come back
just because nobody measured again.  So does a hang or wrong data of the last run, confirmed or not: the next
job may take the GPUs before anybody measures again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import Cause, Evidence, NodeFacts, Thresholds
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.interconnect_agreement import INTERCONNECT_CONTRADICTED
from nodegauge_judge.nccl.judge import regrade
from nodegauge_judge.nccl.measurement import Agreement, NcclJudgement
from nodegauge_judge.peers import no_peers
from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import ReportStatus, whole
from nodegauge_operator.core import gates, probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.gpu_eligibility import Hindrance
from nodegauge_operator.core.label import Label, Value, interconnect_stands
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.report_size import cut

MAX_MESSAGE = 300
CONTRADICTED = "Contradicted"
"""Reason of an interconnect that bandwidth contradicts."""
FAILED = "CollectivesFailed"
"""Reason of an interconnect over which a collective hung or returned wrong data."""
REWRITE_SHARE = 0.05
"""A bandwidth label is rewritten when the value changes by this share.  Chosen by this project: small
differences between runs then cause no write."""


def with_agreement(context: Context, *, why: Hindrance | None, wanted: bool) -> ReportStatus:
    """The status with the interconnect confirmed, contradicted or merely reported, and with the reason `why`
    no NCCL run can be made here now.  `wanted`: whether runs are."""
    reason, detail = (why.reason.value, why.detail) if why else ("", "")
    status = context.status
    bandwidth = replace(status.bandwidth, reason=reason, detail=detail)
    reported = status.interconnect
    if reported.reason in (CONTRADICTED, FAILED):
        reported = replace(reported, klass=reported.reported, reported="", reason="", message="")
    if not reported.klass:
        return replace(status, interconnect=reported, bandwidth=bandwidth)
    if withdrawn := _withdrawn(context, wanted=wanted):
        reason, message = withdrawn
        own = {"klass": "", "reported": reported.klass, "evidence": ""}
        interconnect = replace(reported, **own, reason=reason, message=message)
    else:
        confirmed = bandwidth.agreement == Agreement.CONFIRMED and bandwidth_stands(context)
        evidence = Evidence.MEASURED if confirmed else Evidence.REPORTED
        interconnect = replace(reported, evidence=evidence.value)
    return replace(status, interconnect=interconnect, bandwidth=bandwidth)


def _withdrawn(context: Context, *, wanted: bool) -> tuple[str, str] | None:
    """Reason and message of an interconnect that the last NCCL run does not bear out; None if it does."""
    status, probe = context.status, context.status.probe[names.PROBE_NCCL]
    this_boot = bool(probe.read_at) and not context.rebooted_since(probe)
    # where no NCCL run is wanted any more, one of an earlier boot says nothing against it
    if not (wanted or this_boot):
        return None
    broken = [finding.message for finding in probe.findings if _breaks_collectives(finding.code)]
    broken += [g.message for g in context.gates if _breaks_collectives(g.code) and (g.bad or g.state.entered)]
    if broken:
        return FAILED, cut(broken[0], MAX_MESSAGE)
    contradicted = status.bandwidth.agreement == Agreement.CONTRADICTED
    return (CONTRADICTED, status.bandwidth.message) if contradicted else None


def _breaks_collectives(code: str) -> bool:
    """Whether it is a fault of collectives themselves, which no interconnect excuses."""
    return code in gates.GATES and gates.GATES[code].cause is Cause.NCCL


def bandwidth_stands(context: Context) -> bool:
    """The last NCCL run stands, and no fault of what joins the GPUs is bad now or holds its gate."""
    return names.PROBE_NCCL in context.counting and not gates.has_fault_between_gpus(context.gates)


def _busbw(name: str, gbps: Callable[[BandwidthStatus], int | None]) -> Value:
    """The value of a label: the bandwidth that was reached, whatever was expected.  It is a promise to jobs,
    like the interconnect: what takes that away takes both."""

    def value(context: Context, status: ReportStatus) -> str:
        reached = gbps(status.bandwidth)
        if reached is None or not (interconnect_stands(context, status) and bandwidth_stands(context)):
            return ""
        return _steady(status.desired.labels.get(names.PREFIX + name, ""), reached)

    return value


def _steady(before: str, gbps: int) -> str:
    """The value already on the node, unless the difference is worth a write."""
    known = whole(before)
    if known is not None and abs(gbps - known) < REWRITE_SHARE * known:
        return before
    return str(gbps)


def missing_label_sentence(status: ReportStatus) -> str:
    """Why the node has no interconnect label although NVML reports one; empty if that is not so."""
    why = {
        CONTRADICTED: "bandwidth contradicts it",
        FAILED: "a collective hung or returned wrong data",
    }.get(status.interconnect.reason)
    return f"No interconnect label: NVML reports {status.interconnect.reported}, {why}." if why else ""


def regraded(context: Context) -> ReportStatus:
    """The status with its last measurement graded by the policy's expectations and thresholds of now.

    Findings and agreement may change; no run is counted, and no gate is entered or left.
    """
    status = context.status
    probe, before = status.probe[names.PROBE_NCCL], status.bandwidth
    if not probe.history or not before.grade or before.grade == grading(context.policy).digest:
        return status
    by = grading(context.policy)
    judgement = regrade(
        probe.history,
        expectations=by.expectations,
        thresholds=by.thresholds,
        node=facts(context.node),
        peers=context.peers.get(names.PROBE_NCCL, no_peers),
        known=status.gpus.known(),
    )
    if not judgement.readable:
        return replace(status, bandwidth=replace(before, grade=by.digest))
    after = replace(
        measured(judgement, context.policy),
        boot_id=before.boot_id,
        hardware=before.hardware,
        reason=before.reason,
        detail=before.detail,
    )
    # a contradiction that an earlier run measured stays; one that the last run measured itself is graded anew
    if all(finding.code != INTERCONNECT_CONTRADICTED.code for finding in probe.findings):
        after = still_contradicted(before, after)
    graded = probe_status.with_new_grade(probe, reading_of(judgement))
    return replace(status, probes=status.with_probe(graded), bandwidth=after)


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


def facts(node: NodeView) -> NodeFacts:
    return NodeFacts.from_node(labels=node.labels, capacity={names.GPU_RESOURCE: node.gpus_counted})


def reading_of(judgement: NcclJudgement) -> Reading:
    return Reading(
        verdict=judgement.verdict,
        summary=judgement.summary,
        findings=judgement.findings,
        history=judgement.record,
    )


def measured(judgement: NcclJudgement, policy: Policy) -> BandwidthStatus:
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


def still_contradicted(before: BandwidthStatus, after: BandwidthStatus) -> BandwidthStatus:
    """A run that cannot tell does not end a contradiction of the same boot: only bandwidth that agrees brings
    the label back."""
    same = before.boot_id == after.boot_id and before.agreement == Agreement.CONTRADICTED
    if not same or after.agreement != Agreement.UNSURE:
        return after
    return replace(after, agreement=before.agreement, message=before.message)


LABELS = (
    Label(
        key=names.PREFIX + "busbw-allreduce",
        values="integer, GB/s",
        meaning=(
            "Bus bandwidth of NCCL's all_reduce at 1 GiB, as nccl-tests defines it, over all GPUs of the "
            "node that a pod can get (7 if one of 8 is broken; see status.bandwidth of the report). "
            "Updated when it changes by 5 %. Works with nodeAffinity Gt. Absent with the interconnect "
            "label, and while a fault between the GPUs is not cleared."
        ),
        value=_busbw("busbw-allreduce", lambda bandwidth: bandwidth.all_reduce),
    ),
    Label(
        key=names.PREFIX + "busbw-allgather",
        values="integer, GB/s",
        meaning="The same for all_gather, on which ZeRO-3 spends its time.",
        value=_busbw("busbw-allgather", lambda bandwidth: bandwidth.all_gather),
    ),
    Label(
        key=names.PREFIX + "busbw-reducescatter",
        values="integer, GB/s",
        meaning="The same for reduce_scatter.",
        value=_busbw("busbw-reducescatter", lambda bandwidth: bandwidth.reduce_scatter),
    ),
)
