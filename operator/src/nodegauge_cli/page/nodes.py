"""One node's objects as the page shows them.  Must not judge: the report has the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from nodegauge_cli.judging import Criteria
from nodegauge_cli.page import bandwidth, history
from nodegauge_cli.page.model import GpuData, NodeData, RunData, Supply
from nodegauge_cli.page.reading import OfReading
from nodegauge_cli.standing import UNREAD, Standing
from nodegauge_contract import chassis as contract
from nodegauge_judge import GpuBrief, GpuIdentity, Verdict
from nodegauge_judge.nccl.measurement import Measurement
from nodegauge_operator import names
from nodegauge_operator.api.chassis import Chassis
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.node_history import Day
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import InterconnectStatus, ProbeStatus, Report, ReportStatus
from nodegauge_operator.core import wording
from nodegauge_operator.core.faults import faults
from nodegauge_operator.core.override import applied
from nodegauge_operator.core.usable import UNKNOWN


def node_data(
    report: Report,
    *,
    standing: Standing,
    policy: Policy,
    criteria: Criteria,
    reading: OfReading,
    chassis: Chassis | None,
    days: Mapping[str, Day],
) -> NodeData:
    """The node; its matrix is numbered later.  `policy` and `criteria`: the defaults if its policy was not
    read."""
    status = report.status
    measured = Measurement.decode(status.probe[names.PROBE_NCCL].history)
    known = faults(status, policy=applied(policy, status.override), node=report.name)
    return NodeData(
        **_stands(standing),
        gpus=gpus(status.gpus, reading),
        causes=_causes(known, standing),
        read_at=status.probe[names.PROBE_HEALTH].read_at,
        summary=status.summary,
        driver=status.gpus.driver,
        **_carried(status),
        notes=_notes(report, reading, chassis),
        faults=known,
        runs=[_run(probe) for probe in status.probes],
        interconnect=interconnect(status.interconnect),
        interconnect_message=status.interconnect.message,
        bandwidth=bandwidth.collectives(measured, status.bandwidth, criteria),
        bandwidth_note=" ".join(filter(None, (status.bandwidth.message, status.bandwidth.detail))),
        peers=status.bandwidth.fingerprint,
        pairs=bandwidth.pairs(measured),
        psu=status.psu,
        supplies=supplies(chassis.reading if chassis is not None else None),
        sensors=reading.sensors,
        feed=reading.feed,
        fed=reading.fed,
        days=history.columns(days),
    )


def unseen(standing: Standing) -> NodeData:
    """A node without a report."""
    return NodeData(**_stands(standing), causes=_causes([], standing))


class _Stands(TypedDict):
    name: str
    verdict: Verdict
    klass: str
    count: int
    usable: int
    lost: dict[str, int]
    policy: str
    unread: str


def _stands(standing: Standing) -> _Stands:
    """What `nodegauge status` counts of it, too."""
    return _Stands(
        name=standing.node,
        verdict=Verdict(standing.health) if standing.health != UNREAD else Verdict.UNKNOWN,
        klass=standing.gpu_class if standing.gpu_class != UNKNOWN else "",
        count=standing.gpus_had,
        usable=standing.usable,
        lost=standing.lost,
        policy=standing.policy,
        unread=standing.why_unread,
    )


class _Carried(TypedDict):
    labels: dict[str, str]
    taints: list[str]
    condition: str
    message: str
    override: str


def _carried(status: ReportStatus) -> _Carried:
    """What the node should carry, and who says otherwise."""
    desired, override = status.desired, status.override
    text = wording.in_words(override) if override is not None and override.kind else ""
    if override is not None and override.problem:
        text = f"{text}. Not in force: {override.problem}" if text else f"Not in force: {override.problem}"
    return _Carried(
        labels={key.removeprefix(names.PREFIX): value for key, value in sorted(desired.labels.items())},
        taints=[taint.short for taint in desired.taints],
        condition=" ".join(filter(None, (desired.condition, desired.reason))),
        message=desired.message,
        override=text,
    )


def gpus(known: GpusStatus, reading: OfReading) -> list[GpuData]:
    """Those that were read, then those that were lost."""
    return [
        *(_gpu(gpu, reading, product=known.product) for gpu in known.items),
        *(_identity(gpu, missing=True) for gpu in known.missing),
    ]


def _gpu(gpu: GpuBrief, reading: OfReading, *, product: str) -> GpuData:
    shown = _identity(gpu)
    shown.name = gpu.name if gpu.name != product else ""
    shown.celsius = gpu.celsius
    shown.watts, shown.limit = reading.watts.get(gpu.uuid, (None, None))
    return shown


def _identity(gpu: GpuIdentity, *, missing: bool = False) -> GpuData:
    return GpuData(index=gpu.index, uuid=gpu.uuid, serial=gpu.serial, pci=gpu.pci, missing=missing)


def _causes(known: list[Fault], standing: Standing) -> list[str]:
    """One word each, to filter by: causes of faults, codes of findings without one, and why no GPU can be
    used."""
    unread = [UNREAD] if standing.why_unread else []
    return list(dict.fromkeys([*(fault.cause or fault.code for fault in known), *standing.lost, *unread]))


def _notes(report: Report, reading: OfReading, chassis: Chassis | None) -> list[str]:
    """What could not be written to the node, or read of its objects."""
    desired = report.status.desired
    notes = [f"The API server refuses our write: {desired.refusal}"] if desired.refusal else []
    notes += [f"Somebody else has set the label {key}." for key in desired.conflicts]
    notes += [f"{names.REPORT_KIND}: {wrong}" for wrong in report.left_out]
    notes += reading.unreadable
    if chassis is not None:
        problem = chassis.status.problem
        notes += [f"BMC: {problem}"] if problem else []
        notes += [f"{names.CHASSIS_KIND}: {wrong}" for wrong in chassis.left_out]
    return notes


def _run(probe: ProbeStatus) -> RunData:
    last = probe.last_run
    failed = ""
    if probe.failing_since and last is not None:
        failed = f"since {probe.failing_since}: {last.reason} {last.message}".rstrip()
    return RunData(
        probe=probe.name,
        verdict=probe.verdict.value if probe.read_at else UNREAD,
        read_at=probe.read_at,
        summary=probe.summary,
        coverage=probe.coverage,
        failed=failed,
    )


def interconnect(joined: InterconnectStatus) -> str:
    """`nvlink 450 GB/s (measured)`; empty if unknown."""
    rate = f" {joined.nvlink_gbps} GB/s" if joined.klass and joined.nvlink_gbps else ""
    evidence = f" ({joined.evidence})" if joined.klass and joined.evidence else ""
    return f"{joined.klass}{rate}{evidence}"


def supplies(reading: contract.ChassisReading | None) -> list[Supply]:
    """By the BMC; none without a reading."""
    return [_supply(each) for each in reading.supplies] if reading is not None else []


def _supply(supply: contract.Supply) -> Supply:
    parts = [part for part in (supply.health, supply.line_input) if isinstance(part, str)]
    watts = (supply.output_watts, supply.input_watts)
    return Supply(
        name=supply.name,
        state="bay is empty" if supply.present is False else ", ".join(parts),
        watts=next((round(each) for each in watts if isinstance(each, int | float)), None),
        capacity=round(supply.capacity_watts) if isinstance(supply.capacity_watts, int | float) else None,
    )
