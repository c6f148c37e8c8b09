"""What is wrong with a node, fault by fault: the one description that everybody reads.

Condition, event, `nodegauge explain`, ticket, page and the labels of alerts are made of the same `Fault`s, so
that they say the same.  A fault is a gate that is bad, or was confirmed, with the evidence of its last bad
run; or a finding without a gate.  Pure: from a report's status and the policy as it is in force on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from nodegauge_judge import CATALOGUE, Finding, GpuIdentity, Psu, Severity, bmc_witness
from nodegauge_judge.rule import DRAIN, DRAIN_LATER, NEXT, filled, measured, worst_first
from nodegauge_operator import names
from nodegauge_operator.api.desired_device import DesiredDevice, DeviceState
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.policy import Effect, Mode, Policy
from nodegauge_operator.api.report import GateState, GateStatus, ReportStatus
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core import device_rule, gates, hysteresis
from nodegauge_operator.core.hysteresis import GateRule
from nodegauge_operator.core.report_size import cut

MIN_MEASURED = 60
"""Bytes of what was measured that outlast the next step."""
PAIR = 2
BRAKE, OF_SUPPLIES = "power-brake", frozenset({"psu-fault", "rail"})
"""The findings of a health reading that make the label `psu` say fault (`nodegauge_judge.health`)."""
_OF_GPU = re.compile(r"GPU \d+( \([^)]*\))?")
"""A location that is a GPU as a whole."""


def sentence(fault: Fault, most: int) -> str:
    """Place, what was measured, since when, and the next step, in at most so many bytes.  What was measured
    is cut first."""
    return detail(fault, most, lead=f"{fault.where}: " if fault.where else "")


def detail(fault: Fault, most: int, *, lead: str = "") -> str:
    """The same without the place, or after this text."""
    since = f" Since {fault.since}." if fault.since else ""
    tail = f"{since}{NEXT}{fault.next_step}" if fault.next_step else since
    text = fault.measured or f"{fault.title[0].upper()}{fault.title[1:]}."
    space = most - len(lead.encode()) - len(tail.encode())
    return cut(f"{lead}{cut(text, max(MIN_MEASURED, space))}{tail}", most)


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
    if _lets_pods_in(status, policy=policy):
        pairs = zip(of_gates, known, strict=True)
        of_gates = [_with_time(fault, gate, status, node=node) for fault, gate in pairs]
    codes = {fault.code for fault in of_gates}
    return [*of_gates, *_without_gate(status, codes, node=node)]


def cause(every: Sequence[Fault]) -> str:
    """The worst fault in a word: the value of its taint, or its code if it never sets one; empty for none."""
    return (every[0].cause or every[0].code) if every else ""


def supplies(status: ReportStatus, every: Sequence[Fault]) -> str:
    """Why the label `psu` is fault while no supply and no rail is known to be bad: a power brake says that
    something outside the GPUs cannot or may not deliver, and not what.  Empty otherwise."""
    known = {fault.code for fault in every}
    if status.psu != Psu.FAULT or BRAKE not in known or known & (OF_SUPPLIES | bmc_witness.OF_SUPPLIES):
        return ""
    return (
        "psu=fault stands for the power brake: the GPUs may not draw what they need. No supply and no 12 V "
        "rail is known to be bad; a cable, the feed or a power cap can do it too"
    )


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
        since=gate.seen_at or gate.fault_at or gate.since,
        confirmed=gate.entered_at if gate.state.entered else "",
        last_seen=gate.bad_at,
        measured=measured(finding) if gate.message else "",
        no_taint="" if tainted else _without_taint(gate, status, policy=policy, node=node),
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
    fault = Fault(
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
    identified = sum(1 for gpu in gpus.known() if gpu.uuid)  # a lost one may be listed without a name, too
    return replace(fault, scope=_scope(fault, max(gpus.count, identified)))


def _scope(fault: Fault, gpus: int) -> str:
    """How much of a node with so many GPUs has it, in words; empty if its places are no GPUs or pairs."""
    count, of, word = fault.locations, 0, ""
    if len(fault.gpus) == PAIR:
        of, word = gpus * (gpus - 1) // 2, "pairs of GPUs"
    elif len(fault.gpus) == 1 and (_OF_GPU.fullmatch(fault.worst) or fault.worst == fault.gpus[0].uuid):
        of, word = gpus, "GPUs"
    if of < 2 or count > of:
        return ""
    if count == of:
        return f"both {word}" if of == 2 else f"all {of} {word}"
    return f"{count} of {of} {word}"


def would_be(gate: GateStatus) -> str:
    """`throttled=thermal`: the taint that the gate would set."""
    known = gates.GATES[gate.code]
    return f"{known.kind.value}={known.cause.value}"


def _without_taint(gate: GateStatus, status: ReportStatus, *, policy: Policy, node: str) -> str:
    if gate.on_devices and gate.state.entered and policy.spec.mode is not Mode.OBSERVE:
        return in_place_of_taint(gate, status, node=node)
    return without_taint(gate, policy=policy, override=status.override)


def in_place_of_taint(gate: GateStatus, status: ReportStatus, *, node: str) -> str:
    """What gates the GPUs of such a gate in place of a taint of their node."""
    devices = [device for device in status.desired.devices if device.uuid in gate.gpus]
    texts = [device_in_words(device, node=node) for device in devices]
    return f"the node keeps its other GPUs: {'; '.join(texts)}" if texts else "the node keeps its other GPUs"


def _lets_pods_in(status: ReportStatus, *, policy: Policy) -> bool:
    """Whether device rules may stand, and no taint of ours keeps new pods from all GPUs of the node."""
    carried = gates.taints(status, policy=policy)
    closed = any(taint.effect != Effect.PREFER_NO_SCHEDULE.value for taint in carried)
    return policy.spec.mode is not Mode.OBSERVE and not closed


def _with_time(fault: Fault, gate: GateStatus, status: ReportStatus, *, node: str) -> Fault:
    """The fault with steps for a node that need not be drained at once, since no new pod gets its bad GPUs.

    Unchanged while a pod may still get one: without a rule, in a dry run, or held back by a budget."""
    devices = [device for device in status.desired.devices if device.uuid in gate.gpus]
    kept = all(device.taken or device.state is DeviceState.NOT_OFFERED for device in devices)
    if not (node and devices and kept and gate.on_devices and gate.state.entered):
        return fault
    by_gpu: dict[str, list[DesiredDevice]] = {}
    for device in devices:
        by_gpu.setdefault(_index_of(device.uuid, status.gpus), []).append(device)
    hows = "; ".join(f"{gpu} {_kept_by(own, node=node)}" for gpu, own in by_gpu.items())
    it, alone = ("it", "alone is") if len(by_gpu) == 1 else ("one of them", "alone are")
    state = (
        f"{hows}. The node's other GPUs go on. A pod that holds {it} already keeps it: move that pod, and "
        "leave the node as it is until the repair."
    )
    now, later = (filled(text, gpus=(), evidence={}, node=node) for text in (DRAIN, DRAIN_LATER))
    steps = [step.replace(now, later) for step in fault.steps]
    lead = f"{', '.join(by_gpu)} {alone} kept from new pods, so choose the time of the repair."
    return replace(
        fault,
        next_step=f"{lead} {_capitalised(fault.next_step)}",
        steps=[state, *map(_capitalised, steps)],
    )


def _kept_by(devices: Sequence[DesiredDevice], *, node: str) -> str:
    """What keeps new pods from the devices of one GPU."""
    rules = ", ".join(device_rule.rule_name(node, device) for device in devices if device.taken)
    if not rules:
        return "is in no ResourceSlice, so that no new pod gets it"
    return f"is kept from new pods by DeviceTaintRule {rules}"


def _index_of(uuid: str, gpus: GpusStatus) -> str:
    """`GPU 3`, or the UUID of one whose index is not known."""
    index = gpus.whole(GpuIdentity(uuid=uuid)).index
    return uuid if index is None else f"GPU {index}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def device_in_words(device: DesiredDevice, *, node: str) -> str:
    """Which device is gated, by what, or why it is not."""
    if device.state is DeviceState.NOT_OFFERED:
        return f"{device.uuid} is in no ResourceSlice, so that nobody gets it"
    where = f"device {device.name} of pool {device.pool}"
    if device.state is DeviceState.HELD_BACK:
        return f"{where} is held back: the budget of devices (spec.budget.gatedDevices) or an incident"
    rule = f"DeviceTaintRule {device_rule.rule_name(node, device)}" if node else "a DeviceTaintRule"
    effect = f"{device.effect}, a dry run" if device.effect == "None" else device.effect
    return f"{where} is gated by {rule} ({effect})"


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
    if gate.on_devices:
        return "not set on the node, its GPUs alone are gated"
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
    if gate.code in gates.BY_TIME:
        return "the first run that passes"
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
