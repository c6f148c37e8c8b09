"""The history of a node in its report: what changed, when, why, and from which run; and its conditions.

A transition is the difference of two statuses, so it is written in the same patch as the change itself, and a
node on which nothing changes costs no write.  History decides nothing: an edited or lost one changes no label
and no taint.
"""

from __future__ import annotations

from nodegauge_judge import GateKind, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.history import Change, Condition, Transition
from nodegauge_operator.api.report import GateState, ReportStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.probes import registry
from nodegauge_operator.core.report_size import MAX_TRANSITIONS

VERDICT, OVERRIDE = "verdict", "override"
LABEL_HEALTH = next(label.history for label in registry.labels() if label.key == names.LABEL_HEALTH)
TAINTS = {key: f"taint {key.removeprefix(names.PREFIX)}" for key in names.NODE_TAINTS}
TAINTED, NOT_TAINTED = "Tainted", "NoTaint"


def with_history(
    context: Context, after: ReportStatus, *, change: Change | None, read: str
) -> list[Transition]:
    """The transitions of the report and those from it to `after`, the last 20 of them, in order of time.

    `change`: the event of this very difference, if it has one: it says why taints came and went; `read`: what
    was read, in a sentence.
    """
    before = context.report.status
    old, new = _facts(before), _facts(after)
    probe, run = _run(context)
    changed = [what for what in new if old[what] != new[what] and not _repeats_verdict(what, old, new)]
    why = dict.fromkeys(TAINTS.values(), change.message if change is not None else after.summary)
    why[OVERRIDE] = (after.override.problem or after.override.reason) if after.override else "removed"
    added = [
        Transition(
            at=stamp(context.now),
            what=what,
            before=old[what],
            to=new[what],
            why=why.get(what, f"{read} {after.summary}".strip()),
            probe=probe,
            run=run,
        )
        for what in changed
    ]
    return [*before.transitions, *added][-MAX_TRANSITIONS:]


def conditions(context: Context, after: ReportStatus, status: str, reason: str) -> list[Condition]:
    """`Validated`, which agrees with the node's condition GPUValidated, and `Tainted`: whether the node
    should carry a taint for a fault; none before the first run.

    `status` and `reason` are those of GPUValidated, also in mode Observe, where the node has none.  Its
    message is empty: the report has the whole of it in `summary` and `desired.message`, and space for it
    once.
    """
    if not status:
        return []
    causes = [taint.value for taint in after.desired.taints if taint.own in names.TAINTS_OF_FAULTS]
    tainted = ("True", TAINTED, ", ".join(causes)) if causes else ("False", NOT_TAINTED, "")
    return [
        _condition(context, names.REPORT_VALIDATED, status, reason),
        _condition(context, names.REPORT_TAINTED, *tainted),
    ]


def _condition(context: Context, kind: str, status: str, reason: str, message: str = "") -> Condition:
    """The condition as it is now; its time moves only when its status does."""
    known = next((c for c in context.report.status.conditions if c.type == kind), None)
    since = known.last_transition_time if known and known.status == status else ""
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since or stamp(context.now),
    )


def _facts(status: ReportStatus) -> dict[str, str]:
    """What history watches, as it stands; computed from nothing but the status, so that asking twice finds
    no change."""
    desired = status.desired
    wanted = {taint.own: f"{taint.value}:{taint.effect}".lstrip(":") for taint in desired.taints}
    taints = {
        what: wanted.get(key) or _untainted(status, gates.KIND_OF_TAINT.get(key))
        for key, what in TAINTS.items()
    }
    labels = {
        label.history: desired.labels.get(label.key, "") for label in registry.labels() if label.history
    }
    override = status.override
    stands = override is not None and not override.problem
    decision = f"{override.kind} by {override.by}" if override is not None and stands else ""
    return {VERDICT: status.verdict.value, OVERRIDE: decision} | taints | labels


def _untainted(status: ReportStatus, kind: GateKind | None) -> str:
    """Why a fault of this kind has no taint now: held back or on probation; empty for no such fault."""
    if kind is None:
        return ""
    states = {GateState.HELD_BACK: "held back", GateState.PROBATION: "on probation"}
    causes = [
        f"{states[gate.state]}: {gates.GATES[gate.code].cause.value}"
        for gate in status.gates
        if gate.code in gates.GATES and gates.GATES[gate.code].kind is kind and gate.state in states
    ]
    return min(causes, default="")


def _repeats_verdict(what: str, old: dict[str, str], new: dict[str, str]) -> bool:
    """The label for health moves with the verdict, and is told apart from it only where it does not."""
    absent = {Verdict.UNKNOWN.value: ""}
    pairs = [absent.get(facts[VERDICT], facts[VERDICT]) for facts in (old, new)]
    return what == LABEL_HEALTH and pairs == [old[what], new[what]]


def _run(context: Context) -> tuple[str, int]:
    """The probe and number of the run that has just ended; empty and 0 if none did."""
    for probe in context.status.probes:
        known = context.report.status.probe[probe.name].last_run
        if probe.last_run is not None and (known is None or known.number != probe.last_run.number):
            return probe.name, probe.last_run.number
    return "", 0
