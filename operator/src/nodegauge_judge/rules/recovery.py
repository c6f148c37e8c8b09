"""Findings about what the driver wants done with a GPU: its recovery action (NVML field 230).

Source of the values: nvml.h, NVML_GPU_RECOVERY_ACTION_*.  Draining P2P and recovering IMEX leave the GPU
itself fit for work, so they only warn.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodegauge_judge.case import Case, HealthRule, all_answered, of_gpu
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules.steps import DRAIN, RESET, VENDOR

NO_ACTION = 0
ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain P2P",
    4: "drain and reset the GPU",
    5: "recover IMEX",
    6: "reset the bus",
    7: "reboot the system",
}
PASSING = (3, 5)
"""Actions that say nothing against the GPU itself."""


def recovery_action(case: Case) -> Iterable[Observation]:
    """GPUs whose driver asks for an action."""
    hits: list[Observation] = []
    for gpu in case.result.gpus:
        action = gpu.repair.action
        if not isinstance(action, int) or action == NO_ACTION:
            continue
        words = ACTIONS.get(action, "something that this version does not know")
        hits.append(
            of_gpu(
                gpu,
                Severity.WARN if action in PASSING or action not in ACTIONS else Severity.FAIL,
                message=f"The driver asks to {words} (recovery action {action}; 0 is none)."
                if action in ACTIONS
                else f"The driver asks for {words} (recovery action {action}; 0 is none).",
                evidence={"recovery_action": action},
                weight=action,
            )
        )
    return hits


def action_read(case: Case) -> bool:
    """Whether every GPU that can say so said whether it needs an action."""
    return all_answered(gpu.repair.action for gpu in case.result.gpus)


RECOVERY_ACTION = HealthRule(
    code="recovery-action",
    title="the driver asks for a recovery",
    meaning=(
        "The driver itself says what the GPU needs before it is fit for use again (GPU recovery action, "
        "NVML field 230): the best single answer to whether a GPU is sick."
    ),
    when={
        Severity.WARN: "drain P2P (3), recover IMEX (5), or an action that this version does not know",
        Severity.FAIL: (
            "GPU reset (1), node reboot (2), drain and reset (4), bus reset (6) or system reboot (7)"
        ),
    },
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.RECOVERY_ACTION, runs=1),
    next_step="drain the node and do what the driver asks for.",
    way_out=(
        "`nvidia-smi -q | grep -i 'recovery action'` on the node names it.",
        DRAIN,
        "Reset: " + RESET[0].lower() + RESET[1:],
        "Reboot: `reboot`; a bus reset or system reboot may need a power cycle.",
        "Drain P2P: end the jobs that use NVLink between GPUs. IMEX: `systemctl restart nvidia-imex`.",
        VENDOR,
    ),
    check=recovery_action,
    readable=action_read,
)

RULES = (RECOVERY_ACTION,)
