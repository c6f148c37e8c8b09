"""A node as its NodeReport describes it: read with the objects beside it, and judged whole.

The report says what the operator made of all runs; the NodeReading has the last of them in full, and the
NodeEvidence of older versions their findings in full.  The worst of all of them counts: a fault that the
report names stands whatever a single reading shows.  Must not print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import ContractError, Result, decode
from nodegauge_judge import CATALOGUE, Finding, GpuIdentity, Severity, Verdict
from nodegauge_judge.nccl.bandwidth import BUSBW_BELOW_PEERS
from nodegauge_judge.nccl.judge import NCCL_RULES
from nodegauge_operator import names
from nodegauge_operator.api.report import (
    GateState,
    GateStatus,
    ProbeStatus,
    Report,
    ReportStatus,
    parse_report,
)
from nodegauge_operator.core import gates
from nodegauge_operator.core.reading_view import reading_view

EVIDENCE_KIND = "NodeEvidence"
"""Written by versions before 0.1.0, with the findings of each probe in full."""
KINDS = (names.REPORT_KIND, names.READING_KIND, EVIDENCE_KIND)
PASSED_OVER = (Verdict.SKIPPED, Verdict.NO_LOAD)
WORSE = (Verdict.PASS, Verdict.WARN, Verdict.UNKNOWN, Verdict.FAIL)
"""From good to bad.  Unknown is worse than a warning: nobody has seen that the node is well."""
NEVER = "never"
_OF_SEVERITY = {Severity.FAIL: Verdict.FAIL, Severity.WARN: Verdict.WARN}


class Unusable(Exception):
    """The text cannot be judged; the message says why, and what was expected."""


class Reported(Struct, frozen=True, kw_only=True):
    """A node's report, and what else the text has of the node."""

    report: Report
    results: dict[str, Result] = {}
    """The last reading of each probe, by probe."""
    findings: dict[str, list[Finding]] = {}
    """Findings in full, by probe."""
    unreadable: tuple[str, ...] = ()
    """What of all this cannot be read."""

    @property
    def node(self) -> str:
        """The node's name."""
        return self.report.name


class KindJudgement(Struct, frozen=True, kw_only=True):
    """What is known of one probe's last run."""

    probe: str
    verdict: Verdict
    summary: str
    findings: list[Finding] = []
    """Those of the report and those of the reading, each code once."""
    read_at: str = ""
    """RFC 3339, UTC; empty if it was never read."""
    coverage: str = ""
    """What was read of what should have been, in one line; empty for a probe that does not say."""


class ReportJudgement(Struct, frozen=True, kw_only=True):
    """The judgement of a node from its report."""

    node: str
    verdict: Verdict
    """The worst of all below."""
    readable: bool
    """Whether the health probe has read the node."""
    summary: str
    kinds: list[KindJudgement]
    """In the order of `names.PROBES`."""
    gates: list[GateStatus]
    """Faults that are confirmed, being confirmed or recovering."""
    taints: list[str]
    """What the node should carry, as kubectl writes it without our prefix."""
    coverage: str
    """When each probe read the node and what it read, and what is missing."""
    findings: list[Finding]
    """Of all kinds."""


class Fresh(Struct, frozen=True, kw_only=True):
    """A new judgement of what one probe measured."""

    verdict: Verdict
    summary: str
    findings: list[Finding]
    coverage: str = ""
    regraded: bool = False
    """Whether it comes from the record in the report, not from a reading."""


def objects(text: str) -> list[dict[str, Any]]:
    """The Kubernetes objects in a YAML or JSON text, also those inside of a List.  Raises `Unusable`."""
    try:
        documents = [msgspec.json.decode(text)]  # a hundred times as fast
    except (msgspec.DecodeError, RecursionError):
        documents = _of_yaml(text)
    bodies = [body for body in documents if isinstance(body, dict)]
    lists = [body["items"] for body in bodies if isinstance(body.get("items"), list)]
    return bodies + [item for items in lists for item in items if isinstance(item, dict)]


def _of_yaml(text: str) -> list[Any]:
    try:
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise Unusable(f"not readable as YAML: {' '.join(str(error).split())[:200]}") from None


def reported(bodies: Iterable[Mapping[str, Any]]) -> list[Reported]:
    """The nodes that have a report among the objects, each with its other objects.  Raises `Unusable`."""
    by_kind = {kind: [body for body in bodies if body.get("kind") == kind] for kind in KINDS}
    for kind, matches in by_kind.items():
        metadata = [body.get("metadata") for body in matches]
        nodes = [each["name"] for each in metadata if isinstance(each, dict) and "name" in each]
        if len(nodes) < len(matches):
            raise Unusable(f"a {kind} without metadata.name")
        if twice := {node for node in nodes if nodes.count(node) > 1}:
            number = max(nodes.count(node) for node in twice)
            raise Unusable(f"{number} documents of kind {kind}, expected one of each node")
    return [_reported(body, by_kind) for body in by_kind[names.REPORT_KIND]]


def _reported(body: Mapping[str, Any], by_kind: Mapping[str, list[Mapping[str, Any]]]) -> Reported:
    report = parse_report(body)
    if report.unreadable is not None and report.status == ReportStatus():
        raise Unusable(f"the status of {names.REPORT_KIND} {report.name} cannot be read")
    of_node = {
        kind: [other for other in others if other["metadata"]["name"] == report.name]
        for kind, others in by_kind.items()
    }
    results: dict[str, Result] = {}
    unreadable = [f"{names.REPORT_KIND}: {part}" for part in report.left_out]
    for reading in of_node[names.READING_KIND]:
        read, wrong = results_of(reading)
        results, unreadable = results | read, unreadable + wrong
    findings: dict[str, list[Finding]] = {}
    for evidence in of_node[EVIDENCE_KIND]:
        try:
            findings |= _whole_findings(evidence)
        except msgspec.ValidationError as error:
            unreadable.append(f"{EVIDENCE_KIND}: {error}")
    return Reported(report=report, results=results, findings=findings, unreadable=tuple(unreadable))


def results_of(reading: Mapping[str, Any]) -> tuple[dict[str, Result], list[str]]:
    """The documents in a NodeReading by probe, and what of it cannot be read."""
    view = reading_view(dict(reading))
    results, wrong = {}, [f"{names.READING_KIND}: {part}" for part in view.left_out]
    for probe, part in sorted(view.parts.items()):
        try:
            results[probe] = decode(part.text)
        except ContractError as error:
            wrong.append(f"{names.READING_KIND}: {probe}: {error}")
    return results, wrong


def _whole_findings(evidence: Mapping[str, Any]) -> dict[str, list[Finding]]:
    probes = msgspec.convert(evidence.get("probes") or {}, dict[str, dict[str, Any]])
    return {
        probe: msgspec.convert(part.get("findings") or [], list[Finding]) for probe, part in probes.items()
    }


def judge_reported(
    document: Reported, fresh: Callable[[ProbeStatus, Result | None], Fresh | None]
) -> ReportJudgement:
    """The judgement; `fresh` judges again what one probe measured, None if it cannot."""
    status = document.report.status
    known = {probe.name for probe in status.probes} | document.results.keys()
    order = dict.fromkeys((*names.PROBES, *(probe.name for probe in status.probes), *document.results))
    kinds = [
        _kind(document, status.probe[probe], fresh(status.probe[probe], document.results.get(probe)))
        for probe in order
        if probe in known
    ]
    read = {kind.probe: _when(kind, document) for kind in kinds}
    readable = read.get(names.PROBE_HEALTH, NEVER) != NEVER
    missing = (*(() if readable else ("health was never read",)), *document.unreadable)
    of_node = [kind for kind in kinds if kind.probe not in names.PROBES_OF_JOBS]
    verdicts = [kind.verdict for kind in of_node if kind.verdict not in PASSED_OVER]
    verdicts += [*_of_report(status), *(Verdict.UNKNOWN for _ in missing)]
    lines = {kind.probe: f" ({kind.coverage})" for kind in kinds if kind.coverage}
    parts = ", ".join(f"{probe} {at}{lines.get(probe, '')}" for probe, at in read.items()) or "nothing"
    return ReportJudgement(
        node=document.node,
        verdict=worst(verdicts),
        readable=readable,
        summary=status.summary or "The operator has not judged this node.",
        kinds=kinds,
        gates=status.gates,
        taints=[taint.short for taint in status.desired.taints],
        coverage=parts + (f"; not judged: {'; '.join(missing)}" if missing else ""),
        findings=[finding for kind in kinds for finding in kind.findings],
    )


def _when(kind: KindJudgement, document: Reported) -> str:
    """When a probe read the node, as far as that is known."""
    if not kind.read_at and kind.probe in document.results:
        return f"in the {names.READING_KIND} alone"
    passed = kind.verdict in PASSED_OVER or kind.probe == names.PROBE_HEALTH
    return kind.read_at or (NEVER if passed else "at an unknown time")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several; one that says nothing of the node counts as unknown."""
    unknown = WORSE.index(Verdict.UNKNOWN)
    ranks = [WORSE.index(verdict) if verdict in WORSE else unknown for verdict in verdicts]
    return WORSE[max(ranks, default=unknown)]


def _of_report(status: ReportStatus) -> Iterable[Verdict]:
    """What report, gates and taints say of the node as a whole."""
    yield from (verdict for verdict in (status.verdict, status.raw_verdict) if verdict is Verdict.FAIL)
    yield status.verdict
    for gate in status.gates:
        if gate.code in gates.GATES and gate.state.entered:
            yield Verdict.FAIL
        elif gate.bad or gate.state is GateState.PROBATION:
            yield Verdict.WARN
    for taint in status.desired.taints:
        yield Verdict.FAIL if taint.own in gates.KIND_OF_TAINT else Verdict.UNKNOWN


def _kind(document: Reported, status: ProbeStatus, fresh: Fresh | None) -> KindJudgement:
    """What report and new judgement say together of one probe."""
    own = _complete(status.findings, document.findings.get(status.name, ()), document.report)
    optional = status.name != names.PROBE_HEALTH
    verdicts: list[Verdict] = [status.verdict] if status.verdict is Verdict.FAIL else []
    if status.failing_since:
        verdicts.append(Verdict.WARN if optional else Verdict.UNKNOWN)
    if fresh is None:
        verdicts += [status.verdict] if status.read_at or not optional else []
        findings = own
    else:
        known = {finding.code for finding in fresh.findings} | (_RECORDED if fresh.regraded else set())
        kept = [f for f in own if f.code not in known or f.severity is Severity.FAIL]
        codes = {(finding.code, finding.severity) for finding in fresh.findings}
        findings = [*fresh.findings, *(f for f in kept if (f.code, f.severity) not in codes)]
        verdicts.append(fresh.verdict)
    verdicts += [_OF_SEVERITY[finding.severity] for finding in findings if finding.severity in _OF_SEVERITY]
    verdicts = [verdict for verdict in verdicts if verdict not in PASSED_OVER]
    return KindJudgement(
        probe=status.name,
        verdict=worst(verdicts) if verdicts else Verdict.SKIPPED,
        summary=_summary(status, fresh),
        findings=findings,
        read_at=status.read_at,
        coverage=(fresh.coverage if fresh is not None else "") or status.coverage,
    )


_RECORDED = {rule.code for rule in NCCL_RULES} - {BUSBW_BELOW_PEERS.code}
"""What the record of an NCCL run tells alone, so that another policy may grade it anew."""


def _summary(status: ProbeStatus, fresh: Fresh | None) -> str:
    text = fresh.summary if fresh is not None else status.summary
    last = status.last_run
    if status.failing_since and last is not None:
        reason = f"{last.reason}: {last.message.rstrip('.')}" if last.message else last.reason
        return f"Not read since {status.failing_since} ({reason}). Before: {text or 'nothing'}"
    return text or "No run has been read."


def _complete(findings: Sequence[Finding], whole: Sequence[Finding], report: Report) -> list[Finding]:
    """The report's findings with what the evidence has in full, and with the serial numbers of their GPUs."""
    messages = {(finding.code, finding.severity): finding.message for finding in whole}
    return [
        replace(
            finding,
            message=messages.get((finding.code, finding.severity)) or _uncut(finding),
            gpus=finding.gpus or _gpus(finding.subject, report),
        )
        for finding in findings
    ]


def _uncut(finding: Finding) -> str:
    """The message, or what the finding means: older versions cut messages in a report."""
    if not finding.message.endswith("..."):
        return finding.message
    rule = CATALOGUE.get(finding.code)
    title = rule.title if rule is not None else finding.code
    return f"{title[0].upper()}{title[1:]}. The report has cut the numbers; the {EVIDENCE_KIND} has them."


def _gpus(subject: str, report: Report) -> list[GpuIdentity]:
    known = report.status.gpus.known()
    named = [gpu for gpu in known if gpu.index is not None and f"GPU {gpu.index} ({gpu.pci})" in subject]
    return [GpuIdentity(index=g.index, uuid=g.uuid, serial=g.serial, pci=g.pci) for g in named[:2]]
