"""The judgement of a benchmark: measure, remember, grade.

`judge_nccl` is for a new result, `regrade` for what a report kept of an old one; both end in the same
grading, so that other expectations, thresholds or peers grade the same numbers anew.  Neither raises on a
decoded document or on any text, whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import floor

from msgspec.structs import replace

from nodegauge_contract import Result, Skip
from nodegauge_judge.case import clip
from nodegauge_judge.findings import CATALOGUE, Code
from nodegauge_judge.history.model import History
from nodegauge_judge.model import Answer, Finding, NodeFacts, Severity, Verdict
from nodegauge_judge.nccl import agreement, arm_outcomes, bandwidth, coverage
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.nccl.extract import measure
from nodegauge_judge.nccl.floors import Asked
from nodegauge_judge.nccl.grading import Grading, gbps
from nodegauge_judge.nccl.headline import figures, following, key, p2p_off
from nodegauge_judge.nccl.measurement import Measured, fitting
from nodegauge_judge.nccl.model import Agreement, NcclJudgement, Peers, nobody
from nodegauge_judge.thresholds import Thresholds

CHECKS: tuple[Callable[[Grading], Iterator[Finding]], ...] = (
    arm_outcomes.wrong_data,
    arm_outcomes.broken_p2p,
    arm_outcomes.hangs,
    bandwidth.busbw_low,
    agreement.contradicted,
    agreement.slow_pairs,
    arm_outcomes.broken_nvls,
    arm_outcomes.failures,
    bandwidth.below_peers,
    coverage.fewer_gpus,
    arm_outcomes.slow_init,
    coverage.incomplete,
    bandwidth.disagrees,
    coverage.not_gradable,
)
ANSWERS: dict[Code, Callable[[Grading], Answer]] = {
    Code.BUSBW_LOW: bandwidth.answer_busbw,
    Code.NCCL_WRONG_DATA: arm_outcomes.answer_wrong,
    Code.NCCL_HANG: arm_outcomes.answer_hang,
    Code.P2P_BROKEN: arm_outcomes.answer_p2p,
}
"""For every row of the catalogue that has a gate and whose probe is nccl: what one run says about it."""
_WITH_ENGINE = "an image for benchmarks has it: `make images NCCL=1`, `images.nccl` of the chart"
_WORST_FIRST = {Severity.FAIL: 0, Severity.WARN: 1, Severity.INFO: 2}


def judge_nccl(
    result: Result,
    *,
    expectations: Expectations | None = None,
    thresholds: Thresholds | None = None,
    before: str = "",
    history: History | None = None,
    node: NodeFacts | None = None,
    peers: Peers = nobody,
    environment: Mapping[str, str] | None = None,
) -> NcclJudgement:
    """What the benchmark in `result` says of its node.

    `before`: `memory` of the judgement before this one; `history`: that of health, which knows GPUs that are
    missing here; `environment`: the policy's NCCL variables (peer access that it switches off is no fault).
    A run that was skipped or brought nothing keeps `before` as its memory.
    """
    asked = Asked(expectations=expectations or Expectations.default(), thresholds=thresholds or Thresholds())
    node = node or NodeFacts()
    why = _nothing(result)
    if why is not None:
        return replace(why, memory=before)
    found = measure(result, history=history or History(), environment=environment or {})
    past = Measured.decode(before)
    if past is not None:
        was = _grade(Grading.of(past, asked=asked, node=node, peers=peers))
        found = replace(found, bad=_bad(was))
    kin = past is not None and (past.fingerprint, past.set) == (found.fingerprint, found.set)
    found = replace(
        found, runs=_runs(found, past if kin else None, limit=asked.thresholds.busbw_disagreement)
    )
    return _grade(Grading.of(fitting(found), asked=asked, node=node, peers=peers))


def regrade(
    memory: str,
    *,
    expectations: Expectations | None = None,
    thresholds: Thresholds | None = None,
    node: NodeFacts | None = None,
    peers: Peers = nobody,
) -> NcclJudgement:
    """The grade of numbers that a report kept; unknown where the text cannot be read."""
    measured = Measured.decode(memory)
    if measured is None:
        return _unread(Verdict.UNKNOWN, "NoMemory", "no benchmark is remembered that this version can read")
    asked = Asked(expectations=expectations or Expectations.default(), thresholds=thresholds or Thresholds())
    return _grade(Grading.of(fitting(measured), asked=asked, node=node or NodeFacts(), peers=peers))


def _nothing(result: Result) -> NcclJudgement | None:
    """The judgement of a run that measured nothing; None for any other."""
    nccl = result.nccl
    if nccl is None:
        problem = result.problem
        words = clip(problem.message or problem.kind) if problem is not None else "it holds no benchmark"
        reason = pascal(problem.kind) if problem is not None else "NoResult"
        return _unread(Verdict.UNKNOWN, reason, f"the benchmark brought no result: {words}")
    if nccl.skipped:
        words = clip(nccl.message) or clip(nccl.skipped)
        if nccl.skipped == Skip.NO_ENGINE:
            words = f"the image cannot load {clip(nccl.engine) or 'an engine'} ({words}); {_WITH_ENGINE}"
        return _unread(Verdict.SKIPPED, pascal(nccl.skipped), f"the benchmark was skipped: {words}")
    if max(nccl.ranks, len(nccl.uuids)) < 2 and not nccl.arms:
        return _unread(Verdict.UNKNOWN, "NoResult", "the benchmark ran on no two GPUs")
    return None


def _runs(found: Measured, past: Measured | None, *, limit: float) -> dict[str, tuple[float, ...]]:
    """By collective and size, what is kept of this run and the ones before."""
    known = past.runs if past is not None else {}
    return {
        key(one.cell): tuple(
            float(f"{run:.6g}") for run in following(known.get(key(one.cell)), one.gbps, limit=limit)
        )
        for one in figures(found).values()
    }


def _grade(grading: Grading) -> NcclJudgement:
    measured = grading.measured
    several = measured.nodes > 1
    checks = (coverage.not_gradable,) if several else CHECKS
    findings = sorted(
        (finding for check in checks for finding in check(grading)), key=lambda f: _WORST_FIRST[f.severity]
    )
    verdict = _verdict(grading, findings)
    readable = verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
    said, message = (Agreement.UNSURE, "more than one node") if several else agreement.agreement(grading)
    answers = {code.value: ask(grading) for code, ask in ANSWERS.items()} if readable else {}
    off = p2p_off(measured)
    return NcclJudgement(
        verdict=verdict,
        readable=readable,
        summary=_summary(grading, verdict, findings),
        findings=findings,
        answers=answers,
        agreement=said,
        message=message,
        busbw={} if several else {c.value: floor(round(f.gbps, 2)) for c, f in grading.figures.items()},
        p2p_off=float(f"{off[1]:.4g}") if off is not None else None,
        ranks=measured.ranks,
        expected=grading.expected,
        again=_again(grading, answers, findings),
        memory=measured.encode(),
        fingerprint=measured.fingerprint,
        reason="" if readable else "NotGradable" if several else "NothingMeasured",
    )


def _verdict(grading: Grading, findings: list[Finding]) -> Verdict:
    """The worst finding; unknown for several nodes, and where nothing is broken and nothing was measured."""
    severities = {finding.severity for finding in findings}
    if grading.measured.nodes > 1:
        return Verdict.UNKNOWN
    if Severity.FAIL in severities:
        return Verdict.FAIL
    if not grading.figures and not bandwidth.graded(grading):
        return Verdict.UNKNOWN
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def _bad(judgement: NcclJudgement) -> tuple[str, ...]:
    """Codes that the judgement holds against the node."""
    codes = [code for code, answer in judgement.answers.items() if answer is Answer.BAD]
    return tuple(codes + [f.code for f in judgement.findings if f.code == Code.NCCL_FAILED.value])


def _again(grading: Grading, answers: Mapping[str, Answer], findings: list[Finding]) -> bool:
    """Whether another run is wanted soon: runs that disagree, or what is bad for the first time and needs a
    second run to count (one that counts at once needs none)."""
    if any(one.unsettled for one in grading.figures.values()):
        return True
    first = {code for code, answer in answers.items() if answer is Answer.BAD and _needs_two(code)}
    first |= {finding.code for finding in findings if finding.code == Code.NCCL_FAILED.value}
    return bool(first - set(grading.measured.bad))


def _needs_two(code: str) -> bool:
    gate = CATALOGUE[Code(code)].gate
    return gate is not None and gate.runs > 1


def _summary(grading: Grading, verdict: Verdict, findings: list[Finding]) -> str:
    measured = grading.measured
    if measured.nodes > 1:
        return f"not-gradable: {measured.nodes} nodes"
    what = f"{measured.ranks}x {measured.gpu or 'GPU'}"
    noted = [finding for finding in findings if finding.severity is not Severity.INFO]
    if noted:
        first = noted[0]
        where = "" if first.subject == "node" else f": {first.subject}"
        more = f"; {len(noted) - 1} more finding{'s' if len(noted) > 2 else ''}" if len(noted) > 1 else ""
        return f"{what}: {CATALOGUE[Code(first.code)].title}{where} [{first.code}]{more}."
    if verdict is Verdict.UNKNOWN:
        return f"{what}: nothing was measured that could be graded."
    numbers = ", ".join(f"{c.value} {gbps(one.gbps)}" for c, one in grading.figures.items())
    if bandwidth.graded(grading):
        return f"{what}: collectives are as fast as they should be; {numbers}."
    why = "through the host, which has no floor" if bandwidth.has_no_floor(grading) else "not graded"
    return f"{what}: {numbers}; {why}."


def _unread(verdict: Verdict, reason: str, words: str) -> NcclJudgement:
    return NcclJudgement(
        verdict=verdict,
        readable=False,
        summary=f"{words[0].upper()}{words[1:].rstrip('.')}.",
        findings=[],
        answers={},
        agreement=Agreement.UNSURE,
        message=words,
        busbw={},
        p2p_off=None,
        ranks=0,
        expected=0,
        again=False,
        memory="",
        fingerprint="",
        reason=reason,
    )


def pascal(words: str) -> str:
    """`single-gpu` as SingleGpu: a reason of a condition may hold nothing else."""
    parts = "".join(char if char.isascii() and char.isalnum() else " " for char in words).split()
    return "".join(part[:1].upper() + part[1:] for part in parts)[:64] or "Unknown"
