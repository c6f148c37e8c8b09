"""Rules about sick GPUs: lost, waiting for a reset, without power, or faulty.  Each fails the node at once.

Source for the meaning of each NVML error: nvml.h, nvmlReturn_t.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_judge import visibility
from nodegauge_judge.case import Case, HealthRule, clip
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules.reading import problem_check
from nodegauge_judge.rules.steps import DRAIN, DRIVER_LOG, REBOOT, RESET, VENDOR


def gpu_lost(case: Case) -> Iterator[Observation]:
    """GPUs that fell off the bus without an error, and GPUs whose error says that they are lost."""
    if visibility.lost(case):
        yield _fell_off_the_bus(case)
    yield from problem_check("gpu-lost", "a GPU is lost", Severity.FAIL)(case)


def _fell_off_the_bus(case: Case) -> Observation:
    """All GPUs that NVML no longer lists and whose PCI function is silent or gone, as one location."""
    count, gone = visibility.lost(case), visibility.gone_uuids(case)
    silent = visibility.silent_addresses(case)
    names = clip(", ".join(gone[:4]) + (f" and {len(gone) - 4} more" if len(gone) > 4 else ""))
    which = names if len(gone) == count else f"{count} of {names}"
    state = f"silent ({clip(', '.join(silent))})" if len(silent) >= count else "empty"
    if silent and len(silent) < count:
        state = f"silent ({clip(', '.join(silent))}) or empty"
    evidence: dict[str, Scalar] = {
        "lost": count,
        "missing_uuids": clip(", ".join(gone)),
        "gpus_seen": len(case.result.gpus),
        "gpus_known": len(case.history.gpus),
    }
    return Observation(
        severity=Severity.FAIL,
        location=which,
        short=which,
        message=f"Seen earlier in this boot; NVML no longer lists it. Its place on the PCI bus is {state}.",
        evidence=evidence | ({"silent": clip(", ".join(silent))} if silent else {}),
        weight=count,
    )


def _sick(
    *, code: str, cause: Cause, title: str, meaning: str, when: str, next_step: str, way_out: tuple[str, ...]
) -> HealthRule:
    return HealthRule(
        code=code,
        title=title,
        meaning=meaning,
        when={Severity.FAIL: when},
        next_step=next_step,
        way_out=way_out,
        check=gpu_lost if code == "gpu-lost" else problem_check(code, title, Severity.FAIL),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=cause, runs=1),
        readable=visibility.is_complete,
    )


RULES = (
    _sick(
        code="gpu-lost",
        cause=Cause.GPU_LOST,
        title="a GPU is lost",
        meaning=(
            "The driver cannot reach the GPU: it fell off the bus, or its firmware died. A GPU that is "
            "missing without an error counts as lost only if the last run of the same boot and driver saw "
            "it and its place on the PCI bus is now empty or silent. Otherwise it may only be hidden "
            "(gpus-not-visible)."
        ),
        when=(
            "NVML answers GPU_IS_LOST (15) for it; or NVML no longer lists it in the same boot and its PCI "
            "function is gone or reads as all ones; or it became unreadable in the same boot and its driver "
            "asks for a recovery action"
        ),
        next_step="drain the node and reboot it; look for Xid 79 in its kernel log.",
        way_out=(
            DRIVER_LOG + " Xid 79 means that it fell off the bus.",
            DRAIN,
            "Reboot, or power-cycle it.",
            VENDOR,
        ),
    ),
    _sick(
        code="reset-required",
        cause=Cause.RESET_REQUIRED,
        title="a GPU needs a reset",
        meaning="The driver took the GPU out of service until it is reset.",
        when="NVML answers RESET_REQUIRED (16) for it",
        next_step="drain the node, then `nvidia-smi --gpu-reset -i INDEX`.",
        way_out=(DRAIN, RESET, REBOOT),
    ),
    _sick(
        code="insufficient-power",
        cause=Cause.POWER_CABLE,
        title="a GPU has no external power",
        meaning="The GPU's external power cables are missing or loose. It does not work at all.",
        when="NVML answers INSUFFICIENT_POWER (8) for it",
        next_step="power the node off and reseat the GPU's power cables.",
        way_out=(
            DRAIN,
            "Power off. Reseat the cables, one cable per socket and no pigtails. Check the power supply's "
            "rating.",
        ),
    ),
    _sick(
        code="gpu-fault",
        cause=Cause.GPU_FAULT,
        title="a GPU reports a fault",
        meaning="The driver cannot use the GPU: its interrupts do not arrive, or its InfoROM is corrupted.",
        when="NVML answers IRQ_ISSUE (11) or CORRUPTED_INFOROM (14) for it",
        next_step="drain the node and reboot it; read its kernel log for the GPU's PCI address.",
        way_out=(DRIVER_LOG, DRAIN, "Reboot the node.", VENDOR),
    ),
)
