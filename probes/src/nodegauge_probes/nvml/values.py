"""From NVML's raw answers to the contract's values: pure functions over the binding's objects.

NVML reports "no value" in several ways: a status in each field value, all bits set, an empty bus id, bytes
that are not text.  Each of them becomes `Unavailable` with a reason here.
"""

from __future__ import annotations

import ctypes
from typing import Any

from nodegauge_contract import Fabric, Unavailable
from nodegauge_probes.nvml.errors import SUCCESS, name_of

ULL = 3
"""NVML_VALUE_TYPE_UNSIGNED_LONG_LONG."""

_MEMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", ULL: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t to the member of nvmlValue_t that holds the value."""

_ALL_ONES = frozenset({2**32 - 1, 2**64 - 1})
_INT64_MAX = 2**63 - 1


def whole(value: int) -> int | Unavailable:
    """A whole number of the contract; all bits set is NVML_VALUE_NOT_AVAILABLE in 32 or 64 bits."""
    if value in _ALL_ONES:
        return Unavailable("NVML_VALUE_NOT_AVAILABLE")
    return value if value <= _INT64_MAX else Unavailable(f"out of range: {value}")


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
