"""One sentence about a node, for a table, an event, and whoever is on call."""

from __future__ import annotations

from collections.abc import Sequence

from nodegauge_judge.findings import CATALOGUE, Code
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
    if not noted:
        state = "could not be judged: nothing was readable" if verdict is Verdict.UNKNOWN else "healthy"
        return _sentence(f"{what}{state}{_how(joined) if verdict is not Verdict.UNKNOWN else ''}")
    first = noted[0]
    prefix = "could not be judged: " if verdict is Verdict.UNKNOWN else ""
    title = CATALOGUE[Code(first.code)].title
    where = "" if first.subject == "node" else f": {first.subject}"
    more = f"; {len(noted) - 1} more finding{'s' if len(noted) > 2 else ''}" if len(noted) > 1 else ""
    return _sentence(f"{what}{prefix}{title}{where} [{first.code}]{more}")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _how(joined: Interconnect) -> str:
    if joined.klass is None:
        return f"; {joined.message}"
    speed = f", {joined.nvlink_gbps} GB/s per GPU one way" if joined.nvlink_gbps is not None else ""
    return f"; {_JOINED[joined.klass]}{speed}"
