"""The health judgement: run every check, decide the verdict, remember what the next run needs.

`judge_health` is the one entry point; it never raises on a decoded document, whatever the document says.
"""

from __future__ import annotations

from collections import Counter

from nodegauge_contract import Gpu, Result
from nodegauge_contract.matrix import render
from nodegauge_judge import answers, load, supply
from nodegauge_judge.case import Case, text
from nodegauge_judge.checks import CHECKS, thermal
from nodegauge_judge.findings import CATALOGUE, Code, Effect
from nodegauge_judge.history.node_history import History
from nodegauge_judge.history.update import remember
from nodegauge_judge.interconnect import classify
from nodegauge_judge.model import Answer, Finding, GpuBrief, Judgement, NodeFacts, Severity, Verdict
from nodegauge_judge.summary import summarise
from nodegauge_judge.thresholds import Thresholds

MATRIX_LIMIT = 8192
"""Bytes of the matrix in a judgement: 16 GPUs and 10 NICs need 5 KiB, and a report narrows it to half."""
INTERVAL = 900.0
"""Seconds between two runs where no policy says otherwise (design: 15 minutes)."""
_WORST_FIRST = {Severity.FAIL: 0, Severity.WARN: 1, Severity.INFO: 2}


def judge_health(
    result: Result,
    *,
    thresholds: Thresholds | None = None,
    history: History | None = None,
    node: NodeFacts | None = None,
    interval: float = INTERVAL,
) -> Judgement:
    """What `result` says of its node, by `thresholds` (default policy), the node's own past and its facts.

    `interval`: seconds that the policy has between two runs; growth of counters over more than two of them is
    no growth since the last run.
    """
    case = Case.of(
        result,
        thresholds=thresholds or Thresholds(),
        history=history or History(),
        node=node or NodeFacts(),
        interval=interval,
    )
    found = [finding for check in CHECKS for finding in check(case)]
    findings = sorted(found, key=lambda finding: _WORST_FIRST[finding.severity])
    verdict = _verdict(case, findings)
    readable = verdict is not Verdict.UNKNOWN
    joined = classify.decide(case)
    product = _product(result)
    answered, history = _outcome(case, findings) if readable else ({}, case.history)
    return Judgement(
        verdict=verdict,
        readable=readable,
        summary=summarise(verdict, count=len(result.gpus), product=product, findings=findings, joined=joined),
        findings=findings,
        interconnect=joined,
        gpus=[_brief(gpu, case.thresholds) for gpu in result.gpus],
        product=product,
        driver=text(result.system.driver),
        history=history,
        matrix=_matrix(result),
        answers=answered,
        load=load.of_node(case),
        psu=supply.state(case, findings) if readable else None,
    )


def _outcome(case: Case, findings: list[Finding]) -> tuple[dict[str, Answer], History]:
    gpus = answers.per_gpu(case)
    return answers.decide(case, findings, gpus), remember(case, gpus)


def _verdict(case: Case, findings: list[Finding]) -> Verdict:
    """The worst finding; unknown where the node could not be judged and nothing is proven broken."""
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Verdict.FAIL
    unjudged = any(CATALOGUE[Code(finding.code)].effect is Effect.UNJUDGED for finding in findings)
    if unjudged or not any(isinstance(gpu.uuid, str) for gpu in case.result.gpus):
        return Verdict.UNKNOWN
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def _matrix(result: Result) -> str:
    """The topology matrix with its legend, or without where it is large, or none where it is absurd."""
    whole = render(result)
    table = whole.partition("\n\n")[0]
    return next((text for text in (whole, table) if len(text.encode()) <= MATRIX_LIMIT), "")


def _product(result: Result) -> str:
    """The GPUs' model; several joined with a plus sign, the most frequent first."""
    names = Counter(name for gpu in result.gpus if (name := text(gpu.name)))
    return text(" + ".join(name for name, _ in sorted(names.items(), key=lambda item: (-item[1], item[0]))))


def _brief(gpu: Gpu, thresholds: Thresholds) -> GpuBrief:
    celsius = thermal.hottest(gpu)
    return GpuBrief(
        index=gpu.index,
        uuid=text(gpu.uuid),
        name=text(gpu.name),
        pci=text(gpu.pci),
        celsius=None if celsius is None else round(celsius),
        band="" if celsius is None else thermal.band(celsius, thresholds),
    )
