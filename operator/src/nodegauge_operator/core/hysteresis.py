"""One gate on one node: when it is entered and when it is left (promise 4, docs/promises.md).

Two pure functions over `GateStatus`: `answered` adds the answer of one readable run, `aged` applies what time
alone changes, also between runs.  Neither knows taints, budgets or other gates: a gate that is entered is
`held-back` until `gates` finds a slot for it.  Runs that could not be read never get here: missing data never
changes a gate.

The rule, chosen by this project: enter after the rule's number of bad runs, leave after three good runs and
ten minutes.  A taint for a fault that only shows under load drains that load and would stand for ever.  So
after 1 h, 4 h, 24 h it is lifted on trial (probation): one bad run enters again, until three good runs under
load or 24 h have passed.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_judge import Answer, Finding, Gate, Judged
from nodegauge_operator.api.policy import Hysteresis, seconds
from nodegauge_operator.api.report import GateState, GateStatus
from nodegauge_operator.api.times import NEVER, SKEW_SECONDS, stamp, unstamp

ENTERED = (GateState.GATED, GateState.HELD_BACK)
"""States of a gate that was entered, whether or not the budget has a slot for it."""
MANY = 999
"""Counts stop here: no rule asks for as many, and a report stays small."""


class GateRule(Struct, frozen=True, kw_only=True):
    """What moves one gate: the gate of the judge's rule, and the policy's numbers."""

    gate: Gate
    policy: Hysteresis

    @property
    def enter_runs(self) -> int:
        """Bad runs in a row that enter: the policy's number, unless the rule needs only one."""
        if self.gate.judged is Judged.UNREAD:
            return self.policy.unreadable_runs
        return self.policy.enter_runs if self.gate.runs > 1 else 1

    def probation_after(self, relapses: int) -> float:
        """Seconds from entering until the gate is lifted on trial; `NEVER` if it is not."""
        steps = self.policy.probation_steps
        if self.gate.judged is not Judged.UNDER_LOAD or not steps:
            return NEVER
        return steps[min(max(0, relapses), len(steps) - 1)]


def answered(
    before: GateStatus | None,
    *,
    code: str,
    answer: Answer,
    finding: Finding | None,
    now: float,
    gpus: list[str] | None = None,
) -> GateStatus | None:
    """The gate after one readable run; `finding` is the evidence of a bad one, `gpus` the UUIDs of the GPUs
    that it is about, none if it is about more.

    No-load and unsure runs count as readable and neither enter nor leave.  Call `aged` next.
    """
    if before is None and answer is not Answer.BAD:
        return None
    gate = before or GateStatus(code=code, since=stamp(now))
    match answer:
        case Answer.BAD:
            return replace(
                gate,
                bad=_one_more(gate.bad),
                good=0,
                bad_at=stamp(now),
                seen_at=stamp(now) if gate.state is GateState.WATCHING and not gate.bad else gate.seen_at,
                readable_since=0,
                incident="",
                subject=finding.subject if finding else "",
                message=finding.message if finding else "",
                gpus=_gpus(gate, gpus or []),
            )
        case Answer.GOOD:
            seen = _one_more(gate.readable_since)
            return replace(gate, bad=0, good=_one_more(gate.good), good_at=stamp(now), readable_since=seen)
    return replace(gate, readable_since=_one_more(gate.readable_since))


def aged(
    gate: GateStatus, *, rule: GateRule, now: float, fresh: bool = True, by_run: bool = True
) -> GateStatus | None:
    """The gate at `now`, epoch seconds; None once nothing about it is worth keeping.

    Time alone opens a gate only if the node was read lately (`fresh`): missing data never changes a verdict.
    Only a run enters one (`by_run`): a policy that needs fewer bad runs since then taints no node by itself.
    """
    gate = repaired(gate, now=now)
    match gate.state:
        case GateState.WATCHING:
            if by_run and gate.bad >= rule.enter_runs:
                return _entered(gate, rule=rule, now=now)
        case GateState.PROBATION:
            if gate.bad:
                return _entered(gate, rule=rule, now=now)
            if now < probation_ends_at(gate, rule=rule):
                return gate
            gate = _after_probation(gate, now=now)
        case _:
            return _after_entry(gate, rule=rule, now=now) if fresh else gate
    return None if now > forgotten_at(gate, policy=rule.policy) else gate


def _after_entry(gate: GateStatus, *, rule: GateRule, now: float) -> GateStatus:
    """A gate that was entered: left for good, lifted on trial, or unchanged."""
    if gate.good >= rule.policy.leave_runs and now >= dwell_ends_at(gate, rule=rule):
        return _left(gate, GateState.WATCHING, now=now)
    if gate.readable_since and now >= gate.entered_epoch + rule.probation_after(gate.relapses):
        return _left(gate, GateState.PROBATION, now=now)
    return gate


def due_at(gate: GateStatus, *, rule: GateRule) -> float:
    """When time alone changes the gate next, epoch seconds; `NEVER` if it does not."""
    if gate.state is GateState.WATCHING:
        return forgotten_at(gate, policy=rule.policy) + 1
    if gate.state is GateState.PROBATION:
        return probation_ends_at(gate, rule=rule)
    leave = dwell_ends_at(gate, rule=rule) if gate.good >= rule.policy.leave_runs else NEVER
    probation = gate.entered_epoch + rule.probation_after(gate.relapses) if gate.readable_since else NEVER
    return min(leave, probation)


def counts(
    gate: GateStatus, *, rule: GateRule, read_at: str, early: float = 0.0, released: bool = False
) -> bool:
    """Whether the run that was read at `read_at` (RFC 3339) moved the gate, and the next may enter or leave
    it.  `released`: the incident that holds it back has ended, so that another bad run sets its taint.

    A run that could not tell counts for nothing, so a gate that waits for load asks for no further run.  But
    those within `early` seconds of one that moved it came too early to tell, as a container's may.
    """
    moved_at = max(gate.bad_at, gate.good_at)  # times of one format sort as texts
    if not read_at or not moved_at or (read_at > moved_at and unstamp(read_at) - unstamp(moved_at) >= early):
        return False
    if gate.state.entered:
        return released or 0 < gate.good < rule.policy.leave_runs
    return gate.state is GateState.WATCHING and gate.bad > 0


def forgotten_at(gate: GateStatus, *, policy: Hysteresis) -> float:
    """When a gate that was left, or was bad too seldom, is so long ago that a return is no relapse; epoch
    seconds, 0.0 if it never was either."""
    last = max(gate.left_epoch, gate.bad_epoch if gate.bad else 0.0)
    return last + policy.relapse_seconds if last else 0.0


def repaired(gate: GateStatus, *, now: float) -> GateStatus:
    """The same with plausible times: one in the future, or unreadable, becomes now.

    Otherwise a gate entered before the clock stepped back would stand for years, and one whose time somebody
    broke would be left at once.
    """
    since = gate.since or stamp(now)
    entered = gate.entered_at or (since if gate.state.entered else "")
    left = gate.left_at or (since if gate.state is GateState.PROBATION else "")
    times = {"since": since, "entered_at": entered, "left_at": left}
    times |= {"bad_at": gate.bad_at, "good_at": gate.good_at, "fault_at": gate.fault_at}
    times["seen_at"] = gate.seen_at
    plausible = {name: _plausible(text, now=now) for name, text in times.items()}
    return replace(
        gate,
        **plausible,
        bad=max(0, gate.bad),
        good=max(0, gate.good),
        relapses=max(0, gate.relapses),
        readable_since=max(0, gate.readable_since),
    )


def _plausible(text: str, *, now: float) -> str:
    if not text or 0.0 < unstamp(text) <= now + SKEW_SECONDS:
        return text
    return stamp(now)


def dwell_ends_at(gate: GateStatus, *, rule: GateRule) -> float:
    """When a gate that was entered may be left, epoch seconds."""
    return gate.entered_epoch + seconds(rule.policy.dwell)


def probation_ends_at(gate: GateStatus, *, rule: GateRule) -> float:
    """When probation ends, epoch seconds: at once (0.0) after enough good runs under load."""
    ended = gate.good >= rule.policy.leave_runs
    return 0.0 if ended else gate.since_epoch + seconds(rule.policy.probation)


def _entered(gate: GateStatus, *, rule: GateRule, now: float) -> GateStatus:
    """Entered, and waiting for a slot; a return within the window is a relapse."""
    left = gate.left_epoch
    recent = bool(left) and now <= left + rule.policy.relapse_seconds
    relapsed = recent or gate.state is GateState.PROBATION
    return replace(
        gate,
        state=GateState.HELD_BACK,
        since=stamp(now),
        entered_at=stamp(now),
        fault_at=gate.fault_at if gate.state is GateState.PROBATION and gate.fault_at else stamp(now),
        seen_at="" if gate.seen_at == stamp(now) else gate.seen_at,
        good=0,
        relapses=_one_more(gate.relapses) if relapsed else 0,
    )


def _left(gate: GateStatus, state: GateState, *, now: float) -> GateStatus:
    at = stamp(now)
    left = replace(gate, state=state, since=at, left_at=at, bad=0, good=0, incident="")
    return left if state is GateState.PROBATION else _healed(left)


def _healed(gate: GateStatus) -> GateStatus:
    """Only what a relapse counts: the evidence of a fault that is gone reads as if it were there."""
    return replace(gate, subject="", message="", fault_at="", seen_at="", gpus=[], on_devices=False)


def _gpus(gate: GateStatus, bad: list[str]) -> list[str]:
    """The GPUs of this bad run, and of those before it while the gate is bad or stands: only the gate as a
    whole is confirmed and heals, so no GPU leaves it alone."""
    stands = gate.bad > 0 or gate.state is not GateState.WATCHING
    return sorted({*bad, *(gate.gpus if stands else ())}) if bad else []


def _after_probation(gate: GateStatus, *, now: float) -> GateStatus:
    """Probation is over; a relapse counts from when the gate was lifted."""
    return _healed(replace(gate, state=GateState.WATCHING, since=stamp(now), bad=0, good=0))


def _one_more(count: int) -> int:
    return min(max(0, count) + 1, MANY)
