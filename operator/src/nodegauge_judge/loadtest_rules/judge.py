"""The judgement of a load run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodegauge_contract import Result
from nodegauge_contract.load import LoadEnd, LoadResult, LoadSkip
from nodegauge_judge.case import clip, identity, pascal, text
from nodegauge_judge.identity import in_summary, listed
from nodegauge_judge.loadtest_rules import heat, links, reading, results, slowdown
from nodegauge_judge.loadtest_rules.case import LoadCase, LoadRule
from nodegauge_judge.loadtest_rules.heat import plausible
from nodegauge_judge.loadtest_rules.offload import OffloadReading, offload
from nodegauge_judge.model import Answer, Finding, GpuIdentity, Severity, Verdict
from nodegauge_judge.peers import Peers, no_peers
from nodegauge_judge.rule import Effect
from nodegauge_judge.thresholds import Thresholds

LOAD_RULES: tuple[LoadRule, ...] = (
    *results.RULES,
    *slowdown.RULES,
    *heat.RULES,
    *links.RULES,
    *reading.RULES,
)
"""The most telling first: findings of one severity are listed in this order."""
_RULES = {rule.code: rule for rule in LOAD_RULES}
_NOT_SKIPPED = (LoadSkip.NO_CUDA, LoadSkip.HOT, LoadSkip.NO_GPU)
"""Reasons not to load a node that somebody should hear of; the others are as it should be."""


class LoadJudgement(Struct, frozen=True, kw_only=True):
    """The judgement of one load run."""

    verdict: Verdict
    """The worst finding; no-load, skipped or unknown if the run says too little."""
    readable: bool
    """Whether the load was heavy enough, over all GPUs, or a fault was found nonetheless."""
    summary: str
    """One sentence for people."""
    findings: list[Finding] = []
    """The worst first, one per code and severity."""
    answers: dict[str, Answer] = {}
    """By code of each gated finding of the load probe; empty if unreadable."""
    tflops: float | None = None
    """1e12 operations a second of the median GPU; None if one was not read or they are not alike."""
    power_percent: int | None = None
    """Power of the GPU least close to its limit, per cent of it, at most 999; None if not read."""
    hottest: int | None = None
    """Highest temperature of a GPU, °C; None if not read."""
    gpus: int = 0
    """GPUs that worked."""
    fingerprint: str = ""
    """Equal for comparable nodes."""
    offload: OffloadReading = OffloadReading()
    """What it measured of the host, for models that do not fit into the GPUs."""
    reason: str = ""
    """PascalCase, why the run was unreadable or skipped; empty if it was readable."""
    locations: list[Finding] = []
    """The findings, one per location."""


def judge_load(
    result: Result,
    *,
    thresholds: Thresholds | None = None,
    peers: Peers = no_peers,
    previous: tuple[str, float] | None = None,
    known: Sequence[GpuIdentity] = (),
) -> LoadJudgement:
    """The judgement of the load run in `result`; it never raises, whatever the result.

    `peers`: TFLOPS of comparable nodes; `previous`: fingerprint and TFLOPS of the readable run before;
    `known`: the GPUs that the node had before.  A run that gave way or
    was cut has no verdict, whatever it measured until then.
    """
    unmeasured = _without_measurement(result)
    if unmeasured is not None:
        return unmeasured
    assert result.load is not None
    limits = thresholds or Thresholds()
    case = LoadCase(result=result, load=result.load, thresholds=limits, peers=peers, previous=previous)
    observed = [(rule, list(rule.check(case))) for rule in LOAD_RULES]
    findings, locations = listed(observed, [*(identity(gpu) for gpu in result.gpus), *known])
    verdict, reason = _verdict(findings)
    readable = verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
    gated = [(rule.code, rule.answer) for rule in LOAD_RULES if rule.answer is not None]
    shares = [share for loaded in case.gpus if (share := loaded.power_share) is not None]
    heats = [celsius for loaded in case.gpus if (celsius := plausible(loaded.load.max_c)) is not None]
    return LoadJudgement(
        verdict=verdict,
        readable=readable,
        summary=_summary(case, verdict, findings),
        findings=findings,
        answers={code: answer(case) for code, answer in gated} if readable else {},
        tflops=None if case.tflops is None else float(f"{case.tflops:.4g}"),
        power_percent=round(min(999.0, 100 * min(shares))) if shares else None,
        hottest=round(max(heats)) if heats else None,
        gpus=len(case.gpus),
        fingerprint=case.fingerprint,
        offload=offload(case),
        reason=reason,
        locations=locations,
    )


def _without_measurement(result: Result) -> LoadJudgement | None:
    """The judgement of a run that loaded nothing or was ended; None for any other run."""
    load, problem = result.load, result.problem
    if load is None or (problem is not None and not load.skipped and not load.gpus):
        cause = clip(problem.message or problem.kind) if problem is not None else "it has no load run"
        reason = pascal(problem.kind) if problem is not None else "NoResult"
        return _unreadable(Verdict.UNKNOWN, reason, f"the load probe returned no result: {cause}")
    if load.skipped:
        verdict = Verdict.UNKNOWN if load.skipped in _NOT_SKIPPED else Verdict.SKIPPED
        cause = clip(load.message) or clip(load.skipped)
        return _unreadable(verdict, pascal(load.skipped), f"no GPU was loaded: {cause}")
    ends = {load.ended, *(gpu.ended for gpu in load.gpus)}
    if LoadEnd.GAVE_WAY in ends:
        return _unreadable(Verdict.SKIPPED, "GaveWay", _ended(load, "another process wanted a GPU"))
    if LoadEnd.CUT in ends:
        return _unreadable(Verdict.UNKNOWN, "Cut", _ended(load, "the run was ended before the load was done"))
    if not load.gpus:
        return _unreadable(Verdict.UNKNOWN, "NothingMeasured", "no GPU was measured under load")
    return None


def _ended(load: LoadResult, otherwise: str) -> str:
    return f"the load ended early: {clip(load.message) or otherwise}"


def _verdict(findings: list[Finding]) -> tuple[Verdict, str]:
    """The worst finding; no-load or unknown, with a reason, unless something failed."""
    if any(finding.severity is Severity.FAIL for finding in findings):
        return Verdict.FAIL, ""
    codes = {finding.code for finding in findings}
    unjudged = [code for code in codes if _RULES[code].effect is Effect.UNJUDGED]
    if "load-incomplete" in unjudged:
        return Verdict.UNKNOWN, "LoadIncomplete"
    if unjudged:
        return Verdict.NO_LOAD, "TooLight"
    warns = any(finding.severity is Severity.WARN for finding in findings)
    return (Verdict.WARN if warns else Verdict.PASS), ""


def _summary(case: LoadCase, verdict: Verdict, findings: list[Finding]) -> str:
    names = {text(loaded.gpu.name) for loaded in case.gpus}
    name = names.pop() if len(names) == 1 else ""
    machine = f"{len(case.gpus)}x {name}" if name else f"{len(case.gpus)} GPUs"
    first = _first(findings, verdict)
    if first is not None:
        others = sum(finding.severity is not Severity.INFO for finding in findings) - 1
        return f"{machine}: {in_summary(first, title=_RULES[first.code].title, others=others)}."
    shares = [share for loaded in case.gpus if (share := loaded.power_share) is not None]
    parts = [f"{min(shares):.0%} or more of the power limit"] if shares else []
    heats = [celsius for loaded in case.gpus if (celsius := plausible(loaded.load.max_c)) is not None]
    parts += [f"at most {max(heats):g} °C"] if heats else []
    parts += [f"{case.tflops:.4g} TFLOPS each"] if case.tflops is not None else []
    return f"{machine}: no fault under load; {', '.join(parts) or 'nothing more was read'}."


def _first(findings: list[Finding], verdict: Verdict) -> Finding | None:
    """The finding that gives the verdict; None for a pass."""
    if verdict in (Verdict.NO_LOAD, Verdict.UNKNOWN):
        unjudged = [finding for finding in findings if _RULES[finding.code].effect is Effect.UNJUDGED]
        return max(unjudged, key=lambda finding: finding.code == "load-incomplete")
    return next((finding for finding in findings if finding.severity is not Severity.INFO), None)


def _unreadable(verdict: Verdict, reason: str, message: str) -> LoadJudgement:
    summary = f"{message[0].upper()}{message[1:].rstrip('.')}."
    return LoadJudgement(verdict=verdict, readable=False, summary=summary, reason=reason)
