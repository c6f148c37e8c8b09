"""Why allocated GPUs wait: what a watch container saw of them over a window.

It is about jobs, never about the node: it sets no label, no taint and no gate, and its verdict counts for
nothing (`reads`).  The report keeps what was lost to each cause, in GPUs and in GPU-hours of about a day.
Without a watch container there are no windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from nodegauge_contract import Result
from nodegauge_judge import Severity, Verdict
from nodegauge_judge.case import number
from nodegauge_judge.feed.causes import FeedCause
from nodegauge_judge.feed.diagnosis import NOT_USED
from nodegauge_judge.feed.judge import FeedJudgement, judge_feed
from nodegauge_judge.feed.rules import FEED_RULES
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.api.report import Outcome, ProbeStatus, ReportStatus, Run
from nodegauge_operator.api.times import NEVER, stamp, unstamp
from nodegauge_operator.core import pod_outcome, probe_status
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probe_status import Reading
from nodegauge_operator.core.probes.kind import EndedRun, Kind

DAY = 86_400.0
ANNOUNCED_EVERY = DAY
"""Seconds between two events about feeding on one node."""
RENEWED_SHARE = 0.5
"""A window that says nothing new renews the report once the last one is older than this share of its age
limit.  Chosen by this project: a fleet whose GPUs are fed then costs half of the writes."""
OWN_RUNS = (names.PROBE_NCCL, names.PROBE_LOAD)
"""Runs of ours that hold the GPUs: a window with one of them says nothing of users."""
GROUPS, GROUPS_FOLDER = "control-groups", "/run/control-groups"
"""Name of the volume, which the admission policies know, and where the container sees control groups."""
CAUSES = (*(cause.value for cause in FeedCause), NOT_USED)
EMPTY = ("TooShort", "NoWindow", "NoGpuRead")
"""Reasons of a judgement that leave nothing to keep."""
MAX_GPUS = 1024
MAX_HOURS = MAX_GPUS * 48.0
"""More than a decayed sum of a node's GPU-hours can become."""

Gpus = Annotated[float, Meta(ge=0, le=MAX_GPUS)]
Hours = Annotated[float, Meta(ge=0, le=MAX_HOURS)]


class FeedMemory(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the report keeps of feed windows (`ProbeStatus.history`)."""

    allocated: Gpus = 0.0
    """GPUs that somebody held in the last window."""
    lost: dict[str, Gpus] = {}
    """By cause, GPUs that were lost to it in the last window."""
    held_hours: Hours = 0.0
    """GPU-hours for which somebody held GPUs; what is a day old counts 1/e, as in `hours`."""
    hours: dict[str, Hours] = {}
    """By cause, GPU-hours that were lost to it."""
    announced_at: str = ""
    """When the last event about feeding was posted."""


def memory(probe: ProbeStatus) -> FeedMemory:
    """What the report keeps; nothing if somebody broke it."""
    try:
        kept = msgspec.json.decode(probe.history or "{}", type=FeedMemory)
    except msgspec.DecodeError:
        return FeedMemory()
    return replace(kept, lost=_known(kept.lost), hours=_known(kept.hours))


def with_windows(policy: Policy, spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a watch pod with its one container, which also looks for windows, and sees the node's
    control groups, if the policy asks for it."""
    feed = policy.spec.probes.feed
    if not feed.enabled:
        return spec
    [body] = spec["containers"]
    options = [f"--feed-window={seconds(feed.window):g}", f"--feed-interval={seconds(feed.interval):g}"]
    options += [f"--dcgm={feed.dcgm}"] if feed.dcgm else []
    if not feed.control_groups:
        body |= {"args": [*body["args"], *options]}
        return spec
    body |= {
        "args": [*body["args"], *options, f"--control-groups={GROUPS_FOLDER}"],
        "volumeMounts": [
            *body["volumeMounts"],
            {"name": GROUPS, "mountPath": GROUPS_FOLDER, "readOnly": True},
        ],
    }
    volume = {"name": GROUPS, "hostPath": {"path": "/sys/fs/cgroup"}}
    return spec | {"volumes": [*spec.get("volumes", ()), volume]}


def _known(by_cause: Mapping[str, float]) -> dict[str, float]:
    return {cause: value for cause, value in by_cause.items() if cause in CAUSES}


class FeedKind(Kind):
    """Windows of the watch container."""

    name = names.PROBE_FEED
    title = "Feeding"
    reads = False
    announces_verdict = False
    rules = FEED_RULES

    def asked_for(self, context: Context) -> bool:
        return context.policy.watches and context.policy.spec.probes.feed.enabled

    def news(self, context: Context) -> EndedRun | None:
        """A window that was not judged yet, and that says something new; None for none."""
        part, before = context.unjudged_part(self.name), context.status.probe[self.name]
        if part is None or part.pod_uid not in context.watchers or not self.asked_for(context):
            return None
        at = part.known_at(context.now)
        if context.now - at > self.interval(context) or at <= before.read_epoch:
            return None
        if part.boot_id and context.node.boot_id and part.boot_id != context.node.boot_id:
            return None
        end = pod_outcome.checked(
            part, run=part.pod_uid, probe=self.name, node=context.node.name, now=context.now
        )
        pod = context.watchers[part.pod_uid]
        # an event's name is made of this: one pod writes many windows
        run = Run(number=before.next_number, pod_uid=part.identity, pod_name=pod, started_at=stamp(at))
        ended = EndedRun(run=run, end=end, reading=part.identity)
        return ended if self._is_news(context, self.after_run(context, ended)) else None

    def after_run(self, context: Context, ended: EndedRun) -> ReportStatus:
        status, before = context.status, context.status.probe[self.name]
        judgement = judge_feed(ended.end.result) if ended.end.result is not None else None
        why = _why_unjudged(context, ended.end, judgement)
        if judgement is None or why is not None:
            unread = probe_status.unread(context, self.name, replace(ended, end=why or ended.end))
            return replace(status, probes=status.with_probe(unread))
        kept = _kept(context, before, judgement, at=ended.end.finished_at or context.now)
        reading = Reading(
            verdict=judgement.verdict,
            summary=" ".join([judgement.summary, *_of_a_day(kept)]),
            findings=judgement.findings,
            history=msgspec.json.encode(kept).decode(),
        )
        return replace(
            status, probes=status.with_probe(probe_status.read(context, self.name, ended, reading))
        )

    def at_look(self, context: Context) -> ReportStatus:
        """What a window says of now ends when no other follows it; the sums stay."""
        status, probe = context.status, context.status.probe[self.name]
        over = not self.asked_for(context) or context.now > self._ends_at(context, probe)
        if not probe.read_at or not over:
            return status
        kept = msgspec.json.encode(replace(memory(probe), allocated=0.0, lost={})).decode()
        ended = replace(probe, verdict=Verdict.UNKNOWN, summary="", findings=[], history=kept)
        return replace(status, probes=status.with_probe(ended))

    def announcement(self, before: ReportStatus, after: ReportStatus) -> tuple[names.Reason, str] | None:
        """At most once a day, and Normal: nobody has to repair the node."""
        at = [memory(status.probe[self.name]).announced_at for status in (before, after)]
        return (names.Reason.GPUS_UNDERFED, "Normal") if at[0] != at[1] else None

    def event_suffix(self, before: ReportStatus, after: ReportStatus) -> str:
        """The worst finding, with its remedy."""
        findings = after.probe[self.name].findings
        return f" {findings[0].subject}: {findings[0].message}" if findings else ""

    def amounts(self, status: ReportStatus) -> Mapping[tuple[str, str], float]:
        kept = memory(status.probe[self.name])
        return {("gpus_allocated", ""): kept.allocated} | {
            ("gpus_lost", cause): gpus for cause, gpus in kept.lost.items()
        }

    def _ends_at(self, context: Context, probe: ProbeStatus) -> float:
        return NEVER if context.policy.paused else probe.read_epoch + context.stale_seconds_of(self.name)

    def _is_news(self, context: Context, after: ReportStatus) -> bool:
        """Whether somebody would see a difference, or the last window has to be renewed."""
        old, new = context.status.probe[self.name], after.probe[self.name]
        if new.last_run is None or new.last_run.outcome is not Outcome.READ or _shown(old) != _shown(new):
            return True
        return context.now - old.read_epoch >= RENEWED_SHARE * context.stale_seconds_of(self.name)


def _why_unjudged(context: Context, end: RunEnd, judgement: FeedJudgement | None) -> RunEnd | None:
    """Why nothing is kept of a window; None if it counts.  None of it is the node's fault."""
    if judgement is None or end.result is None:
        return replace(end, outcome=Outcome.SKIPPED)
    if judgement.reason in EMPTY:
        return replace(end, outcome=Outcome.SKIPPED, reason=judgement.reason, message=judgement.summary)
    own = _own_run(context, end.result, at=end.finished_at or context.now)
    if own:
        text = f"a run of the {own} probe held the GPUs in this window"
        return replace(end, outcome=Outcome.SKIPPED, reason="OwnRun", message=text)
    return None


def _own_run(context: Context, result: Result, *, at: float) -> str:
    """The probe of ours that held GPUs during the window that ended then; empty for none."""
    lasted = number(result.feed.seconds) if result.feed is not None else None
    began = at - (lasted or 0.0)
    running = [pod.probe for pod in context.pods if pod.probe in OWN_RUNS and pod.owner_uid and not pod.gone]
    for name in OWN_RUNS:
        last = context.status.probe[name].last_run
        if last is not None and began <= unstamp(last.finished_at) and unstamp(last.started_at) <= at:
            running.append(name)
    return running[0] if running else ""


def _kept(context: Context, before: ProbeStatus, judgement: FeedJudgement, *, at: float) -> FeedMemory:
    """The sums with the time since the last window, of which that one tells: the container writes a new one
    once something has changed.  A gap of more than three intervals is of nobody."""
    kept, since = memory(before), at - before.read_epoch if before.read_epoch else math.inf
    hours = since / 3600 if 0 <= since <= 3 * context.interval_of(before.name) else 0.0
    fades = math.exp(-max(0.0, since) / DAY)
    sums = {cause: lost * fades for cause, lost in kept.hours.items()}
    for cause, lost in kept.lost.items():
        sums[cause] = sums.get(cause, 0.0) + lost * hours
    warns = any(finding.severity is Severity.WARN for finding in judgement.findings)
    due = not kept.announced_at or context.now - unstamp(kept.announced_at) >= ANNOUNCED_EVERY
    return FeedMemory(
        allocated=float(judgement.allocated),
        lost=judgement.lost,
        held_hours=round(min(MAX_HOURS, kept.held_hours * fades + kept.allocated * hours), 2),
        hours={cause: round(min(MAX_HOURS, lost), 2) for cause, lost in sums.items() if lost >= 0.01},
        announced_at=stamp(context.now) if warns and due else kept.announced_at,
    )


def _of_a_day(kept: FeedMemory) -> list[str]:
    """`Of 96 GPU-hours of about a day: storage 31 %, idle 4 %.`; empty while nothing was lost."""
    if not kept.held_hours or not kept.hours:
        return []
    worst = sorted(kept.hours.items(), key=lambda pair: -pair[1])
    parts = [f"{cause} {min(1.0, lost / kept.held_hours):.0%}" for cause, lost in worst]
    return [f"Lost of {kept.held_hours:.0f} GPU-hours of about a day: {', '.join(parts)}."]


def _shown(probe: ProbeStatus) -> tuple[object, ...]:
    """What a person would show of a window; numbers of the moment move all the time."""
    kept = memory(probe)
    findings = sorted((f.code, f.severity, f.subject, str(f.evidence.get("cause"))) for f in probe.findings)
    outcome = probe.last_run.outcome if probe.last_run else None
    return (probe.verdict, findings, kept.allocated, {c: round(g) for c, g in kept.lost.items()}, outcome)
