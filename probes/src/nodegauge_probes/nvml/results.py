"""What NVML returns: from its raw answers to the contract's values, and what each return code means.

NVML reports "no value" in several ways: a status in each field value, all bits set, an empty bus id, bytes
that are not text.  Each of them becomes `Unavailable` with a reason here.  Return codes are final, retried,
a fault of the GPU, or a node without usable NVML; they are a table, so that it can be checked against the
header without a driver.  This module must not import pynvml: only `library` does.

Sources: nvml.h (go-nvml 2f9e261f, 2026-07), nvmlReturn_t and the notes on nvmlInit and
nvmlDeviceGetHandleByIndex.
"""

from __future__ import annotations

import ctypes
from typing import Any

from nodegauge_contract import Fabric, Problem, ProblemKind, Unavailable
from nodegauge_contract.access import Access

ULL = 3
"""NVML_VALUE_TYPE_UNSIGNED_LONG_LONG."""

_MEMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", ULL: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t to the member of nvmlValue_t that holds the value."""

_ALL_ONES = frozenset({2**32 - 1, 2**64 - 1})
INT64_MAX = 2**63 - 1
"""The largest whole number of the contract: a larger one would make the whole document unreadable."""


def whole(value: int) -> int | Unavailable:
    """A whole number of the contract; all bits set is NVML_VALUE_NOT_AVAILABLE in 32 or 64 bits."""
    if value in _ALL_ONES:
        return Unavailable("NVML_VALUE_NOT_AVAILABLE")
    return value if value <= INT64_MAX else Unavailable(f"out of range: {value}")


def field(element: Any, *, only: int | None = None) -> int | float | Unavailable:
    """One nvmlFieldValue_t: its status and type decide whether it is a value.

    `only`: the one accepted value type; another type means that this driver uses the id for something else.
    """
    if element.nvmlReturn != SUCCESS:
        return Unavailable(name_of(element.nvmlReturn))
    member = _MEMBER.get(element.valueType)
    if member is None or (only is not None and element.valueType != only):
        return Unavailable(f"field has value type {element.valueType}, which is not the expected one")
    value = getattr(element.value, member)
    return value if isinstance(value, float) else whole(value)


def signed(value: int) -> int:
    """A 32-bit distance in °C that the driver returned as unsigned."""
    return value - 2**32 if 2**31 <= value < 2**32 else value


def bus_id(text: str) -> str:
    """NVML's `00000000:0F:00.0` in the form of sysfs, `0000:0f:00.0`; empty if it is no bus id."""
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest.count(":") == 1 else ""
    except ValueError:
        return ""


def bus_id_of(info: Any) -> str:
    """The bus id of an nvmlPciInfo_t; under a hypervisor it may hold bytes that are not text."""
    try:
        return bus_id(str(info.busId))
    except UnicodeDecodeError:
        return ""


def fabric(info: Any) -> Fabric:
    """From any version of nvmlGpuFabricInfo."""
    old = Unavailable("not in this driver's version of the call")
    raw = bytes(info.clusterUuid).hex()
    return Fabric(
        state=info.state,
        status=info.status,
        cluster_uuid="-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:])),
        clique=info.cliqueId,
        health_mask=getattr(info, "healthMask", old),
        health_summary=getattr(info, "healthSummary", old),
    )


def ranges(mask: list[int], *, bits: int = 64) -> str:
    """A bit mask in mask, lowest first, in the notation of CPU sets: `0-19,40-59`; empty without a bit."""
    numbers = [w * bits + b for w, word in enumerate(mask) for b in range(bits) if word >> b & 1]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def address(handle: Any) -> int:
    """The identity of a handle: the binding makes a new object for each answer."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


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
"""FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED: the older call is tried."""

TRANSIENT = frozenset({10, 19, 27, 999})
"""TIMEOUT, IN_USE, NOT_READY, UNKNOWN: retried before they count."""

LIBRARY = {
    12: ProblemKind.LIBRARY_NOT_FOUND,
    9: ProblemKind.DRIVER_NOT_LOADED,
    18: ProblemKind.DRIVER_MISMATCH,
    NO_PERMISSION: ProblemKind.NO_PERMISSION,
}
"""Errors after which nothing on this node can be read."""

GPU_FAULTS = {
    8: ProblemKind.INSUFFICIENT_POWER,
    11: ProblemKind.IRQ_ISSUE,
    14: ProblemKind.CORRUPTED_INFOROM,
    GPU_IS_LOST: ProblemKind.GPU_LOST,
    RESET_REQUIRED: ProblemKind.RESET_REQUIRED,
}
"""Errors of the GPU itself, whatever the call."""

FATAL = frozenset({GPU_IS_LOST, RESET_REQUIRED})
"""A GPU in these states answers no further call: more calls would only cost time."""

_REMEDIES = {
    ProblemKind.LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found. On a machine: install the NVIDIA driver. In a container: run it"
        " with the NVIDIA runtime (runtimeClassName: nvidia, NVIDIA_VISIBLE_DEVICES=all and"
        " NVIDIA_DRIVER_CAPABILITIES=utility), which mounts the library"
    ),
    ProblemKind.DRIVER_NOT_LOADED: (
        "the NVIDIA kernel module does not answer. Check lsmod and dmesg on the node; in a container, also"
        " check that NVIDIA_VISIBLE_DEVICES=all is set and /dev/nvidiactl exists"
    ),
    ProblemKind.DRIVER_MISMATCH: (
        "the driver was upgraded while its old kernel module was loaded, so library and module have different"
        " versions. Reload the nvidia modules or reboot the node"
    ),
    ProblemKind.NO_PERMISSION: "the driver refuses this user. Check the permissions of /dev/nvidiactl",
}

_NO_LIBRARY = {
    Access.CLAIM: (
        "libnvidia-ml.so.1 was not found. The pod's claim brings it in: check the DRA driver's kubelet"
        " plugin, its CDI specification, and CDI in the container runtime"
    ),
    Access.HOST: (
        "libnvidia-ml.so.1 is not in LD_LIBRARY_PATH, where a folder of the node is mounted: by the chart's"
        " hostDriver.folder, or by the device plugin for pods with GPUs"
    ),
}
"""The remedy for LIBRARY_NOT_FOUND where no container runtime adds the library."""


class NvmlUnusable(Exception):
    """NVML cannot be used on this node at all; `problem` says why, with the remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Refused(Exception):
    """NVML refused a call.  `code` is its return value, None if the binding refused."""

    def __init__(self, call: str, code: int | None, reason: str = "") -> None:
        self.reason = reason or name_of(code or 0)
        super().__init__(self.reason)
        self.call, self.code = call, code


def name_of(code: int) -> str:
    """NVML's name of a return value, as in the header."""
    return NAMES.get(code, f"NVML return {code}")


def unusable(refused: Refused, *, access: str = Access.RUNTIME) -> Problem:
    """Why nothing on this node can be read, with the remedy.  `access`: an `Access`; another one counts as
    `RUNTIME`."""
    kind = LIBRARY.get(refused.code or 0, ProblemKind.NVML_ERROR)
    remedy = _REMEDIES.get(kind, "")
    if kind is ProblemKind.LIBRARY_NOT_FOUND:
        remedy = next((text for way, text in _NO_LIBRARY.items() if way == access), remedy)
    text = f"{refused.reason}: {remedy}" if remedy else refused.reason
    return Problem(kind=kind, call=refused.call, code=refused.code, message=text)


def gpu_fault(refused: Refused) -> Problem | None:
    """The fault of the GPU itself that an error reports, if any."""
    kind = GPU_FAULTS.get(refused.code or 0)
    return None if kind is None else _problem(kind, refused)


def without_handle(refused: Refused) -> Problem:
    """Why a GPU that NVML counts cannot be opened."""
    kinds = {**GPU_FAULTS, NO_PERMISSION: ProblemKind.NO_PERMISSION}
    return _problem(kinds.get(refused.code or 0, ProblemKind.NVML_ERROR), refused)


def _problem(kind: ProblemKind, refused: Refused) -> Problem:
    return Problem(kind=kind, call=refused.call, code=refused.code, message=refused.reason)
