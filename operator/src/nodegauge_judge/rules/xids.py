"""Findings about Xid events that arrived while the probe was registered for them.

NVML counts only events after registration, so a window of seconds every few minutes sees few of them; what
an Xid leaves behind is judged elsewhere (memory, repair, reading).  A code on neither list is only mentioned:
new drivers bring new codes, and most of them are harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, all_answered, of_gpu
from nodegauge_judge.model import Cause, Gate, GateKind, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules.steps import DRAIN, DRIVER_LOG, REBOOT, RESET

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
"""Which code is fatal and which a warning: NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp; the words follow
NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors)."""


def xid(case: Case) -> Iterable[Observation]:
    """GPUs that reported an Xid in the window, by severity; the worst code speaks for its GPU."""
    return [hit for gpu in case.result.gpus for hit in _hits(gpu)]


def watched(case: Case) -> bool:
    """Whether the driver would have told of an Xid on every GPU that has such events."""
    registered = [gpu.xids.registered for gpu in case.result.gpus]
    return all_answered(registered) and False not in registered


def _hits(gpu: Gpu) -> Iterator[Observation]:
    codes = sorted(set(gpu.xids.seen))
    groups = (
        (Severity.FAIL, [code for code in codes if code in FATAL]),
        (Severity.WARN, [code for code in codes if code in WARNING]),
        (Severity.INFO, [code for code in codes if code not in FATAL and code not in WARNING]),
    )
    for severity, found in groups:
        if found:
            words = ", ".join(_words(code) for code in found)
            yield of_gpu(
                gpu,
                severity,
                message=f"Xid {words}, seen while the probe watched.",
                evidence={"xids": ", ".join(map(str, found)), "window_seconds": _seconds(gpu)},
                weight=len(found),
            )


def _words(code: int) -> str:
    meaning = FATAL.get(code) or WARNING.get(code)
    return f"{code} ({meaning})" if meaning else str(code)


def _seconds(gpu: Gpu) -> float:
    return gpu.window.seconds if gpu.window is not None else 0.0


XID = HealthRule(
    code="xid",
    title="the driver reported an error (Xid)",
    meaning=(
        "An Xid event came while the node was watched. Health probes watch for seconds every few "
        "minutes, so most Xids are never seen here: their lasting marks (gpu-lost, reset-required, "
        "recovery-action, ecc, row-remap) are, and the kernel log has them all. Some Xids come from a "
        "broken program rather than from broken hardware (31, 43); those only warn."
    ),
    when={
        Severity.INFO: "an Xid that is on neither list",
        Severity.WARN: (
            "one of 31, 32, 38, 39, 42, 43, 54, 56, 57, 58, 60, 61, 62, 63, 64, 67, 73, 78, 93, 121, 137"
        ),
        Severity.FAIL: "one of 48, 74, 79, 94, 95, 119, 120, 140",
    },
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.XID, runs=1),
    next_step="read the kernel log for it: `dmesg | grep -i xid` on the node.",
    way_out=(
        DRIVER_LOG + " It names the process, and other Xids beside it.",
        "What it means and what NVIDIA advises: https://docs.nvidia.com/deploy/xid-errors/",
        "For those that fail: " + DRAIN[0].lower() + DRAIN[1:],
        RESET,
        REBOOT,
    ),
    check=xid,
    readable=watched,
)

RULES = (XID,)
