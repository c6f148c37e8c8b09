"""All gates of one node: what a run answers for each, which have a slot, and the taints they ask for.

`hysteresis` moves one gate; this adds what gates share: the slot in the budget of gated nodes, the policy's
effects, the taint of the worst cause, and the label for throttling.  A gate whose
rule this version lacks (a newer operator wrote it) sets no taint, because nothing here could judge or lift
it; it is kept for as long as a relapse would be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from nodegauge_judge import (
    CATALOGUE,
    Answer,
    Cause,
    Finding,
    Gate,
    GateKind,
    Judged,
    Judgement,
    Load,
    Severity,
    Verdict,
)
from nodegauge_judge.rule import Rule
from nodegauge_operator import names
from nodegauge_operator.api.policy import Effect, Hysteresis, Mode, Policy, seconds
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus, ReportStatus
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core import hysteresis
from nodegauge_operator.core.hysteresis import ENTERED, GateRule

GATES: dict[str, Gate] = {}
"""Code to gate, for the findings that have one, in the catalogue's order."""
PROBES: dict[str, str] = {}
"""The kind of reading that answers for each finding; runs of another kind do not count for it."""
TITLES: dict[str, str] = {}
"""What each finding says is wrong."""


def add(rule: Rule[Any]) -> None:
    """Make a rule of the judge's catalogue known here."""
    PROBES[rule.code], TITLES[rule.code] = rule.probe, rule.title
    if rule.gate is not None:
        GATES[rule.code] = rule.gate


for _rule in CATALOGUE.values():
    add(_rule)

UNREAD = frozenset(code for code, gate in GATES.items() if gate.judged is Judged.UNREAD)
"""Gates that runs without a result enter, if the policy asks for them.  Any readable run is good."""
BY_TIME = frozenset(code for code, gate in GATES.items() if gate.judged is Judged.BY_TIME)
"""Gates that the policy's deadline enters, whether or not the node was read."""
BETWEEN_GPUS = (Cause.P2P, Cause.NVLINK, Cause.NCCL)
"""After a fault of these causes a bandwidth from before says nothing.  Low bandwidth is its own number."""
TAINT_KEYS = {GateKind.THROTTLED: names.TAINT_THROTTLED, GateKind.UNHEALTHY: names.TAINT_UNHEALTHY}
KIND_OF_TAINT = {key: kind for kind, key in TAINT_KEYS.items()}
TEMPERATURES = ("hot", "memory-hot")
"""Gates of throttling that watch its cause, not the slowing down itself."""
WORST_FIRST = {cause: rank for rank, cause in enumerate(Cause)}
LESSER: frozenset[str] = frozenset(
    {Cause.UNREADABLE, Cause.P2P, Cause.NVLINK, Cause.PCIE, Cause.SLOW_GPU, Cause.NCCL, Cause.BUSBW}
)
"""Missing data, and causes with which jobs run, but slower.  Their taints give way to a worse fault that
waits for a slot.  Chosen by this project (ADR 0046)."""
_THROTTLED = frozenset(gate.cause for gate in GATES.values() if gate.kind is GateKind.THROTTLED)
FIRST_IN_LINE: dict[str, int] = {
    cause: turn
    for turn, cause in enumerate(sorted(Cause, key=lambda each: (each in LESSER, each in _THROTTLED)))
}
"""Places in the queue for slots of the budget: broken GPUs, then throttled ones, then the lesser faults."""
LAST_IN_LINE = len(FIRST_IN_LINE)
FIRST_OF_LESSER = min(FIRST_IN_LINE[cause] for cause in LESSER)
NO_THROTTLING = "none"
NO_INCIDENTS: Mapping[str, str] = {}

ADOPTED = "The taint was on the node when its report was gone; the report of why it was set is lost."
"""The message of a gate until its next bad run."""
MAX_UNKNOWN = 8
"""Gates of another version that are kept."""


class Answered(Protocol):
    """What a judgement says about gates, whichever probe it judges."""

    @property
    def findings(self) -> list[Finding]:
        """The findings, one for each code and severity."""

    @property
    def answers(self) -> dict[str, Answer]:
        """By code of each gated finding of the probe."""


def after_run(
    gates: Iterable[GateStatus],
    judgement: Answered,
    *,
    policy: Hysteresis,
    now: float,
    probe: str = names.PROBE_HEALTH,
) -> list[GateStatus]:
    """The gates after one readable run of `probe`; those of other probes stay as they are.

    A finding that the judge did not answer counts as unsure.
    """
    known, unknown = _by_code(gates)
    evidence = {f.code: f for f in judgement.findings if f.severity is Severity.FAIL}
    gpus = _bad_gpus(getattr(judgement, "locations", ()))  # a BMC's judgement names no GPU
    after: list[GateStatus] = []
    for code, gate in GATES.items():
        if PROBES[code] != probe:
            after += [known[code]] if code in known else []
            continue
        answer = Answer.GOOD if code in UNREAD else judgement.answers.get(code, Answer.UNSURE)
        finding = evidence.get(code) or _finding(code, subject="node", message=TITLES[code])
        status = hysteresis.answered(
            known.get(code), code=code, answer=answer, finding=finding, now=now, gpus=gpus.get(code)
        )
        if status is not None:
            status = hysteresis.aged(status, rule=GateRule(gate=gate, policy=policy), now=now)
        if status is not None:
            after.append(status)
    return [*after, *unknown]


def after_failure(
    gates: Iterable[GateStatus], *, symptom: str, message: str, policy: Hysteresis, now: float
) -> list[GateStatus]:
    """The gates after a health run that read nothing, and failed in a way that counts.

    Failures in a row have the same symptom: another one begins anew.
    """
    known, unknown = _by_code(gates)
    for code in UNREAD:
        before = known.get(code)
        if before is not None and before.subject != symptom:
            before = replace(before, bad=0)
        finding = _finding(code, subject=symptom, message=message)
        status = hysteresis.answered(before, code=code, answer=Answer.BAD, finding=finding, now=now)
        rule = GateRule(gate=GATES[code], policy=policy)
        status = status and hysteresis.aged(status, rule=rule, now=now)
        known |= {code: status} if status else {}
    return [*(known[code] for code in GATES if code in known), *unknown]


def current(
    gates: Iterable[GateStatus],
    *,
    policy: Policy,
    now: float,
    slot: bool,
    reserved: bool = False,
    not_read_lately: Collection[str] = (),
    incidents: Mapping[str, str] = NO_INCIDENTS,
    on_devices: Collection[str] = (),
    device_slot: bool = False,
) -> list[GateStatus]:
    """The gates at `now`: aged, and with or without a slot.

    `on_devices`: codes of gates whose GPUs are gated instead of the node, which have a slot while the budget
    of devices has one (`device_slot`).  `slot`: the budget lets the node carry a taint for a fault;
    `reserved`: it has a slot already; `not_read_lately`: probes that have not; `incidents`: by cause, what
    holds new taints back here.

    Without a slot a gate that was entered is held back.  So is one that was entered while it set no taint
    (mode Observe, effect None), once it would set one.  A gate whose last run was good waits for no slot.  A
    node that was not read lately takes no new slot, but for not being readable.  What an incident held back
    waits for another bad run once that is closed: by then it may be gone.
    """
    known, unknown = _by_code(gates)
    numbers = policy.spec.hysteresis
    after: list[GateStatus] = []
    for code, gate in GATES.items():
        status = known.get(code)
        if code in UNREAD | BY_TIME and not _has_effect(gate, policy):
            continue  # the policy asks for nothing, and missing data leaves no trace
        fresh = PROBES[code] not in not_read_lately
        free = reserved or (slot and (names.PROBE_HEALTH not in not_read_lately or code in UNREAD | BY_TIME))
        status = status and hysteresis.aged(
            status, rule=GateRule(gate=gate, policy=numbers), now=now, fresh=fresh, by_run=False
        )
        if status is not None:
            incident = incidents.get(gate.cause.value, "")
            alone = code in on_devices
            stood = status.on_devices if alone else reserved
            keeps = stood and status.state is GateState.GATED
            status = status if keeps else replace(status, incident=incident or status.incident)
            status = replace(status, on_devices=alone)
            free = device_slot if alone else free
            needed = _sets_taint(status, policy) or (alone and policy.spec.mode is not Mode.OBSERVE)
            after.append(_with_slot(status, needed=needed, slot=free, now=now))
    unknown = [status for status in unknown if now <= hysteresis.forgotten_at(status, policy=numbers)]
    return [*after, *unknown[:MAX_UNKNOWN]]


def due_at(gates: Iterable[GateStatus], *, policy: Policy, now: float) -> float:
    """When time alone changes a gate next, epoch seconds; `NEVER` if it changes none.

    One whose time is over waits for a reading, and hides no other."""
    known, unknown = _by_code(gates)
    numbers = policy.spec.hysteresis
    times = [hysteresis.forgotten_at(gate, policy=numbers) + 1 for gate in unknown]
    times += [
        hysteresis.due_at(gate, rule=GateRule(gate=GATES[code], policy=numbers))
        for code, gate in known.items()
    ]
    return min((at for at in times if at > now), default=NEVER)


def recheck_after(
    gates: Iterable[GateStatus],
    *,
    policy: Policy,
    read_at: str,
    incidents: Mapping[str, str] = NO_INCIDENTS,
) -> float:
    """Seconds from the last health run, read at `read_at`, to the next: soon while a gate counts its runs;
    `NEVER` while none does.  `incidents`: as in `current`.

    What the judge reads from counters takes an interval that it can judge.
    """
    waits = []
    for gate in gates:
        known = GATES.get(gate.code)
        if known is None or PROBES[gate.code] != names.PROBE_HEALTH:
            continue
        rule = GateRule(gate=known, policy=policy.spec.hysteresis)
        floor = policy.spec.thresholds.interval_floor if _of_counters(known) else 0.0
        released = bool(gate.incident) and known.cause.value not in incidents
        if hysteresis.counts(gate, rule=rule, read_at=read_at, early=floor, released=released):
            waits.append(floor)
    return max(seconds(policy.spec.probes.health.recheck), *waits) if waits else NEVER


def _of_counters(gate: Gate) -> bool:
    return gate.kind is GateKind.THROTTLED or gate.judged is Judged.UNDER_LOAD


def entered(gates: Iterable[GateStatus], kind: GateKind) -> list[GateStatus]:
    """Gates of this kind that were entered, with or without a slot, the worst cause first."""
    chosen = [g for g in gates if g.state.entered and g.code in GATES and GATES[g.code].kind is kind]
    return sorted(chosen, key=lambda gate: WORST_FIRST[GATES[gate.code].cause])


def any_entered(gates: Iterable[GateStatus]) -> bool:
    """Whether a gate of a rule that this version has was entered, with or without a slot or a taint."""
    return any(gate.state.entered and gate.code in GATES for gate in gates)


def verdict(gates: Collection[GateStatus], *, raw: Verdict, unreadable: bool, policy: Policy) -> Verdict:
    """What readings and gates of a node say together: `fail` while a taint for a fault stands or waits for a
    slot (in mode Observe: would stand), at worst `warn` for any other fault.

    `raw`: what the last runs say; `unreadable`: whether the node's probe fails for a reason of its own, which
    makes the node unknown.  `fail` has a taint's hysteresis and outlasts that.  A fault that is not
    confirmed, that an incident holds back or that is to set no taint is a warning.
    """
    if confirmed(gates, policy=policy):
        return Verdict.FAIL
    if unreadable:
        return Verdict.UNKNOWN
    return Verdict.WARN if raw is Verdict.FAIL or (raw is Verdict.PASS and any_entered(gates)) else raw


def confirmed(gates: Iterable[GateStatus], *, policy: Policy) -> bool:
    """Whether a fault is gated for which the policy has an effect: in mode Enforce its taint stands, or waits
    for a slot; in mode Observe it would.  What an incident holds back waits for another bad run, and missing
    data is no fault unless the policy asks for it."""
    return any(
        gate.state.entered
        and not (gate.state is GateState.HELD_BACK and gate.incident)
        and gate.code in GATES
        and has_effect(gate, policy=policy)
        and not is_soft(gate, policy=policy)
        for gate in gates
    )


def place_in_line(gates: Iterable[GateStatus]) -> int:
    """The place of the worst of these gates in the queue for slots.  One that an incident holds back, or
    whose last run was good, waits for none."""
    waiting = (gate for gate in gates if gate.code in GATES and not gate.incident and not gate.good)
    return min((FIRST_IN_LINE[GATES[gate.code].cause] for gate in waiting), default=LAST_IN_LINE)


def place_of_taints(taints: Iterable[DesiredTaint]) -> int:
    """The place of the worst of these taints for faults; the first for one of another version."""
    return min((FIRST_IN_LINE.get(taint.value, 0) for taint in taints), default=LAST_IN_LINE)


def are_lesser(taints: Collection[DesiredTaint]) -> bool:
    """Whether these taints for faults, at least one, are all for lesser faults."""
    return bool(taints) and all(taint.value in LESSER for taint in taints)


def has_effect(gate: GateStatus, *, policy: Policy) -> bool:
    """Whether the policy sets a taint for this gate of the catalogue, or would in mode Enforce."""
    return not gate.on_devices and _has_effect(GATES[gate.code], policy)


def needs_load(gate: GateStatus) -> bool:
    """Whether only runs under load answer for this gate of the catalogue."""
    return GATES[gate.code].judged is Judged.UNDER_LOAD


def is_soft(gate: GateStatus, *, policy: Policy) -> bool:
    """Whether it is the gate of missing data, and the policy did not ask for its taint."""
    return gate.code in GATES and GATES[gate.code].cause in policy.spec.taints.soft


def taints(status: ReportStatus, *, policy: Policy) -> list[DesiredTaint]:
    """The taints that the node should carry: per key the worst cause with an effect, and `unvalidated` until
    the first pass if the policy wants it."""
    wanted, keys = [], policy.spec.taints.keys
    for kind, key in TAINT_KEYS.items():
        gate = tainting(status, kind, policy=policy)
        if gate is not None:
            cause = GATES[gate.code].cause
            effect = policy.effects[cause]
            wanted.append(DesiredTaint(key=keys.key_of(key), value=cause.value, effect=effect.value))
    closing = policy.closes_new_nodes or (policy.spec.mode is Mode.ENFORCE and _was_closed(status))
    if closing and not status.passed_at and not replaces_unvalidated(status, wanted):
        wanted.append(DesiredTaint(key=keys.key_of(names.TAINT_UNVALIDATED)))
    return wanted


def replaces_unvalidated(status: ReportStatus, wanted: Iterable[DesiredTaint]) -> bool:
    """Whether these taints close a node that is past its deadline, so that `unvalidated` goes: autoscalers
    wait for nodes with that one.  A soft effect closes nothing."""
    late = any(gate.code in BY_TIME and gate.state is GateState.GATED for gate in status.gates)
    faults = [taint for taint in wanted if taint.own == names.TAINT_UNHEALTHY]
    return late and any(taint.effect in (Effect.NO_SCHEDULE, Effect.NO_EXECUTE) for taint in faults)


def _was_closed(status: ReportStatus) -> bool:
    """A taint of a node that never passed stands until it passes or a person says that it is healthy: without
    its deadline, or its slot, the node is closed as before."""
    healthy = status.override is not None and status.override.healthy
    causes = {taint.value for taint in status.desired.taints}
    return Cause.NEVER_VALIDATED in causes and not healthy


def tainting(status: ReportStatus, kind: GateKind, *, policy: Policy) -> GateStatus | None:
    """The gate that gives the taint of this kind its value.  One of an unknown state (a newer operator wrote
    it) keeps a taint that stands, and sets none."""
    stands = any(taint.own == TAINT_KEYS[kind] for taint in status.desired.taints)
    return next(
        (
            gate
            for gate in entered(status.gates, kind)
            if gate.state is GateState.GATED or (stands and gate.state not in ENTERED)
            if _sets_taint(gate, policy)
        ),
        None,
    )


def has_fault_between_gpus(gates: Iterable[GateStatus]) -> bool:
    """Whether a fault between the GPUs is bad now or holds its gate."""
    between = (gate for gate in gates if gate.code in GATES and GATES[gate.code].cause in BETWEEN_GPUS)
    return any(gate.bad or gate.state.entered for gate in between)


def throttled_label(status: ReportStatus) -> str:
    """Value of the label `throttled`; empty if it should be absent."""
    worst = entered(status.gates, GateKind.THROTTLED)
    if worst:
        return GATES[worst[0].code].cause.value
    return NO_THROTTLING if status.throttle_judged_at else ""


def throttle_judged_at(
    before: str, gates: Iterable[GateStatus], *, judgement: Judgement | None = None, now: float = 0.0
) -> str:
    """When a run last showed that nothing throttles; empty while a gate of throttling is entered or on trial.

    Such a run was under load, every gate that measures slowing down was good, and no temperature was bad.  A
    temperature need not be good: many cards have no sensor in their memory, and warm is not slow.
    """
    if any(
        GATES[gate.code].kind is GateKind.THROTTLED
        for gate in gates
        if gate.code in GATES and gate.state is not GateState.WATCHING
    ):
        return ""
    if judgement is None or judgement.load is not Load.LOADED:
        return before
    answers = judgement.answers
    hot = any(answers.get(code) is Answer.BAD for code in TEMPERATURES)
    throttled = [c for c, gate in GATES.items() if gate.kind is GateKind.THROTTLED]
    slowing = [c for c in throttled if PROBES[c] == names.PROBE_HEALTH and c not in TEMPERATURES]
    good = all(answers.get(code) is Answer.GOOD for code in slowing)
    return stamp(now) if good and not hot else before


def _sets_taint(gate: GateStatus, policy: Policy) -> bool:
    """Whether the gate puts a taint on the node, and so needs a slot."""
    return policy.spec.mode is not Mode.OBSERVE and has_effect(gate, policy=policy)


def _has_effect(gate: Gate, policy: Policy) -> bool:
    return policy.effects[gate.cause] is not Effect.NONE


def _with_slot(gate: GateStatus, *, needed: bool, slot: bool, now: float) -> GateStatus:
    """An entered gate, gated or held back; only one that is held back belongs to an incident."""
    if gate.state not in ENTERED:
        return replace(gate, incident="")
    still_bad = gate.state is GateState.GATED or not gate.good
    free = slot and still_bad and not gate.incident
    state = GateState.GATED if not needed or free else GateState.HELD_BACK
    if state is GateState.GATED:
        gate = replace(gate, incident="")
    if state is gate.state:
        return gate
    if state is GateState.GATED:
        return replace(gate, state=state, since=stamp(now), entered_at=stamp(now))
    return replace(gate, state=state, since=stamp(now))


def _bad_gpus(locations: Iterable[Finding]) -> dict[str, list[str]]:
    """By code, the UUIDs of the GPUs where it fails; none where one of its places is not a single GPU."""
    bad: dict[str, list[str]] = {}
    for finding in locations:
        if finding.severity is Severity.FAIL:
            uuid = finding.gpus[0].uuid if len(finding.gpus) == 1 else ""
            bad.setdefault(finding.code, []).append(uuid)
    return {code: uuids for code, uuids in bad.items() if all(uuids)}


def _finding(code: str, *, subject: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.FAIL, subject=subject, message=message)


def _by_code(gates: Iterable[GateStatus]) -> tuple[dict[str, GateStatus], list[GateStatus]]:
    """Gates of this version's rules by code (the first of each), and those of other versions."""
    first: dict[str, GateStatus] = {}
    for gate in gates:
        first.setdefault(gate.code, gate)
    known = {code: gate for code, gate in first.items() if code in GATES}
    return known, [gate for code, gate in first.items() if code not in GATES]
