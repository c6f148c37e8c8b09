"""The health probe: inventory, topology, condition and counters of every GPU, without holding one.

The order is the order of worth: should a later call hang, what was read before it is still there.  So first
who is there and how they hang together (labels come from that), then what is broken for good, the counters
for the first time, the condition, error counters, the sampling window with its Xid events, and last the
counters again with the clock that they are compared against.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from msgspec import Struct

from nodegauge_contract.values import NOT_READ
from nodegauge_probes.collectors import (
    error_counters,
    inventory,
    memory_repair,
    sampling,
    telemetry,
    throttle_counters,
    topology,
    xids,
)
from nodegauge_probes.host import boot, sysfs
from nodegauge_probes.host.background import Aside
from nodegauge_probes.nvml.device import Watch
from nodegauge_probes.nvml.library import Nvml
from nodegauge_probes.result_builder import Draft
from nodegauge_probes.session import Gpus, opened, unless_ill

NAME = "health"


class Settings(Struct, frozen=True, kw_only=True):
    """Where to read, and how long to watch."""

    sysfs: Path
    procfs: Path
    window: float
    hz: float


def measure(draft: Draft, *, watch: Watch, settings: Settings) -> None:
    """Read everything into `draft`; raises `NvmlUnusable` where NVML cannot be used at all."""
    with opened(draft, watch=watch, sysfs=settings.sysfs, procfs=settings.procfs) as (nvml, gpus):
        _measure(draft, nvml, gpus, settings)


def _measure(draft: Draft, nvml: Nvml, gpus: Gpus, settings: Settings) -> None:
    for device, gpu in gpus:
        gpu.problem = device.problem
        unless_ill(nvml, device, gpu, read=inventory.identity)
    topology.pairs(nvml, [device for device, _ in gpus], draft)
    for device, gpu in gpus:
        for read in (topology.links, topology.fabric, inventory.surroundings):
            unless_ill(nvml, device, gpu, read=read)
    _places(draft, settings.sysfs)
    aside = Aside(draft, sysfs=settings.sysfs)
    aside.start()
    for device, gpu in gpus:
        for read in CONDITION:
            unless_ill(nvml, device, gpu, read=read)
    _watch(draft, nvml, gpus, settings)
    aside.finish()


CONDITION = (
    memory_repair.repair,
    memory_repair.ecc,
    telemetry.temperature,
    telemetry.power,
    telemetry.clocks,
    telemetry.fans,
    sampling.supported_reasons,
    error_counters.pcie_errors,
    error_counters.link_errors,
)


def _watch(draft: Draft, nvml: Nvml, gpus: Gpus, settings: Settings) -> None:
    """The window between two readings of the counters, with an ear open for Xids."""
    before = _count(draft, nvml, gpus)
    xids.register(nvml, _answering(gpus))
    collect = partial(xids.collect, nvml, gpus)
    sampling.watch(nvml, _answering(gpus), seconds=settings.window, hz=settings.hz, between=collect)
    after = _count(draft, nvml, gpus)
    for index in before.keys() & after.keys():
        draft.gpus[index].growth.update(throttle_counters.growth(before[index], after[index]))
    collect()


def _count(draft: Draft, nvml: Nvml, gpus: Gpus) -> dict[int, throttle_counters.Mark]:
    """Counters and energy, beside the clock that their growth is divided by, by place."""
    draft.host["boottime_ms"] = boot.boottime_ms()
    driver = draft.system.get("driver", NOT_READ)
    marks = {}
    for place, (device, gpu) in enumerate(gpus):
        if device.gone is None:
            marks[place] = throttle_counters.mark(nvml, device, gpu, driver=driver)
        gpu.problem = device.problem
    return marks


def _places(draft: Draft, root: Path) -> None:
    places = [sysfs.gpu_place(root, gpu.own.get("pci", NOT_READ)) for gpu in draft.gpus]
    for gpu, place in zip(draft.gpus, places, strict=True):
        gpu.own["numa_node"] = sysfs.numa_node(place)
        topology.name_far_ends(gpu, root)
    draft.nics = sysfs.nics(root, places)


def _answering(gpus: Gpus) -> Gpus:
    return [(device, gpu) for device, gpu in gpus if device.gone is None]
