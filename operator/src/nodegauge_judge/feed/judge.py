"""The judgement of one feed window: were the GPUs that somebody holds busy, and if not, why."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodegauge_contract import Result
from nodegauge_judge.case import clip
from nodegauge_judge.feed.case import FeedCase, FeedPod, amount
from nodegauge_judge.feed.causes import FeedCause, FeedLimits
from nodegauge_judge.feed.diagnosis import Diagnosis, diagnose
from nodegauge_judge.feed.gpus import Did, GpuFeeding
from nodegauge_judge.feed.rules import FEED_RULES
from nodegauge_judge.model import Finding, Severity, Verdict
from nodegauge_judge.rule import worst_first


class FeedJudgement(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one window says of the jobs.  It says nothing of the node's health."""

    verdict: Verdict
    """pass: GPUs work, and CPU, I/O and memory were read; warn: a cause is known; no-load: nobody works with
    a GPU; unknown: anything else."""
    summary: str
    """One sentence."""
    findings: list[Finding] = []
    """The worst first; none of them is worse than warn."""
    gpus: list[GpuFeeding] = []
    """What each GPU did."""
    cause: str = ""
    """Why GPUs starve (`FeedCause`); empty if none does."""
    confidence: float = 0.0
    """0 to 1, of that cause."""
    allocated: int = 0
    """GPUs that somebody holds."""
    lost: dict[str, float] = {}
    """By cause, and `idle`, GPUs that were lost to it."""
    missing: list[str] = []
    """What was not read that would show a cause."""
    reason: str = ""
    """PascalCase, why the verdict is unknown."""
    locations: list[Finding] = []
    """The findings, one per location."""


def judge_feed(
    result: Result, *, pods: Sequence[FeedPod] | None = None, limits: FeedLimits | None = None
) -> FeedJudgement:
    """What the feed window in `result` says; it never raises, whatever the result.

    `pods`: those that hold GPUs; None if nobody knows, and then a GPU counts as held that has a process, a
    GiB of memory in use, or work.
    """
    feed, limits = result.feed, limits or FeedLimits()
    if feed is None:
        why = clip(result.problem.message or result.problem.kind) if result.problem else "it has no window"
        return _unknown("NoWindow", f"Nothing is known of the feeding: {why}.")
    seconds = amount(feed.seconds)
    if seconds is None or seconds < limits.least_seconds:
        return _unknown("TooShort", "The window is too short to say anything.")
    if not feed.gpus:
        return _unknown("NoGpuRead", "No GPU could be read in the window.")
    case = FeedCase(result=result, feed=feed, pods=None if pods is None else tuple(pods))
    seen = diagnose(case, limits)
    findings = worst_first(finding for rule in FEED_RULES for finding in rule.findings(seen))
    verdict, reason = _verdict(seen, findings)
    return FeedJudgement(
        verdict=verdict,
        summary=_summary(seen, verdict, reason),
        findings=findings,
        gpus=seen.gpus,
        cause=seen.underfed[0].cause if seen.underfed else "",
        confidence=seen.confidence,
        allocated=sum(gpu.did is not Did.UNREAD for gpu in seen.allocated),
        lost=_lost(seen),
        missing=case.missing,
        reason=reason,
        locations=findings,
    )


def _lost(seen: Diagnosis) -> dict[str, float]:
    causes = {gpu.cause for gpu in seen.gpus if gpu.cause}
    sums = {cause: sum(gpu.lost for gpu in seen.gpus if gpu.cause == cause) for cause in causes}
    return {cause: round(lost, 3) for cause, lost in sorted(sums.items(), key=lambda pair: -pair[1]) if lost}


def _verdict(seen: Diagnosis, findings: list[Finding]) -> tuple[Verdict, str]:
    """A pass is earned: some GPU worked, none is unread, and what starves GPUs would have been seen."""
    acts = [gpu.did for gpu in seen.gpus]
    if any(finding.severity is Severity.WARN for finding in findings):
        return Verdict.WARN, ""
    if Did.UNREAD in acts:
        return Verdict.UNKNOWN, "GpuUnread"
    if seen.underfed:
        return Verdict.UNKNOWN, "CauseUnsure"
    if all(act in (Did.FREE, Did.IDLE) or gpu.cause for act, gpu in zip(acts, seen.gpus, strict=True)):
        return Verdict.NO_LOAD, "NobodyWorks" if seen.allocated else "NobodyHolds"
    if Did.UNSURE in acts:
        return Verdict.UNKNOWN, "WorkUnread"
    if not (seen.case.cpu_read and seen.case.io_read and seen.case.memory_read):
        return Verdict.UNKNOWN, "EvidenceMissing"
    return (Verdict.PASS, "") if Did.FED in acts else (Verdict.UNKNOWN, "Paused")


_REASONS = {
    "GpuUnread": "not every GPU could be read",
    "NobodyWorks": "nobody works with them",
    "NobodyHolds": "nobody holds a GPU",
    "WorkUnread": "busy by NVML; neither power nor SMs say how much they did",
    "Paused": "they paused once, as for an evaluation or at a start",
}


def _summary(seen: Diagnosis, verdict: Verdict, reason: str) -> str:
    counted = f"{len(seen.allocated)} of {len(seen.gpus)} GPUs are held"
    lost = sum(gpu.lost for gpu in seen.underfed)
    if seen.underfed:
        cause = seen.underfed[0].cause
        sure = f", confidence {seen.confidence:.2f}" if cause != FeedCause.UNKNOWN else ""
        return (
            f"{counted}, {len(seen.underfed)} are underfed ({cause}{sure}): {lost:.1f} GPUs lost, estimated."
        )
    if reason == "EvidenceMissing":
        return (
            f"{counted}; they work, but what could starve them was not read: {'; '.join(seen.case.missing)}."
        )
    if verdict is Verdict.PASS:
        unused = f", {len(seen.unused)} of them unused" if seen.unused else ""
        return f"{counted}{unused}, and none starves."
    return f"{counted}: {_REASONS[reason]}."


def _unknown(reason: str, summary: str) -> FeedJudgement:
    return FeedJudgement(verdict=Verdict.UNKNOWN, summary=summary, reason=reason)
