"""One sentence about a node, for a table, an event, and whoever is on call."""

from __future__ import annotations

from collections.abc import Sequence

from nodegauge_judge.findings import CATALOGUE, Code, Effect
from nodegauge_judge.model import Finding, Interconnect, InterconnectClass, Severity, Verdict

_JOINED = {
    InterconnectClass.NVLINK: "NVLink joins all GPUs",
    InterconnectClass.NVLINK_PAIRS: "NVLink joins some pairs only",
    InterconnectClass.PCIE: "no NVLink, GPUs talk over PCIe",
}


def summarise(
    verdict: Verdict, *, count: int, product: str, findings: Sequence[Finding], joined: Interconnect
) -> str:
    """The sentence: what it is, what is wrong with it or how it is joined, and how much more there is."""
    what = f"{count}x {product or 'GPU'}: " if count else ""
    noted = [finding for finding in findings if finding.severity is not Severity.INFO]
    if verdict is Verdict.UNKNOWN:
        return _sentence(f"{what}could not be judged: {_why_not(noted)}")
    if not noted:
        return _sentence(f"{what}healthy{_how(joined)}")
    first = noted[0]
    title = CATALOGUE[Code(first.code)].title
    where = "" if first.subject == "node" else f": {first.subject}"
    more = f"; {len(noted) - 1} more finding{'s' if len(noted) > 2 else ''}" if len(noted) > 1 else ""
    return _sentence(f"{what}{title}{where} [{first.code}]{more}")


def _why_not(findings: Sequence[Finding]) -> str:
    """What was said when the reading failed: the driver's own words matter more here than ours."""
    for finding in findings:
        entry = CATALOGUE[Code(finding.code)]
        if entry.effect is Effect.UNJUDGED:
            said = finding.message.removesuffix(f" Next: {entry.next_step}").removesuffix(".")
            where = "" if finding.subject == "node" else f"{finding.subject}: "
            return f"{where}{said[0].lower()}{said[1:]} [{finding.code}]"
    return "nothing was readable"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _how(joined: Interconnect) -> str:
    if joined.klass is None:
        return f"; {joined.message}"
    speed = f", {joined.nvlink_gbps} GB/s per GPU one way" if joined.nvlink_gbps is not None else ""
    return f"; {_JOINED[joined.klass]}{speed}"
