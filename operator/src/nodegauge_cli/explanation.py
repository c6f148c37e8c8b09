"""Why a node stands as it does, as one document: what `nodegauge explain` prints, for people and programs.

Pure: from the report, the policy in force and the time.  What was not read is said as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_cli.standing import Standing, applied, observing, standing_of
from nodegauge_judge.gpu_models import known_models
from nodegauge_judge.rule import NEXT
from nodegauge_operator import names
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.policy import Mode, Policy
from nodegauge_operator.api.report import Outcome, ProbeStatus, Report, ReportStatus
from nodegauge_operator.core import gates, wording
from nodegauge_operator.core.faults import faults, supplies

READERS = (names.PROBE_HEALTH, names.PROBE_NCCL, names.PROBE_LOAD)
"""Kinds of probe of which every node should have a reading; the others are named if they have one."""


class ReadBy(Struct, frozen=True, rename="camel", kw_only=True):
    """What one probe read of the node."""

    probe: str
    read_at: str = ""
    """When it last read the node (RFC 3339, UTC); empty for never."""
    verdict: str = ""
    """Of that reading."""
    summary: str = ""
    """That reading in a sentence."""
    coverage: str = ""
    """What was read of what should have been; empty for a probe that does not say."""
    trouble: str = ""
    """Why later runs read nothing, or why there is no reading; empty for none."""


class Explanation(Struct, frozen=True, rename="camel", kw_only=True):
    """All that a person asks about a node at 3 a.m."""

    standing: Standing
    condition: str = ""
    """Status and reason of the condition GPUValidated, as `False (FaultsFound)`; empty for none."""
    would_carry: list[str] = []
    """In mode Observe: the taints that the node would carry in mode Enforce."""
    nvswitch: bool = False
    """Whether NVSwitches certainly join its GPUs, by their model and number."""
    interconnect: str = ""
    """How the GPUs are joined, with the numbers and the evidence; or why that is unknown."""
    bandwidth: str = ""
    """What NCCL measured, and whether that is older than the worst fault; or why no run can be made; empty if
    neither is known."""
    supplies: str = ""
    """Why the label `psu` says fault where no supply reports one; empty otherwise."""
    faults: list[Fault] = []
    """What is wrong, the worst first, each with its evidence and its steps."""
    override: Override | None = None
    """What a person says about the node."""
    conflicts: list[str] = []
    """Label keys that another owner has set."""
    refusal: str = ""
    """Error of the API server if it refuses to write what the node should carry."""
    readings: list[ReadBy] = []
    """What was read, by which probe and when, and what was not."""
    left_out: list[str] = []
    """Parts of the report that this version cannot read."""
    policy_missing: bool = False
    """The policy that it follows is gone or cannot be read: limits shown are the defaults."""


def explained(report: Report, policy: Policy | None, *, now: float) -> Explanation:
    """The explanation of one node; `policy`: the one that the report names, None if it is gone."""
    status, in_force = report.status, applied(policy, report.status)
    desired, gpus, known = status.desired, status.gpus, faults(status, policy=in_force, node=report.name)
    board = known_models().find(gpus.product).board
    enforcing = replace(in_force, spec=replace(in_force.spec, mode=Mode.ENFORCE))
    would = gates.taints(status, policy=enforcing) if observing(policy) else []
    return Explanation(
        standing=standing_of(report, policy, now=now),
        condition=f"{desired.condition} ({desired.reason})" if desired.condition else "",
        would_carry=[taint.short for taint in would],
        nvswitch=board is not None and board.switched(gpus.count + len(gpus.missing)),
        interconnect=_interconnect(status),
        bandwidth=bandwidth(status, known),
        faults=known,
        supplies=supplies(status, known),
        override=status.override,
        conflicts=list(desired.conflicts),
        refusal=desired.refusal,
        readings=list(_readings(status)),
        left_out=list(report.left_out),
        policy_missing=policy is None,
    )


def bandwidth(status: ReportStatus, known: Sequence[Fault]) -> str:
    """What NCCL measured, and that this was before the worst of the known faults; or why it cannot run."""
    measured, old = status.bandwidth.message, wording.before(status.probe[names.PROBE_NCCL], known)
    return (f"{old}: {measured}" if old else measured) if measured else status.bandwidth.detail


def _interconnect(status: ReportStatus) -> str:
    joined = status.interconnect
    if not joined.klass and not joined.message:
        return ""
    evidence = f" [{joined.evidence}]" if joined.evidence else ""
    message = joined.message.partition(NEXT)[0]
    return f"{joined.klass or f'unknown ({joined.reason})'}{evidence}: {message}"


def _readings(status: ReportStatus) -> Iterator[ReadBy]:
    for name in dict.fromkeys((*READERS, *(probe.name for probe in status.probes))):
        if name != names.PROBE_PULL or status.probe[name].failing_since:
            yield _read_by(status, status.probe[name])


def _read_by(status: ReportStatus, probe: ProbeStatus) -> ReadBy:
    return ReadBy(
        probe=probe.name,
        read_at=probe.read_at,
        verdict=probe.verdict.value if probe.read_at else "",
        summary=probe.summary if probe.read_at else "",
        coverage=probe.coverage,
        trouble=_trouble(status, probe),
    )


def _trouble(status: ReportStatus, probe: ProbeStatus) -> str:
    """Why a probe has read nothing lately, as far as the report says."""
    last = probe.last_run
    if probe.unreadable is not None:  # the whole of it is in the node's line
        return f"not readable since {probe.unreadable.since} ({probe.unreadable.symptom})"
    if last is not None and last.outcome is not Outcome.READ:
        since = f"since {probe.failing_since}, " if probe.failing_since else ""
        return f"{since}{last.reason}: {last.message}" if last.message else f"{since}{last.reason}"
    if probe.read_at:
        return ""
    if probe.name != names.PROBE_HEALTH and status.bandwidth.reason:
        return f"{status.bandwidth.reason}: {status.bandwidth.detail}"
    return "no run yet"
