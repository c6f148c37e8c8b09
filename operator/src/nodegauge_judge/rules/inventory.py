"""The rule about a node whose GPUs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, clip, number, text
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.rule import Observation


def mixed_gpus(case: Case) -> Iterable[Observation]:
    """Different models; with one model, different VBIOS versions or enforced power limits."""
    gpus = case.result.gpus
    models = Counter(name for gpu in gpus if (name := text(gpu.name)))
    vbios = Counter(version for gpu in gpus if (version := text(gpu.vbios)))
    limits = Counter(watts for gpu in gpus if (watts := _watts(gpu)))
    if len(models) > 1:
        return [_mixed("models", models)]
    named = (("VBIOS versions", vbios), ("power limits", limits))
    return [_mixed(what, counts) for what, counts in named if len(counts) > 1]


def _watts(gpu: Gpu) -> str:
    milliwatts = number(gpu.power.enforced_limit_mw)
    return f"{milliwatts / 1000:g} W" if milliwatts else ""


def _mixed(what: str, counts: Mapping[str, int]) -> Observation:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    values = ", ".join(f"{count}x {name}" for name, count in ordered)
    evidence: dict[str, Scalar] = {"differs": what, "values": clip(values)}
    message = f"The GPUs have different {what}: {clip(values)}."
    return Observation(severity=Severity.INFO, location=what, short=what, message=message, evidence=evidence)


RULES = (
    HealthRule(
        code="mixed-gpus",
        title="the GPUs are not alike",
        meaning="The node's GPUs differ in model, VBIOS or power limit. The slowest sets the pace of a job.",
        when={Severity.INFO: "models differ, or VBIOS or enforced power limit differ within one model"},
        next_step="nothing to repair; select nodes by GPU model where it matters.",
        way_out=("`nvidia-smi --query-gpu=index,name,vbios_version,enforced.power.limit --format=csv`.",),
        check=mixed_gpus,
    ),
)
