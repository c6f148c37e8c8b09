"""The health judgement: run every rule, decide the verdict, keep the history for the next run.

`judge_health` is the entry point.  It raises for no decoded document, whatever the document says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from nodegauge_contract import Gpu, Result
from nodegauge_contract.chassis import ChassisReading
from nodegauge_contract.model import PASTED
from nodegauge_judge import activity, bmc_witness, coverage, gate_answers, throttle
from nodegauge_judge.case import Case, HealthRule, identity, text
from nodegauge_judge.history.model import History
from nodegauge_judge.history.update import remember
from nodegauge_judge.identity import in_summary, listed
from nodegauge_judge.interconnect import classify
from nodegauge_judge.interconnect.nvlink_state import pasted_evidence, without_table
from nodegauge_judge.model import (
    Answer,
    Finding,
    GpuBrief,
    GpuIdentity,
    Interconnect,
    InterconnectClass,
    Judgement,
    NodeFacts,
    Psu,
    Severity,
    Verdict,
)
from nodegauge_judge.peers import Fleet, Peers, no_fleet, no_peers
from nodegauge_judge.rule import Effect, measured
from nodegauge_judge.rules import HEALTH_RULES, clocks, sensors, stated, thermal
from nodegauge_judge.rules import fleet as fleet_rules
from nodegauge_judge.thresholds import Thresholds

INTERVAL = 900.0
"""Seconds between two runs by default."""
_RULES: dict[str, HealthRule] = {rule.code: rule for rule in HEALTH_RULES}
_SUPPLY_FAULTS = frozenset({"power-brake", "psu-fault", "rail"})
"""Failures of the power supply: a held power brake (nvml.h: "e.g. by the system power supply"), a supply's
own alarm or an undersized source, a rail that does not hold its voltage.  A GPU without power has a loose
cable."""
_INTERCONNECT = {
    InterconnectClass.NVLINK: "NVLink joins all GPUs",
    InterconnectClass.NVLINK_PAIRS: "NVLink joins some pairs only",
    InterconnectClass.PCIE: "no NVLink, GPUs talk over PCIe",
}


def judge_health(
    result: Result,
    *,
    thresholds: Thresholds | None = None,
    history: History | None = None,
    node: NodeFacts | None = None,
    interval: float = INTERVAL,
    peers: Peers = no_peers,
    fleet: Fleet = no_fleet,
    known: Sequence[GpuIdentity] = (),
    chassis: ChassisReading | None = None,
    read_at: float = 0.0,
) -> Judgement:
    """What `result` says about its node, given the policy's `thresholds`, the node's history and its facts.

    `peers`: the SM clocks at which comparable nodes work (`Judgement.clock` of theirs); `fleet`: what other
    nodes of a class run; `known`: the GPUs that the node had before, for the name of one that is lost;
    `chassis`: what its BMC said lately.

    `interval`: the policy's seconds between two runs; counters are not judged over more than two intervals.
    `read_at`: when the result was read, seconds since the epoch; 0 if unknown.
    """
    case = Case.from_result(
        result,
        thresholds=thresholds or Thresholds(),
        history=history or History(),
        node=node or NodeFacts(),
        interval=interval,
        peers=peers,
        fleet=fleet,
        chassis=chassis,
        read_at=read_at,
    )
    observed = [
        (rule, seen)
        for rule in HEALTH_RULES
        if (seen := [bmc_witness.seconded(case, rule.code, observation) for observation in rule.check(case)])
    ]
    findings, locations = (
        [_sourced(finding, result) for finding in findings]
        for findings in listed(observed, [*(identity(gpu) for gpu in result.gpus), *known])
    )
    verdict = _verdict(case, findings)
    readable = verdict is not Verdict.UNKNOWN
    interconnect = classify.decide(case)
    product = _product(result)
    answers, history = _remembered(case, findings, readable=readable)
    return Judgement(
        verdict=verdict,
        readable=readable,
        summary=_summary(verdict, case=case, product=product, findings=findings, interconnect=interconnect),
        findings=findings,
        interconnect=interconnect,
        gpus=[_brief(gpu, case.thresholds) for gpu in result.gpus],
        product=product,
        driver=text(result.system.driver),
        history=history,
        matrix="" if without_table(result) else case.topology.matrix,
        answers=answers,
        load=activity.of_node(case),
        psu=_power_supply(case, findings) if readable else None,
        clock=clocks.of_node(case) if readable else None,
        locations=locations,
        coverage=coverage.of_node(case),
        versions=fleet_rules.versions(case),
        klass=fleet_rules.klass(case),
        slowed_seconds=throttle.slowed_seconds(case),
    )


def proven(findings: Sequence[Finding]) -> list[Finding]:
    """Those that say what is wrong, and not only what could not be judged."""
    return [
        finding
        for finding in findings
        if finding.severity is not Severity.INFO and _RULES[finding.code].effect is not Effect.UNJUDGED
    ]


def _sourced(finding: Finding, result: Result) -> Finding:
    """The finding; from a paste, with a word on what it rests on."""
    if result.probe != PASTED:
        return finding
    return replace(finding, evidence=finding.evidence | {"source": pasted_evidence(result)})


def _remembered(case: Case, findings: list[Finding], *, readable: bool) -> tuple[dict[str, Answer], History]:
    """What gates and the next reading know of this one; a paste neither sets nor clears a taint."""
    if case.result.probe == PASTED:
        return {}, case.history
    return _outcome(case, findings) if readable else ({}, replace(case.history, **case.known_xids))


def _outcome(case: Case, findings: list[Finding]) -> tuple[dict[str, Answer], History]:
    gpus = gate_answers.per_gpu(case)
    return gate_answers.decide(case, findings, gpus), remember(case, gpus)


def _verdict(case: Case, findings: list[Finding]) -> Verdict:
    """The worst finding; unknown if the node could not be judged and nothing is proven broken.  A whole paste
    has its warning, although it lacks readings: a kernel log never has any."""
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Verdict.FAIL
    if case.result.probe == PASTED and case.result.problem is None and proven(findings):
        return Verdict.WARN
    unjudged = any(_RULES[finding.code].effect is Effect.UNJUDGED for finding in findings)
    tested = stated.passed(case)
    if unjudged or not (tested or any(isinstance(gpu.uuid, str) for gpu in case.result.gpus)):
        return Verdict.UNKNOWN
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def _power_supply(case: Case, findings: list[Finding]) -> Psu | None:
    """The power supply in one word; None (not known) for a node whose supplies no sensor shows, and while a
    brake on one idle GPU has to be confirmed."""
    if any(finding.code in _SUPPLY_FAULTS and finding.severity is Severity.FAIL for finding in findings):
        return Psu.FAULT
    if any(finding.code == "power-brake" and finding.severity is Severity.INFO for finding in findings):
        return None
    return Psu.OK if sensors.supply_is_fine(case) else None


def _summary(
    verdict: Verdict, *, case: Case, product: str, findings: list[Finding], interconnect: Interconnect
) -> str:
    """One sentence for a table or an event: what the node is, its worst finding, and how many more."""
    count = len(case.result.gpus)
    node = f"{count}x {product or 'GPU'}: " if count else ""
    serious = [finding for finding in findings if finding.severity is not Severity.INFO]
    shown = proven(findings)
    if verdict is Verdict.UNKNOWN and case.result.probe == PASTED and shown:
        worst = in_summary(shown[0], title=_RULES[shown[0].code].title, others=len(shown) - 1)
        return _sentence(f"{node}{worst}; the rest could not be judged: {_why_unjudged(findings)}")
    if verdict is Verdict.UNKNOWN and case.result.probe == PASTED and interconnect.klass is not None:
        joined = _interconnect_text(interconnect).removeprefix("; ")
        return _sentence(f"{node}{joined}; {_why_unjudged(findings)}")
    if verdict is Verdict.UNKNOWN:
        return _sentence(f"{node}could not be judged: {_why_unjudged(findings)}")
    if not serious:
        healthy = "nothing wrong in the pasted text" if case.result.probe == PASTED else "healthy"
        return _sentence(f"{node}{healthy}{_interconnect_text(interconnect)}")
    worst = in_summary(serious[0], title=_RULES[serious[0].code].title, others=len(serious) - 1)
    return _sentence(f"{node}{worst}")


def _why_unjudged(findings: list[Finding]) -> str:
    """The message of the first finding that leaves the node unjudged: the driver's own words help most."""
    for finding in findings:
        rule = _RULES[finding.code]
        if rule.effect is Effect.UNJUDGED:
            message = measured(finding).removesuffix(".")
            location = "" if finding.subject == "node" else f"{finding.subject}: "
            return f"{location}{message[0].lower()}{message[1:]} [{finding.code}]"
    return "nothing was readable"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _interconnect_text(interconnect: Interconnect) -> str:
    if interconnect.klass is None:
        return f"; {interconnect.message}"
    gbps = interconnect.nvlink_gbps
    speed = f", {gbps} GB/s per GPU one way" if gbps is not None else ""
    return f"; {_INTERCONNECT[interconnect.klass]}{speed}"


def _product(result: Result) -> str:
    """The GPUs' model; several joined with a plus sign, the most frequent first."""
    names = Counter(name for gpu in result.gpus if (name := text(gpu.name)))
    return text(" + ".join(name for name, _ in sorted(names.items(), key=lambda item: (-item[1], item[0]))))


def _brief(gpu: Gpu, thresholds: Thresholds) -> GpuBrief:
    celsius = thermal.hottest(gpu)
    return GpuBrief(
        index=gpu.index,
        uuid=text(gpu.uuid),
        serial=text(gpu.serial),
        pci=text(gpu.pci),
        name=text(gpu.name),
        celsius=None if celsius is None else round(celsius),
        band="" if celsius is None else thermal.band(celsius, thresholds),
    )
