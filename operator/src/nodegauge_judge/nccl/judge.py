"""The judgement of an NCCL run: measure, compare with earlier runs, grade.

`judge_nccl` judges a new result, `regrade` the record that a report kept.  Both end in the same grading, so
changed expectations, thresholds or peers regrade old numbers without a new run.  Neither raises, whatever
the result or the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

from msgspec.structs import replace

from nodegauge_contract import Result, Skip
from nodegauge_judge.case import clip, identity, pascal
from nodegauge_judge.history.model import History
from nodegauge_judge.identity import in_summary, listed
from nodegauge_judge.model import Answer, Finding, GpuIdentity, NodeFacts, Severity, Verdict
from nodegauge_judge.nccl import arm_outcomes, bandwidth, coverage, gradability, interconnect_agreement, nvls
from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.nccl.extract import measure
from nodegauge_judge.nccl.floors import Criteria
from nodegauge_judge.nccl.grading import (
    Grading,
    NcclRule,
    compared_headline,
    gbps_text,
    headlines,
    p2p_off_busbw,
    run_key,
    updated_runs,
)
from nodegauge_judge.nccl.measurement import Agreement, Measurement, NcclJudgement, trimmed
from nodegauge_judge.peers import Peers, no_peers
from nodegauge_judge.thresholds import Thresholds

NCCL_RULES: tuple[NcclRule, ...] = (
    arm_outcomes.NCCL_WRONG_DATA,
    arm_outcomes.P2P_BROKEN,
    arm_outcomes.NCCL_HANG,
    bandwidth.BUSBW_LOW,
    interconnect_agreement.INTERCONNECT_CONTRADICTED,
    interconnect_agreement.PAIR_SLOW,
    coverage.NCCL_START_SLOW,
    coverage.NVLS_BROKEN,
    nvls.NVLS_UNUSED,
    arm_outcomes.NCCL_FAILED,
    bandwidth.BUSBW_BELOW_PEERS,
    coverage.FEWER_GPUS,
    coverage.SLOW_INIT,
    coverage.NCCL_INCOMPLETE,
    bandwidth.BUSBW_DISAGREES,
    gradability.NOT_GRADABLE,
)
"""The most telling first: findings of one severity and gates of one cause are listed in this order."""
_ON_SEVERAL_NODES = (
    arm_outcomes.NCCL_WRONG_DATA,
    arm_outcomes.NCCL_HANG,
    arm_outcomes.NCCL_FAILED,
    gradability.NOT_GRADABLE,
)
"""Wrong data and a hang are faults, whichever node has them; bandwidth between nodes is not graded."""
_RULES = {rule.code: rule for rule in NCCL_RULES}
_WITH_ENGINE = "use an image with NCCL: `make images NCCL=1`, `images.nccl` of the chart"


def judge_nccl(
    result: Result,
    *,
    expectations: Expectations | None = None,
    thresholds: Thresholds | None = None,
    previous: str = "",
    history: History | None = None,
    node: NodeFacts | None = None,
    peers: Peers = no_peers,
    environment: Mapping[str, str] | None = None,
    known: Sequence[GpuIdentity] = (),
) -> NcclJudgement:
    """The judgement of the NCCL run in `result`.

    `previous`: `record` of the previous judgement, kept if this run was skipped or has no result; `history`:
    the health probe's, which knows GPUs that are missing here; `environment`: the policy's NCCL variables
    (P2P that they disable is no fault); `known`: the GPUs that the node had before.
    """
    criteria = Criteria(
        expectations=expectations or Expectations.default(), thresholds=thresholds or Thresholds()
    )
    node = node or NodeFacts()
    unreadable = _without_measurement(result)
    if unreadable is not None:
        return replace(unreadable, record=previous)
    measurement = measure(result, history=history or History(), environment=environment or {})
    last = Measurement.decode(previous)
    if last is not None:
        graded = Grading.from_measurement(last, criteria=criteria, node=node, peers=peers)
        bad = _bad_codes(graded, _grade(graded))
        measurement = replace(measurement, bad_codes=tuple(sorted(bad)))
        if (last.fingerprint, last.gpu_set) != (measurement.fingerprint, measurement.gpu_set):
            last = None  # other GPUs or another NCCL: their runs are not comparable
    runs = _runs(measurement, last, limit=criteria.thresholds.busbw_disagreement)
    measurement = trimmed(replace(measurement, runs=runs))
    gpus = [*(identity(gpu) for gpu in result.gpus), *known]
    return _grade(Grading.from_measurement(measurement, criteria=criteria, node=node, peers=peers), gpus)


def regrade(
    record: str,
    *,
    expectations: Expectations | None = None,
    thresholds: Thresholds | None = None,
    node: NodeFacts | None = None,
    peers: Peers = no_peers,
    known: Sequence[GpuIdentity] = (),
) -> NcclJudgement:
    """The judgement of a record from a report; unknown if the text cannot be read.

    `known`: the node's GPUs, which the record names by index and address alone."""
    measurement = Measurement.decode(record)
    if measurement is None:
        return _unreadable(
            Verdict.UNKNOWN, "NoRecord", "there is no record of an NCCL run that this version can read"
        )
    criteria = Criteria(
        expectations=expectations or Expectations.default(), thresholds=thresholds or Thresholds()
    )
    graded = Grading.from_measurement(
        trimmed(measurement), criteria=criteria, node=node or NodeFacts(), peers=peers
    )
    return _grade(graded, known)


def _without_measurement(result: Result) -> NcclJudgement | None:
    """The judgement of a run that measured nothing; None for any other run."""
    nccl, problem = result.nccl, result.problem
    if nccl is None or (problem is not None and not nccl.skipped and not nccl.arms):
        cause = clip(problem.message or problem.kind) if problem is not None else "it has no NCCL run"
        reason = pascal(problem.kind) if problem is not None else "NoResult"
        return _unreadable(Verdict.UNKNOWN, reason, f"the NCCL probe returned no result: {cause}")
    if nccl.skipped:
        cause = clip(nccl.message) or clip(nccl.skipped)
        if nccl.skipped == Skip.NO_ENGINE:
            cause = f"the image cannot load {clip(nccl.engine) or 'an engine'} ({cause}); {_WITH_ENGINE}"
        return _unreadable(Verdict.SKIPPED, pascal(nccl.skipped), f"the NCCL run was skipped: {cause}")
    if max(nccl.ranks, len(nccl.uuids)) < 2 and not nccl.arms:
        return _unreadable(Verdict.UNKNOWN, "NoResult", "the NCCL run had fewer than two GPUs")
    return None


def _runs(
    measurement: Measurement, last: Measurement | None, *, limit: float
) -> dict[str, tuple[float, ...]]:
    """By collective and size: this run and the earlier ones to keep."""
    earlier = last.runs if last is not None else {}
    return {
        key: tuple(float(f"{run:.6g}") for run in updated_runs(earlier.get(key), headline.gbps, limit=limit))
        for headline in headlines(measurement).values()
        for key in [run_key(headline.cell)]
    }


def _grade(grading: Grading, known: Sequence[GpuIdentity] = ()) -> NcclJudgement:
    measurement = grading.measurement
    several = measurement.nodes != 1
    rules = _ON_SEVERAL_NODES if several else NCCL_RULES
    observed = [(rule, list(rule.check(grading))) for rule in rules]
    findings, locations = listed(observed, known)
    verdict = _verdict(grading, findings)
    readable = verdict in (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
    agrees, message = (
        (Agreement.UNSURE, "not the numbers of one node")
        if several
        else interconnect_agreement.assess(grading)
    )
    rules_with_gate = [(rule.code, rule.answer) for rule in NCCL_RULES if rule.answer is not None]
    answers = {
        code: Answer.UNSURE if several else answer(grading)  # nobody knows which of several nodes it was
        for code, answer in (rules_with_gate if readable else ())
    }
    p2p_off = p2p_off_busbw(measurement)
    return NcclJudgement(
        verdict=verdict,
        readable=readable,
        summary=_summary(grading, verdict, findings),
        findings=findings,
        answers=answers,
        agreement=agrees,
        message=message,
        busbw={} if several else {c.value: floor(round(h.gbps, 2)) for c, h in grading.headlines.items()},
        p2p_off=float(f"{p2p_off[1]:.4g}") if p2p_off is not None else None,
        ranks=measurement.ranks,
        expected=grading.expected,
        again=_needs_another_run(grading, answers, findings),
        record=measurement.encode(),
        fingerprint="" if compared_headline(grading.headlines) is None else measurement.fingerprint,
        reason="" if readable else _reason(findings, several=several),
        locations=locations,
    )


def _reason(findings: list[Finding], *, several: bool) -> str:
    """Why a run is unreadable, in PascalCase."""
    if several:
        return "NotGradable"
    slow = any(finding.code == coverage.NCCL_START_SLOW.code for finding in findings)
    return pascal(coverage.NCCL_START_SLOW.code) if slow else "NothingMeasured"


def _verdict(grading: Grading, findings: list[Finding]) -> Verdict:
    """The worst finding; unknown unless something failed, for several nodes and if nothing was graded."""
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Verdict.FAIL
    if grading.measurement.nodes != 1:
        return Verdict.UNKNOWN
    graded = bandwidth.graded_cells(grading)
    if not graded and (grading.measurement.from_log or not grading.headlines):
        return Verdict.UNKNOWN
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def _bad_codes(grading: Grading, judgement: NcclJudgement) -> set[str]:
    """Codes that count against the node if the next run answers them alike."""
    return {
        *(code for code, answer in judgement.answers.items() if answer is Answer.BAD),
        *_wait_for_another(grading, judgement.findings),
    }


def _wait_for_another(grading: Grading, findings: list[Finding]) -> set[str]:
    """Codes without a bad answer that count only after a second run, too."""
    codes = {finding.code for finding in findings if finding.code == arm_outcomes.NCCL_FAILED.code}
    slow = bandwidth.may_be_confirmed(grading)
    return codes | ({bandwidth.BUSBW_BELOW_PEERS.code} if slow else set())


def _needs_another_run(grading: Grading, answers: Mapping[str, Answer], findings: list[Finding]) -> bool:
    """Whether another run should follow soon: runs disagree, or something is bad for the first time and
    counts only after a second bad run."""
    if any(headline.runs_disagree for headline in grading.headlines.values()):
        return True
    bad = {code for code, answer in answers.items() if answer is Answer.BAD and _needs_two_runs(code)}
    bad |= _wait_for_another(grading, findings)
    return bool(bad - set(grading.measurement.bad_codes))


def _needs_two_runs(code: str) -> bool:
    gate = _RULES[code].gate
    return gate is not None and gate.runs > 1


def _summary(grading: Grading, verdict: Verdict, findings: list[Finding]) -> str:
    measurement = grading.measurement
    machine = f"{measurement.ranks}x {measurement.gpu or 'GPU'}"
    nodes = f"{measurement.nodes or 'an unknown number of'} nodes"
    if measurement.nodes != 1 and verdict is Verdict.UNKNOWN:
        return f"not-gradable: {nodes}"
    machine += f" on {nodes}" if measurement.nodes != 1 else ""
    serious = [finding for finding in findings if finding.severity is not Severity.INFO]
    if serious:
        worst = in_summary(serious[0], title=_RULES[serious[0].code].title, others=len(serious) - 1)
        return f"{machine}: {worst}."
    if not grading.headlines and verdict is Verdict.UNKNOWN:
        return f"{machine}: nothing was measured that could be graded."
    numbers = ", ".join(f"{c.value} {gbps_text(headline.gbps)}" for c, headline in grading.headlines.items())
    graded = bandwidth.graded_cells(grading)
    named = [headline.cell for headline in grading.headlines.values()]
    assumed = next((one.floor.assumed for one in graded if one.cell in named and one.floor.assumed), "")
    if assumed:
        return f"{machine}: collectives reach the lowest floor that could apply; {numbers}; {assumed}."
    if graded:
        return f"{machine}: collectives reach their expected bandwidth; {numbers}."
    why = "through the host, so there is no floor" if bandwidth.has_no_floor(grading) else "not graded"
    return f"{machine}: {numbers}; {why}."


def _unreadable(verdict: Verdict, reason: str, message: str) -> NcclJudgement:
    return NcclJudgement(
        verdict=verdict,
        readable=False,
        summary=f"{message[0].upper()}{message[1:].rstrip('.')}.",
        findings=[],
        answers={},
        agreement=Agreement.UNSURE,
        message=message,
        busbw={},
        p2p_off=None,
        ranks=0,
        expected=0,
        again=False,
        record="",
        fingerprint="",
        reason=reason,
    )
