"""The health probe: inventory, topology, condition and counters of every GPU, without allocating one.

The most valuable readings come first, because a later call may hang: first the GPUs and their interconnect
(for the labels), then permanent damage, the counters for the first time, the condition, error counters, the
sampling window with its Xid events, and last the counters again, with their clock.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import KernelLog
from nodegauge_probes import settings as run_settings
from nodegauge_probes.collectors import counters, sampling, telemetry
from nodegauge_probes.host import disks, hwmon, kernel, kernel_events, kernel_log, rdma
from nodegauge_probes.nvml.library import NOTHING, Nvml, Skip, Watch
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.session import Gpus, open_node, read, read_interconnect

NAME = "health"

CONDITION = (
    counters.repair,
    counters.ecc,
    telemetry.temperature,
    telemetry.power,
    telemetry.clocks,
    telemetry.fans,
    sampling.supported_reasons,
    counters.pcie_errors,
    counters.link_errors,
)

PORTS, DISKS, SENSORS = "nics.ports", "disks", "sensors"
BACKGROUND_WAIT_S = 0.5
"""How long the end of a run waits for ports and sensors that are still being read."""


class Settings(Struct, frozen=True, kw_only=True):
    """Where to read, and how long to sample (`window` in seconds, `hz` samples per second).

    `slowed_window`: the same while a GPU is slowed down, if that is longer."""

    sysfs: Path
    procfs: Path
    window: float
    hz: float
    slowed_window: float = 0.0
    kernel_log: Path | None = None
    """The kernel's log, if it is to be read; the watch probe follows it by itself."""


def settings_of(run: run_settings.Settings) -> Settings:
    """Those of one run, or of each reading of the watch container."""
    return Settings(
        sysfs=run.sysfs,
        procfs=run.procfs,
        window=run.window,
        hz=run.hz,
        slowed_window=run.slowed_window,
        kernel_log=run.kernel_log if run.probe == NAME else None,
    )


def measure(result: ResultBuilder, *, watch: Watch, settings: Settings, skip: Skip = NOTHING) -> None:
    """Read everything into `result`, but for what to `skip`; raises `NvmlUnusable` if NVML cannot be used."""
    try:
        _measure(result, watch=watch, settings=settings, skip=skip)
    finally:  # the log says why a driver does not load
        if settings.kernel_log is not None:
            result.kernel_log = _kernel_log(settings.kernel_log, result)


def _measure(result: ResultBuilder, *, watch: Watch, settings: Settings, skip: Skip) -> None:
    paths = {"sysfs": settings.sysfs, "procfs": settings.procfs}
    with open_node(result, watch=watch, skip=skip, **paths) as (nvml, gpus):
        locations = read_interconnect(result, nvml, gpus, sysfs=settings.sysfs)
        result.nics = rdma.nics(settings.sysfs, locations)
        background = _start_background(result, settings.sysfs)
        for device, gpu in gpus:
            for collect in CONDITION:
                read(nvml, device, gpu, collect=collect)
        _sample(result, nvml, gpus, settings)
        background.join(BACKGROUND_WAIT_S)


def _kernel_log(path: Path, result: ResultBuilder) -> KernelLog:
    """All of the log that there is room for, without the Xids that this run heard of."""
    known = kernel_events.Log(position=kernel_log.Position())
    log = kernel_log.KernelLog(path, known.position, clocks=kernel_log.clocks())
    unread, lines = kernel_log.look(log)
    log.close()
    heard = [
        kernel_events.HeardXid(gpu.identity.pci, code, count.first, count.last)
        for gpu in result.gpus
        for code, count in zip(gpu.xids.value.seen, gpu.xids.value.counts, strict=False)
        if isinstance(gpu.identity.pci, str)
    ]
    kernel_events.add(known, lines, heard=heard, now=kernel.boottime_ms() / 1000)
    return kernel_events.document(known, unread=unread)


def _start_background(result: ResultBuilder, sysfs: Path) -> threading.Thread:
    """Read network ports, disks and sensors in a thread, while the sampling window sleeps.

    A sensor on a slow bus takes milliseconds and a network card with dead firmware a minute: neither may
    delay the GPUs' readings.  A reading that hangs is abandoned, and `incomplete` names it.
    """

    def collect() -> None:
        rdma.ports(sysfs, list(result.nics.names), result.ports.append)
        result.incomplete = [DISKS, SENSORS]
        disks.disks(sysfs, result.disks.append)
        result.incomplete = [SENSORS]
        hwmon.sensors(sysfs, result.sensors.append)
        result.incomplete = []

    result.incomplete = [PORTS, DISKS, SENSORS]
    thread = threading.Thread(target=collect, daemon=True, name="background")
    thread.start()
    return thread


def _sample(result: ResultBuilder, nvml: Nvml, gpus: Gpus, settings: Settings) -> None:
    """The sampling window between two snapshots of the counters, while Xids are collected."""
    before = _snapshots(result, nvml, gpus)
    counters.register_xids(nvml, _not_lost(gpus))
    collect_xids = partial(counters.collect_xids, nvml, gpus)
    sampling.watch(
        nvml,
        _not_lost(gpus),
        seconds=settings.window,
        hz=settings.hz,
        slowed_seconds=settings.slowed_window,
        between=collect_xids,
    )
    after = _snapshots(result, nvml, gpus)
    for index in before.keys() & after.keys():
        result.gpus[index].growth = counters.growth(before[index], after[index])
    collect_xids()


def _snapshots(result: ResultBuilder, nvml: Nvml, gpus: Gpus) -> dict[int, counters.Snapshot]:
    """Counters and energy by index, with the clock for their growth."""
    result.host.set(boottime_ms=kernel.boottime_ms())
    driver = result.system.value.driver
    snapshots = {}
    for index, (device, gpu) in enumerate(gpus):
        if device.lost is None:
            snapshots[index] = counters.snapshot(nvml, device, gpu, driver=driver)
        gpu.error = device.fault
    return snapshots


def _not_lost(gpus: Gpus) -> Gpus:
    return [(device, gpu) for device, gpu in gpus if device.lost is None]
