"""NVML's view while the GPUs work: samples, the probe's own temperature stop, and other users of the GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import LoadEnd, Temperature, Unavailable
from nodegauge_probes.collectors.sampling import sample
from nodegauge_probes.collectors.telemetry import CLOCK_MEMORY
from nodegauge_probes.load.protocol import Phase
from nodegauge_probes.load.record import GpuRecord, Stop
from nodegauge_probes.load.statistics import Reading
from nodegauge_probes.nccl.precondition import IDLE_MIB, GpuUse, read_use
from nodegauge_probes.nvml.library import Device, Nvml

UNKNOWN_STOP_C = 84
"""°C where the vendor's limits cannot be read.  Source: throttling is likely from 84 to 90 °C (ml-engineering
of stas00, compute/accelerator; Hugging Face's perf_hardware)."""
USES_EVERY_S = 1.0
OURS = 1
"""Compute processes of the probe on each GPU."""


class Ended(Struct, frozen=True, kw_only=True):
    """Why the load has to end."""

    how: LoadEnd
    message: str


def stop_of(limits: Temperature, *, below: int) -> Stop:
    """So many degrees below the vendor's slowdown; from both families of limits, as far as they are readable.

    A margin that is used up while the GPU is idle is no margin (older boards and some H100 report such
    ones; gpud leaves them out), unless the temperature says so, too.
    """
    celsius = limits.slowdown - below if isinstance(limits.slowdown, int) else limits.slowdown
    memory = limits.memory_max - below if isinstance(limits.memory_max, int) else limits.memory_max
    margin = limits.margin
    if isinstance(margin, int):
        slowdown = limits.tlimit_slowdown if isinstance(limits.tlimit_slowdown, int) else 0
        margin = slowdown + below if margin > 0 else Unavailable("used up at idle")
    if not isinstance(celsius, int) and not isinstance(margin, int):
        celsius = UNKNOWN_STOP_C
    return Stop(celsius=celsius, margin=margin, memory_celsius=memory)


def too_hot(reading: Reading, stop: Stop) -> str:
    """What is at its stop; empty if nothing is."""
    now, memory = reading.sample.temperature, reading.sample.memory_temperature
    if isinstance(now, int) and isinstance(stop.celsius, int) and now >= stop.celsius:
        return f"at {now} °C, and the probe stops at {stop.celsius} °C"
    if isinstance(reading.margin, int) and isinstance(stop.margin, int) and reading.margin <= stop.margin:
        return f"{reading.margin} °C from its limit, and the probe stops at {stop.margin} °C"
    if isinstance(memory, int) and isinstance(stop.memory_celsius, int) and memory >= stop.memory_celsius:
        return f"memory at {memory} °C, and the probe stops at {stop.memory_celsius} °C"
    return ""


class Watcher:
    """Samples all GPUs of a run.  `burning_since`: when the load began (monotonic seconds), None before."""

    def __init__(self, nvml: Nvml, gpus: Sequence[tuple[Device, GpuRecord]]) -> None:
        self._nvml, self._gpus = nvml, gpus
        self._uses: list[GpuUse] = []
        self._uses_due = 0.0
        self.burning_since: float | None = None
        self.phase: Phase | None = None

    def sample(self) -> Ended | None:
        """One sample of every GPU; returns why the load has to end, if so."""
        ended: Ended | None = None
        for device, record in self._gpus:
            if device.lost is not None:
                record.end(LoadEnd.FAILED, device.fault.message if device.fault else "it does not answer")
                continue
            since = time.monotonic() if self.burning_since is None else self.burning_since
            reading = Reading(
                ms=round((time.monotonic() - since) * 1000),
                sample=sample(self._nvml, device),
                margin=self._nvml.integer(device, "nvmlDeviceGetMarginTemperature"),
                memory_mhz=self._nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            )
            if self.phase is None:
                record.idle.append(reading)
            elif self.phase is not Phase.BURN:
                record.copying.append(reading)
            elif not record.over:
                record.loaded.append(reading)
            if hot := too_hot(reading, record.stop):
                message = f"GPU {record.index} is {hot}"
                ended = ended or Ended(how=LoadEnd.TEMPERATURE, message=message)
        return ended

    def others(self) -> Ended | None:
        """Whether somebody else began to use a GPU since the load began; asked about once a second."""
        if self.phase is not Phase.BURN or time.monotonic() < self._uses_due:
            return None
        self._uses_due = time.monotonic() + USES_EVERY_S
        uses = [read_use(self._nvml, device) for device, _ in self._gpus]
        if not self._uses:
            self._uses = [replace(use, processes=OURS) for use in uses]
        for (_, record), before, now in zip(self._gpus, self._uses, uses, strict=True):
            if message := newcomer(before, now):
                return Ended(how=LoadEnd.GAVE_WAY, message=f"GPU {record.index}: {message}")
        return None


def newcomer(before: GpuUse, now: GpuUse) -> str:
    """What shows another user; empty for nothing.

    PID namespaces may hide the processes of other containers, so memory counts, too.
    """
    if (
        isinstance(before.processes, int)
        and isinstance(now.processes, int)
        and now.processes > before.processes
    ):
        return f"{now.processes - before.processes} compute processes that are not the probe's"
    if isinstance(before.used_mib, int) and isinstance(now.used_mib, int):
        more = now.used_mib - before.used_mib
        if more > IDLE_MIB:
            return f"{more} MiB more in use than when the load began"
    return ""
