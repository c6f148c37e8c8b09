"""Xid events of the sampling window: the driver tells of errors that happen while somebody has asked it to.

Only what happens between `register` and the end counts, and that is three seconds of every quarter of an
hour: see probes/README.md.  Events are taken from the driver's queue between samples, without waiting for
any; the driver keeps them until then.  Codes are kept, distinct and in order, and not explained.
"""

from __future__ import annotations

from nodegauge_contract import Unavailable
from nodegauge_contract.gpu import MAX_XIDS
from nodegauge_probes.nvml import errors
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuDraft

XID_CRITICAL_ERROR = 0x8
"""nvmlEventTypeXidCriticalError."""

LOST = Unavailable(errors.name_of(errors.GPU_IS_LOST))

MOST_AT_ONCE = 64
"""A GPU that throws errors without end must not keep the probe from sampling."""


def register(nvml: Nvml, gpus: list[tuple[Device, GpuDraft]]) -> None:
    """Ask the driver to tell of Xids of these GPUs from now on."""
    for device, gpu in gpus:
        gpu.xids["registered"] = nvml.listen(device, XID_CRITICAL_ERROR)


def collect(nvml: Nvml, gpus: list[tuple[Device, GpuDraft]]) -> None:
    """Take what the driver has to tell, and write it down at once."""
    for _ in range(MOST_AT_ONCE):
        event = nvml.event()
        if event is None:
            return
        if event == LOST:
            # A set answers this for all its GPUs: the others get one of their own.
            nvml.stop_listening()
            register(nvml, gpus)
            return
        if isinstance(event, Unavailable):
            for _, gpu in gpus:
                gpu.xids["registered"] = event
            return
        device, kind, code = event
        if kind & XID_CRITICAL_ERROR:
            for known, gpu in gpus:
                if known is device:
                    _note(gpu, code)


def _note(gpu: GpuDraft, code: int) -> None:
    seen = gpu.xids.get("seen", [])
    if code not in seen and len(seen) < MAX_XIDS:
        gpu.xids["seen"] = [*seen, code]
