"""The sampling window: values that change quickly, read a few times a second for a few seconds.

One sample says little (a clocks event may last milliseconds), so the bits are counted with their longest run,
and utilisation, temperatures, power, SM clock and P-state keep their smallest, median and largest value.  An
idle PCIe link slows down, so its generation and width are those of the busiest sample.  The window is written
after every sample: a run that is ended in the middle keeps its samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from nodegauge_contract import NOT_READ, Int, ReasonSeen, Span, Unavailable, Window
from nodegauge_probes.collectors.telemetry import CLOCK_SM, gpu_temperature, memory_temperature
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder

SLOWDOWN = {0x8: "HW slowdown", 0x20: "SW thermal", 0x40: "HW thermal", 0x80: "power brake"}
"""Clocks event reasons that a rule looks at (nvml.h, nvmlClocksEventReason*)."""


class Sample(Struct, frozen=True, kw_only=True):
    """One GPU at one moment."""

    reasons: Int
    """Clocks event reasons, as bits (nvml.h, nvmlClocksEventReason*)."""
    utilization: Int
    """NVML's per cent of time in which a kernel ran."""
    temperature: Int
    """Of the GPU, °C."""
    power_mw: Int
    """Draw, mW (nvmlDeviceGetPowerUsage)."""
    sm_mhz: Int
    """SM clock, MHz."""
    pstate: Int
    """Performance state, 0 (fastest) to 15."""
    memory_temperature: Int
    """Of the memory, °C, on boards with a sensor there."""
    generation: Int
    """PCIe generation in use."""
    width: Int
    """PCIe lanes in use."""


def supported_reasons(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """The reasons that this driver can report."""
    older = (("nvmlDeviceGetSupportedClocksThrottleReasons",),)
    call = "nvmlDeviceGetSupportedClocksEventReasons"
    gpu.events.set(supported=nvml.integer(device, call, fallbacks=older))


def sample(nvml: Nvml, device: Device) -> Sample:
    older = (("nvmlDeviceGetCurrentClocksThrottleReasons",),)
    return Sample(
        reasons=nvml.integer(device, "nvmlDeviceGetCurrentClocksEventReasons", fallbacks=older),
        utilization=nvml.integer(device, "nvmlDeviceGetUtilizationRates", pick=lambda rates: rates.gpu),
        temperature=gpu_temperature(nvml, device),
        power_mw=nvml.integer(device, "nvmlDeviceGetPowerUsage"),
        sm_mhz=nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_SM),
        pstate=nvml.integer(device, "nvmlDeviceGetPerformanceState"),
        memory_temperature=memory_temperature(nvml, device),
        generation=nvml.integer(device, "nvmlDeviceGetCurrPcieLinkGeneration"),
        width=nvml.integer(device, "nvmlDeviceGetCurrPcieLinkWidth"),
    )


def watch(
    nvml: Nvml,
    gpus: list[tuple[Device, GpuBuilder]],
    *,
    seconds: float,
    hz: float,
    slowed_seconds: float = 0.0,
    between: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Sample every GPU `hz` times a second for `seconds`, including both ends of the window; at least once.

    `slowed_seconds`: how long it goes on while a GPU is slowed down, if that is longer.  `between` is called
    after every round of samples.
    """
    samples_of: list[list[Sample]] = [[] for _ in gpus]
    start = clock()
    while True:
        for samples, (device, gpu) in zip(samples_of, gpus, strict=True):
            samples.append(sample(nvml, device))
            fill(gpu, samples, seconds=clock() - start)
        between()
        elapsed = clock() - start
        due = (int(elapsed * hz) + 1) / hz
        slowed = any(_is_slowed(samples[-1]) for samples in samples_of)
        if due > (max(seconds, slowed_seconds) if slowed else seconds) + 0.5 / hz:
            return
        sleep(max(0.0, due - elapsed))


def _is_slowed(last: Sample) -> bool:
    return isinstance(last.reasons, int) and bool(last.reasons & sum(SLOWDOWN))


def fill(gpu: GpuBuilder, samples: list[Sample], *, seconds: float) -> None:
    """Write the summary of the samples so far."""
    masks = [each.reasons for each in samples]
    readable = sum(isinstance(mask, int) for mask in masks)
    refusal = next((mask for mask in masks if isinstance(mask, Unavailable)), NOT_READ)
    gpu.events.set(read=readable or refusal, seen=reasons_seen(masks))
    busiest = busiest_sample(samples)
    gpu.pcie.set(generation=busiest.generation, width=busiest.width, utilization=busiest.utilization)
    gpu.window = Window(
        seconds=round(seconds, 3),
        samples=len(samples),
        utilization=span([each.utilization for each in samples]),
        temperature=span([each.temperature for each in samples]),
        power_mw=span([each.power_mw for each in samples]),
        sm_mhz=span([each.sm_mhz for each in samples]),
        pstate=span([each.pstate for each in samples]),
        memory_temperature=span([each.memory_temperature for each in samples]),
    )


def busiest_sample(samples: list[Sample]) -> Sample:
    """The sample with the highest utilisation; among equals, the one with the fastest PCIe link."""

    def known(value: Int) -> int:
        return -1 if isinstance(value, Unavailable) else value

    return max(samples, key=lambda each: (known(each.utilization), known(each.generation), known(each.width)))


def reasons_seen(masks: list[Int]) -> list[ReasonSeen]:
    """Per bit: samples in which it was set, and the longest run of them; an unreadable sample ends a run."""
    reasons = []
    for bit in sorted(
        {1 << n for mask in masks if isinstance(mask, int) for n in range(63) if mask >> n & 1}
    ):
        total = longest = run = 0
        for mask in masks:
            run = run + 1 if isinstance(mask, int) and mask & bit else 0
            total += run > 0
            longest = max(longest, run)
        reasons.append(ReasonSeen(bit=bit, samples=total, longest=longest))
    return reasons


def span(values: list[Int]) -> Span | None:
    """Smallest, median and largest; None if nothing could be read."""
    numbers = sorted(value for value in values if not isinstance(value, Unavailable))
    if not numbers:
        return None
    middle = len(numbers) // 2
    low, high = numbers[middle if len(numbers) % 2 else middle - 1], numbers[middle]
    median = (low + high) / 2
    return Span(min=numbers[0], median=int(median) if median == int(median) else median, max=numbers[-1])
