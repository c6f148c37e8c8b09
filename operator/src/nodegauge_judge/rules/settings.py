"""Rules about settings that nothing breaks and that make a GPU unfit for what its siblings do.

What all GPUs of a model have alike is how the node is set up; only compute mode `prohibited` is never fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_judge.case import Case, HealthRule, all_answered, of_gpu, text
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import DRAIN, RESET, Observation

OFF, ON = 0, 1
PROHIBITED = 2
"""nvmlComputeMode_t: NVML_COMPUTEMODE_PROHIBITED, "no CUDA context" (nvml.h)."""


def ecc_off(case: Case) -> Iterator[Observation]:
    """GPUs without ECC beside GPUs of the same model that have it."""
    for gpu in case.result.gpus:
        alike = [other for other in case.result.gpus if text(gpu.name) and other.name == gpu.name]
        protected = sum(other.ecc.mode == ON for other in alike)
        if gpu.ecc.mode == OFF and protected:
            yield of_gpu(
                gpu,
                Severity.WARN,
                f"ECC is off; {protected} of the node's {len(alike)} GPUs of this model have it on. Nothing "
                "corrects or counts wrong bits in this GPU's memory.",
                evidence={"ecc_mode": OFF, "siblings_with_ecc": protected},
            )


def compute_prohibited(case: Case) -> Iterator[Observation]:
    """GPUs on which no process may compute."""
    for gpu in case.result.gpus:
        if gpu.compute_mode == PROHIBITED:
            message = "Its compute mode is PROHIBITED: no process can use it."
            yield of_gpu(gpu, Severity.FAIL, message, evidence={"compute_mode": PROHIBITED})


def compute_mode_read(case: Case) -> bool:
    """Whether every GPU that has a compute mode told it."""
    return all_answered(gpu.compute_mode for gpu in case.result.gpus)


RULES = (
    HealthRule(
        code="ecc-off",
        title="some GPUs work without ECC",
        meaning=(
            "ECC is off on a GPU and on for others of the same model in the node. Without ECC the GPU's "
            "memory may return wrong bits, and nothing notices: a job over all GPUs is as trustworthy as "
            "this one. ECC off on all of them is a choice, and no finding."
        ),
        when={Severity.WARN: "the driver reports ECC off, and on for another GPU of the same model"},
        next_step="drain the node, then `nvidia-smi -e 1 -i INDEX` and reset the GPU.",
        way_out=(
            "`nvidia-smi --query-gpu=index,name,ecc.mode.current,ecc.mode.pending --format=csv` on the node.",
            DRAIN,
            "`nvidia-smi -e 1 -i INDEX` (root) turns it on with the next reset. " + RESET,
        ),
        check=ecc_off,
    ),
    HealthRule(
        code="compute-prohibited",
        title="no process may use a GPU",
        meaning=(
            "The GPU's compute mode is PROHIBITED: every attempt to compute on it fails, while Kubernetes "
            "still offers it to pods. Somebody set it, with `nvidia-smi -c`; nothing is broken."
        ),
        when={Severity.FAIL: "the driver reports the compute mode PROHIBITED (2)"},
        next_step="`nvidia-smi -c 0 -i INDEX` on the node (root) if jobs should use it.",
        way_out=(
            "`nvidia-smi --query-gpu=index,name,compute_mode --format=csv` on the node.",
            "`nvidia-smi -c 0 -i INDEX` (root) allows processes; a reboot does the same.",
            "If it is meant for a display alone, keep it from pods, for example with NVreg_ExcludedGpus.",
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.GPU_FAULT),
        check=compute_prohibited,
        readable=compute_mode_read,
    ),
)
