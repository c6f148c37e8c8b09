"""Findings about power limits.  A cap is somebody's decision: worth a look, never throttling, never a
fault."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_judge.case import Case, Hit, full_name, gather, number, short_name
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Finding, Severity


def power_cap_low(case: Case) -> Iterator[Finding]:
    """GPUs whose enforced limit (the real cap, out-of-band included) is well below their default limit."""
    ratio = case.thresholds.power_cap_ratio
    hits: list[Hit] = []
    for gpu in case.result.gpus:
        enforced, default = number(gpu.power.enforced_limit_mw), number(gpu.power.default_limit_mw)
        if enforced is None or default is None or not 0 < enforced < ratio * default:
            continue
        watts, usual = enforced / 1000, default / 1000
        share = f"{watts / usual:.0%}, warns below {ratio:.0%}"
        hits.append(
            Hit(
                severity=Severity.WARN,
                place=full_name(gpu),
                short=short_name(gpu),
                message=f"Capped at {watts:g} W of {usual:g} W by default ({share}).",
                evidence={"enforced_watts": watts, "default_watts": usual, "limit": ratio},
                weight=1 - watts / usual,
            )
        )
    yield from gather(Code.POWER_CAP_LOW, hits)
