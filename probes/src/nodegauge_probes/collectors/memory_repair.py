"""Memory errors, what the driver did about them, and what it wants done: the marks that outlast an event.

A probe that runs for seconds misses nearly every Xid, but not what an Xid leaves behind: uncorrectable
errors, rows and pages waiting for a reset, the recovery action.  One call or field for each; older boards
have pages where newer ones have rows, so one half of `Repair` is always a reason.  Nothing is compared here.
"""

from __future__ import annotations

from nodegauge_contract import Int, Unavailable
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuDraft

CORRECTED, UNCORRECTED = 0, 1
"""NVML_MEMORY_ERROR_TYPE_*."""
VOLATILE, AGGREGATE = 0, 1
"""NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC."""
FI_RECOVERY_ACTION = 230

_ECC = {
    "volatile_uncorrected": (UNCORRECTED, VOLATILE),
    "volatile_corrected": (CORRECTED, VOLATILE),
    "aggregate_uncorrected": (UNCORRECTED, AGGREGATE),
    "aggregate_corrected": (CORRECTED, AGGREGATE),
}
_ROWS = ("rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed")
"""In the order of nvmlDeviceGetRemappedRows."""
_PAGES = {"pages_single_bit": 0, "pages_double_bit": 1}
"""NVML_PAGE_RETIREMENT_CAUSE_*."""


def repair(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """What is waiting for a reset, a reboot or a technician."""
    gpu.repair["action"] = nvml.whole_field(device, FI_RECOVERY_ACTION)
    _spread(gpu, _ROWS, nvml.value(device, "nvmlDeviceGetRemappedRows"))
    gpu.repair["pages_pending"] = nvml.integer(device, "nvmlDeviceGetRetiredPagesPendingStatus")
    for field, cause in _PAGES.items():
        # Not the call's version 2: pynvml counts the pages by a call that lacks an argument.
        gpu.repair[field] = nvml.integer(device, "nvmlDeviceGetRetiredPages", cause, pick=len)
    gpu.repair["unrepairable"] = nvml.integer(device, "nvmlDeviceGetUnrepairableMemoryFlag_v1")
    _spread(gpu, ("channels_pending", "tpcs_pending"), nvml.value(device, "nvmlDeviceGetRepairStatus"))


def ecc(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """Error counts; where ECC is off they are refused, and the mode says why."""
    gpu.ecc["mode"] = nvml.integer(device, "nvmlDeviceGetCurrentEccMode")
    for field, (kind, since) in _ECC.items():
        gpu.ecc[field] = nvml.integer(device, "nvmlDeviceGetTotalEccErrors", kind, since)
    gpu.ecc["sram_threshold"] = nvml.sram_threshold(device)


def _spread(gpu: GpuDraft, names: tuple[str, ...], answer: tuple[int, ...] | Unavailable) -> None:
    values: tuple[Int, ...] = (answer,) * len(names) if isinstance(answer, Unavailable) else tuple(answer)
    gpu.repair.update(zip(names, values, strict=True))
