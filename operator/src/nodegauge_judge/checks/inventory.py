"""Findings about what the node is made of: GPUs that are not alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, Hit, clip, gather, number, text
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Finding, Scalar, Severity


def mixed_gpus(case: Case) -> Iterator[Finding]:
    """Models that differ; else VBIOS or enforced power limits that differ (they may, between models)."""
    gpus = case.result.gpus
    models = Counter(name for gpu in gpus if (name := text(gpu.name)))
    vbios = Counter(version for gpu in gpus if (version := text(gpu.vbios)))
    limits = Counter(watts for gpu in gpus if (watts := _watts(gpu)))
    if len(models) > 1:
        hits = [_mixed("models", models)]
    else:
        named = (("VBIOS versions", vbios), ("power limits", limits))
        hits = [_mixed(what, counts) for what, counts in named if len(counts) > 1]
    yield from gather(Code.MIXED_GPUS, hits)


def _watts(gpu: Gpu) -> str:
    milliwatts = number(gpu.power.enforced_limit_mw)
    return f"{milliwatts / 1000:g} W" if milliwatts else ""


def _mixed(what: str, counts: Mapping[str, int]) -> Hit:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = ", ".join(f"{count}x {name}" for name, count in ordered)
    evidence: dict[str, Scalar] = {"differs": what, "values": clip(words)}
    message = f"The GPUs have different {what}: {clip(words)}."
    return Hit(severity=Severity.INFO, place=what, short=what, message=message, evidence=evidence)
