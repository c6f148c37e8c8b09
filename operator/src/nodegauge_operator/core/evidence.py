"""What the NodeEvidence of a node holds, and when it is written again.

It is written before the report of the same run, while the run's pod still has the result: an operator that is
killed in between makes it again.  The report keeps a digest of what a person would look at (findings and
their locations, GPUs, cards, matrix, driver), so a run that only reads another temperature writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from nodegauge_contract import Gpu, Result, Sensor
from nodegauge_contract.matrix import render
from nodegauge_judge import Finding, GpuIdentity, Verdict
from nodegauge_judge.case import identity, number, text
from nodegauge_judge.rules.sensors import with_unit
from nodegauge_judge.rules.thermal import hottest
from nodegauge_operator import names
from nodegauge_operator.api.evidence import (
    MAX_FINDINGS,
    MAX_MATRIX,
    UNREADABLE,
    GpuEvidence,
    NicEvidence,
    PortEvidence,
    ProbeEvidence,
    SensorEvidence,
)
from nodegauge_operator.api.report import ReportStatus, Run, stamp, unstamp
from nodegauge_operator.core.actions import WriteEvidence
from nodegauge_operator.core.context import Context

LIMIT = 125_000
"""Bytes of one probe's part as JSON.  Chosen by this project: the four parts that there can be stay below
512 KiB, a third of what etcd takes in one request."""
REWRITE_SECONDS = 86_400.0
"""Evidence that did not change is written again after this long, so that its readings are of the last day and
an object that somebody deleted is back.  Chosen by this project: 1 write in 96 runs, or in 12 reports of a
container."""


class Judged(Protocol):
    """What a judgement says of a result, whichever probe it judges."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def summary(self) -> str: ...
    @property
    def locations(self) -> list[Finding]: ...


def of_run(
    result: Result,
    judgement: Judged,
    *,
    run: Run,
    policy: str,
    matrix: str | None = None,
    missing: Sequence[GpuIdentity] = (),
) -> ProbeEvidence:
    """The evidence of one run that left a result.  `matrix`: its topology, where it is rendered already."""
    full = ProbeEvidence(
        run=run.number,
        pod=run.pod_name,
        policy=policy,
        boot_id=text(result.host.boot_id),
        read_at=run.finished_at,
        verdict=judgement.verdict,
        summary=judgement.summary,
        driver=text(result.system.driver),
        nvml=text(result.system.nvml),
        findings=list(judgement.locations),
        gpus=[_gpu(gpu) for gpu in result.gpus],
        missing=list(missing),
        matrix=_trimmed(render(result) if matrix is None else matrix),
        nics=_nics(result),
        sensors=[_sensor(sensor) for sensor in result.sensors],
    )
    return _bounded(full)


def key(probe: str, evidence: ProbeEvidence) -> str:
    """Under which key of the object it stands: a run that could not be judged replaces no reading."""
    return probe if evidence.verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL) else probe + UNREADABLE


def digest(evidence: ProbeEvidence) -> str:
    """Equal for evidence in which a person would see nothing new."""
    stable = (
        evidence.verdict,
        evidence.driver,
        evidence.matrix,
        sorted((f.code, f.severity, f.subject) for f in evidence.findings),
        [(gpu.index, gpu.uuid, gpu.serial, gpu.pci, gpu.name, gpu.vbios) for gpu in evidence.gpus],
        [(gpu.uuid, gpu.serial) for gpu in evidence.missing],
        [(nic.name, nic.pci) for nic in evidence.nics],
    )
    return names.digest(msgspec.json.encode(stable).decode())


def is_due(context: Context, probe: str, evidence: ProbeEvidence) -> bool:
    """Whether the evidence of a run has to be written now."""
    before = context.status.probe(probe)
    old = context.now - unstamp(before.evidence_at) >= REWRITE_SECONDS
    return WriteEvidence not in context.declined and (old or digest(evidence) != before.evidence_digest)


def noted(
    status: ReportStatus, probe: str, evidence: ProbeEvidence, *, node: str, now: float
) -> ReportStatus:
    """The status after the evidence of a run was written."""
    after = replace(status.probe(probe), evidence_digest=digest(evidence), evidence_at=stamp(now))
    return replace(status, evidence=command(node), probes=status.with_probe(after))


def command(node: str) -> str:
    """What shows the object."""
    return f"kubectl get nodeevidence {node} -o yaml"


def _gpu(gpu: Gpu) -> GpuEvidence:
    celsius = hottest(gpu)
    named = identity(gpu)
    return GpuEvidence(
        index=gpu.index,
        uuid=named.uuid,
        serial=named.serial,
        pci=named.pci,
        name=text(gpu.name),
        vbios=text(gpu.vbios),
        compute_capability=text(gpu.compute_capability),
        memory_mib=_whole(gpu.memory_mib),
        module_id=_whole(gpu.module_id),
        nvlinks=sum(len(group.links) for group in gpu.links if group.state == 1) if gpu.links else None,
        pcie_generation=_whole(gpu.pcie.generation),
        pcie_width=_whole(gpu.pcie.width),
        celsius=_whole(celsius),
        memory_celsius=_whole(gpu.temperature.memory),
        watts=_whole(gpu.power.usage_mw, per=1000),
        sm_mhz=_whole(gpu.clocks.sm_mhz),
        error=text(gpu.error.message) or text(gpu.error.kind) if gpu.error is not None else "",
    )


def _trimmed(matrix: str) -> str:
    """The matrix without blanks at the ends of lines: YAML then shows it as it is."""
    lines = [line.rstrip() for line in matrix.expandtabs().splitlines()]
    return "\n".join(lines)[:MAX_MATRIX]


def _nics(result: Result) -> list[NicEvidence]:
    nics = result.nics
    return [
        NicEvidence(
            name=text(name),
            pci=text(nics.pci[slot]) if slot < len(nics.pci) else "",
            ports=[
                PortEvidence(
                    port=port.port,
                    state=text(port.state),
                    physical=text(port.physical),
                    rate_gbps=_rate(port.rate_gbps),
                    link_layer=text(port.link_layer),
                )
                for port in nics.ports
                if port.nic == slot
            ],
        )
        for slot, name in enumerate(nics.names)
    ]


def _rate(value: object) -> float | None:
    rate = number(value)
    return rate if rate is not None and 0 <= rate < 1e9 else None


def _sensor(sensor: Sensor) -> SensorEvidence:
    value = number(sensor.value)
    return SensorEvidence(
        chip=text(sensor.chip),
        name=text(sensor.name),
        label=text(sensor.label),
        value="" if value is None else with_unit(sensor, value),
        alarm=sensor.alarm == 1,
    )


def _whole(value: object, *, per: int = 1) -> int | None:
    """A number that a counter or a sensor can have; a broken driver may say anything."""
    read = number(value)
    return None if read is None or not 0 <= read <= 2**53 else round(read / per)


def _bounded(evidence: ProbeEvidence) -> ProbeEvidence:
    """As much as one object holds; `cut` says what is missing.  Sensors go first, the worst findings stay."""
    if len(evidence.findings) > MAX_FINDINGS:
        evidence = _fewer_findings(evidence, MAX_FINDINGS)
    for step in _STEPS:
        if len(msgspec.json.encode(evidence)) <= LIMIT:
            break
        evidence = step(evidence)
    return evidence


def _fewer_findings(evidence: ProbeEvidence, most: int) -> ProbeEvidence:
    left = len(evidence.findings) - most
    if left <= 0:
        return evidence
    note = f"{left} findings of {len(evidence.findings)}, the least severe ones"
    return replace(evidence, findings=evidence.findings[:most], cut=[*evidence.cut, note])


def _without_sensors(evidence: ProbeEvidence) -> ProbeEvidence:
    return replace(evidence, sensors=[], cut=[*evidence.cut, f"all {len(evidence.sensors)} sensors"])


_STEPS: tuple[Callable[[ProbeEvidence], ProbeEvidence], ...] = (
    _without_sensors,
    lambda evidence: _fewer_findings(evidence, 256),
    lambda evidence: _fewer_findings(evidence, 64),
    lambda evidence: replace(evidence, matrix="", cut=[*evidence.cut, "the topology matrix"]),
)
