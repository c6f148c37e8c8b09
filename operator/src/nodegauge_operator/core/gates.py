"""All gated rows of one node together: what a run said of each, who has a place, what they ask for.

The rule of one row is in `hysteresis`; this adds what rows share: the budget's place, the policy's effects,
the taint of the worst cause, the label for throttling, and how much of it a report has room for.  A row that
this version's catalogue lacks (an operator that was newer wrote it) holds nothing, since nothing here could
judge or lift it; it is remembered for as long as a relapse would be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from nodegauge_judge import (
    CATALOGUE,
    Answer,
    Cause,
    Finding,
    Gate,
    GateKind,
    Judgement,
    Load,
    Probe,
    Severity,
)
from nodegauge_judge.nccl.model import NcclJudgement
from nodegauge_operator import names
from nodegauge_operator.api.policy import Effect, Hysteresis, Mode, Policy, Unvalidated
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus, ReportStatus, stamp
from nodegauge_operator.core import hysteresis
from nodegauge_operator.core.hysteresis import ENTERED, Rule
from nodegauge_operator.core.texts import cut

GATES: dict[str, Gate] = {entry.code: entry.gate for entry in CATALOGUE.values() if entry.gate}
"""The rows that have a gate, in the catalogue's order."""
PROBES: dict[str, Probe] = {entry.code: entry.probe for entry in CATALOGUE.values()}
"""Whose runs tell of a row: no other's count for it."""
GATES_OF_NCCL = frozenset(code for code in GATES if PROBES[code] is Probe.NCCL)
TITLES: dict[str, str] = {entry.code: entry.title for entry in CATALOGUE.values()}
KEYS = {GateKind.THROTTLED: names.TAINT_THROTTLED, GateKind.UNHEALTHY: names.TAINT_UNHEALTHY}
TEMPERATURES = ("hot", "memory-hot")
"""Rows of throttling that watch its cause, not slowing down itself."""
WORST_FIRST = {cause: place for place, cause in enumerate(Cause)}
NO_THROTTLING = "none"

MAX_SUBJECT = 60
MAX_WORDS = 1200
"""Bytes for the messages of all rows together: a report stays under 8 KiB."""
MAX_MESSAGE, MIN_MESSAGE = 300, 40
MAX_UNKNOWN = 8
"""Rows of another version that are kept."""


def after_run(
    gates: Iterable[GateStatus],
    judgement: Judgement | NcclJudgement,
    *,
    policy: Hysteresis,
    now: float,
    probe: Probe = Probe.HEALTH,
) -> list[GateStatus]:
    """The rows after one readable run of `probe`, those of other probes as they were.

    A row that the judge did not answer is as if unsure.
    """
    known, kept = _by_code(gates)
    evidence = {f.code: f for f in judgement.findings if f.severity is Severity.FAIL}
    after: list[GateStatus] = []
    for code, gate in GATES.items():
        if PROBES[code] is not probe:
            after += [known[code]] if code in known else []
            continue
        answer = judgement.answers.get(code, Answer.UNSURE)
        finding = evidence.get(code) or Finding(
            code=code, severity=Severity.FAIL, subject="node", message=TITLES[code]
        )
        row = hysteresis.answered(known.get(code), code=code, answer=answer, finding=finding, now=now)
        if row is not None:
            row = hysteresis.aged(row, rule=Rule(gate=gate, policy=policy), now=now)
        if row is not None:
            after.append(row)
    return _fitting([*after, *kept])


def settled(
    gates: Iterable[GateStatus],
    *,
    policy: Policy,
    now: float,
    room: bool,
    stale: Collection[Probe] = (),
) -> list[GateStatus]:
    """The rows at `now`: what time does, and who has a place.

    `room`: the node may carry a fault's taint; `stale`: probes that have not read it lately.

    Without room what entered is held back; so is what stood where nothing counted (mode Observe, effect None)
    once it would count.  A row whose last run was good waits for no place.
    """
    known, kept = _by_code(gates)
    rule = policy.spec.hysteresis
    after: list[GateStatus] = []
    for code, gate in GATES.items():
        row = known.get(code)
        fresh = PROBES[code] not in stale
        row = row and hysteresis.aged(row, rule=Rule(gate=gate, policy=rule), now=now, fresh=fresh)
        if row is not None:
            after.append(_placed(row, free=not _counts(gate, policy), room=room, now=now))
    others = [row for row in kept if not hysteresis.forgotten(row, policy=rule, now=now)]
    return _fitting([*after, *others[:MAX_UNKNOWN]])


def due_at(gates: Iterable[GateStatus], *, policy: Policy) -> float:
    """When time alone moves a row next, epoch seconds; infinity for never."""
    known, _ = _by_code(gates)
    rule = policy.spec.hysteresis
    times = [hysteresis.due_at(row, rule=Rule(gate=GATES[code], policy=rule)) for code, row in known.items()]
    return min(times, default=hysteresis.FOREVER)


def standing(gates: Iterable[GateStatus], kind: GateKind | None = None) -> list[GateStatus]:
    """Rows that are bad by the rule, with or without a place, the worst cause first."""
    found = [row for row in gates if row.state in ENTERED and row.code in GATES]
    wanted = [row for row in found if kind is None or GATES[row.code].kind is kind]
    return sorted(wanted, key=lambda row: WORST_FIRST[GATES[row.code].cause])


def taints(status: ReportStatus, *, policy: Policy) -> list[DesiredTaint]:
    """What the node should be tainted with: per key the worst cause that has an effect, and `unvalidated`
    where the policy wants it until the first pass."""
    if policy.spec.mode is Mode.OBSERVE:
        return []
    held = []
    for kind, key in KEYS.items():
        row = bearer(status.gates, kind, policy=policy)
        if row is not None:
            cause = GATES[row.code].cause
            held.append(
                DesiredTaint(key=key, value=cause.value, effect=policy.spec.taints.effect_of(cause).value)
            )
    if bars(policy) and not status.passed_at:
        held.append(DesiredTaint(key=names.TAINT_UNVALIDATED))
    return held


def bars(policy: Policy) -> bool:
    """Whether the policy closes a node until its first pass; not where nothing would ever open it."""
    wanted = policy.spec.taints.unvalidated is Unvalidated.SET
    return wanted and policy.spec.mode is Mode.ENFORCE and policy.spec.probes.health.enabled


def bearer(gates: Iterable[GateStatus], kind: GateKind, *, policy: Policy) -> GateStatus | None:
    """The row that gives the taint of this kind its value."""
    rows = (row for row in standing(gates, kind) if row.state is GateState.GATED)
    return next((row for row in rows if _counts(GATES[row.code], policy)), None)


def throttled_label(status: ReportStatus) -> str:
    """Value of the label `throttled`, empty for absent."""
    rows = standing(status.gates, GateKind.THROTTLED)
    if rows:
        return GATES[rows[0].code].cause.value
    return NO_THROTTLING if status.throttle_judged_at else ""


def throttle_judged_at(
    before: str, gates: Iterable[GateStatus], *, judgement: Judgement | None = None, now: float = 0.0
) -> str:
    """When it could last be said that nothing throttles; forgotten as soon as a row enters, and on trial.

    Under load every row that tells of slowing down was good, and no temperature bad: many cards have no
    sensor in their memory, and warm is not slow.
    """
    outside = (GateState.GATED, GateState.HELD_BACK, GateState.PROBATION)
    if any(row.state in outside and _kind(row) is GateKind.THROTTLED for row in gates):
        return ""
    if judgement is None or judgement.load is not Load.LOADED:
        return before
    answers = judgement.answers
    hot = any(answers.get(code) is Answer.BAD for code in TEMPERATURES)
    rows = [c for c, gate in GATES.items() if gate.kind is GateKind.THROTTLED and c not in TEMPERATURES]
    good = all(answers.get(code) is Answer.GOOD for code in rows)
    return stamp(now) if good and not hot else before


def _kind(row: GateStatus) -> GateKind | None:
    gate = GATES.get(row.code)
    return gate.kind if gate else None


def _counts(gate: Gate, policy: Policy) -> bool:
    """Whether the row puts a taint on the node, and so takes a place."""
    return (
        policy.spec.mode is not Mode.OBSERVE and policy.spec.taints.effect_of(gate.cause) is not Effect.NONE
    )


def _placed(row: GateStatus, *, free: bool, room: bool, now: float) -> GateStatus:
    if row.state not in ENTERED:
        return row
    stays = row.state is GateState.GATED or not row.good
    wanted = GateState.GATED if free or (room and stays) else GateState.HELD_BACK
    if wanted is row.state:
        return row
    if wanted is GateState.GATED:
        return replace(row, state=wanted, since=stamp(now), entered_at=stamp(now))
    return replace(row, state=wanted, since=stamp(now))


def _by_code(gates: Iterable[GateStatus]) -> tuple[dict[str, GateStatus], list[GateStatus]]:
    """Rows of this version's catalogue by code (the first of each), and the others."""
    first: dict[str, GateStatus] = {}
    for row in gates:
        first.setdefault(row.code, row)
    known = {code: row for code, row in first.items() if code in GATES}
    return known, [row for code, row in first.items() if code not in GATES]


def _fitting(rows: list[GateStatus]) -> list[GateStatus]:
    """The same with words cut to what a report has room for."""
    room = max(MIN_MESSAGE, min(MAX_MESSAGE, MAX_WORDS // max(1, len(rows))))
    return [
        replace(row, subject=cut(row.subject, MAX_SUBJECT), message=cut(row.message, room)) for row in rows
    ]
