"""What NVML's return values mean for a probe: pass over, ask again, the GPU is ill, or nothing can be read.

A table, so that it can be checked against the header without a driver.  It must not import pynvml (only
`nvml` does) and holds no logic beyond turning a refusal into the contract's `Problem`.

Sources: nvml.h (go-nvml 2f9e261f, 2026-07), nvmlReturn_t and the notes on nvmlInit and
nvmlDeviceGetHandleByIndex.
"""

from __future__ import annotations

from nodegauge_contract import Problem, ProblemKind

SUCCESS = 0
INVALID_ARGUMENT = 2
NO_PERMISSION = 4
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16

NAMES = {
    1: "NVML_ERROR_UNINITIALIZED",
    2: "NVML_ERROR_INVALID_ARGUMENT",
    3: "NVML_ERROR_NOT_SUPPORTED",
    4: "NVML_ERROR_NO_PERMISSION",
    5: "NVML_ERROR_ALREADY_INITIALIZED",
    6: "NVML_ERROR_NOT_FOUND",
    7: "NVML_ERROR_INSUFFICIENT_SIZE",
    8: "NVML_ERROR_INSUFFICIENT_POWER",
    9: "NVML_ERROR_DRIVER_NOT_LOADED",
    10: "NVML_ERROR_TIMEOUT",
    11: "NVML_ERROR_IRQ_ISSUE",
    12: "NVML_ERROR_LIBRARY_NOT_FOUND",
    13: "NVML_ERROR_FUNCTION_NOT_FOUND",
    14: "NVML_ERROR_CORRUPTED_INFOROM",
    15: "NVML_ERROR_GPU_IS_LOST",
    16: "NVML_ERROR_RESET_REQUIRED",
    17: "NVML_ERROR_OPERATING_SYSTEM",
    18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    19: "NVML_ERROR_IN_USE",
    20: "NVML_ERROR_MEMORY",
    21: "NVML_ERROR_NO_DATA",
    22: "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
    23: "NVML_ERROR_INSUFFICIENT_RESOURCES",
    24: "NVML_ERROR_FREQ_NOT_SUPPORTED",
    25: "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    26: "NVML_ERROR_DEPRECATED",
    27: "NVML_ERROR_NOT_READY",
    28: "NVML_ERROR_GPU_NOT_FOUND",
    29: "NVML_ERROR_INVALID_STATE",
    30: "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED",
    999: "NVML_ERROR_UNKNOWN",
}

TOO_OLD = frozenset({FUNCTION_NOT_FOUND, 25, 26})
"""FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED: "not by this call", so another one is asked."""

PASSING = frozenset({10, 19, 27, 999})
"""TIMEOUT, IN_USE, NOT_READY, UNKNOWN: asked again before they count."""

LIBRARY = {
    12: ProblemKind.LIBRARY_NOT_FOUND,
    9: ProblemKind.DRIVER_NOT_LOADED,
    18: ProblemKind.DRIVER_MISMATCH,
    NO_PERMISSION: ProblemKind.NO_PERMISSION,
}
"""Answers after which nothing on this node can be read."""

SICK = {
    8: ProblemKind.INSUFFICIENT_POWER,
    11: ProblemKind.IRQ_ISSUE,
    14: ProblemKind.CORRUPTED_INFOROM,
    GPU_IS_LOST: ProblemKind.GPU_LOST,
    RESET_REQUIRED: ProblemKind.RESET_REQUIRED,
}
"""Answers that say that this GPU itself is ill, whatever was asked."""

GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED})
"""A GPU in these states answers nothing more: asking on would only cost time."""

_WAYS_OUT = {
    ProblemKind.LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found. On a machine: install the NVIDIA driver. In a container: run it"
        " with the NVIDIA runtime (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES=all and"
        " NVIDIA_DRIVER_CAPABILITIES=utility), which brings the library in"
    ),
    ProblemKind.DRIVER_NOT_LOADED: (
        "the NVIDIA kernel module does not answer. Check lsmod and dmesg on the node; in a container also"
        " that NVIDIA_VISIBLE_DEVICES=all brought /dev/nvidiactl in"
    ),
    ProblemKind.DRIVER_MISMATCH: (
        "the driver was upgraded under a running kernel module, so library and module have different"
        " versions. Reload the nvidia modules or reboot the node"
    ),
    ProblemKind.NO_PERMISSION: "the driver refuses this user. Check the rights of /dev/nvidiactl",
}


class Refused(Exception):
    """NVML said no.  `code` is its return value, None where the refusal came from the binding."""

    def __init__(self, call: str, code: int | None, reason: str = "") -> None:
        self.reason = reason or name_of(code or 0)
        super().__init__(self.reason)
        self.call, self.code = call, code


def name_of(code: int) -> str:
    """NVML's own name of a return value, as the header spells it."""
    return NAMES.get(code, f"NVML return {code}")


def unusable(refused: Refused) -> Problem:
    """Why nothing on this node can be read, with the way out."""
    kind = LIBRARY.get(refused.code or 0, ProblemKind.NVML_ERROR)
    words = f": {_WAYS_OUT[kind]}" if kind in _WAYS_OUT else ""
    return Problem(kind=kind, call=refused.call, code=refused.code, message=refused.reason + words)


def illness(refused: Refused) -> Problem | None:
    """What an answer says about the GPU itself, if anything."""
    kind = SICK.get(refused.code or 0)
    return None if kind is None else _problem(kind, refused)


def no_handle(refused: Refused) -> Problem:
    """Why a GPU that NVML counts cannot be opened."""
    kinds = {**SICK, NO_PERMISSION: ProblemKind.NO_PERMISSION}
    return _problem(kinds.get(refused.code or 0, ProblemKind.NVML_ERROR), refused)


def _problem(kind: ProblemKind, refused: Refused) -> Problem:
    return Problem(kind=kind, call=refused.call, code=refused.code, message=refused.reason)
