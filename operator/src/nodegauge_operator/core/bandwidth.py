"""What the last benchmark still says of a node: evidence behind its interconnect, labels of its bandwidth.

A pure function of the report, the node and the time.  A measurement counts in the boot, and for the GPUs and
the driver, that it was made with.  What confirms expires to `reported`; what contradicts stays until another
benchmark says otherwise, for no label may come back because nobody looked.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_judge import Evidence, Severity, Verdict
from nodegauge_judge.nccl.model import Agreement
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import GpusStatus, InterconnectStatus, ReportStatus, whole
from nodegauge_operator.core import nccl_eligibility, staleness
from nodegauge_operator.core.model import NodeView

CONTRADICTED = "Contradicted"
"""Reason of an interconnect that bandwidth contradicts."""
REWRITE_SHARE = 0.05
"""A bandwidth label is rewritten on a change of so much (design, section 4)."""
WORST_LAST = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)


def hardware(gpus: GpusStatus) -> str:
    """What a measurement is bound to, in words: GPUs and driver; empty before they were read."""
    return f"{gpus.count} x {gpus.product}, driver {gpus.driver}" if gpus.count else ""


def same_hardware(status: ReportStatus) -> bool:
    """Whether the GPUs and the driver are those of the last measurement, by all that could be read of them
    since: a name or a version that one health run could not read makes no other machine."""
    was, gpus = status.bandwidth.hardware, status.gpus
    named = not gpus.product or f" x {gpus.product}, driver " in was
    driven = not gpus.driver or was.endswith(f", driver {gpus.driver}")
    return gpus.count > 0 and was.startswith(f"{gpus.count} x ") and named and driven


def stands(status: ReportStatus, *, node: NodeView, policy: Policy, now: float, since: float = 0.0) -> bool:
    """Whether the last benchmark that could be read is one of this machine as it is now."""
    probe = status.probe(names.PROBE_NCCL)
    if (
        not probe.read_at
        or staleness.rebooted(probe, node)
        or nccl_eligibility.divided(status, node) is not None
    ):
        return False
    return same_hardware(status) and now <= staleness.topology_stale_at(probe, policy=policy, since=since)


def agreed(
    status: ReportStatus,
    *,
    node: NodeView,
    policy: Policy,
    now: float,
    since: float = 0.0,
    wanted: bool = True,
) -> InterconnectStatus:
    """The interconnect as NVML reports it, with what bandwidth says to it.

    `wanted`: benchmarks are made here, and can be; where none is, one of an earlier boot contradicts nothing
    any more.
    """
    found = status.interconnect
    if found.reason == CONTRADICTED:
        found = replace(found, klass=found.reported, reported="", reason="", message="")
    if not found.klass:
        return found
    probe, measured = status.probe(names.PROBE_NCCL), status.bandwidth
    this_boot = bool(probe.read_at) and not staleness.rebooted(probe, node)
    if measured.agreement == Agreement.CONTRADICTED and (wanted or this_boot):
        text = measured.message
        return replace(found, klass="", reported=found.klass, evidence="", reason=CONTRADICTED, message=text)
    standing = stands(status, node=node, policy=policy, now=now, since=since)
    confirmed = measured.agreement == Agreement.CONFIRMED and standing
    return replace(found, evidence=(Evidence.MEASURED if confirmed else Evidence.REPORTED).value)


def labels(status: ReportStatus) -> dict[str, str]:
    """Labels of a measurement that stands: what a collective really reached, whatever was expected."""
    found = status.bandwidth
    measured = {
        names.LABEL_BUSBW_ALLREDUCE: found.all_reduce,
        names.LABEL_BUSBW_ALLGATHER: found.all_gather,
        names.LABEL_BUSBW_REDUCESCATTER: found.reduce_scatter,
    }
    held = status.desired.labels
    return {key: _steady(held.get(key, ""), gbps) for key, gbps in measured.items() if gbps is not None}


def _steady(before: str, gbps: int) -> str:
    """The value that stands there, unless it is off by more than the share that deserves a write."""
    known = whole(before)
    if known is not None and abs(gbps - known) < REWRITE_SHARE * known:
        return before
    return str(gbps)


def verdict(status: ReportStatus, health: Verdict) -> Verdict:
    """The worse of the health probe's verdict and that of a benchmark which stands."""
    measured = status.probe(names.PROBE_NCCL).verdict
    if health not in WORST_LAST or measured not in WORST_LAST:
        return health
    return max(health, measured, key=WORST_LAST.index)


def words(status: ReportStatus) -> str:
    """A benchmark that stands, in words that stay the same for as long as its findings do."""
    probe = status.probe(names.PROBE_NCCL)
    codes = dict.fromkeys(f.code for f in probe.findings if f.severity is not Severity.INFO)
    found = f" ({', '.join(codes)})" if codes else ""
    return f"NCCL benchmark: {probe.verdict.value}{found}."


def withheld(status: ReportStatus) -> str:
    """Why there is no interconnect label although NVML reports one; empty where that is not so."""
    found = status.interconnect
    if found.reason != CONTRADICTED:
        return ""
    return f"No interconnect label: NVML reports {found.reported}, bandwidth contradicts it."
