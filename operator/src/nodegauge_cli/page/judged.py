"""A machine without a NodeReport as the page shows one: from readings that a judge saw.  Must not judge.

`part_of` keeps of one judged reading what the page shows of it; `from_judged` joins the parts of a machine.
Parts are small and can be kept as JSON, so that they can be joined later, and elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import fields, replace

from nodegauge_cli.judging import AnyJudgement, Criteria
from nodegauge_cli.page import bandwidth, nodes
from nodegauge_cli.page.links import links_of
from nodegauge_cli.page.model import Links, NodeData, RunData
from nodegauge_cli.page.reading import of_results
from nodegauge_cli.reported import PASSED_OVER, worst
from nodegauge_contract import Result
from nodegauge_contract.chassis import ChassisReading
from nodegauge_judge import Judgement, Psu, Severity, Verdict
from nodegauge_judge.chassis.judge import ChassisJudgement
from nodegauge_judge.feed.judge import FeedJudgement
from nodegauge_judge.nccl.measurement import Measurement, NcclJudgement
from nodegauge_judge.rule import measured
from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.report import InterconnectStatus
from nodegauge_operator.core.faults import of_finding
from nodegauge_operator.core.gates import GATES
from nodegauge_operator.core.usable import Lost

ACCEPTED = (Verdict.PASS, Verdict.WARN)
PSU_WORST_FIRST = (Psu.FAULT.value, Psu.REDUNDANCY_LOST.value, Psu.OK.value)
WORST_FIRST = {"fail": 0, "unknown": 1, "warn": 2}
"""Severities of faults; `unknown`: what should have been read and was not."""
JOINED = ("faults", "notes", "runs")
"""Of these a machine has those of all its parts; of anything else what the first part says that has it."""


class Part(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What the page shows of one reading, or of a whole machine."""

    data: NodeData
    """As if nothing else were known of it."""
    matrix: Links | None = None
    """Its links; None if none were read."""


def part_of(
    document: Result | ChassisReading,
    judgement: AnyJudgement | ChassisJudgement,
    *,
    criteria: Criteria,
    at: str = "",
) -> Part:
    """`criteria`: what it was judged by, for the floors of bandwidths; `at`: when it was read, RFC 3339."""
    probe = document.probe if isinstance(document, Result) else names.PROBE_BMC
    data = NodeData(name="", verdict=judgement.verdict, summary=judgement.summary, read_at=at)
    part, known, coverage = Part(data=data), GpusStatus(), ""
    if isinstance(document, ChassisReading):
        data.supplies = nodes.supplies(document)
    if isinstance(judgement, ChassisJudgement):
        data.psu, coverage = judgement.psu or "", judgement.coverage
    elif isinstance(judgement, NcclJudgement):
        _add_bandwidth(data, judgement, criteria)
    elif isinstance(judgement, Judgement) and isinstance(document, Result):
        known = _gpus(judgement)
        _add_health(data, document, judgement, known)
        part.matrix = links_of(document)
        coverage = judgement.coverage.text if judgement.coverage is not None else ""
    elif isinstance(judgement, FeedJudgement) and isinstance(document, Result):
        fed = of_results({names.PROBE_FEED: document})
        data.feed, data.fed = fed.feed, fed.fed
    of_machine = judgement.findings if probe not in names.PROBES_OF_JOBS else []
    for finding in of_machine:
        if finding.severity is Severity.INFO:
            data.notes.append(f"{finding.code}: {finding.subject}: {measured(finding)}")
        else:
            data.faults.append(_with_cause(of_finding(finding, known, cluster=False), probe))
    run = RunData(probe=probe, verdict=judgement.verdict.value, read_at=at, coverage=coverage)
    run.summary = judgement.summary
    data.runs = [run]
    return part


def from_judged(
    name: str, parts: Sequence[Part], *, verdict: Verdict | None = None, faults: Sequence[Fault] | None = None
) -> Part:
    """The machine of these parts, the health reading's first.  `verdict`, `faults`: those that somebody else
    made of them, as the role `validate` does; None: the worst of the parts, and theirs."""
    data = _joined(name, [part.data for part in parts])
    if faults is not None:
        data.faults = list(faults)
    data.faults.sort(key=lambda fault: WORST_FIRST.get(fault.severity.value, len(WORST_FIRST)))
    data.verdict = verdict or _verdict(parts)
    data.summary = next(
        (part.data.summary for part in parts if part.data.verdict == data.verdict), data.summary
    )
    data.psu = next((psu for psu in PSU_WORST_FIRST if psu in {part.data.psu for part in parts}), "")
    worst_cause = next((fault.cause or fault.code for fault in data.faults), Lost.UNREAD.value)
    read = sum(not gpu.missing for gpu in data.gpus)
    data.count = max(data.count, read)
    data.usable = min(read, data.count) if data.verdict in ACCEPTED else 0
    lost_to = Lost.MISSING.value if data.verdict in ACCEPTED else worst_cause
    data.lost = {lost_to: data.count - data.usable} if data.count > data.usable else {}
    unread = [] if read else [Lost.UNREAD.value]
    causes = [*(fault.cause or fault.code for fault in data.faults), *data.lost, *unread]
    data.causes = list(dict.fromkeys(causes))
    return Part(data=data, matrix=next((part.matrix for part in parts if part.matrix is not None), None))


def _joined(name: str, parts: Iterable[NodeData]) -> NodeData:
    data = NodeData(name=name, verdict=Verdict.UNKNOWN)
    for part in parts:
        for field in (field.name for field in fields(NodeData)):
            new, known = getattr(part, field), getattr(data, field)
            if field in JOINED:
                setattr(data, field, [*known, *new])
            elif known in ("", 0, None, [], {}):
                setattr(data, field, new)
    return data


def _verdict(parts: Sequence[Part]) -> Verdict:
    """Unknown without a health reading: nobody has seen the machine's GPUs then."""
    of_machine = [part.data for part in parts if part.data.runs[0].probe not in names.PROBES_OF_JOBS]
    verdicts = [data.verdict for data in of_machine if data.verdict not in PASSED_OVER]
    return worst(verdicts if any(data.gpus for data in of_machine) else [*verdicts, Verdict.UNKNOWN])


def _gpus(judgement: Judgement) -> GpusStatus:
    return GpusStatus(
        count=len(judgement.gpus),
        product=judgement.product,
        driver=judgement.driver,
        items=list(judgement.gpus),
    )


def _add_health(data: NodeData, document: Result, judgement: Judgement, known: GpusStatus) -> None:
    read, joined = of_results({names.PROBE_HEALTH: document}), judgement.interconnect
    coverage = judgement.coverage
    data.count = max(known.count, coverage.of_gpus, coverage.stated) if coverage is not None else known.count
    data.klass = f"{data.count} x {known.product.replace(' ', '-')}" if data.count and known.product else ""
    data.gpus = nodes.gpus(known, read)
    data.driver = known.driver
    data.interconnect = nodes.interconnect(
        InterconnectStatus(
            klass=joined.klass or "", nvlink_gbps=joined.nvlink_gbps, evidence=joined.evidence or ""
        )
    )
    data.interconnect_message = joined.message
    data.psu = judgement.psu or ""
    data.sensors = read.sensors


def _add_bandwidth(data: NodeData, judgement: NcclJudgement, criteria: Criteria) -> None:
    record = Measurement.decode(judgement.record)
    gbps = judgement.busbw.get
    status = BandwidthStatus(
        all_reduce=gbps("all_reduce"),
        all_gather=gbps("all_gather"),
        reduce_scatter=gbps("reduce_scatter"),
    )
    data.bandwidth = bandwidth.collectives(record, status, criteria)
    data.bandwidth_note = judgement.message
    data.peers = judgement.fingerprint
    data.pairs = bandwidth.pairs(record)


def _with_cause(fault: Fault, probe: str) -> Fault:
    """With the word that a taint would have, to filter by."""
    gate = GATES.get(fault.code)
    fails = gate is not None and fault.severity is Severity.FAIL
    return replace(fault, probe=probe, cause=gate.cause.value if gate is not None and fails else "")
