"""What is wrong with a node, fault by fault: the one description that everybody reads.

Condition, event, `nodegauge explain`, ticket, page and the labels of alerts are made of the same `Fault`s, so
that they say the same.  A fault is a gate that is bad, or was confirmed, with the evidence of its last bad
run; or a finding without a gate.  Pure: from a report's status and the policy as it is in force on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import CATALOGUE, Finding, GpuIdentity, Severity
from nodegauge_judge.rule import NEXT, measured, worst_first
from nodegauge_operator import names
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.policy import Mode, Policy
from nodegauge_operator.api.report import (
    NEVER,
    GateState,
    GateStatus,
    ReportStatus,
    stamp,
)
from nodegauge_operator.core import gates, hysteresis
from nodegauge_operator.core.hysteresis import GateRule
from nodegauge_operator.core.report_size import cut

NOWHERE = ("", "node", "all GPUs")
"""Subjects that name no place on the node."""
MANY_GPUS = 2
"""GPUs whose serial numbers a sentence names: a pair.  The report has those of all."""
MIN_MEASURED = 60
"""Bytes of what was measured that outlast the next step."""
_MORE = re.compile(r" and \d+ more$")


class Fault(Struct, frozen=True, rename="camel", kw_only=True):
    """One thing that is wrong with a node."""

    code: str
    """The finding's code."""
    title: str
    """What is wrong, in a few words."""
    severity: Severity
    """`fail`, or `warn` for a finding that never sets a taint or is not confirmed by a gate."""
    probe: str = ""
    """The kind of reading that found it."""
    cause: str = ""
    """The taint's value that it stands for, such as corruption; empty if it never sets one."""
    taint: str = ""
    """`unhealthy=corruption`: the taint that it sets or would set; empty if it never sets one."""
    state: str = ""
    """`GateState`; empty for a finding without a gate."""
    tainted: bool = False
    """Whether the taint that the node should carry now has this fault as its evidence."""
    since: str = ""
    """When it was first confirmed; before that, when it was first seen.  RFC 3339, UTC; empty if unknown."""
    last_seen: str = ""
    """The last run that showed it; empty if unknown."""
    subject: str = ""
    """The worst location, and how many more there are."""
    gpus: list[GpuIdentity] = []
    """The GPUs of the worst location, with all that is known of each, also of lost ones."""
    measured: str = ""
    """What the last bad run measured, with its numbers; empty after a repair."""
    also: str = ""
    """Further locations."""
    next_step: str = ""
    """The first thing to do."""
    steps: list[str] = []
    """Everything to do, in order, with the values of this fault."""
    no_taint: str = ""
    """Why it sets no taint now; empty if it does."""
    lifts: str = ""
    """What ends the taint, the trial or the suspicion; empty for a finding without a gate."""

    @property
    def where(self) -> str:
        """The place with all that names it: `GPU 3 (0000:3b:00.0), serial 1654922001234 and 2 more`; empty
        for the node as a whole."""
        location, more = "" if self.subject in NOWHERE else self.subject, ""
        if others := _MORE.search(location):
            location, more = location[: others.start()], others[0]
        if len(self.gpus) == 1:
            gpu = self.gpus[0]
            parts = [f"GPU {gpu.index}" if gpu.index is not None else "", gpu.pci]
            new = [part for part in parts if part not in location]
            location = ", ".join([location, *new] if location else new)
        serials = ", ".join(gpu.serial or "unknown" for gpu in self.gpus[:MANY_GPUS])
        if any(gpu.serial for gpu in self.gpus):
            location += f" (serials {serials})" if len(self.gpus) > 1 else f", serial {serials}"
        return location + more

    def sentence(self, most: int) -> str:
        """Place, what was measured, since when, and the next step, in at most so many bytes.  What was
        measured is cut first."""
        location = f"{self.where}: " if self.where else ""
        return cut(location + self.detail(most - len(location.encode())), most)

    def detail(self, most: int) -> str:
        """The same without the place."""
        since = f" Since {self.since}." if self.since else ""
        tail = f"{since}{NEXT}{self.next_step}" if self.next_step else since
        text = self.measured or f"{self.title[0].upper()}{self.title[1:]}."
        return cut(f"{cut(text, max(MIN_MEASURED, most - len(tail.encode())))}{tail}", most)


def faults(status: ReportStatus, *, policy: Policy, node: str = "") -> list[Fault]:
    """All faults of a node: those that set its taints first, then confirmed ones, then the others, worst
    first.  `policy`: as it is in force there (`override.applied`); `node`: its name, for the steps."""
    carried = [gates.tainting(status, kind, policy=policy) for kind in gates.TAINT_KEYS]
    tainting = {gate.code for gate in carried if gate is not None and policy.spec.mode is not Mode.OBSERVE}
    known = [gate for gate in status.gates if gate.code in gates.GATES and _is_news(gate)]
    known.sort(key=lambda gate: (gate.code not in tainting, not gate.state.entered, _rank(gate)))
    of_gates = [
        _of_gate(gate, status, policy=policy, node=node, tainted=gate.code in tainting) for gate in known
    ]
    codes = {fault.code for fault in of_gates}
    return [*of_gates, *_without_gate(status, codes, node=node)]


def cause(every: Sequence[Fault]) -> str:
    """The worst fault in a word: the value of its taint, or its code if it never sets one; empty for none."""
    return (every[0].cause or every[0].code) if every else ""


def _is_news(gate: GateStatus) -> bool:
    """Whether it says anything but that a fault once was here."""
    return gate.state is not GateState.WATCHING or gate.bad > 0


def _rank(gate: GateStatus) -> int:
    return gates.WORST_FIRST[gates.GATES[gate.code].cause]


def _of_gate(gate: GateStatus, status: ReportStatus, *, policy: Policy, node: str, tainted: bool) -> Fault:
    finding = _evidence(gate, status)
    return replace(
        of_finding(finding, status.gpus, node=node),
        probe=gates.PROBES[gate.code],
        cause=gates.GATES[gate.code].cause.value,
        taint=would_be(gate),
        state=gate.state.value,
        tainted=tainted,
        since=gate.fault_at or gate.since,
        last_seen=gate.bad_at,
        measured=measured(finding) if gate.message else "",
        no_taint="" if tainted else without_taint(gate, policy=policy, override=status.override),
        lifts=lifted_by(gate, policy=policy),
    )


def _evidence(gate: GateStatus, status: ReportStatus) -> Finding:
    """The finding of the last bad run: whole while that run stands, else what the gate keeps of it."""
    for probe in status.probes:
        for finding in probe.findings:
            if (finding.code, finding.subject) == (
                gate.code,
                gate.subject,
            ) and finding.severity is Severity.FAIL:
                return replace(finding, message=gate.message or finding.message)
    return Finding(code=gate.code, severity=Severity.FAIL, subject=gate.subject, message=gate.message)


def _without_gate(status: ReportStatus, codes: set[str], *, node: str) -> Iterator[Fault]:
    """Findings of the last runs about the node that no gate of this list describes."""
    pairs = [
        (finding, probe)
        for probe in status.probes
        if probe.name not in names.PROBES_OF_JOBS
        for finding in probe.findings
        if finding.severity in (Severity.FAIL, Severity.WARN) and finding.code not in codes
    ]
    order = worst_first(finding for finding, _ in pairs)
    for finding, probe in sorted(pairs, key=lambda pair: order.index(pair[0])):
        fault = of_finding(finding, status.gpus, node=node)
        yield replace(fault, probe=probe.name, since=probe.since, last_seen=probe.read_at)


def of_finding(finding: Finding, gpus: GpusStatus, *, node: str = "", cluster: bool = True) -> Fault:
    """A finding as a fault that no gate follows.  `cluster`: whether the steps may need one."""
    named = finding.gpus or gpus.named_in(finding.subject)
    finding = replace(finding, gpus=[gpus.whole(gpu) for gpu in named])
    rule = CATALOGUE.get(finding.code)
    steps = rule.steps(finding, node=node, cluster=cluster) if rule is not None else []
    next_step = finding.message.rpartition(NEXT)[2] if NEXT in finding.message else ""
    return Fault(
        code=finding.code,
        title=rule.title if rule is not None else finding.code,
        severity=finding.severity,
        subject=finding.subject,
        gpus=finding.gpus,
        measured=measured(finding),
        also=str(finding.evidence.get("also", "")),
        next_step=next_step or (steps[0] if steps else ""),
        steps=steps,
    )


def would_be(gate: GateStatus) -> str:
    """`throttled=thermal`: the taint that the gate would set."""
    known = gates.GATES[gate.code]
    return f"{known.kind.value}={known.cause.value}"


def without_taint(gate: GateStatus, *, policy: Policy, override: Override | None) -> str:
    """Why a gate sets no taint; empty if it sets one, or only remembers."""
    rule = GateRule(gate=gates.GATES[gate.code], policy=policy.spec.hysteresis)
    match gate.state:
        case GateState.HELD_BACK:
            return no_slot(gate, policy)
        case GateState.PROBATION:
            return f"on probation since {gate.since}, one bad run sets the taint"
        case GateState.WATCHING:
            return f"not confirmed, {gate.bad} of {rule.enter_runs} bad runs" if gate.bad else ""
    if policy.spec.mode is Mode.OBSERVE:
        return "not set, the policy is in mode Observe"
    if gates.has_effect(gate, policy=policy):
        return ""
    if override is not None and override.healthy:
        return f"not set, taken as healthy by {override.by} until {override.until}"
    return "not set, its effect is None"


def no_slot(gate: GateStatus, policy: Policy) -> str:
    """Why a gate that was entered sets no taint yet."""
    if gate.incident:
        return f"held back by incident {gate.incident}, until the first bad run after its end"
    if policy.paused:
        return "held back while paused"
    budget = policy.spec.budget
    limits = (
        f"of tainted nodes ({budget.gated_nodes}) or of new taints ({budget.gated_nodes_per_hour} an hour)"
    )
    return f"held back: the limit {limits} of this policy or of the cluster is reached; worse faults go first"


def lifted_by(gate: GateStatus, *, policy: Policy) -> str:
    """What ends what the gate says, in words; the same until a run or a person changes it."""
    numbers = policy.spec.hysteresis
    rule = GateRule(gate=gates.GATES[gate.code], policy=numbers)
    under_load = " under load" if gates.needs_load(gate) else ""
    runs = f"{numbers.leave_runs} good runs{under_load} in a row"
    if gate.code in gates.UNREAD:
        return "the first run that can be read" if not gate.state.entered else f"{runs} that can be read"
    if gate.state is GateState.WATCHING:
        return f"one good run{under_load}"
    if gate.state is GateState.PROBATION:
        return f"{runs}, or the end of the trial at {stamp(hysteresis.probation_ends_at(gate, rule=rule))}"
    dwell = stamp(hysteresis.dwell_ends_at(gate, rule=rule))
    text = f"{runs} ({min(gate.good, numbers.leave_runs)} so far), not before {dwell}"
    trial = gate.entered_epoch + rule.probation_after(gate.relapses)
    return f"{text}; or on trial from {stamp(trial)}" if trial < NEVER and gate.entered_at else text
