"""Rules about PCIe: links that are narrower or slower than they could be, and links that make errors.

An idle link lowers its generation on purpose, so that counts only if the GPU was busy at that moment.  It
keeps its width (janhq/jan issue 183: 2.5 GT/s x16 at idle), so lanes that are missing at idle are missing
under load.  The measure is what card and slot support together (`max_*`).  A slot that is older than its
card, and x8 for all GPUs of a model, are how the node was built: only worth an INFO.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, is_not_supported, number, of_gpu, text
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Judged, Scalar, Severity
from nodegauge_judge.rule import DRAIN, VENDOR, Observation

SECONDS_PER_HOUR = 3600
PASSTHROUGH = 1
"""nvmlGpuVirtualizationMode_t: NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH."""


def pcie_narrow(case: Case) -> Iterator[Observation]:
    """GPUs whose link is below what card and slot support, and slots that are older than their card."""
    for gpu in case.result.gpus:
        observation = _narrow(case, gpu) or _old_slot(gpu)
        if observation is not None:
            yield observation


def pcie_errors(case: Case) -> Iterator[Observation]:
    """GPUs whose PCIe link makes more errors per hour than a sound one does."""
    seconds, limit = case.growth.interval.seconds, case.thresholds.pcie_errors_per_hour
    for gpu, growth in zip(case.result.gpus, case.growth.gpus, strict=True):
        counts = {"replays": growth.pcie_replays or 0, "correctable errors": growth.pcie_correctable or 0}
        kind, worst = max(counts.items(), key=lambda item: item[1])
        if not seconds or worst * SECONDS_PER_HOUR / seconds <= limit:
            continue
        rate = worst * SECONDS_PER_HOUR / seconds
        yield of_gpu(
            gpu,
            Severity.WARN,
            f"{worst} {kind} in {seconds:.0f} s since the last run: {rate:.0f} an hour "
            f"(warns above {limit}).",
            evidence={
                "replays": counts["replays"],
                "correctable": counts["correctable errors"],
                "seconds": seconds,
                "per_hour": round(rate),
                "limit": limit,
            },
            weight=rate,
        )


def answer_pcie_narrow(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's link: good only at the best that card and slot support."""
    gpu = case.result.gpus[gpu_index]
    if not _was_busy(case, gpu):
        return Answer.NO_LOAD
    if not _known(gpu):
        return Answer.UNSURE
    observation = _narrow(case, gpu)
    if observation is None:
        return Answer.GOOD
    return Answer.BAD if observation.severity is Severity.FAIL else Answer.UNSURE


def _known(gpu: Gpu) -> bool:
    pcie = gpu.pcie
    return all(isinstance(v, int) for v in (pcie.generation, pcie.width, pcie.max_generation, pcie.max_width))


def _was_busy(case: Case, gpu: Gpu) -> bool:
    utilization = number(gpu.pcie.utilization)
    return utilization is not None and utilization >= case.thresholds.busy_utilization


def _narrow(case: Case, gpu: Gpu) -> Observation | None:
    """Width weighs more than generation: bad contacts lose lanes, settings lose generations."""
    pcie, busy = gpu.pcie, _was_busy(case, gpu)
    generation, most_generation = number(pcie.generation) or 0, number(pcie.max_generation) or 0
    width, most = number(pcie.width) or 0, number(pcie.max_width) or 0
    lacks_lanes = 0 < width < most
    lacks_speed = busy and _known(gpu) and 0 < generation < most_generation
    if not _has_link(gpu) or not (lacks_lanes or lacks_speed):
        return None
    others = _others_width(case, gpu)
    failed = busy and lacks_lanes and others is not None and width < case.thresholds.pcie_width_ratio * others
    as_built = not lacks_speed and 2 * width >= most and _is_as_built(case, gpu)
    evidence: dict[str, Scalar] = {"width": width, "max_width": most}
    if busy:
        evidence |= {"generation": generation, "max_generation": most_generation}
        evidence["utilization_percent"] = number(pcie.utilization) or 0
    if others is not None:
        evidence["others_width"] = others
    return of_gpu(
        gpu,
        Severity.FAIL if failed else Severity.INFO if as_built else Severity.WARN,
        message=_message(evidence, failed=failed, as_built=as_built),
        evidence=evidence,
        weight=(1 - width / most if most else 0) * 10 + (most_generation - generation if busy else 0),
    )


def _message(evidence: dict[str, Scalar], *, failed: bool, as_built: bool) -> str:
    width, most = evidence["width"], evidence["max_width"]
    if as_built:
        return f"x{width:g} of x{most:g}, as the node is built: none of its GPUs of this model has more."
    if "generation" not in evidence:
        return f"x{width:g} of x{most:g} that card and slot support; an idle link keeps its lanes."
    against = f"; the node's other GPUs have x{evidence['others_width']:g}" if failed else ""
    speed = f"Generation {evidence['generation']:g} x{width:g} at {evidence['utilization_percent']:g} %"
    best = f"{evidence['max_generation']:g} x{most:g}"
    return f"{speed} utilisation; card and slot support {best}{against}."


def _has_link(gpu: Gpu) -> bool:
    """False for a GPU without memory of its own: a part of the processor, for which the driver reports a
    placeholder link (GB10: generation 1 x1, Syllo/nvtop pull request 499)."""
    return not is_not_supported(gpu.memory_mib)


def _is_as_built(case: Case, gpu: Gpu) -> bool:
    """Whether every GPU of this model has this width, as on a board that splits x16 between two slots.

    A GPU without siblings tells nothing, except in a virtual machine that hides the slot (passed through, or
    on root bus 00, as on AWS g4dn: the recorded T4 has 8 of 16 lanes): there the maximum is the card's alone.
    """
    alike = [other.pcie.width for other in case.result.gpus if text(other.name) == text(gpu.name)]
    same = bool(text(gpu.name)) and set(map(number, alike)) == {number(gpu.pcie.width)}
    hidden = gpu.virtualization == PASSTHROUGH or text(gpu.pci).split(":")[1:2] == ["00"]
    return same and (len(alike) > 1 or hidden)


def _others_width(case: Case, gpu: Gpu) -> float | None:
    """The median width of the other GPUs of the same model that were busy; None without any."""
    name = text(gpu.name)
    widths = [
        width
        for other in case.result.gpus
        if other is not gpu and name and text(other.name) == name and _was_busy(case, other)
        if (width := number(other.pcie.width))
    ]
    return median(widths) if widths else None


def _old_slot(gpu: Gpu) -> Observation | None:
    card, both = number(gpu.pcie.card_generation), number(gpu.pcie.max_generation)
    if not card or not both or both >= card:
        return None
    return of_gpu(
        gpu,
        Severity.INFO,
        message=f"The card supports generation {card:g}, its slot only {both:g}.",
        evidence={"card_generation": card, "max_generation": both},
        weight=card - both,
    )


RULES = (
    HealthRule(
        code="pcie-narrow",
        title="a PCIe link is slower than it should be",
        meaning=(
            "The GPU's PCIe link has fewer lanes, or under load a lower generation, than card and slot "
            "support: dirty or loose contacts, a riser, a BIOS setting. An idle link lowers its generation "
            "on purpose, but keeps its lanes. A slot that is older than the card, and a board that "
            "splits x16 into x8 for all GPUs, are not faults."
        ),
        when={
            Severity.INFO: (
                "the slot has a lower generation than the card supports; or all GPUs of the model have the "
                "same width: half of what card and slot support together, or more (one GPU alone: only in a "
                "virtual machine that hides the slot)"
            ),
            Severity.WARN: (
                "width, or at `busyUtilization` or more the generation, is below the best that card and slot "
                "support together"
            ),
            Severity.FAIL: (
                "width is also below `pcieWidthRatio` (default 0.5) of the median of the node's other GPUs "
                "of the same model, all read under load"
            ),
        },
        next_step="reseat the card and its riser, then check the slot's settings in the BIOS.",
        way_out=(
            "`nvidia-smi -q -i INDEX | grep -A 20 'GPU Link Info'` under load; `lspci -vv -s ADDRESS | grep "
            "-E 'LnkCap|LnkSta'` says what the slot negotiated.",
            DRAIN,
            "Power off; reseat card and riser, clean the contacts; BIOS: link speed Auto, bifurcation x16.",
            "Try another slot to tell a bad card from a bad slot. " + VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.PCIE, judged=Judged.UNDER_LOAD),
        check=pcie_narrow,
        answer_per_gpu=answer_pcie_narrow,
        history_bit=5,
    ),
    HealthRule(
        code="pcie-errors",
        title="PCIe errors",
        meaning=(
            "The GPU's PCIe link repeats transfers more often than a sound link does. No data is lost, but "
            "transfers stutter, and such a link may fall off the bus later."
        ),
        when={
            Severity.WARN: (
                "replays or correctable errors grew by more than `pcieErrorsPerHour` (default 100) an hour "
                "since the last run"
            )
        },
        next_step="watch it; if it continues, reseat the card and its riser at the next maintenance.",
        way_out=(
            "`nvidia-smi -q -i INDEX | grep -i replay`; `dmesg | grep -iE 'AER|pcieport'` on the node.",
            "Reseat card and riser. A riser cable outside its rating is the usual cause.",
            VENDOR,
        ),
        check=pcie_errors,
    ),
)
