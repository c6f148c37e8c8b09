"""The label `nodegauge.dev/class`: one word for schedulers, measured, and slow to change.

A class is KIND-MODEL-BANDWIDTH.  Only an NCCL run that confirms the interconnect gives one, so it is absent
where nobody measured.  Faults do not change it: a faulty node keeps its class, and its taints say the fault.

- Another class comes after `enterRuns` NCCL runs in a row that measured the same one, and never within a day
  of the last change.
- It is withdrawn after `enterRuns` runs in a row by which the node is something else (another interconnect,
  MIG on, one GPU, bandwidth that contradicts NVML), at once with GPUs of another model, and until an NCCL
  run measures again.
- While no health reading of this boot counts it is absent, as labels of topology are (ADR 0059).
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_judge import Severity
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.interconnect.classify import Reason
from nodegauge_judge.model import InterconnectClass
from nodegauge_judge.nccl.bandwidth import BUSBW_LOW
from nodegauge_judge.nccl.coverage import NVLS_BROKEN
from nodegauge_judge.nccl.interconnect_agreement import PAIR_SLOW
from nodegauge_judge.nccl.measurement import Agreement
from nodegauge_judge.nccl.nvls import NVLS_UNUSED
from nodegauge_operator import names
from nodegauge_operator.api.node_class_status import NodeClassStatus
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.api.times import stamp, unstamp
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.label import Label, topology_stands

KINDS = {
    InterconnectClass.NVLINK.value: "nvlink",
    InterconnectClass.NVLINK_PAIRS.value: "nvpair",
    InterconnectClass.PCIE.value: "pcie",
}
"""First word by interconnect class."""
FULL, RING = "full", "ring"
RINGS_ONLY = (NVLS_UNUSED.code, NVLS_BROKEN.code)
"""What was found where all_reduce runs on rings alone although NVSwitches could reduce."""
TOO_SLOW = (BUSBW_LOW.code, PAIR_SLOW.code)
"""What was found where bandwidth misses a floor: the run is of a fault, and measures no class."""
SHORTEST = 86_400.0
"""Seconds from one class to the next.  Chosen by this project: jobs wait for days on a queue that names a
class, and an NCCL run comes once a day."""
NO_WHOLE_NODE = (Reason.SINGLE_GPU, Reason.MIG_ENABLED, Reason.VIRTUAL_GPU, Reason.TOO_MANY_GPUS)
"""Reasons of an absent interconnect that are no fault: such a node is not what a class stands for."""


def _model(status: ReportStatus) -> str:
    """The word of the node's GPU model; empty for several models, and for one without a word."""
    return known_models().find(status.gpus.product).slug if " + " not in status.gpus.product else ""


def _what(status: ReportStatus) -> str:
    """KIND-MODEL as read last; empty if either is unknown."""
    klass, model = status.interconnect.as_reported[0], _model(status)
    return f"{KINDS[klass]}-{model}" if klass in KINDS and model else ""


def measured(status: ReportStatus) -> str:
    """The class that the NCCL run which has just ended shows; empty if it shows none."""
    bandwidth = status.bandwidth
    severity = {f.code: f.severity for f in status.probe[names.PROBE_NCCL].findings}
    whole = bandwidth.gpus >= max(bandwidth.of, len(status.gpus.items))
    same = bandwidth.fingerprint.partition("|")[0] == status.gpus.product
    slow = any(severity.get(code, Severity.INFO) is not Severity.INFO for code in TOO_SLOW)
    confirmed = bandwidth.agreement == Agreement.CONFIRMED and bool(status.interconnect.klass)
    if not (confirmed and same and whole) or slow:
        return ""
    reached = RING if any(code in severity for code in RINGS_ONLY) else FULL
    what = _what(status)
    return f"{what}-{reached}" if what else ""


def after_nccl(context: Context, status: ReportStatus) -> ReportStatus:
    """The status after a readable NCCL run."""
    known, now = status.node_class, measured(status)
    if not now:
        contradicted = status.bandwidth.agreement == Agreement.CONTRADICTED
        return _doubted(context, status) if contradicted else status
    runs = known.runs + 1 if now == known.next else 1
    changes = now != known.value and known.value
    young = context.now - unstamp(known.since) < SHORTEST
    if changes and (runs < context.policy.spec.hysteresis.enter_runs or young):
        return replace(status, node_class=replace(known, next=now, runs=runs))
    since = known.since if now == known.value else stamp(context.now)
    return replace(status, node_class=NodeClassStatus(value=now, since=since))


def after_health(context: Context, status: ReportStatus) -> ReportStatus:
    """The status after a readable health run: it gives no class, and may take one away."""
    known = status.node_class
    kind, model, _ = known.value.split("-") if known.value.count("-") == 2 else ("", "", "")
    if not kind or status.interconnect.reason in NO_WHOLE_NODE:
        return _doubted(context, status) if kind else status
    if _model(status) != model and status.gpus.product:
        return replace(status, node_class=replace(known, withdrawn=True))
    klass = status.interconnect.as_reported[0]
    if klass and KINDS.get(klass) != kind:
        return _doubted(context, status)
    return replace(status, node_class=replace(known, doubts=0)) if klass and known.doubts else status


def _doubted(context: Context, status: ReportStatus) -> ReportStatus:
    known = status.node_class
    doubts = known.doubts + 1
    withdrawn = known.withdrawn or doubts >= context.policy.spec.hysteresis.enter_runs
    return replace(status, node_class=replace(known, doubts=doubts, withdrawn=withdrawn))


def _value(context: Context, status: ReportStatus) -> str:
    known = status.node_class
    return known.value if not known.withdrawn and topology_stands(context, status) else ""


LABELS = (
    Label(
        key=names.LABEL_CLASS,
        values="KIND-MODEL-BANDWIDTH",
        meaning=(
            "One word to place jobs by; no word is ever renamed. KIND: nvlink, nvpair, pcie, by the "
            "interconnect class (nvpair: nvlink-pairs). MODEL: the GPUs' model and form, such as h100sxm, "
            "h100nvl, l40s. BANDWIDTH: full: all_reduce over all GPUs reaches its floor, with NVLS where the "
            "machine has it; ring: it reaches the floor of rings, and NVLS, which the machine has, is not "
            "used. Given by NCCL runs alone; another class needs `enterRuns` of them in a row and a day "
            "since the last change. A fault leaves it: the taint says the fault. Absent: never measured, "
            "several or unknown models, not read in this boot or stale, or it has become something else."
        ),
        value=_value,
        history="class",
    ),
)
