"""A node's state in words: the report's summary, the condition's message, and what events say of gates.

A sentence about a node is made of the last runs of its kinds and of its gates.  `events` adds what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nodegauge_judge import Severity, Verdict
from nodegauge_judge.coverage import PART, still_says
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.report import GateState, Outcome, ProbeStatus, ReportStatus, Unreadable
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.report_size import cut

MAX_MESSAGE = 1000
MAX_COVERED = 200
"""Of a message, in bytes: counts, and the gaps of two GPUs."""
READ = "Read: "
"""Before the line of what was read."""


def summary(context: Context, status: ReportStatus, every: Sequence[Fault]) -> str:
    """The node in a few sentences; empty before the first run.  `status` holds gates and
    verdict as they are now; `every`: the faults that it describes."""
    probe = status.probe[HEALTH]
    unread = probe.failing_since or probe.unreadable
    text = _unread(probe) if unread else _of_runs(context, _summary_of)
    held_back = any(gate.state is GateState.HELD_BACK for gate in status.gates)
    if not held_back and status.verdict is context.raw_verdict:
        return text
    of_gates = gates_sentence(context, status, every)
    return f"{text} Gates: {of_gates}." if of_gates else text


def condition_message(context: Context, status: ReportStatus, every: Sequence[Fault]) -> str:
    """The message of the condition GPUValidated; it changes only when findings or gates do, or less was read
    than it says: else every run would cost a write.  `every`: the faults that the status describes."""
    of_gates = gates_sentence(context, status, every)

    def brief(context: Context, probe: ProbeStatus) -> str:
        return _codes_of(context, probe, every)

    sentences = (
        _of_runs(context, brief) if status.probe[HEALTH].last_run is not None else "",
        *(kind.at_condition(status) for kind in context.kinds.values()),
        f"Gates: {of_gates}." if of_gates else "",
        f"Next: {every[0].next_step}" if every else "",
    )
    text = cut(" ".join(sentence for sentence in sentences if sentence), MAX_MESSAGE - MAX_COVERED - 1)
    line, (before, _, shown) = covered(context, status), status.desired.message.rpartition(READ)
    if line and before.rstrip() == text and still_says(shown.removesuffix("."), line[len(READ) : -1]):
        line = f"{READ}{shown}"
    return f"{text} {line}".strip()


def covered(context: Context, status: ReportStatus, *, most: int = MAX_COVERED) -> str:
    """What the health reading that stands has read of what it should, and after it the readings of other
    kinds that count, in at most so many bytes; empty where nothing is known, or of a report of an older
    version."""
    line = status.probe[HEALTH].coverage
    known = context.is_known and context.now < context.unknown_at
    others = [
        f"{PART}{context.kinds[probe.name].title}: {status.probe[probe.name].coverage}"
        for probe in context.readings
        if probe.name != HEALTH and probe.name in context.counting and status.probe[probe.name].coverage
    ]
    return f"{READ}{cut(''.join([line, *others]), most - len(READ) - 1)}." if line and known else ""


def gates_sentence(context: Context, status: ReportStatus, every: Sequence[Fault]) -> str:
    """The gates of a node for its condition; it stays the same for as long as they do; empty for none."""
    parts, leave_runs = [], context.policy.spec.hysteresis.leave_runs
    if any(gate.on_devices for gate in status.gates):
        every = context.after(status).faults_without_rules
    taints = {taint.value: taint for taint in gates.taints(status, policy=context.policy)}
    states = {gate.code: gate for gate in status.gates}
    for fault in every if status.gates else ():
        where = f", {fault.where}" if fault.where else ""
        title = f"{fault.title}{where} [{fault.code}]"
        if fault.tainted and fault.cause in taints:
            gate = states[fault.code]
            good = f", good runs {gate.good} of {leave_runs}" if gate.good else ""
            origin = ", found without a report" if gate.message == gates.ADOPTED else ""
            parts.append(f"tainted {taints[fault.cause].short} since {gate.since}{origin}{good}: {title}")
        elif fault.no_taint:
            parts.append(f"{fault.taint} {fault.no_taint}: {title}")
    return "; ".join(parts)


def before(probe: ProbeStatus, every: Sequence[Fault]) -> str:
    """`read at TIME, before the fault` for a reading that is older than the worst fault: what it found may no
    longer be so.  Empty for one that is not, or where either time is unknown."""
    since = every[0].since_epoch if every else 0.0
    return f"read at {probe.read_at}, before the fault" if 0.0 < probe.read_epoch < since else ""


def _summary_of(context: Context, probe: ProbeStatus) -> str:
    """A run that stands, for the report's summary."""
    return f"{context.kinds[probe.name].title}: {probe.summary}"


def _codes_of(context: Context, probe: ProbeStatus, every: Sequence[Fault] = ()) -> str:
    """A run that stands, for the condition; it only changes when its findings do, or a fault is newer."""
    codes = dict.fromkeys(f.code for f in probe.findings if f.severity is not Severity.INFO)
    notes = [note for note in (", ".join(codes), before(probe, every)) if note]
    listed = f" ({'; '.join(notes)})" if notes else ""
    return f"{context.kinds[probe.name].title}: {probe.verdict.value}{listed}."


def _of_runs(context: Context, of_run: Callable[[Context, ProbeStatus], str]) -> str:
    """What the last runs found, the worst probe first; `of_run`: about one that stands beside health."""
    status, raw = context.status, context.raw_verdict
    health = status.probe[HEALTH]
    if not context.is_known or context.now >= context.unknown_at:
        return " ".join(text for text in (_unread(health), *_of_unread_node(context)) if text)
    if raw is not Verdict.FAIL and context.has_fault:
        return f"Not cleared yet; last verdict {raw.value}."
    measured = [of_run(context, probe) for probe in context.standing]
    if raw is health.verdict:
        text = " ".join([health.summary, *measured])
    else:
        passed = health.verdict is Verdict.PASS
        of_health = "The health probe found no fault." if passed else f"Health probe: {health.summary}"
        text = " ".join([*measured, of_health])
    unconfirmed = raw is Verdict.FAIL and not context.has_fault
    return f"Not confirmed: {text}" if unconfirmed else text


def _of_unread_node(context: Context) -> Iterator[str]:
    """What other readings that stand still say of a node that the health probe cannot read."""
    for probe in context.readings:
        seen = context.kinds[probe.name].of_unread_node(context) if probe.name in context.counting else None
        if seen is not None:
            yield f"{_codes_of(context, probe)} {seen}".rstrip()


def _unread(probe: ProbeStatus) -> str:
    """Why nothing is known of the node now, and what its last reading was; empty before the first run."""
    last = probe.last_run
    if last is None:
        return ""
    failed = f"{last.reason}: {last.message.rstrip('.')}." if last.outcome is not Outcome.READ else ""
    if probe.unreadable is not None:
        failed = not_readable(probe.unreadable)
    if not probe.read_at:
        return f"Not read yet: {failed}"
    before = f"Last read at {probe.read_at}, verdict {probe.verdict.value}"
    if probe.unreadable is not None:
        return f"{failed} {before}."
    return f"{before}; since then {failed}" if failed else f"{before}."


def not_readable(unreadable: Unreadable) -> str:
    """That the node's probe fails, with the call and since when; the same for every run that fails alike."""
    return f"Not readable since {unreadable.since} ({unreadable.symptom}): {unreadable.message.rstrip('.')}."


def in_words(override: Override) -> str:
    """An override that is in force, for a sentence."""
    return f"override {override.kind} by {override.by} until {override.until}: {override.reason}"
