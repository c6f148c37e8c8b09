"""What is wrong with a node, for people: its gates and the findings of its last runs, each code once."""

from __future__ import annotations

from nodegauge_cli.page.model import FaultData, GpuData
from nodegauge_judge import CATALOGUE, Finding, Severity
from nodegauge_operator.api.report import GateStatus, ReportStatus
from nodegauge_operator.core import gates

_ORDER = {"fail": 0, "warn": 1, "info": 2}


def faults_of(status: ReportStatus, *, node: str) -> list[FaultData]:
    """The worst first."""
    findings = {finding.code: finding for probe in status.probes for finding in reversed(probe.findings)}
    of_gates = {gate.code: gate for gate in status.gates if gate.bad or gate.state.entered}
    found = [
        _fault(code, findings.get(code), of_gates.get(code), node=node)
        for code in dict.fromkeys((*of_gates, *findings))
    ]
    return sorted(found, key=lambda fault: (_ORDER.get(fault.severity, 3), not fault.state))


def _fault(code: str, finding: Finding | None, gate: GateStatus | None, *, node: str) -> FaultData:
    rule, known = CATALOGUE.get(code), gates.GATES.get(code)
    shown = finding or Finding(
        code=code,
        severity=Severity.FAIL,
        subject=gate.subject if gate is not None else "",
        message=gate.message if gate is not None else "",
    )
    return FaultData(
        code=code,
        title=rule.title if rule is not None else "a finding of another version",
        severity=shown.severity.value,
        cause=known.cause.value if known is not None and gate is not None else "",
        state=gate.state.value if gate is not None else "",
        since=gate.fault_at or gate.since if gate is not None else "",
        subject=shown.subject,
        gpus=[GpuData(index=g.index, uuid=g.uuid, serial=g.serial, pci=g.pci) for g in shown.gpus],
        measured=shown.message.partition(" Next: ")[0],
        steps=rule.steps(shown, node=node) if rule is not None else [],
    )
