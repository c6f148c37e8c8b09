"""The labels that come from the health probe: what joins the GPUs, and what all probes together found."""

from __future__ import annotations

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import BEST_FIRST, ReportStatus, whole
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.driver_access import DriverAccess
from nodegauge_operator.core.label import Label, interconnect_stands

MOST_GBPS = 1_000_000
"""An edited report may hold any number; no link carries a petabyte a second."""
REWRITE_SHARE = 0.5
"""`validated-at` is rewritten once it is older than this share of the staleness limit (ADR 0008)."""


def _read(context: Context, status: ReportStatus) -> bool:
    """Whether a health reading counts."""
    return bool(status.probe[HEALTH].read_at) and HEALTH not in context.stale


def _interconnect(context: Context, status: ReportStatus) -> str:
    return status.interconnect.klass if interconnect_stands(context, status) else ""


def _evidence(context: Context, status: ReportStatus) -> str:
    return (status.interconnect.evidence or "reported") if interconnect_stands(context, status) else ""


def _nvlink_gbps(context: Context, status: ReportStatus) -> str:
    gbps = status.interconnect.nvlink_gbps
    plausible = gbps is not None and 0 <= gbps <= MOST_GBPS
    return str(gbps) if plausible and interconnect_stands(context, status) else ""


def _health(context: Context, status: ReportStatus) -> str:
    """Only `fail` outlives its reading, as its taint does."""
    verdict = context.after(status).verdict
    counts = verdict is Verdict.FAIL or (verdict in BEST_FIRST and _read(context, status))
    return verdict.value if counts else ""


def _throttled(context: Context, status: ReportStatus) -> str:
    return gates.throttled_label(status) if context.is_known else ""


def _validated_at(context: Context, status: ReportStatus) -> str:
    if not _read(context, status):
        return ""
    read_at = int(status.probe[HEALTH].read_epoch)
    before = whole(status.desired.labels.get(names.LABEL_VALIDATED_AT, ""))
    recent = before is not None and 0 <= read_at - before <= context.stale_seconds_of(HEALTH) * REWRITE_SHARE
    return str(before if recent else read_at)


def _driver_access(context: Context, status: ReportStatus) -> str:
    return names.BY_CLAIM if context.access is DriverAccess.DRA else ""


LABELS = (
    Label(
        key=names.LABEL_INTERCONNECT,
        values="nvlink | nvlink-pairs | pcie",
        meaning=(
            "nvlink: a ring over all GPUs runs on NVLink only. nvlink-pairs: there is NVLink, but a ring "
            "must cross PCIe. pcie: no NVLink. Absent: one GPU, or unknown, or the sources disagree."
        ),
        value=_interconnect,
        history="interconnect",
    ),
    Label(
        key=names.PREFIX + "interconnect-evidence",
        values="reported | measured",
        meaning=(
            "reported: by NVML (matrix, P2P status and fabric state agree). measured: confirmed by the "
            "bandwidth of NCCL collectives. If bandwidth contradicts NVML, the interconnect labels are "
            "removed, and those of bandwidth with them."
        ),
        value=_evidence,
    ),
    Label(
        key=names.PREFIX + "nvlink-gbps",
        values="integer, GB/s one way",
        meaning=(
            "NVLink rate of the weakest GPU, in one direction; only with nvlink. Works with nodeAffinity Gt."
        ),
        value=_nvlink_gbps,
    ),
    Label(
        key=names.LABEL_HEALTH,
        values="pass | warn | fail",
        meaning=(
            "All probes and gates together. fail: a taint for a fault stands, or waits for a slot in the "
            "budget, also while nothing can be read. warn: at worst, anything else was found, such as a "
            "fault that is not confirmed or has the effect None. Absent when unknown or stale, and once "
            "readings have failed for `unreadAfter` (5 min)."
        ),
        value=_health,
        history="label health",
    ),
    Label(
        key=names.PREFIX + "throttled",
        values="none | thermal | power-brake | hw-slowdown",
        meaning=(
            "What slows GPUs down, by the same rule as the taint. It is set even if the taint is not "
            "(budget, effect None). none: no slowdown under load. Absent: not yet judged under load, on "
            "probation, or stale."
        ),
        value=_throttled,
    ),
    Label(
        key=names.LABEL_VALIDATED_AT,
        values="integer, epoch seconds",
        meaning=(
            "Time of the last readable run, so that nodeAffinity Gt can reject stale nodes. Updated when "
            "it is older than half of the staleness limit."
        ),
        value=_validated_at,
    ),
    Label(
        key=names.LABEL_DRIVER_ACCESS,
        values=names.BY_CLAIM,
        meaning="Pods of probes reach the GPU driver here by claims of dynamic resource allocation; the "
        "watch container finds the node by this label. Absent where NVIDIA's runtime brings the driver in.",
        value=_driver_access,
    ),
)
