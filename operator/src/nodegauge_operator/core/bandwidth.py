"""What the last NCCL run still says of a node: evidence for its interconnect, labels of its bandwidth.

A measurement counts for the boot, the GPUs and the driver that it was made with.  A confirmation expires to
`reported`; a contradiction stays until another NCCL run says otherwise, because a label must not come back
just because nobody measured again.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_judge import Evidence
from nodegauge_judge.nccl.measurement import Agreement
from nodegauge_operator import names
from nodegauge_operator.api.report import ReportStatus, whole
from nodegauge_operator.core.context import Context

CONTRADICTED = "Contradicted"
"""Reason of an interconnect that bandwidth contradicts."""
REWRITE_SHARE = 0.05
"""A bandwidth label is rewritten when the value changes by this share.  Chosen by this project: small
differences between runs then cause no write."""


def with_agreement(context: Context) -> ReportStatus:
    """The status with the interconnect confirmed, contradicted or merely reported, and with the reason why
    no NCCL run can be made here now."""
    why = context.nccl_hindrance
    reason, detail = (why.reason.value, why.detail) if why else ("", "")
    status = context.status
    bandwidth = replace(status.bandwidth, reason=reason, detail=detail)
    reported = status.interconnect
    if reported.reason == CONTRADICTED:
        reported = replace(reported, klass=reported.reported, reported="", reason="", message="")
    if not reported.klass:
        return replace(status, interconnect=reported, bandwidth=bandwidth)
    probe = status.probe(names.PROBE_NCCL)
    this_boot = bool(probe.read_at) and not context.rebooted_since(probe)
    # where no NCCL run is wanted any more, one of an earlier boot contradicts nothing
    if bandwidth.agreement == Agreement.CONTRADICTED and (context.nccl_wanted or this_boot):
        interconnect = replace(
            reported,
            klass="",
            reported=reported.klass,
            evidence="",
            reason=CONTRADICTED,
            message=bandwidth.message,
        )
    else:
        confirmed = bandwidth.agreement == Agreement.CONFIRMED and context.bandwidth_stands
        evidence = Evidence.MEASURED if confirmed else Evidence.REPORTED
        interconnect = replace(reported, evidence=evidence.value)
    return replace(status, interconnect=interconnect, bandwidth=bandwidth)


def labels(status: ReportStatus) -> dict[str, str]:
    """Labels of a measurement that stands: the bandwidth that was reached, whatever was expected."""
    bandwidth, before = status.bandwidth, status.desired.labels
    measured = {
        names.LABEL_BUSBW_ALLREDUCE: bandwidth.all_reduce,
        names.LABEL_BUSBW_ALLGATHER: bandwidth.all_gather,
        names.LABEL_BUSBW_REDUCESCATTER: bandwidth.reduce_scatter,
    }
    return {key: _steady(before.get(key, ""), gbps) for key, gbps in measured.items() if gbps is not None}


def _steady(before: str, gbps: int) -> str:
    """The value already on the node, unless the difference is worth a write."""
    known = whole(before)
    if known is not None and abs(gbps - known) < REWRITE_SHARE * known:
        return before
    return str(gbps)


def missing_label_sentence(status: ReportStatus) -> str:
    """Why the node has no interconnect label although NVML reports one; empty if that is not so."""
    if status.interconnect.reason != CONTRADICTED:
        return ""
    return f"No interconnect label: NVML reports {status.interconnect.reported}, bandwidth contradicts it."
