"""Which events the gates of a node deserve: a taint comes or goes, is held back, or is lifted on trial.

One change per write of the report, named after the most serious of them; its identity is made of the rows'
states and their times, so that the same change is told once, and a relapse again.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Change, DesiredTaint, GateState, GateStatus, ReportStatus, stamp
from nodegauge_operator.core import gates, gatewords
from nodegauge_operator.core.texts import bounded
from nodegauge_operator.reasons import Reason

KINDS = {key: kind for kind, key in gates.KEYS.items()}
MOST_SERIOUS_FIRST = (Reason.TAINTED, Reason.HELD_BACK, Reason.ON_PROBATION, Reason.TAINT_LIFTED)
NORMAL = (Reason.ON_PROBATION, Reason.TAINT_LIFTED)


class Told(Struct, frozen=True):
    """One thing that changed."""

    reason: Reason
    text: str


def of_rows(before: ReportStatus, after: ReportStatus, *, policy: Policy, now: float) -> Change | None:
    """The event for what changed between two statuses, or None.  `unvalidated` is no fault and has none."""
    old, new = _faults(before), _faults(after)
    told = [_came(taint, after, policy=policy) for key, taint in new.items() if old.get(key) != taint]
    told += [_went(taint, before, after) for key, taint in old.items() if key not in new]
    told += [
        Told(Reason.HELD_BACK, f"{gatewords.held_back(row, policy=policy)}: {gatewords.evidence(row)}")
        for row in _newly_held_back(before, after)
    ]
    if not told:
        return None
    told.sort(key=lambda one: MOST_SERIOUS_FIRST.index(one.reason))
    reason = told[0].reason
    stands = "|".join(f"{row.code}/{row.state}/{row.since}" for row in after.gates)
    return Change(
        run=names.digest(f"{sorted(old)}{sorted(new.items(), key=str)}{stands}"),
        type="Normal" if reason in NORMAL else "Warning",
        reason=reason,
        message=bounded("; ".join(one.text for one in told)),
        at=stamp(now),
    )


def _faults(status: ReportStatus) -> dict[str, DesiredTaint]:
    return {taint.key: taint for taint in status.desired.taints if taint.key in names.TAINTS_OF_FAULTS}


def _came(taint: DesiredTaint, after: ReportStatus, *, policy: Policy) -> Told:
    row = gates.bearer(after.gates, KINDS[taint.key], policy=policy)
    assert row is not None, "a taint stands for a row"
    runs = gatewords.after_runs(row)
    return Told(Reason.TAINTED, f"tainted {gatewords.short(taint)}{runs}: {gatewords.evidence(row)}")


def _went(taint: DesiredTaint, before: ReportStatus, after: ReportStatus) -> Told:
    """Why a taint is not wanted any more: on trial, healed, or the policy has none for it now."""
    kind, what = KINDS[taint.key], gatewords.short(taint)
    bearers = {row.code for row in gates.standing(before.gates, kind) if row.state is GateState.GATED}
    now = [row for row in after.gates if row.code in bearers]
    if any(row.state is GateState.PROBATION for row in now):
        return Told(
            Reason.ON_PROBATION, f"{what} lifted on trial: one bad run under load brings it back at once"
        )
    if any(row.state is GateState.GATED for row in now):
        return Told(Reason.TAINT_LIFTED, f"{what} lifted: the policy asks for no such taint now")
    if not bearers:
        return Told(Reason.TAINT_LIFTED, f"{what} lifted: this version knows no such finding")
    return Told(Reason.TAINT_LIFTED, f"{what} lifted: enough good runs in a row")


def _newly_held_back(before: ReportStatus, after: ReportStatus) -> list[GateStatus]:
    known = {row.code for row in before.gates if row.state is GateState.HELD_BACK}
    back = [row for row in after.gates if row.state is GateState.HELD_BACK and row.code in gates.GATES]
    return [row for row in back if row.code not in known]
