"""Rules about what the driver itself reports: the recovery action that it asks for, and Xid errors.

The recovery action is NVML field 230.  NVML counts Xids only from registration on, and a probe watches for
seconds every few minutes, so it catches few of them; other rules judge the marks that an Xid leaves behind
(memory, recovery action, lost GPUs).
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, all_answered, of_gpu
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, REBOOT, RESET, VENDOR, Observation

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
"""Drain P2P and recover IMEX: the GPU itself stays fit for work, so they only warn.  Source of the values:
nvml.h, NVML_GPU_RECOVERY_ACTION_*."""
FATAL = {
    48: "double bit ECC error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP firmware timeout",
    120: "GSP firmware error",
    140: "unrecovered ECC error",
}
WARNING = {
    31: "memory page fault, usually of a program",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    39: "copy engine exception",
    42: "video processor exception",
    43: "GPU stopped processing, usually of a program",
    54: "auxiliary power is not connected",
    56: "display engine error",
    57: "memory interface error while training",
    58: "memory clock error while training",
    60: "video processor exception",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "row remap or page retirement recorded",
    64: "row remap or page retirement could not be recorded",
    67: "memory error in a context",
    73: "video encoder exception",
    78: "vGPU start error",
    93: "too many writes to the InfoROM",
    121: "C2C link error, corrected",
    137: "NVLink fault while a program accessed a peer",
}
"""Which codes are fatal and which warn: NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp.  Their texts:
NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).  Others are INFO: most codes of new drivers
are harmless."""


def recovery_action(case: Case) -> Iterator[Observation]:
    """GPUs whose driver asks for an action."""
    for gpu in case.result.gpus:
        action = gpu.repair.action
        if not isinstance(action, int) or action == NO_ACTION:
            continue
        request = (
            f"to {ACTIONS[action]}" if action in ACTIONS else "for something that this version does not know"
        )
        yield of_gpu(
            gpu,
            Severity.WARN if action in PASSING or action not in ACTIONS else Severity.FAIL,
            f"The driver asks {request} (recovery action {action}; 0 is none).",
            evidence={"recovery_action": action},
            weight=action,
        )


def action_read(case: Case) -> bool:
    """Whether every GPU that supports it reported its recovery action."""
    return all_answered(gpu.repair.action for gpu in case.result.gpus)


def xid(case: Case) -> Iterator[Observation]:
    """GPUs that reported an Xid in the window, by severity."""
    for gpu in case.result.gpus:
        codes = sorted(set(gpu.xids.seen))
        unlisted = [code for code in codes if code not in FATAL and code not in WARNING]
        yield from _xids(gpu, Severity.FAIL, [code for code in codes if code in FATAL])
        yield from _xids(gpu, Severity.WARN, [code for code in codes if code in WARNING])
        yield from _xids(gpu, Severity.INFO, unlisted)


def xids_watched(case: Case) -> bool:
    """Whether the driver would have reported an Xid on every GPU that supports such events."""
    registered = [gpu.xids.registered for gpu in case.result.gpus]
    return all_answered(registered) and False not in registered


def _xids(gpu: Gpu, severity: Severity, codes: list[int]) -> Iterator[Observation]:
    if codes:
        names = ", ".join(_with_meaning(code) for code in codes)
        seconds = gpu.window.seconds if gpu.window is not None else 0.0
        yield of_gpu(
            gpu,
            severity,
            f"Xid {names}, seen while the probe watched.",
            evidence={"xids": ", ".join(map(str, codes)), "window_seconds": seconds},
            weight=len(codes),
        )


def _with_meaning(code: int) -> str:
    meaning = FATAL.get(code) or WARNING.get(code)
    return f"{code} ({meaning})" if meaning else str(code)


RULES = (
    HealthRule(
        code="recovery-action",
        title="the driver asks for a recovery",
        meaning=(
            "The driver says what the GPU needs before it is fit for use again (GPU recovery action, NVML "
            "field 230). It is the best single answer to whether a GPU is sick."
        ),
        when={
            Severity.WARN: "drain P2P (3), recover IMEX (5), or an action that this version does not know",
            Severity.FAIL: (
                "GPU reset (1), node reboot (2), drain and reset (4), bus reset (6) or system reboot (7)"
            ),
        },
        next_step="drain the node and do what the driver asks for.",
        way_out=(
            "`nvidia-smi -q | grep -i 'recovery action'` on the node names it.",
            DRAIN,
            "Reset: " + RESET[0].lower() + RESET[1:],
            "Reboot: `reboot`; a bus reset or system reboot may need a power cycle.",
            "Drain P2P: end the jobs that use NVLink between GPUs. IMEX: `systemctl restart nvidia-imex`.",
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.RECOVERY_ACTION, runs=1),
        check=recovery_action,
        readable=action_read,
    ),
    HealthRule(
        code="xid",
        title="the driver reported an error (Xid)",
        meaning=(
            "An Xid event came while the probe watched. Health probes watch for seconds every few minutes, "
            "so they miss most Xids. The kernel log has them all, and other findings show their lasting "
            "marks (gpu-lost, reset-required, recovery-action, ecc, row-remap). A broken program can cause "
            "some Xids without broken hardware (31, 43); those only warn."
        ),
        when={
            Severity.INFO: "an Xid that is on neither list",
            Severity.WARN: (
                "one of 31, 32, 38, 39, 42, 43, 54, 56, 57, 58, 60, 61, 62, 63, 64, 67, 73, 78, 93, 121, 137"
            ),
            Severity.FAIL: "one of 48, 74, 79, 94, 95, 119, 120, 140",
        },
        next_step="look it up in the kernel log: `dmesg | grep -i xid` on the node.",
        way_out=(
            DRIVER_LOG + " It names the process and any other Xids.",
            "Its meaning, and what NVIDIA advises: https://docs.nvidia.com/deploy/xid-errors/",
            "If it failed: " + DRAIN[0].lower() + DRAIN[1:],
            RESET,
            REBOOT,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.XID, runs=1),
        check=xid,
        readable=xids_watched,
    ),
)
