"""What has happened in the simulated world.  A reading is there once its probe has written it; the operator
has judged it once node or report follow from it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fleet.machines import NO_FAULT, OF_NODES, UNREADABLE, Machine
from nodegauge_operator.api.policy import PolicySpec, seconds
from nodegauge_operator.api.report import Outcome
from support.api_server import Body

OPEN = float("inf")
LATE = 180.0
"""Seconds within which the operator acts on what it hears, while nothing is wrong."""
LEAVE_RUNS = 3
OF_THE_NODE = frozenset({"KubeletSilent", "NoReading", "ResultUnreadable"})
"""Reasons of runs that failed by the node itself."""
PROBATION = 86_400.0
GAPS = ("outage", "restart", "policy", "reboot", "driver")
"""Spans in which no run can be made, by the first word."""


@dataclass(kw_only=True)
class Span:
    start: float
    what: str
    end: float = OPEN


class Spans:
    def __init__(self) -> None:
        self.all: list[Span] = []

    def begin(self, now: float, what: str) -> Span:
        span = Span(start=now, what=what)
        self.all.append(span)
        return span

    def near(self, start: float, end: float) -> list[Span]:
        return [span for span in self.all if span.end >= start and span.start <= end]


def covered(spans: Iterable[Span], start: float, end: float, *, pad: float = 0.0) -> float:
    longer = merged(Span(start=span.start, end=span.end + pad, what=span.what) for span in spans)
    return sum(max(0.0, min(span.end, end) - max(span.start, start)) for span in longer)


def merged(spans: Iterable[Span]) -> list[Span]:
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if result and span.start <= result[-1].end:
            result[-1].end = max(result[-1].end, span.end)
        else:
            result.append(Span(start=span.start, end=span.end, what=span.what))
    return result


@dataclass(kw_only=True)
class Left:
    readable: bool
    fault: str
    loaded: bool
    boot: int
    ended_at: float
    stamped: float
    """When it ended, by the cluster's clock, epoch seconds."""
    judged: bool = False
    """Whether it counts: the node or the report has followed from it."""


@dataclass(kw_only=True)
class FaultSeen:
    bad: int = 0
    good: int = 0
    entered_at: float | None = None
    lifted_at: float | None = None
    """When its taint was lifted on probation."""

    def stands(self, now: float, *, gain: float = 0.0) -> bool:
        """Entered, and not left; a probation without a bad run ends it, a clock that gained ends it early."""
        ended = self.lifted_at is not None and now - self.lifted_at + gain >= PROBATION
        return self.entered_at is not None and not ended


@dataclass(kw_only=True)
class NodeRecord:
    """One node (a UID), and what its report has heard since the report began."""

    machine: Machine
    uid: str
    wrong: Spans = field(default_factory=Spans)
    """Why no run could be made or read here."""
    unlabelled: Spans = field(default_factory=Spans)
    written: Left | None = None
    """The reading that was written last, until node or report follow."""
    reading: Left | None = None
    """The reading that was judged last."""
    read_at: float = 0.0
    readings: int = 0
    readings_ever: int = 0
    failing_since: float | None = None
    failing_until: float = 0.0
    unread_since: float | None = None
    """The first run since it was read last that failed by the node itself."""
    seen: dict[str, FaultSeen] = field(default_factory=dict)
    tainting: set[str] = field(default_factory=set)
    """Faults whose taint is on the node."""
    healthy_since: float = 0.0
    faulty_since: float | None = None
    changed_at: float = 0.0
    """When a taint for a fault last came or went, or the report was deleted."""
    lines: list[str] = field(default_factory=list)
    """The last things that happened here, for people."""

    def forget(self, now: float) -> None:
        """The report is gone: nothing that it had heard counts any more."""
        self.changed_at = now
        self.reading, self.failing_since, self.unread_since = None, None, None
        self.seen, self.readings = {}, 0
        self.written = None  # its pod was of that report

    def note(self, now: float, text: str) -> None:
        self.lines = [*self.lines[-39:], f"{stamp_of(now)} {text}"]

    def judged(self, now: float, left: Left) -> None:
        """The node or its report follows from this reading; what follows later counts nothing."""
        self.written = None
        if left.judged:
            return
        left.judged = True
        self.note(now, f"judged: {left.fault or 'well'}, {'loaded' if left.loaded else 'idle'}")
        self.reading, self.read_at, self.failing_since, self.unread_since = left, now, None, None
        self.readings += 1
        self.readings_ever += 1
        for name, fault in OF_NODES.items():
            seen = self.seen.setdefault(name, FaultSeen())
            if seen.entered_at is not None and not seen.stands(now):
                seen = self.seen[name] = FaultSeen()
            if left.fault == name and (left.loaded or not fault.under_load):
                seen.bad, seen.good, seen.lifted_at = seen.bad + 1, 0, None
                if seen.bad >= fault.runs and seen.entered_at is None:
                    seen.entered_at = now
            elif left.loaded or not fault.under_load:
                seen.bad, seen.good = 0, seen.good + 1
                if seen.good >= LEAVE_RUNS and name not in self.tainting:
                    self.seen[name] = FaultSeen()

    def failed(self, now: float, *, skipped: bool, unread: bool) -> None:
        self.written = None
        if unread:
            self.unread_since = self.unread_since or now
            seen = self.seen.setdefault(UNREADABLE, FaultSeen())
            seen.bad, seen.good = seen.bad + 1, 0
            # the report may say the last one after the node has its taint
            if seen.bad >= OF_NODES[UNREADABLE].runs - 1 and seen.entered_at is None:
                seen.entered_at = now
        if skipped:
            self.failing_since = None
        elif self.failing_since is None:
            self.failing_since = now
        self.failing_until = now


class Record:
    """Everything.  `wrong`: what was wrong for the whole cluster; policies by the pool that they select."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.wrong = Spans()
        self.clock_errors: list[tuple[Span, float]] = []
        """When the operator's clock was wrong, and by how many seconds."""
        self.policies: dict[str, list[tuple[float, PolicySpec | None]]] = {}
        self.inactive: dict[str, Spans] = {}
        """Paused, observing or absent policies."""
        self.absent: dict[str, Spans] = {}
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []

    def note(self, now: float, text: str) -> None:
        self.lines.append(f"{stamp_of(now)} {text}")

    def report_written(self, now: float, name: str, run: Body, left: Left | None) -> str:
        """A report took a run; a text if it says that a pod was read which wrote nothing readable, or the
        other way round of a reading that the node has followed from."""
        node = self.nodes[name]
        outcome = run["outcome"]
        self.counts[f"run {outcome}"] += 1
        if outcome == Outcome.READ:
            if left is None or not left.readable:
                return f"{name}: run {run['number']} counts as read, but its pod wrote no reading"
            node.judged(now, left)
        elif left is not None and left.judged:
            return f"{name}: the node follows from run {run['number']}, which counts as {outcome}"
        else:
            node.failed(now, skipped=outcome == Outcome.SKIPPED, unread=run["reason"] in OF_THE_NODE)
            node.note(now, f"judged: {outcome} {run['reason']}")
        return ""

    # -- what the operator may still believe ----------------------------------------------------------------

    def known_since(self, name: str, now: float) -> float:
        """The operator may act on what was true at any time since then: it is late, deaf, or was away."""
        since = now - LATE
        spans = merged(Span(start=s.start, end=s.end + LATE, what=s.what) for s in [*self.wrong.all[-60:]])
        for span in reversed(spans):
            if span.end >= since and span.start < since:
                since = span.start - LATE
        return since

    def specs(self, pool: str, since: float, until: float) -> list[PolicySpec | None]:
        history = self.policies[pool]
        later = [spec for at, spec in history if since <= at <= until]
        before = [spec for at, spec in history if at < since]
        return [*before[-1:], *later]

    def spec(self, pool: str) -> PolicySpec | None:
        return self.policies[pool][-1][1]

    def longest_interval(self, pool: str, since: float, until: float) -> float:
        specs = [spec for spec in self.specs(pool, since, until) if spec is not None]
        return max((seconds(spec.probes.health.interval) for spec in specs), default=0.0)

    def shortest_staleness(self, pool: str, since: float, until: float) -> tuple[float, float]:
        specs = [spec for spec in self.specs(pool, since, until) if spec is not None]
        pairs = [(seconds(s.probes.health.interval), s.stale_after_intervals) for s in specs]
        interval, count = min(pairs, default=(OPEN, 3))
        return interval, interval * count

    def outside(self, name: str, now: float) -> float:
        """For how long at most the node was outside of every policy, in a stretch that may still count."""
        node = self.nodes[name]
        spans = merged([*node.unlabelled.all, *self.absent[node.machine.pool].all])
        since = self.known_since(name, now)
        return max(
            (min(span.end, now) - span.start for span in spans if span.end >= since and span.start < now),
            default=0.0,
        )

    def clock_gain(self, since: float, now: float) -> float:
        """By how many seconds a time stamped after `since` may look older than it is."""
        errors = [error for span, error in self.clock_errors if span.end >= since and span.start <= now]
        ahead = [error for span, error in self.clock_errors if span.start <= now <= span.end + LATE]
        return max([0.0, *ahead, *(-error for error in errors)])

    def disturbed(self, name: str, since: float, until: float, *, pad: float = 0.0) -> float:
        """Seconds in which no run could be made here, or none be judged."""
        return covered(self._spans(name, since - pad, until), since, until, pad=pad)

    def gap_over_at(self, name: str, now: float) -> float:
        """When a run could be made again at last, after it could not; `now` while none can be made."""
        spans = self._spans(name, 0.0, now)
        return max((min(s.end, now) for s in spans if s.what.split()[0] in GAPS), default=0.0)

    def _spans(self, name: str, since: float, until: float) -> list[Span]:
        node = self.nodes[name]
        pool = node.machine.pool
        every = (self.wrong, node.wrong, node.unlabelled, self.inactive[pool])
        return [span for spans in every for span in spans.near(since, until)]

    def fault_changed(self, name: str, now: float, fault: str) -> None:
        node = self.nodes[name]
        node.machine.fault = fault
        if fault == NO_FAULT:
            node.faulty_since, node.healthy_since = None, now
        else:
            node.faulty_since = now
        node.note(now, f"FAULT {fault}" if fault else "fault ends")


def stamp_of(now: float) -> str:
    """`day 3 04:05:06`."""
    day, rest = divmod(int(now), 86_400)
    return f"day {day} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def is_paused(spec: PolicySpec) -> bool:
    return spec.budget.concurrent_probes in (0, "0%")


def spec_text(spec: Any) -> str:
    if spec is None:
        return "absent"
    paused = " paused" if is_paused(spec) else ""
    return f"{spec.mode.value} {spec.probes.health.interval} gatedNodes={spec.budget.gated_nodes}{paused}"
