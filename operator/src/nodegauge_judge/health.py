"""The health judgement: run every check, decide the verdict, remember what the next run needs.

`judge_health` is the one entry point; it never raises on a decoded document, whatever the document says.
"""

from __future__ import annotations

from collections import Counter

from nodegauge_contract import Result
from nodegauge_contract.matrix import render
from nodegauge_contract.nvlink import lanes
from nodegauge_judge import interconnect, linksum, visibility
from nodegauge_judge.case import Case, text
from nodegauge_judge.checks import CHECKS
from nodegauge_judge.findings import CATALOGUE, Code, Effect
from nodegauge_judge.history import History, LinkMemory
from nodegauge_judge.model import Finding, GpuBrief, Judgement, NodeFacts, Severity, Verdict
from nodegauge_judge.summary import summarise
from nodegauge_judge.thresholds import Thresholds

MATRIX_LIMIT = 4096
"""Bytes of the matrix in a judgement: a report holds 8 KiB in all; 8 GPUs and 10 NICs need about 3."""
_WORST_FIRST = {Severity.FAIL: 0, Severity.WARN: 1, Severity.INFO: 2}


def judge_health(
    result: Result,
    *,
    thresholds: Thresholds | None = None,
    history: History | None = None,
    node: NodeFacts | None = None,
) -> Judgement:
    """What `result` says of its node, by `thresholds` (default policy), the node's own past and its facts."""
    case = Case(
        result=result,
        lanes=lanes(result),
        thresholds=thresholds or Thresholds(),
        history=history or History(),
        node=node or NodeFacts(),
    )
    found = [finding for check in CHECKS for finding in check(case)]
    findings = sorted(found, key=lambda finding: _WORST_FIRST[finding.severity])
    verdict = _verdict(case, findings)
    joined = interconnect.decide(case)
    product = _product(result)
    return Judgement(
        verdict=verdict,
        readable=verdict is not Verdict.UNKNOWN,
        summary=summarise(verdict, count=len(result.gpus), product=product, findings=findings, joined=joined),
        findings=findings,
        interconnect=joined,
        gpus=_brief(result),
        product=product,
        driver=text(result.system.driver),
        history=_remember(case),
        matrix=_matrix(result),
    )


def _verdict(case: Case, findings: list[Finding]) -> Verdict:
    """The worst finding; unknown where the node could not be judged and nothing is proven broken."""
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Verdict.FAIL
    unjudged = any(CATALOGUE[Code(finding.code)].effect is Effect.UNJUDGED for finding in findings)
    if unjudged or not any(isinstance(gpu.uuid, str) for gpu in case.result.gpus):
        return Verdict.UNKNOWN
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def _remember(case: Case) -> History:
    """Only a whole and clean reading is remembered; GPUs whose links could not be told keep their memory."""
    if case.lanes.mig or not visibility.is_complete(case):
        return case.history
    doubtful = linksum.uncertain(case)
    sums: dict[str, int] = {}
    kept: dict[str, LinkMemory] = {}
    for place, gpu in enumerate(case.result.gpus):
        if not isinstance(gpu.uuid, str):
            continue
        if place in doubtful:
            kept[gpu.uuid] = case.history.links.get(gpu.uuid, LinkMemory(0))
        else:
            sums[gpu.uuid] = case.lanes.sums[place]
    boot, driver = text(case.result.host.boot_id), text(case.result.system.driver)
    return case.history.after(boot=boot, driver=driver, sums=sums, kept=kept)


def _matrix(result: Result) -> str:
    """The topology matrix with its legend, or without where it is large, or none where it is absurd."""
    whole = render(result)
    table = whole.partition("\n\n")[0]
    return next((text for text in (whole, table) if len(text.encode()) <= MATRIX_LIMIT), "")


def _product(result: Result) -> str:
    """The GPUs' model; several joined with a plus sign, the most frequent first."""
    names = Counter(name for gpu in result.gpus if (name := text(gpu.name)))
    return text(" + ".join(name for name, _ in sorted(names.items(), key=lambda item: (-item[1], item[0]))))


def _brief(result: Result) -> list[GpuBrief]:
    return [
        GpuBrief(index=gpu.index, uuid=text(gpu.uuid), name=text(gpu.name), pci=text(gpu.pci))
        for gpu in result.gpus
    ]
