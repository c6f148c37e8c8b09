"""From a BMC's reading to findings, a verdict, and the power supply in one word."""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract.chassis import DPU, IPMI, SHELF, ChassisReading
from nodegauge_judge.case import text
from nodegauge_judge.chassis import cooling, coverage, supplies
from nodegauge_judge.chassis.case import ChassisCase, ChassisRule, is_broken
from nodegauge_judge.identity import in_summary
from nodegauge_judge.model import Answer, Finding, Psu, Severity, Verdict
from nodegauge_judge.rule import Effect, worst_first
from nodegauge_judge.thresholds import Thresholds

CHASSIS_RULES: tuple[ChassisRule, ...] = (*supplies.RULES, *cooling.RULES, *coverage.RULES)
_RULES = {rule.code: rule for rule in CHASSIS_RULES}
_KINDS = {DPU: "DPU", SHELF: "power shelf"}
WHILE_OFF = frozenset(
    {"leak", "supply-failed", "supply-warning", "supply-no-input", "bmc-clock", "machine-off"}
)
"""Findings of a machine that is off: what needs it to be on says nothing then."""


class ChassisJudgement(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one reading says."""

    verdict: Verdict
    """The worst finding; unknown if the machine is off, or power or cooling was not read."""
    summary: str
    """One sentence for people."""
    findings: list[Finding] = []
    """The worst first."""
    answers: dict[str, Answer] = {}
    """By code, for every rule with a gate; empty if the machine is off."""
    power: str = "unknown"
    """`on`, `off` or `unknown`."""
    covered: list[coverage.Covered] = []
    """What was read of each kind of part."""
    coverage: str = ""
    """The same in one line: `4 of 4 supplies, 12 of 12 fans`."""
    psu: Psu | None = None
    """The supplies in one word; None if none is known to be faulty, and not all are known to work."""
    installed: int = 0
    """Supplies that are there."""
    working: int = 0
    """Installed supplies that carry load or could."""
    needed: int | None = None
    """Supplies that the machine needs, at full load of the GPUs if that is known; None if not known."""
    load_watts: int | None = None
    """W that the machine draws now; None if not known."""
    peak_watts: int | None = None
    """W at full load of the GPUs; None if not known."""
    capacity_watts: int | None = None
    """W that the working supplies give; None if not known."""


def judge_chassis(
    reading: ChassisReading,
    *,
    thresholds: Thresholds | None = None,
    needed: int | None = None,
) -> ChassisJudgement:
    """What a reading says about its machine.

    `needed`: supplies that carry the machine under full load, if its owner knows.  Raises for no decoded
    reading.
    """
    case = ChassisCase(reading=reading, thresholds=thresholds or Thresholds(), needed=needed)
    rules = [rule for rule in CHASSIS_RULES if not case.is_off or rule.code in WHILE_OFF]
    findings = worst_first(finding for rule in rules for finding in rule.findings(case))
    verdict = _verdict(findings)
    each, covered = case.capacity_each, coverage.of_chassis(case)
    return ChassisJudgement(
        verdict=verdict,
        summary=_summary(case, findings),
        findings=findings,
        answers={} if case.is_off else _answers(case, findings),
        power="off" if case.is_off else "on" if reading.power_on is True else "unknown",
        covered=covered,
        coverage=coverage.line(covered),
        psu=_psu(case, findings),
        installed=len(case.installed),
        working=len(case.working),
        needed=case.needed_now,
        load_watts=_whole(case.load),
        peak_watts=_whole(case.peak),
        capacity_watts=_whole(None if each is None else each * len(case.working)),
    )


def _verdict(findings: list[Finding]) -> Verdict:
    """The worst finding; unknown if one leaves the machine unjudged."""
    severities = {finding.severity for finding in findings}
    if Severity.FAIL in severities:
        return Verdict.FAIL
    if any(_RULES[finding.code].effect is Effect.UNJUDGED for finding in findings):
        return Verdict.UNKNOWN
    return Verdict.WARN if Severity.WARN in severities else Verdict.PASS


def _answers(case: ChassisCase, findings: list[Finding]) -> dict[str, Answer]:
    failed = {finding.code for finding in findings if finding.severity is Severity.FAIL}
    return {
        rule.code: Answer.BAD
        if rule.code in failed
        else (Answer.GOOD if rule.readable is not None and rule.readable(case) else Answer.UNSURE)
        for rule in CHASSIS_RULES
        if rule.gate is not None
    }


def _psu(case: ChassisCase, findings: list[Finding]) -> Psu | None:
    """`ok` only if supplies were read and all of them work."""
    if any(
        finding.code in ("supplies-short", "chassis-rail") and finding.severity is Severity.FAIL
        for finding in findings
    ):
        return Psu.FAULT
    lost = any(is_broken(supply) for supply in case.installed)
    if lost or any(finding.code == "redundancy-lost" for finding in findings):
        return Psu.REDUNDANCY_LOST
    warned = any(finding.code == "supply-warning" for finding in findings)
    return Psu.OK if case.working and not warned and not case.unread and not case.is_off else None


def _summary(case: ChassisCase, findings: list[Finding]) -> str:
    ipmi = case.reading.source == IPMI
    product = (text(case.reading.product) or _KINDS.get(case.reading.machine, "machine")) + (
        " (by IPMI, trusted less)" if ipmi else ""
    )
    serious = [finding for finding in findings if finding.severity is not Severity.INFO]
    if serious:
        worst = in_summary(serious[0], title=_RULES[serious[0].code].title, others=len(serious) - 1)
        return f"{product}: {worst}."
    load = "" if case.load is None else f", {case.load:.0f} W now"
    if not case.installed:
        return f"{product}: the tray lists no supplies of its own{load}; nothing wrong."
    return f"{product}: {len(case.working)} of {len(case.installed)} supplies work{load}; nothing wrong."


def _whole(watts: float | None) -> int | None:
    return None if watts is None else round(watts)
