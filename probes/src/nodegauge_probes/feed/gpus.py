"""What each GPU did over a window: samples of NVML every other second, counters at both ends.

Called by the thread that calls the driver, between its looks.  NVML's PCIe throughput blocks for 20 ms
(nvml.h, nvmlDeviceGetPcieThroughput), so each look asks one GPU for it, in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from nodegauge_contract import NOT_READ, FeedGpu, Int, Num, Unavailable
from nodegauge_probes.collectors.sampling import SLOWDOWN
from nodegauge_probes.collectors.telemetry import CLOCK_SM, energy
from nodegauge_probes.feed.files import rate, rounded
from nodegauge_probes.host import pci
from nodegauge_probes.nvml.library import Device, Nvml

IDLE, FULL = 1, 95
"""% of utilisation, at most and at least."""
HIGH, LOW = 50, 20
"""% of utilisation between which a swing goes."""
TRANSMITTED, RECEIVED = 0, 1
"""NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES; NVML answers in KB/s."""
LANE_MBPS = {1: 250.0, 2: 500.0, 3: 984.6, 4: 1969.2, 5: 3938.5, 6: 7562.5}
"""MB/s of one lane one way, after the line code (PCI-SIG: 8b/10b, 128b/130b from the third generation on,
flits of 242 in 256 from the sixth)."""
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"


class Samples(Struct, kw_only=True):
    """Of one GPU since the window began."""

    energy_mj: Int = NOT_READ
    """Counter at the beginning."""
    utilization: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    power_mw: list[int] = field(default_factory=list)
    sm_mhz: list[int] = field(default_factory=list)
    slowed: list[bool] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    transmitted: list[int] = field(default_factory=list)
    refusals: dict[str, Unavailable] = field(default_factory=dict)
    """The last reason for each list that lacks a value."""

    def take(self, name: str, value: Int) -> None:
        """One value into its list, or the reason why there is none."""
        if isinstance(value, Unavailable):
            self.refusals[name] = value
        else:
            getattr(self, name).append(value)

    def mean(self, name: str) -> Num:
        """Of a list, or why it is empty."""
        return _mean(getattr(self, name), otherwise=self.refusals.get(name, NOT_READ))


class GpuWindow:
    """Samples of all GPUs since the window began."""

    def __init__(self) -> None:
        self._samples: dict[int, Samples] = {}
        self._looks = 0

    def look(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        """One sample of each GPU."""
        for device in devices:
            if device.index not in self._samples:
                self._samples[device.index] = Samples(energy_mj=energy(nvml, device))
            _sample(nvml, device, self._samples[device.index])
        if devices:
            device = devices[self._looks % len(devices)]
            self._looks += 1
            call, own = "nvmlDeviceGetPcieThroughput", self._samples[device.index]
            own.take("received", nvml.integer(device, call, RECEIVED))
            own.take("transmitted", nvml.integer(device, call, TRANSMITTED))

    def close(self, nvml: Nvml, devices: Sequence[Device], *, seconds: float, sysfs: Path) -> list[FeedGpu]:
        """What each GPU did; begins the next window."""
        gpus = [
            _gpu(nvml, device, self._samples[device.index], seconds=seconds, sysfs=sysfs)
            for device in devices
            if device.index in self._samples
        ]
        self._samples = {}
        return gpus


def _sample(nvml: Nvml, device: Device, out: Samples) -> None:
    rates = nvml.value(device, "nvmlDeviceGetUtilizationRates", pick=lambda rates: (rates.gpu, rates.memory))
    gpu, memory = (rates, rates) if isinstance(rates, Unavailable) else rates
    older = (("nvmlDeviceGetCurrentClocksThrottleReasons",),)
    reasons = nvml.integer(device, "nvmlDeviceGetCurrentClocksEventReasons", fallbacks=older)
    out.take("utilization", gpu)
    out.take("memory", memory)
    out.take("sm_mhz", nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_SM))
    slows = sum(SLOWDOWN)
    out.take("slowed", reasons if isinstance(reasons, Unavailable) else bool(reasons & slows))
    if isinstance(out.energy_mj, Unavailable):  # older than Volta
        out.take("power_mw", nvml.integer(device, "nvmlDeviceGetPowerUsage"))


def _gpu(nvml: Nvml, device: Device, own: Samples, *, seconds: float, sysfs: Path) -> FeedGpu:
    used, reason = own.utilization, own.refusals.get("utilization", NOT_READ)
    mean_power = rate(own.energy_mj, energy(nvml, device), seconds=seconds)
    processes, *older = PROCESSES
    location = pci.locate_gpu(sysfs, nvml.pci(device))
    return FeedGpu(
        index=device.index,
        samples=len(used),
        utilization=own.mean("utilization"),
        idle_share=_share(used, lambda value: value <= IDLE, reason),
        full_share=_share(used, lambda value: value >= FULL, reason),
        swings=swings(used) if used else reason,
        memory_utilization=own.mean("memory"),
        memory_used_mib=nvml.memory_mib(device, what="used"),
        power_mw=own.mean("power_mw") if isinstance(own.energy_mj, Unavailable) else mean_power,
        limit_mw=nvml.integer(device, "nvmlDeviceGetEnforcedPowerLimit"),
        sm_mhz=own.mean("sm_mhz"),
        slowed_share=own.mean("slowed"),
        pcie_rx_mbps=_megabytes(own.mean("received")),
        pcie_tx_mbps=_megabytes(own.mean("transmitted")),
        pcie_rx_max_mbps=_megabytes(max(own.received, default=own.refusals.get("received", NOT_READ))),
        pcie_link_mbps=_link(nvml, device),
        processes=nvml.integer(device, processes, fallbacks=[(call,) for call in older], pick=len),
        numa=pci.numa_node(location),
    )


def _link(nvml: Nvml, device: Device) -> Num:
    """MB/s one way; an idle link slows down in generation, not in width."""
    generation = nvml.integer(device, "nvmlDeviceGetMaxPcieLinkGeneration")
    width = nvml.integer(device, "nvmlDeviceGetCurrPcieLinkWidth")
    if isinstance(generation, Unavailable):
        return generation
    if isinstance(width, Unavailable):
        return width
    lane = LANE_MBPS.get(generation)
    return rounded(lane * width) if lane and width else Unavailable(f"PCIe generation {generation} x{width}")


def _mean(values: Sequence[float], *, otherwise: Unavailable) -> Num:
    return rounded(sum(values) / len(values)) if values else otherwise


def _share(values: Sequence[int], counts: Callable[[int], bool], reason: Unavailable) -> Num:
    return rounded(sum(map(counts, values)) / len(values)) if values else reason


def swings(values: Iterable[int]) -> int:
    """How often the utilisation went from above `HIGH` to below `LOW`, or back."""
    count, above = 0, None
    for value in values:
        side = True if value > HIGH else False if value < LOW else above
        count += above is not None and side != above
        above = side
    return count


def _megabytes(kilobytes: Num) -> Num:
    return kilobytes if isinstance(kilobytes, Unavailable) else rounded(kilobytes / 1000)
