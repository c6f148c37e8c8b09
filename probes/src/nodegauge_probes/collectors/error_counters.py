"""Errors and repairs: memory, PCIe link, NVLinks, and the Xid events of the sampling window.

Counters only grow: what counts is their growth between two runs.  NVLink counters are summed over the active
links, because a message is too small for eighteen links with eight counters each.

A probe that runs for seconds misses nearly every Xid, but not its marks: uncorrectable errors, rows and pages
that wait for a reset, the recovery action.  Older boards retire pages where newer ones remap rows, so one
half of `Repair` is always unavailable.  Only Xids between `register_xids` and the end of the window count
(three seconds of every quarter of an hour, see probes/README.md).  Nothing is compared or explained here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodegauge_contract import Int, LinkErrors, Unavailable
from nodegauge_contract.gpu import MAX_XIDS
from nodegauge_probes.nvml import errors
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder

CORRECTED, UNCORRECTED = 0, 1
"""NVML_MEMORY_ERROR_TYPE_*."""
VOLATILE, AGGREGATE = 0, 1
"""NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC."""
SINGLE_BIT, DOUBLE_BIT = 0, 1
"""NVML_PAGE_RETIREMENT_CAUSE_*."""
FI_RECOVERY_ACTION = 230

FI_REPLAY_ROLLOVERS, FI_CORRECTABLE, FI_RECOVERIES = 95, 173, 169
"""NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, _COUNT_CORRECTABLE_ERRORS, _L0_TO_RECOVERY_COUNTER."""

DL_REPLAY, DL_RECOVERY, DL_CRC_FLIT, DL_CRC_DATA, DL_ECC = range(5)
"""NVML_NVLINK_ERROR_DL_*: links up to NVLink 4."""
FI_RECOVERY_FAILED, FI_EFFECTIVE, FI_SYMBOL = 214, 219, 221
"""NVML_FI_DEV_NVLINK_COUNT_*: NVLink 5."""
ACTIVE = 1
NO_LINK = Unavailable("no active NVLink")

XID_CRITICAL_ERROR = 0x8
"""nvmlEventTypeXidCriticalError."""
LOST = Unavailable(errors.name_of(errors.GPU_IS_LOST))
MAX_EVENTS = 64
"""A GPU with an endless stream of errors must not keep the probe from sampling."""


def repair(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Repairs that are done or wait for a reset, a reboot or a technician."""
    out = gpu.repair
    out.set(action=nvml.whole_field(device, FI_RECOVERY_ACTION))
    rows = _members(nvml.value(device, "nvmlDeviceGetRemappedRows"), count=4)
    out.set(rows_corrected=rows[0], rows_uncorrected=rows[1], rows_pending=rows[2], rows_failed=rows[3])
    out.set(pages_pending=nvml.integer(device, "nvmlDeviceGetRetiredPagesPendingStatus"))
    # Not the call's version 2: pynvml counts the pages with a call that lacks an argument.
    out.set(pages_single_bit=nvml.integer(device, "nvmlDeviceGetRetiredPages", SINGLE_BIT, pick=len))
    out.set(pages_double_bit=nvml.integer(device, "nvmlDeviceGetRetiredPages", DOUBLE_BIT, pick=len))
    out.set(unrepairable=nvml.integer(device, "nvmlDeviceGetUnrepairableMemoryFlag_v1"))
    channels, tpcs = _members(nvml.value(device, "nvmlDeviceGetRepairStatus"), count=2)
    out.set(channels_pending=channels, tpcs_pending=tpcs)


def _members(answer: Any, *, count: int) -> list[Int]:
    """The numbers of an answer, or its refusal for each of them."""
    values = [answer] * count if isinstance(answer, Unavailable) else list(answer)
    assert len(values) == count
    return values


def ecc(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Error counts; if ECC is off the driver refuses them, and the mode shows why."""

    def errors_of(kind: int, period: int) -> Int:
        return nvml.integer(device, "nvmlDeviceGetTotalEccErrors", kind, period)

    gpu.ecc.set(mode=nvml.integer(device, "nvmlDeviceGetCurrentEccMode"))
    gpu.ecc.set(volatile_uncorrected=errors_of(UNCORRECTED, VOLATILE))
    gpu.ecc.set(volatile_corrected=errors_of(CORRECTED, VOLATILE))
    gpu.ecc.set(aggregate_uncorrected=errors_of(UNCORRECTED, AGGREGATE))
    gpu.ecc.set(aggregate_corrected=errors_of(CORRECTED, AGGREGATE))
    gpu.ecc.set(sram_threshold=nvml.sram_threshold(device))


def pcie_errors(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    gpu.pcie.set(replays=nvml.integer(device, "nvmlDeviceGetPcieReplayCounter"))
    gpu.pcie.set(replay_rollovers=nvml.whole_field(device, FI_REPLAY_ROLLOVERS))
    gpu.pcie.set(correctable=nvml.whole_field(device, FI_CORRECTABLE))
    gpu.pcie.set(recoveries=nvml.whole_field(device, FI_RECOVERIES))


def link_errors(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Sums over the active links; a counter that one of them does not report is unavailable."""
    active = [link for group in gpu.links if group.state == ACTIVE for link in group.links]
    if not active:
        gpu.link_errors.value = LinkErrors(**dict.fromkeys(LinkErrors.__struct_fields__, NO_LINK))
        return

    def counter(number: int) -> Int:
        return _sum(nvml.integer(device, "nvmlDeviceGetNvLinkErrorCounter", link, number) for link in active)

    def field(number: int) -> Int:
        return _sum(nvml.whole_field(device, (number, link)) for link in active)

    gpu.link_errors.set(replay=counter(DL_REPLAY))
    gpu.link_errors.set(recovery=counter(DL_RECOVERY))
    gpu.link_errors.set(crc_flit=counter(DL_CRC_FLIT))
    gpu.link_errors.set(crc_data=counter(DL_CRC_DATA))
    gpu.link_errors.set(ecc=counter(DL_ECC))
    gpu.link_errors.set(recovery_failed=field(FI_RECOVERY_FAILED))
    gpu.link_errors.set(effective=field(FI_EFFECTIVE))
    gpu.link_errors.set(symbol=field(FI_SYMBOL))


def _sum(counts: Iterator[Int]) -> Int:
    """The sum, or the first reason, after which no further link is read."""
    total = 0
    for count in counts:
        if isinstance(count, Unavailable):
            return count
        total += count
    return total


def register_xids(nvml: Nvml, gpus: list[tuple[Device, GpuBuilder]]) -> None:
    """Ask the driver to report Xids of these GPUs from now on."""
    for device, gpu in gpus:
        gpu.xids.set(registered=nvml.register_events(device, XID_CRITICAL_ERROR))


def collect_xids(nvml: Nvml, gpus: list[tuple[Device, GpuBuilder]]) -> None:
    """Record the Xids that the driver has queued, without waiting for more."""
    for _ in range(MAX_EVENTS):
        event = nvml.next_event()
        if event is None:
            return
        if event == LOST:
            # One lost GPU makes a set answer this for all its GPUs: the others get a new set.
            nvml.free_events()
            register_xids(nvml, gpus)
            return
        if isinstance(event, Unavailable):
            for _, gpu in gpus:
                gpu.xids.set(registered=event)
            return
        device, kind, code = event
        if kind & XID_CRITICAL_ERROR:
            for known, gpu in gpus:
                if known is device:
                    _add_xid(gpu, code)


def _add_xid(gpu: GpuBuilder, code: int) -> None:
    seen = gpu.xids.value.seen
    if code not in seen and len(seen) < MAX_XIDS:
        gpu.xids.set(seen=[*seen, code])
